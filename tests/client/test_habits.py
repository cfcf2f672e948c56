"""When devices of a fleet come, how long they take, and where they are lost: by seed alone."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from client.crew import Crew, select
from client.habits import Arrivals, Behaviour, Habits, arrive, behave, last_steps
from client.participation import Step
from protocol.round import Phase

COUNT, SPAN = 4000, 100.0


def came(arrivals: Arrivals) -> Any:
    times = arrive(Habits(arrivals, SPAN), COUNT, np.random.default_rng(1))
    assert times.shape == (COUNT,)
    assert times.min() >= 0
    assert times.max() <= SPAN
    return np.histogram(times, 4, (0, SPAN))[0] / COUNT


def test_devices_come_as_it_was_said() -> None:
    assert not arrive(Habits(), 5, np.random.default_rng(1)).any()
    # A share p of 4,000 has a standard deviation of 0.007 at most: four of these.
    assert came(Arrivals.POISSON) == pytest.approx([0.25] * 4, abs=0.028)
    # The integral of 1 - cos(2 pi x) over quarters of the day: 1/4 -+ 1/(2 pi).
    quiet, loud = 0.25 - 1 / (2 * np.pi), 0.25 + 1 / (2 * np.pi)
    assert came(Arrivals.DIURNAL) == pytest.approx([quiet, loud, loud, quiet], abs=0.028)
    times = arrive(Habits(Arrivals.BURSTS, SPAN), COUNT, np.random.default_rng(1))
    gaps = np.diff(np.sort(times))
    assert (gaps > 1).sum() <= 4  # five occasions of a second at most
    assert len(np.unique(times.astype(int))) <= 10


def test_some_devices_are_slow_and_the_seed_says_which() -> None:
    habits = Habits(slow=0.25, pause=3.0)
    found = behave(habits, range(COUNT), {7: Step.SHARED}, [1, 2])
    assert found == behave(habits, range(COUNT), {7: Step.SHARED}, [1, 2])
    assert found != behave(habits, range(COUNT), {7: Step.SHARED}, [1, 3])
    slow = [one.pauses for one in found.values() if one.pauses]
    assert len(slow) / COUNT == pytest.approx(0.25, abs=0.028)
    assert np.mean(slow) == pytest.approx(3.0, rel=0.06)  # of 6,000, five standard errors
    assert found[7].leaving is Step.SHARED
    assert behave(Habits(), [3], {}, [1]) == {3: Behaviour()}


def test_devices_are_lost_in_the_phases_that_were_named() -> None:
    habits = Habits(losses={Phase.MASKING: 0.1, Phase.UNMASKING: 0.05})
    chosen, leaving = select(Crew(200, seed=1, habits=habits), 1, "active", range(300))
    assert Counter(leaving.values()) == {Step.SHARED: 20, Step.CONFIRMED: 10}
    assert leaving.keys() <= set(chosen)
    assert last_steps({Phase.UNMASKING: 0.1}, "semi-honest") == {Step.MASKED: 0.1}


@pytest.mark.parametrize("phase", [Phase.ENROLLING, Phase.CONFIRMING, Phase.SUMMED])
def test_a_phase_in_which_nobody_can_be_lost_is_refused(phase: Phase) -> None:
    with pytest.raises(ValueError, match="lost in sharing, masking, unmasking, not in"):
        last_steps({phase: 0.1}, "semi-honest")


@pytest.mark.parametrize(
    "habits",
    [
        {"arrivals": Arrivals.POISSON},
        {"slow": 1.0},
        {"losses": {Phase.MASKING: -0.1}},
        {"losses": {Phase.MASKING: 0.5, Phase.SHARING: 0.5}},
    ],
)
def test_habits_that_cannot_be_are_refused(habits: Any) -> None:
    with pytest.raises(ValueError, match=r"arrivals take|within 0 and|no more than"):
        Habits(**habits)
