"""Behaviour of a fleet: arrivals, pauses and dropouts, which the seed determines."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from client.device.device import DeviceStep
from client.fleet.behaviour import (
    Arrivals,
    DeviceBehaviour,
    FleetBehaviour,
    draw_arrivals,
    draw_behaviours,
    dropouts_by_step,
)
from client.fleet.config_and_results import FleetConfig, select_devices
from protocol.api.phases import Phase

COUNT, SPAN = 4000, 100.0


def arrival_quarters(arrivals: Arrivals) -> Any:
    times = draw_arrivals(FleetBehaviour(arrivals, SPAN), COUNT, np.random.default_rng(1))
    assert times.shape == (COUNT,)
    assert times.min() >= 0
    assert times.max() <= SPAN
    return np.histogram(times, 4, (0, SPAN))[0] / COUNT


def test_arrivals_follow_their_distribution() -> None:
    assert not draw_arrivals(FleetBehaviour(), 5, np.random.default_rng(1)).any()
    # A fraction p of 4,000 has a standard deviation of 0.007 at most: four of these.
    assert arrival_quarters(Arrivals.POISSON) == pytest.approx([0.25] * 4, abs=0.028)
    # The integral of 1 - cos(2 pi x) over quarters of the day: 1/4 -+ 1/(2 pi).
    quiet, loud = 0.25 - 1 / (2 * np.pi), 0.25 + 1 / (2 * np.pi)
    assert arrival_quarters(Arrivals.DIURNAL) == pytest.approx(
        [quiet, loud, loud, quiet], abs=0.028
    )
    times = draw_arrivals(FleetBehaviour(Arrivals.BURSTS, SPAN), COUNT, np.random.default_rng(1))
    gaps = np.diff(np.sort(times))
    assert (gaps > 1).sum() <= 4  # five occasions of a second at most
    assert len(np.unique(times.astype(int))) <= 10


def test_some_devices_are_slow_and_the_seed_determines_which() -> None:
    behaviour = FleetBehaviour(slow_fraction=0.25, mean_pause_seconds=3.0)
    behaviours = draw_behaviours(behaviour, range(COUNT), {7: DeviceStep.SHARED}, [1, 2])
    assert behaviours == draw_behaviours(behaviour, range(COUNT), {7: DeviceStep.SHARED}, [1, 2])
    assert behaviours != draw_behaviours(behaviour, range(COUNT), {7: DeviceStep.SHARED}, [1, 3])
    slow = [each.pause_seconds for each in behaviours.values() if each.pause_seconds]
    assert len(slow) / COUNT == pytest.approx(0.25, abs=0.028)
    assert np.mean(slow) == pytest.approx(3.0, rel=0.06)  # of 6,000, five standard errors
    assert behaviours[7].last_step is DeviceStep.SHARED
    assert draw_behaviours(FleetBehaviour(), [3], {}, [1]) == {3: DeviceBehaviour()}


def test_devices_drop_out_in_the_phases_of_the_configuration() -> None:
    behaviour = FleetBehaviour(dropout_by_phase={Phase.MASKING: 0.1, Phase.UNMASKING: 0.05})
    selected, last_steps = select_devices(
        FleetConfig(200, seed=1, behaviour=behaviour), 1, "pairwise", range(300)
    )
    assert Counter(last_steps.values()) == {DeviceStep.CHECKED: 20, DeviceStep.CONFIRMED: 10}
    assert last_steps.keys() <= set(selected)


@pytest.mark.parametrize("phase", [Phase.ENROLLING, Phase.SUMMED])
def test_a_phase_in_which_no_device_can_drop_out_is_refused(phase: Phase) -> None:
    possible = "sharing, checking, masking, confirming, unmasking of pairwise sums"
    with pytest.raises(ValueError, match=f"drop out in {possible}, not in {phase}"):
        dropouts_by_step({phase: 0.1}, "pairwise")
    with pytest.raises(ValueError, match="in no phase of one-shot sums, not in sharing"):
        dropouts_by_step({Phase.SHARING: 0.1}, "one-shot")


@pytest.mark.parametrize(
    "behaviour",
    [
        {"arrivals": Arrivals.POISSON},
        {"slow_fraction": 1.0},
        {"dropout_by_phase": {Phase.MASKING: -0.1}},
        {"dropout_by_phase": {Phase.MASKING: 0.5, Phase.SHARING: 0.5}},
    ],
)
def test_an_impossible_behaviour_is_refused(behaviour: Any) -> None:
    with pytest.raises(ValueError, match=r"arrivals need|fractions from|at most"):
        FleetBehaviour(**behaviour)
