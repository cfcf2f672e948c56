"""Newton's step lands where keys just fit, noise is averaged, drift is followed at once."""

import math

import numpy as np
import pytest

from protocol.mechanisms.iblt.threshold_control import (
    TableLoad,
    ThresholdController,
    first_controller,
)
from protocol.study_state import expected_devices


def power_law(t: float, slope: float, scale: float = 3000, devices: int = 1000) -> TableLoad:
    """Return the load of a round whose number of keys is proportional to t^-slope."""
    distinct = scale * (t * 1000 / devices) ** -slope
    return TableLoad(t, devices, distinct, round(slope * distinct))


@pytest.mark.parametrize("slope", [0.3, 0.6, 1.0])
@pytest.mark.parametrize("t", [2.0, 40.0])
def test_one_step_lands_on_the_goal_of_a_power_law(t: float, slope: float) -> None:
    pace = first_controller(power_law(t, slope))
    goal = 500 * math.exp(-0.5 * math.sqrt(pace.error_variance))
    assert power_law(pace.next_threshold(500, 1000), slope).distinct_keys == pytest.approx(
        goal, rel=0.01
    )


def test_the_forecast_number_of_keys_changes_only_the_margin() -> None:
    pace = first_controller(power_law(8, 0.6))
    for _ in range(30):
        pace = pace.updated(power_law(pace.next_threshold(400, 1000), 0.6), 1000)
    assert power_law(pace.next_threshold(400, 1000), 0.6).distinct_keys == pytest.approx(
        400, rel=0.02
    )
    assert pace.error_variance < 1e-4


def test_half_of_an_error_is_believed_and_all_of_a_drift() -> None:
    pace = first_controller(power_law(8, 0.6))
    seen = power_law(8, 0.6)
    noisy = TableLoad(8, 1000, seen.distinct_keys * 1.1, seen.singletons)
    assert pace.updated(noisy, 1000).log_keys - pace.log_keys == pytest.approx(math.log(1.1) / 2)
    drifted = TableLoad(8, 1000, seen.distinct_keys * 2, seen.singletons)
    assert pace.updated(drifted, 1000).log_keys - pace.log_keys == pytest.approx(math.log(2))
    assert pace.updated(drifted, 1000).error_variance == pace.error_variance
    stuck = TableLoad(8, 1000, seen.distinct_keys * 1.1, None)
    assert pace.updated(stuck, 1000).log_keys - pace.log_keys == pytest.approx(math.log(1.1))
    assert pace.updated(stuck, 1000).slope == pace.slope


def test_half_as_many_devices_count_like_twice_the_threshold() -> None:
    whole = first_controller(power_law(8, 0.6)).updated(power_law(8, 0.6), 1000)
    half = first_controller(power_law(8, 0.6)).updated(power_law(8, 0.6, devices=500), 500)
    assert half.log_keys - whole.log_keys == pytest.approx(-0.6 * math.log(2), rel=1e-3)
    assert half.log_t - whole.log_t == pytest.approx(math.log(2))


@pytest.mark.parametrize(
    "seen", [TableLoad(1, 0, 0, 0), TableLoad(5, 9, 0, 0), TableLoad(1e9, 1, 1e9, None)]
)
def test_a_round_with_nothing_or_too_much_in_it_has_a_next_threshold(seen: TableLoad) -> None:
    pace = first_controller(seen)
    for _ in range(3):
        assert math.isfinite(pace.next_threshold(10, 1))
        pace = pace.updated(seen, max(1, seen.devices))


@pytest.mark.parametrize(
    ("recent", "expected"),
    [
        ([1000], 1000),
        ([1000, 1100, 900, 1040], 1010),  # about the same size: their mean
        ([10_000, 500, 10_000, 500], 10_000),  # day and night
        ([10_000, 10_000, 500, 500], 10_000),  # a weekend
        ([10_000, 500, 500, 500, 500], 500),  # after four small rounds
        ([10_000, 10_000, 10_000, 0], 10_000),
        ([500, 10_000, 30_000], 90_000),  # growth goes on
        ([500, 500, 10_000], 100_000),  # within the study's most devices
        ([0, 0], 1),
    ],
)
def test_a_table_is_set_for_the_largest_of_the_recent_rounds(
    recent: list[float], expected: float
) -> None:
    assert expected_devices(recent, 100_000) == expected


def test_a_round_of_far_fewer_devices_changes_no_forecast() -> None:
    pace = first_controller(power_law(8, 0.6))
    assert pace.updated(power_law(8, 0.9, devices=500), 1000) == pace
    assert pace.updated(power_law(8, 0.9, devices=800), 1000) != pace


def test_a_controller_comes_back_from_the_study_state() -> None:
    pace = first_controller(power_law(8, 0.6))
    assert ThresholdController.unpack(np.array(pace.pack())) == pace
