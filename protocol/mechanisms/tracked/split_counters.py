"""Counters of known items in a one-shot sum: counts modulo the one prime p of the vector.

The sum gives each counter modulo p, and the count is the one number with this remainder in the
window of p counts around the expected count. An item that is too frequent for one window has g
counters, of which a device takes one by a coin for each copy. For example, with p = 521 an item
that 300 of 1,000 devices are expected to hold has one counter, and one of 3,000 has six.

A total or a check would follow from the counters modulo p, and so detect nothing. Instead, counters
are in *classes*: a device adds each copy to the class of its counter with probability 1/4. Say a
class has the true sum S. Its thinned count is S/4, give or take sqrt(3 S)/4, while the counters
that were read add up to S - M p if M windows are missing. So the thinned count shows M modulo 4: a
class is small enough for p/4 to be eight standard deviations. An item that rose from 100 to 700
misses one window, and its thinned class shows p/4 = 130 more than expected.

If windows are missing, `window_posterior.py` weighs which counters left their windows. If that does
not decide, each count is the most probable one, with the mean of its squared error as its variance.

Source: the thinned classes are an addition of blindtally.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from pydantic import Field

from protocol.mechanisms.tracked import tuning_constants as tuning
from protocol.mechanisms.tracked.counters import CounterReading, window_starts
from protocol.mechanisms.tracked.window_posterior import read_thinned
from protocol.numerics.array_types import Floats, Integers
from protocol.public_model import PublicModel, Text
from protocol.randomness import RandomWords
from secagg.oneshot.moduli import Moduli
from secagg.ring import Lane, Vector

MAX_COUNTERS_OF_ITEM = 4096
_COIN_BITS = np.uint64(3)  # two coins: a copy is in its class with probability 1/4
_MAX_ABOVE_ZERO = 3
_PICK_SHIFT = np.uint64(11)


class SplitGroup(PublicModel):
    """Items that have `counters` counters each, in the order of the lane."""

    counters: int = Field(ge=1, le=MAX_COUNTERS_OF_ITEM)
    items: tuple[Text, ...] = Field(min_length=1, max_length=2**20)


@dataclass(frozen=True)
class SplitCounters:
    """Counters of `groups`; each of `classes` is a number of counters that follow each other."""

    groups: tuple[SplitGroup, ...]
    classes: tuple[int, ...]
    moduli: Moduli

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Return the lanes of the counters and of the classes; none without items."""
        if not self.groups:
            return ()
        return Lane(self.moduli.prime, self.counters), Lane(self.moduli.prime, len(self.classes))

    @cached_property
    def items(self) -> tuple[str, ...]:
        return tuple(item for group in self.groups for item in group.items)

    @cached_property
    def rows(self) -> Mapping[str, int]:
        return {item: row for row, item in enumerate(self.items)}

    @cached_property
    def counters(self) -> int:
        """Return the number of counters."""
        return int(self._shares.sum())

    def encode(self, counts: Integers, chance: RandomWords) -> Vector:
        """Return the vector of devices that hold these numbers of copies of each item."""
        if not self.groups:
            return ()
        rows = np.repeat(np.arange(len(counts)), counts)
        words = chance(len(rows))
        picks = ((words >> _PICK_SHIFT) * 2.0**-53 * self._shares[rows]).astype(np.int64)
        places = self._starts[rows] + picks
        drawn = places[words & _COIN_BITS == 0]
        in_class = np.searchsorted(np.cumsum(self.classes), drawn, side="right")
        sums = (
            np.bincount(places, minlength=self.counters),
            np.bincount(in_class, minlength=len(self.classes)),
        )
        pairs = zip(self.lanes, sums, strict=True)
        return tuple((each % lane.q).astype(lane.dtype) for lane, each in pairs)

    def fault(self, vector: Vector, most: int) -> str | None:
        """Return None: any elements are counters of some devices."""
        del vector, most
        law: str | None = None
        return law

    def total(self, vector: Vector) -> int:
        """Return 0, the smallest sum of all counts: elements modulo p do not show it."""
        del vector
        return 0

    def decode(self, vector: Vector, expected: Floats, deviations: Floats) -> CounterReading:
        """Return the count of each item, with its mean squared error, and this as its slip.

        The arguments have the expected counts with their standard deviations.
        """
        p, of_item = self.moduli.prime, np.repeat(np.arange(len(self.items)), self._shares)
        shares = self._shares[of_item]
        means = expected[of_item] / shares
        spread = np.sqrt((deviations[of_item] / shares) ** 2 + means * (1 - 1 / shares))
        lows = window_starts(means, np.full(len(means), p))
        counts = lows + (vector[0].astype(np.int64) - lows) % p
        errors, ends = np.zeros(len(counts)), np.cumsum((0, *self.classes)).tolist()
        for thinned, (start, end) in zip(vector[1].tolist(), pairwise(ends), strict=True):
            part = slice(start, end)
            read = read_thinned(counts[part], p, means[part], spread[part], thinned)
            counts[part] = read.counts
            if read.squared_errors is not None:
                errors[part] = read.squared_errors
        variances = np.bincount(of_item, errors, len(self.items)).astype(np.float64)
        summed = np.bincount(of_item, counts, len(self.items)).astype(np.int64)
        return CounterReading(summed, np.ceil(np.sqrt(variances)).astype(np.int64), variances)

    @cached_property
    def _shares(self) -> Integers:
        """Return the number of counters of each item."""
        sizes = [len(group.items) for group in self.groups]
        return np.repeat([group.counters for group in self.groups], sizes).astype(np.int64)

    @cached_property
    def _starts(self) -> Integers:
        starts: Integers = np.cumsum(self._shares) - self._shares
        return starts


def counters_needed(expected: Floats, deviations: Floats, slips: Floats, p: int) -> Integers:
    """Return the number of counters of each item with which its count is read modulo `p`.

    All windows together hold six standard deviations and a tenth of the count on both sides, and a
    few liars; a counter's own window holds the spread of the coins, and its class no more counts
    than the class can check.
    """
    slack = tuning.WINDOW_DEVIATIONS * deviations + expected / 10 + tuning.WINDOW_SLACK + slips
    whole = np.ceil((2 * slack + 1) / p)
    single = np.ceil(expected / min(class_limit(p), (p / (4 * tuning.WINDOW_DEVIATIONS)) ** 2))
    needed: Integers = np.maximum(1, np.maximum(whole, single)).astype(np.int64)
    return np.minimum(needed, MAX_COUNTERS_OF_ITEM)


def class_limit(p: int) -> float:
    """Return the largest expected sum of a class: p/4 is eight deviations of its thinned count."""
    return (p / 32) ** 2 / (3 / 16)


def classes_of(counts: Floats, p: int) -> tuple[int, ...]:
    """Return the sizes of classes of counters with these expected `counts`, in order.

    A class has at most three counters whose windows do not begin at 0. If all of four were gone,
    four windows would be missing, which thinned classes do not show.
    """
    sizes, size, total, above, limit = list[int](), 0, 0.0, 0, class_limit(p)
    for count in counts.tolist():
        if size and (total + count > limit or above + (count > p / 2) > _MAX_ABOVE_ZERO):
            sizes.append(size)
            size, total, above = 0, 0.0, 0
        size, total, above = size + 1, total + count, above + (count > p / 2)
    return (*sizes, size) if size else ()
