"""When devices of a fleet come to a round, how long they take to answer, and where they are lost.

    at-once   all when the round opens
    poisson   independently of one another, as likely at any time of the span
    diurnal   as likely as the hour says: the span is a day, 1 - cos(2 pi time), quiet at both ends
    bursts    by one of five occasions, at random times, each within a hundredth of the span

A slow device waits before each answer for a time of its own, exponential about a mean. All of it
is drawn from the fleet's seed, by round and device.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client.participation import STEP_IN, Step, steps
from protocol.round import Phase
from secagg.parameters import Mode

_BURSTS: Final = 5
_BURST: Final = 0.01  # of the span
_POINTS: Final = 1001  # of the day's curve
MOST_LOST: Final = 0.9


class Arrivals(StrEnum):
    """How devices come to a round."""

    AT_ONCE = "at-once"
    POISSON = "poisson"
    DIURNAL = "diurnal"
    BURSTS = "bursts"


@dataclass(frozen=True, slots=True)
class Habits:
    """How devices come, over so many seconds; which share is slow, and is lost in each phase.

    `losses` are in the place of losses in all phases alike.
    """

    arrivals: Arrivals = Arrivals.AT_ONCE
    over: float = 0.0
    slow: float = 0.0
    pause: float = 2.0  # seconds of a slow device before each answer, on average
    losses: Mapping[Phase, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.arrivals is not Arrivals.AT_ONCE and self.over <= 0:
            raise ValueError(f"{self.arrivals} arrivals take a time above 0 to come over")
        if not all(0 <= share <= MOST_LOST for share in (self.slow, *self.losses.values())):
            raise ValueError(f"shares of slow and lost devices are within 0 and {MOST_LOST}")
        if sum(self.losses.values()) > MOST_LOST:
            raise ValueError(f"no more than {MOST_LOST} of the devices can be lost")


@dataclass(frozen=True, slots=True)
class Behaviour:
    """A device in one round: seconds until it comes, before each answer, its last step if lost."""

    leaving: Step | None = None
    comes: float = 0.0
    pauses: tuple[float, ...] = ()


def last_steps(losses: Mapping[Phase, float], mode: Mode) -> dict[Step, float]:
    """Return after which step so many are lost, to be missed in each phase.

    Raises:
        ValueError: if in a round of `mode` nobody can be missed in a phase so.
    """
    spoken = steps(mode)
    before = dict(zip(spoken[1:], spoken, strict=False))
    wrong = [phase for phase in losses if STEP_IN.get(phase) not in before]
    if wrong:
        known = ", ".join(phase for phase, step in STEP_IN.items() if step in before)
        raise ValueError(f"devices are lost in {known}, not in {', '.join(wrong)}")
    return {before[STEP_IN[phase]]: share for phase, share in losses.items()}


def arrive(habits: Habits, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return after how many seconds each of `count` devices comes."""
    drawn = rng.random(count)
    if habits.arrivals is Arrivals.POISSON:
        return drawn * habits.over
    if habits.arrivals is Arrivals.DIURNAL:
        times = np.linspace(0, 1, _POINTS)
        below = times - np.sin(2 * np.pi * times) / (2 * np.pi)
        return np.interp(drawn, below, times) * habits.over
    if habits.arrivals is Arrivals.BURSTS:
        occasions = rng.random(_BURSTS) * (1 - _BURST)
        return (occasions[rng.integers(_BURSTS, size=count)] + drawn * _BURST) * habits.over
    return np.zeros(count)


def behave(
    habits: Habits, chosen: Sequence[int], leaving: Mapping[int, Step], seed: Sequence[int]
) -> dict[int, Behaviour]:
    """Return how each of the chosen devices behaves in a round."""
    rng = np.random.default_rng(seed)
    comes = arrive(habits, len(chosen), rng).tolist()
    slow = (rng.random(len(chosen)) < habits.slow).tolist()
    pauses = rng.exponential(habits.pause, (len(chosen), len(Step))).tolist()
    return {
        device: Behaviour(leaving.get(device), when, tuple(waits) if is_slow else ())
        for device, when, is_slow, waits in zip(chosen, comes, slow, pauses, strict=True)
    }
