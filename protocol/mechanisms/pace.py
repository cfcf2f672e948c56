"""How the sampling threshold follows the data: two rules for t, from round to round.

A table has room for L0 keys, and s distinct ones were sampled at t. The paper's rule goes half
of the way that would be right if s were proportional to 1 / t:

    paper       t'  =  t / 2 + t / 2 * s / L0

Where most keys are held by many, s falls more slowly than 1 / t, so this takes many rounds to
settle; and it aims at a table that is just full, so that every second swing loses a round.

    steady      ln t'  =  ln t + (ln s - ln(L0 - margin)) / a

takes the slope from the data. Thin a sample by a little, and what drops out are keys that were
sampled once: so a = - d ln s / d ln t = (keys sampled once) / s, which every table that is read
shows exactly. One step of Newton's is enough but for noise and drift, hence a filter. What s was
expected to be is known before a round; of the error half is believed (all of it in the first
round, after a table that was not read, and beyond three standard deviations, which is drift).
Squared errors are averaged, and half their root is the margin: a table is full with odds that hang
on how well the past was predicted, not on how large the table is. Devices count like 1 / t, so
s is compared at t per device, and the next round is expected to have as many as the last ones.

After a table that could not be read s is estimated, and the slope is the last one known.

Source: the update of section 7 of [Gascon23], which leaves better rules open. There s is divided by
the budget C, which cannot be meant in words, 8 of them a key; we read it as L0.
"""

import math
from dataclasses import astuple, dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Rule = Literal["paper", "steady"]

_FIRST_SLOPE = 0.7  # until a table was read
_FLATTEST = 0.25
_FIRST_SPREAD = 0.1**2
_SEVERAL = 3.0  # standard deviations: more is drift
_MARGIN = 0.5  # standard deviations; F1 was best so, of 0, 0.5 and 1, over nine populations


@dataclass(frozen=True, slots=True)
class Seen:
    """What one round showed: `devices` sampled at `t`, and `distinct` keys, `single` once.

    `single` is None if the table could not be read.
    """

    t: float
    devices: int
    distinct: float
    single: int | None


@dataclass(frozen=True, slots=True)
class Pace:
    """What the rounds so far foretell, in logarithms: `level` keys at `at`, t per device.

    `slope` is a, `spread` the variance of errors, `devices` how many are expected.
    """

    level: float
    at: float
    slope: float
    spread: float
    devices: float

    def threshold(self, room: float) -> float:
        """Return the t at which the table of `room` keys is full but for the margin."""
        goal = math.log(room) - _MARGIN * math.sqrt(self.spread)
        return math.exp(self.at + (self.level - goal) / self.slope + self.devices)

    def after(self, seen: Seen) -> "Pace":
        """Return the pace after one more round."""
        at, level = _place(seen)
        slope = self.slope if seen.single is None else _slope(seen)
        foreseen = self.level - self.slope * (at - self.at)
        error = level - foreseen
        total = error + self.slope * (math.log(max(1, seen.devices)) - self.devices)
        drifts = total * total > _SEVERAL**2 * self.spread
        spread = self.spread if drifts else 0.85 * self.spread + 0.15 * total * total
        believed = 1.0 if drifts or seen.single is None else 0.5
        devices = self.devices + 0.5 * (math.log(max(1, seen.devices)) - self.devices)
        return Pace(foreseen + believed * error, at, slope, spread, devices)

    def pack(self) -> NDArray[np.float64]:
        """Return the numbers to keep in a tally."""
        return np.array(astuple(self))

    @classmethod
    def unpack(cls, numbers: NDArray[np.float64]) -> "Pace":
        """Return the pace of `pack`."""
        return cls(*numbers.tolist())


def first(seen: Seen) -> Pace:
    """Return the pace after the first round."""
    at, level = _place(seen)
    slope = _FIRST_SLOPE if seen.single is None else _slope(seen)
    return Pace(level, at, slope, _FIRST_SPREAD, math.log(max(1, seen.devices)))


def halfway(t: float, distinct: float, room: float) -> float:
    """Return the paper's next t."""
    return t / 2 + t / 2 * distinct / room


def _place(seen: Seen) -> tuple[float, float]:
    """Return ln t per device, and ln s; a table with nothing in it counts as one with a key."""
    return math.log(seen.t / max(1, seen.devices)), math.log(max(1.0, seen.distinct))


def _slope(seen: Seen) -> float:
    assert seen.single is not None
    return min(1.0, max(_FLATTEST, seen.single / max(1.0, seen.distinct)))
