"""Newton's step lands where keys just fit, noise is averaged, drift is followed at once."""

import math

import numpy as np
import pytest

from protocol.mechanisms.pace import Pace, Seen, first, halfway


def power_law(t: float, slope: float, scale: float = 3000, devices: int = 1000) -> Seen:
    """Return what a round shows in which keys fall as t to the power of -slope."""
    distinct = scale * (t * 1000 / devices) ** -slope
    return Seen(t, devices, distinct, round(slope * distinct))


@pytest.mark.parametrize("slope", [0.3, 0.6, 1.0])
@pytest.mark.parametrize("t", [2.0, 40.0])
def test_one_step_lands_on_the_goal_of_a_power_law(t: float, slope: float) -> None:
    pace = first(power_law(t, slope))
    goal = 500 * math.exp(-0.5 * math.sqrt(pace.spread))
    assert power_law(pace.threshold(500), slope).distinct == pytest.approx(goal, rel=0.01)


def test_as_many_keys_as_foretold_change_nothing_but_the_margin() -> None:
    pace = first(power_law(8, 0.6))
    for _ in range(30):
        pace = pace.after(power_law(pace.threshold(400), 0.6))
    assert power_law(pace.threshold(400), 0.6).distinct == pytest.approx(400, rel=0.02)
    assert pace.spread < 1e-4


def test_half_of_an_error_is_believed_and_all_of_a_drift() -> None:
    pace = first(power_law(8, 0.6))
    seen = power_law(8, 0.6)
    noisy = Seen(8, 1000, seen.distinct * 1.1, seen.single)
    assert pace.after(noisy).level - pace.level == pytest.approx(math.log(1.1) / 2)
    drifted = Seen(8, 1000, seen.distinct * 2, seen.single)
    assert pace.after(drifted).level - pace.level == pytest.approx(math.log(2))
    assert pace.after(drifted).spread == pace.spread
    stuck = Seen(8, 1000, seen.distinct * 1.1, None)
    assert pace.after(stuck).level - pace.level == pytest.approx(math.log(1.1))
    assert pace.after(stuck).slope == pace.slope


def test_half_as_many_devices_count_like_twice_the_threshold() -> None:
    whole = first(power_law(8, 0.6)).after(power_law(8, 0.6))
    half = first(power_law(8, 0.6)).after(power_law(8, 0.6, devices=500))
    assert half.level - whole.level == pytest.approx(-0.6 * math.log(2))
    assert half.at - whole.at == pytest.approx(math.log(2))


@pytest.mark.parametrize("seen", [Seen(1, 0, 0, 0), Seen(5, 9, 0, 0), Seen(1e9, 1, 1e9, None)])
def test_a_round_with_nothing_or_too_much_in_it_has_a_next_threshold(seen: Seen) -> None:
    pace = first(seen)
    for _ in range(3):
        assert math.isfinite(pace.threshold(10))
        pace = pace.after(seen)


def test_a_pace_comes_back_from_a_tally() -> None:
    pace = first(power_law(8, 0.6))
    assert Pace.unpack(np.array(pace.pack())) == pace


def test_the_papers_rule_is_the_papers() -> None:
    assert halfway(8, 300, 100) == 16
