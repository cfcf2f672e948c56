"""Counters of known items in a one-shot sum: counts modulo the one prime p of the vector.

The sum gives each counter modulo p, and the count is the one number with this remainder in the
window of p counts around the expected count. An item that is too frequent for one window has g
counters, of which a device takes one by a coin for each copy. For example, with p = 521 an item
that 300 of 1,000 devices are expected to hold has one counter, and one of 3,000 has six.

Counters are in classes, whose counts are also thinned (`thinned_counts.py`): if the thinned counts
do not agree with the counters that were read, some left their windows. Then `window_posterior.py`
weighs which. If that does not decide, each count is the most probable one, and its variance is a
squared error that is stated there. One item's rise must not hide another's fall: an item that may
fall below its counters' windows, which begin above 0, shares no class with others.

Source: the thinned classes are an addition of blindtally.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from pydantic import Field

from protocol.mechanisms.tracked import tuning_constants as tuning
from protocol.mechanisms.tracked.counters import CounterReading, GroupedItems, window_starts
from protocol.mechanisms.tracked.thinned_counts import (
    LEVELS,
    PICK_BITS,
    class_limit,
    thin,
    window_doubt,
)
from protocol.mechanisms.tracked.window_posterior import MIN_MEAN, read_thinned
from protocol.numerics.array_types import Flags, Floats, Indices, Integers
from protocol.public_model import PublicModel, Text
from protocol.randomness import RandomWords
from secagg.oneshot.moduli import Moduli
from secagg.ring import Lane, Vector

MAX_COUNTERS_OF_ITEM = 4096
_PICK_SHIFT = np.uint64(64 - PICK_BITS)
# A liar can put all classes of a sum in doubt, and this many counters take about a second to weigh.
_MAX_WEIGHED_COUNTERS = 2_000


class SplitGroup(PublicModel):
    """Items that have `counters` counters each, in the order of the lane."""

    counters: int = Field(ge=1, le=MAX_COUNTERS_OF_ITEM)
    items: tuple[Text, ...] = Field(min_length=1, max_length=2**20)


@dataclass(frozen=True)
class SplitCounters(GroupedItems[SplitGroup]):
    """Counters of `groups`; each of `classes` is a number of counters that follow each other."""

    classes: tuple[int, ...]
    moduli: Moduli

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Return the lanes of the counters and of the classes; none without items."""
        if not self.groups:
            return ()
        p = self.moduli.prime
        return Lane(p, self.counters), Lane(p, len(LEVELS) * len(self.classes))

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
        picks = ((words >> _PICK_SHIFT) * 2.0**-PICK_BITS * self._shares[rows]).astype(np.int64)
        places = self._starts[rows] + picks
        classes = np.searchsorted(np.cumsum(self.classes), places, side="right")
        thinned = thin(classes, words, len(self.classes)).ravel()
        sums = np.bincount(places, minlength=self.counters), thinned
        pairs = zip(self.lanes, sums, strict=True)
        return tuple((each % lane.q).astype(lane.dtype) for lane, each in pairs)

    def fault(self, vector: Vector, most: int) -> str | None:
        """Return None: any elements are counters of some devices."""
        del vector, most
        return None

    def total(self, vector: Vector) -> int:
        """Return 0, the smallest sum of all counts: elements modulo p do not show it."""
        del vector
        return 0

    def decode(
        self, vector: Vector, expected: Floats, deviations: Floats, most: float = math.inf
    ) -> CounterReading:
        """Return the count of each item, its squared error, and the expected error as its slip.

        The arguments have the expected counts with their standard deviations, and the number of
        copies that all devices may hold.
        """
        p, of_item = self.moduli.prime, np.repeat(np.arange(len(self.items)), self._shares)
        shares = self._shares[of_item]
        means = expected[of_item] / shares
        spread = np.sqrt((deviations[of_item] / shares) ** 2 + means * (1 - 1 / shares))
        lows = window_starts(means, np.full(len(means), p))
        counts = lows + (vector[0].astype(np.int64) - lows) % p
        errors, moved = np.zeros((2, len(counts)))
        ends = np.cumsum((0, *self.classes)).tolist()
        thinned, weighed = vector[1].astype(np.int64).reshape(len(LEVELS), -1), 0
        for kept, (start, end) in zip(thinned.T, pairwise(ends), strict=True):
            part = slice(start, end)
            total, below = int(counts[part].sum()), int((counts[part] // p).sum())
            odd = np.abs(counts[part] - means[part]) > tuning.WINDOW_DEVIATIONS * (spread[part] + 1)
            surprise, odds = window_doubt(total, p, kept, below, most)
            is_likely = surprise <= tuning.CLASS_SURPRISE and odds >= tuning.CLASS_LOG_ODDS
            if is_likely and not odd.any():
                continue
            weighed += end - start
            if weighed > _MAX_WEIGHED_COUNTERS:
                errors[part] = (tuning.MAX_CLASS_WINDOWS * p / 6) ** 2
                continue
            read = read_thinned(counts[part], p, means[part], spread[part], kept, most)
            counts[part] = read.counts
            if read.squared_errors is not None:
                errors[part], moved[part] = read.squared_errors, read.expected_squares
        # Counters of one item change together, so that their errors add up, not the squares.
        deviations = np.bincount(of_item, np.sqrt(errors), len(self.items)).astype(np.float64)
        slips = np.bincount(of_item, np.sqrt(moved), len(self.items)) + (deviations > 0)
        summed = np.bincount(of_item, counts, len(self.items)).astype(np.int64)
        return CounterReading(summed, np.ceil(slips).astype(np.int64), deviations**2)

    @cached_property
    def _shares(self) -> Integers:
        """Return the number of counters of each item."""
        counters = [group.counters for group in self.groups]
        return np.repeat(counters, self._sizes).astype(np.int64)

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
    needed = np.minimum(np.maximum(1, np.maximum(whole, single)), MAX_COUNTERS_OF_ITEM)
    # At most four numbers for each power of two, because a plan has a group for each number.
    steps = 2.0 ** np.maximum(0, np.floor(np.log2(needed)) - 2)
    rounded: Integers = (np.ceil(needed / steps) * steps).astype(np.int64)
    return rounded


def classes_of(counts: Floats, p: int, items: Indices, is_doubtful: Flags) -> tuple[int, ...]:
    """Return the sizes of classes of counters with these expected `counts`, in order.

    `items` has the item of each counter. Counters share no class with other items if their windows
    begin above 0. Those whose last count `is_doubtful` are in at most `MAX_DOUBTFUL_CLASSES` of
    their own, and alone if they are few: a class of 480 is in 24 next, and one of these in 20.

    No count is more than `MAX_CLASS_RATIO` times another of its class. For example, one of 6,800
    and some of 3 have two classes: by the prior, that one rises to 28,200 (by p = 21,397) 100,000
    times as often as one of these does to 21,400.
    """
    sizes, limit = list[int](), class_limit(p)
    size, total, least, most = 0, 0.0, math.inf, 0.0
    is_alone, longest = counts >= p / 2, math.ceil(is_doubtful.sum() / tuning.MAX_DOUBTFUL_CLASSES)
    is_apart = is_alone[1:] | is_alone[:-1] | (is_doubtful[1:] != is_doubtful[:-1])
    is_new = np.append(True, (items[1:] != items[:-1]) & is_apart)
    for count, begins, doubt in zip(counts.tolist(), is_new.tolist(), is_doubtful, strict=False):
        least, most = min(least, max(count, MIN_MEAN)), max(most, count)
        is_full = total + count > limit or (doubt and size >= longest)
        if size and (begins or is_full or most > tuning.MAX_CLASS_RATIO * least):
            sizes.append(size)
            size, total, least, most = 0, 0.0, max(count, MIN_MEAN), count
        size, total = size + 1, total + count
    return (*sizes, size) if size else ()
