"""Exact counters of known items, a few bits each, that are read near the expected count.

Each *tracked* item of a study has a counter modulo q = 2^b (`split_counters.py` has those of
one-shot sums). b is as small as the count is predictable: the sum gives the count modulo q, and the
count is the one number with this remainder in the *window* of q counts around the expected count.
Counters of one width form a group. Each group has two more lanes: its total, wide enough for any
sum, and its *check*, the sum of w_i c_i modulo a prime p, with random weights w_i from the seed of
the round. The counters of a group add up to its total modulo q, for any data of devices. This is a
linear law, which false vectors break.

If one count has left its window, however far, the total differs by the missing amount, and the
check by w_i times this amount. Their quotient is w_i, so the count is corrected. If nearly all
items have gone, all counts but two are the smallest possible ones, and the check agrees. Otherwise
`window_posterior.py` weighs all possible counts: by what was expected, by the changes that the
round shows, and by total and check.

If that does not decide, or a device lied, each count is the most probable one, with the mean of its
squared error as its variance. The sum of these in squared windows is the *slip* of the group, a
reason for wider windows in the next round. Since a lie can make a slip of any size, a slip counts
for at most a quarter of the group's windows, or eight windows if that is more.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from protocol.hashing import seeded_stream
from protocol.mechanisms.tracked import tuning_constants as tuning
from protocol.mechanisms.tracked.window_posterior import GroupLaws, read_windows
from protocol.numerics import special
from protocol.numerics.array_types import Flags, Floats, Integers
from protocol.public_model import PublicModel, Text
from protocol.randomness import RandomWords
from secagg.oneshot.moduli import PAIRWISE, Moduli
from secagg.ring import Lane, Vector

MAX_COUNTER_BITS = 40
_CHECK_PRIME = 16_777_213  # largest prime below 2^24

N = TypeVar("N", np.int64, np.float64)


class CounterGroup(PublicModel):
    """Items whose counters have `bits` bits each, in the order of their lane."""

    bits: int = Field(ge=1, le=MAX_COUNTER_BITS)
    items: tuple[Text, ...] = Field(min_length=1, max_length=2**20)


class ItemGroup(Protocol):
    """A group of counters, with the items that are counted."""

    @property
    def items(self) -> tuple[str, ...]: ...


G = TypeVar("G", bound=ItemGroup)


@dataclass(frozen=True)
class GroupedItems(Generic[G]):
    """The items of `groups`, and the row of each among all."""

    groups: tuple[G, ...]

    @cached_property
    def items(self) -> tuple[str, ...]:
        return tuple(item for group in self.groups for item in group.items)

    @cached_property
    def rows(self) -> Mapping[str, int]:
        return {item: row for row, item in enumerate(self.items)}

    @property
    def _sizes(self) -> list[int]:
        return [len(group.items) for group in self.groups]


@dataclass(frozen=True)
class Counters(GroupedItems[CounterGroup]):
    """Counters of `groups`. All counts add up to at most `max_total`. `seed` gives the weights."""

    max_total: int
    seed: bytes = bytes(32)
    moduli: ClassVar[Moduli] = PAIRWISE
    classes: ClassVar[tuple[int, ...]] = ()

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Return three lanes for each group: its counters, their total and their check."""
        own = (Lane(q, len(g.items)) for q, g in zip(self._group_windows, self.groups, strict=True))
        lanes = ((lane, *check_lanes(self.max_total)) for lane in own)
        return tuple(lane for group in lanes for lane in group)

    @cached_property
    def windows(self) -> Integers:
        """Return the modulus of each item's counter."""
        return np.repeat(self._group_windows, self._sizes).astype(np.int64)

    def encode(self, counts: Integers, chance: RandomWords | None = None) -> Vector:
        """Return the vector of these counts; it needs no `chance`."""
        del chance
        vector, lanes = [], iter(self.lanes)
        for part, weights in zip(self._parts(counts), self._weights, strict=True):
            lane, total, check = next(lanes), next(lanes), next(lanes)
            vector.append((part % lane.q).astype(lane.dtype))
            vector.append(np.array([part.sum() % total.q]).astype(total.dtype))
            vector.append(np.array([_check(part, weights)]).astype(check.dtype))
        return tuple(vector)

    def fault(self, vector: Vector, most: int) -> str | None:
        """Return the law that the lanes break: totals are sums of counters, and at most `most`."""
        columns = self.groups, self._group_windows, vector[::3], vector[1::3]
        for group, q, counters, total in zip(*columns, strict=True):
            missing = int(total[0]) - int(counters.sum(dtype=np.uint64))
            if missing % q:
                return f"counters of {group.bits} bits do not add up to their total"
        whole = self.total(vector)
        if whole > most:
            return "the counters are more than the devices may hold"
        return None

    def total(self, vector: Vector) -> int:
        """Return the sum of all counts, as the lanes of totals have it."""
        return sum(int(total[0]) for total in vector[1::3])

    def decode(
        self, vector: Vector, expected: Floats, deviations: Floats, most: float = math.inf
    ) -> "CounterReading":
        """Return the count of each item, with the slip of its group.

        The arguments have the expected counts with their standard deviations; `most` is not used.
        """
        del most
        remainders = np.concatenate([part.astype(np.int64) for part in vector[::3]])
        lows = window_starts(expected, self.windows)
        counts = lows + (remainders - lows) % self.windows
        slips, variances = np.zeros_like(counts), np.zeros(len(counts))
        groups = map(self._parts, (counts, slips, variances, expected, deviations))
        for window, part, slip, errors, means, spread, weights, total, check in zip(
            self._group_windows, *groups, self._weights, vector[1::3], vector[2::3], strict=True
        ):
            sums = int(total[0]), int(check[0])
            if _correct_one_count(part, weights, *sums):
                continue
            if _read_as_smallest(part, weights, *sums, window):
                continue
            limit = max(tuning.MIN_SLIP_WINDOWS, int(tuning.MAX_SLIP_FRACTION * len(part)))
            missing = round((sums[0] - int(part.sum())) / window)
            off = (sums[1] - _check(part, weights)) % _CHECK_PRIME
            windows = min(max(missing, -tuning.MAX_MISSING_WINDOWS), tuning.MAX_MISSING_WINDOWS)
            laws = GroupLaws(weights, _CHECK_PRIME, windows, off)
            read = read_windows(part, window, means, spread, laws)
            part[:] = read.counts
            if read.squared_errors is not None:
                errors[:] = read.squared_errors
                off_by = math.ceil(float(errors.sum()) / window**2)
                slip[:] = min(max(off_by, tuning.MIN_UNSURE_WINDOWS), limit) * window
        return CounterReading(counts, slips, variances)

    def _parts(self, values: NDArray[N]) -> list[NDArray[N]]:
        return np.split(values, np.cumsum(self._sizes))[:-1]

    @cached_property
    def _weights(self) -> list[Integers]:
        """Return the weights of each group, uniform from 1 to p - 1."""
        if not self.groups:
            return []
        lane = Lane(_CHECK_PRIME - 1, len(self.items))
        drawn = lane.uniform(seeded_stream(self.seed, "counter weights"))
        return self._parts(drawn.astype(np.int64) + 1)

    @property
    def _group_windows(self) -> list[int]:
        """Return the modulus of each group."""
        return [2**group.bits for group in self.groups]


@dataclass(frozen=True, slots=True)
class CounterReading:
    """Counts of all items, with the slips of their groups, and their mean squared errors.

    Both are 0 in a group that agrees with its total and check.
    """

    counts: Integers
    slips: Integers
    variances: Floats


def check_lanes(most: int) -> tuple[Lane, Lane]:
    """Return the lanes of a group's total and check, for sums of counts up to `most`."""
    return Lane(1 << most.bit_length(), 1), Lane(_CHECK_PRIME, 1)


def window_starts(expected: Floats, windows: Integers) -> Integers:
    """Return the smallest count of each window, around the expected count but never negative."""
    lows: Integers = np.maximum(np.floor(expected - windows / 2).astype(np.int64) + 1, 0)
    return lows


def counter_bits(expected: Floats, deviations: Floats) -> Integers:
    """Return the bits of counters that leave their windows with `WINDOW_MISS_PROBABILITY`.

    Counts are assumed to be negative binomial: Poisson counts whose rate is uncertain.
    """
    mean = np.maximum(expected, 1e-6)
    variance = np.maximum(deviations**2, mean * (1 + 1e-6))
    shape, share = mean**2 / (variance - mean), mean / variance
    tail = tuning.WINDOW_MISS_PROBABILITY
    # Quantiles by bisection: scipy.stats takes half a second to import, and the inverses of
    # scipy.special fail for counts whose variance is nearly Poisson's.
    start = np.ceil(mean + 6 * np.sqrt(variance))
    above = first_counts(lambda k: special.betaincc(shape, k + 1, share) <= tail, start)
    below = first_counts(lambda k: special.betainc(shape, k + 1, share) >= tail, start)
    # A window that does not begin at 0 has half its width on each side of the expected count.
    width = np.minimum(above + 1, 2 * np.maximum(above - mean, mean - below) + 2)
    bits: Integers = np.clip(np.ceil(np.log2(width)), 1, MAX_COUNTER_BITS).astype(np.int64)
    return bits


def first_counts(holds: Callable[[Floats], Flags], start: Floats) -> Floats:
    """Return for each entry the smallest whole number >= 0 for which `holds` is true, by bisection.

    `holds` takes a number for each entry; it is false up to a number, and true above. `start` has a
    first guess of an upper end, which is doubled where it is too small.
    """
    low, high = np.full(start.shape, -1.0), start
    while not (reached := holds(high)).all():
        low, high = np.where(reached, low, high), np.where(reached, high, 2 * high + 1)
    while (high - low > 1).any():
        middle = np.floor((low + high) / 2)
        reached = holds(middle)
        low, high = np.where(reached, low, middle), np.where(reached, middle, high)
    return high


def _check(counts: Integers, weights: Integers) -> int:
    """Return the sum of the weighted counts modulo `_CHECK_PRIME`."""
    return int((weights * (counts % _CHECK_PRIME) % _CHECK_PRIME).sum() % _CHECK_PRIME)


def _correct_one_count(counts: Integers, weights: Integers, total: int, check: int) -> bool:
    """Correct in place a count that left its window; return whether total and check then agree."""
    missing, off = total - int(counts.sum()), (check - _check(counts, weights)) % _CHECK_PRIME
    if missing % _CHECK_PRIME == 0:
        return missing == off == 0
    rows = np.flatnonzero(weights == off * pow(missing, -1, _CHECK_PRIME) % _CHECK_PRIME)
    if len(rows) != 1 or counts[rows[0]] + missing < 0:
        return False
    counts[rows[0]] += missing
    return True


def _read_as_smallest(
    counts: Integers, weights: Integers, total: int, check: int, window: int
) -> bool:
    """Read in place all counts as the smallest possible, except for up to two; return success."""
    smallest = counts % window
    missing = total - int(smallest.sum())
    if not _correct_one_count(smallest, weights, total, check):
        if missing <= 0 or missing % window:
            return False
        off = (check - _check(smallest, weights)) % _CHECK_PRIME
        pairs = _pairs_sharing(missing // window, weights, off, window)
        if len(pairs) != 1:
            return False
        for row, windows in pairs[0]:
            smallest[row] += windows * window
    counts[:] = smallest
    return True


def _pairs_sharing(
    windows: int, weights: Integers, off: int, window: int
) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the pairs of rows, with their parts of `windows`, that explain a check `off` by this.

    Returns none if there are too many pairs, of which a wrong one could agree.
    """
    if len(weights) ** 2 * windows > tuning.MAX_TRIED_PAIRS:
        return []
    pairs, steps = [], weights * (window % _CHECK_PRIME) % _CHECK_PRIME
    for part in range(1, windows // 2 + 1):
        rest = windows - part
        sums = (part * steps[:, np.newaxis] + rest * steps) % _CHECK_PRIME
        for row, other in np.argwhere(sums == off).tolist():
            if row < other or (row > other and part < rest):
                pairs.append(((row, part), (other, rest)))
    return pairs
