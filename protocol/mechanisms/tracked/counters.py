"""Exact counters of known items, a few bits each, that are read near the expected count.

Each *tracked* item of a study has a counter modulo 2^b. b is as small as the count is predictable:
the sum gives the count modulo 2^b, and the count is the one number with this remainder in the
*window* of 2^b counts around the expected count. Counters of one width form a group. Each group
has two more lanes: its total, wide enough for any sum, and its *check*, the sum of w_i c_i modulo
a prime p, with random weights w_i from the seed of the round. The counters of a group add up to
its total modulo 2^b, for any data of devices. This is a linear law, which false vectors break.

If one count has left its window, however far, the total differs by the missing amount, and the
check by w_i times this amount. Their quotient is w_i, so the count is corrected. If several counts
have left, or a device lied, the quotient is the weight of no item (except with probability
size / p, which is 2^-13 for 2,000 items), and all counts stay as they were read: counts that left
are wrong by multiples of 2^b, the others are right. The amount then missing from the total, or two
windows if that is more, is the *slip* of the group. Its item is unknown, so it is a variance of all
items, and a reason for wider windows in the next round. Since a lie can make a slip of any size,
a slip counts for at most a quarter of the group's windows, or eight windows if that is more.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import shake_256
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from protocol.arrays import Floats, Integers
from protocol.mechanisms.tracked import tuning_constants as tuning
from protocol.model import PublicModel, Text
from secagg.ring import Lane, Vector

MAX_COUNTER_BITS = 40
_CHECK_PRIME = 16_777_213  # largest prime below 2^24

N = TypeVar("N", np.int64, np.float64)


class CounterGroup(PublicModel):
    """Items whose counters have `bits` bits each, in the order of their lane."""

    bits: int = Field(ge=1, le=MAX_COUNTER_BITS)
    items: tuple[Text, ...] = Field(min_length=1, max_length=2**20)


@dataclass(frozen=True)
class Counters:
    """Counters of `groups`. All counts add up to at most `max_total`. `seed` gives the weights."""

    groups: tuple[CounterGroup, ...]
    max_total: int
    seed: bytes = bytes(32)

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Return three lanes for each group: its counters, their total and their check."""
        lanes = ((Lane(2**g.bits, len(g.items)), *check_lanes(self.max_total)) for g in self.groups)
        return tuple(lane for group in lanes for lane in group)

    @cached_property
    def items(self) -> tuple[str, ...]:
        return tuple(item for group in self.groups for item in group.items)

    @cached_property
    def rows(self) -> Mapping[str, int]:
        return {item: row for row, item in enumerate(self.items)}

    @cached_property
    def moduli(self) -> Integers:
        return np.repeat([2**group.bits for group in self.groups], self._sizes).astype(np.int64)

    def encode(self, counts: Integers) -> Vector:
        vector, lanes = [], iter(self.lanes)
        for part, weights in zip(self._parts(counts), self._weights, strict=True):
            lane, total, check = next(lanes), next(lanes), next(lanes)
            vector.append((part % lane.q).astype(lane.dtype))
            vector.append(np.array([part.sum() % total.q]).astype(total.dtype))
            vector.append(np.array([_check(part, weights)]).astype(check.dtype))
        return tuple(vector)

    def fault(self, vector: Vector, most: int) -> str | None:
        """Return the law that the lanes break: totals are sums of counters, and at most `most`."""
        for group, counters, total in zip(self.groups, vector[::3], vector[1::3], strict=True):
            missing = int(total[0]) - int(counters.sum(dtype=np.uint64))
            if missing % 2**group.bits:
                return f"counters of {group.bits} bits do not add up to their total"
        whole = self.total(vector)
        if whole > most:
            return f"the counters add up to {whole:,}, which is more than {most:,}"
        return None

    def total(self, vector: Vector) -> int:
        """Return the sum of all counts, as the lanes of totals have it."""
        return sum(int(total[0]) for total in vector[1::3])

    def decode(self, vector: Vector, expected: Floats) -> tuple[Integers, Integers]:
        """Return the count of each item and the slip of its group, given `expected` counts.

        A slip is not negative, though the missing amount may be.
        """
        remainders = np.concatenate([part.astype(np.int64) for part in vector[::3]])
        lows = window_starts(expected, self.moduli)
        counts = lows + (remainders - lows) % self.moduli
        slips = np.zeros_like(counts)
        parts = self._parts(counts), self._parts(slips), self._parts(self.moduli), self._weights
        for part, slip, moduli, weights, total, check in zip(
            *parts, vector[1::3], vector[2::3], strict=True
        ):
            if not _correct_one_count(part, weights, int(total[0]), int(check[0])):
                missing, window = abs(int(total[0]) - int(part.sum())), int(moduli[0])
                windows = max(tuning.MIN_SLIP_WINDOWS, int(tuning.MAX_SLIP_FRACTION * len(part)))
                slip[:] = min(max(missing, 2 * window), windows * window)
        return counts, slips

    def variances(self, slips: Integers) -> Floats:
        """Return the variance of each count, if each count outside its window is one window off.

        If j of k items left their windows, j windows are missing, and each item left with
        probability j / k.
        """
        sizes = np.repeat([len(group.items) for group in self.groups], self._sizes)
        variances: Floats = slips * self.moduli / sizes
        return variances

    def _parts(self, values: NDArray[N]) -> list[NDArray[N]]:
        return np.split(values, np.cumsum(self._sizes))[:-1]

    @cached_property
    def _weights(self) -> list[Integers]:
        """Return the weights of each group, from 1 to p - 1."""
        return [_draw_weights(self.seed, group.bits, len(group.items)) for group in self.groups]

    @property
    def _sizes(self) -> list[int]:
        return [len(group.items) for group in self.groups]


def check_lanes(most: int) -> tuple[Lane, Lane]:
    """Return the lanes of a group's total and check, for sums of counts up to `most`."""
    return Lane(2 ** most.bit_length(), 1), Lane(_CHECK_PRIME, 1)


def window_starts(expected: Floats, moduli: Integers) -> Integers:
    """Return the smallest count of each window, around the expected count but never negative."""
    lows: Integers = np.maximum(np.floor(expected - moduli / 2).astype(np.int64) + 1, 0)
    return lows


def counter_bits(expected: Floats, deviations: Floats) -> Integers:
    """Return the bits of counters that leave their windows with `WINDOW_MISS_PROBABILITY`.

    Counts are assumed to be negative binomial: Poisson counts whose rate is uncertain.
    """
    mean = np.maximum(expected, 1e-6)
    variance = np.maximum(deviations**2, mean * (1 + 1e-6))
    shape, share = mean**2 / (variance - mean), mean / variance
    # Only the server needs this import, which takes half a second. The quantiles of scipy.special
    # cannot replace it: they fail for counts whose variance is nearly Poisson's.
    from scipy.stats import nbinom  # noqa: PLC0415

    above = nbinom.isf(tuning.WINDOW_MISS_PROBABILITY, shape, share)
    below = nbinom.ppf(tuning.WINDOW_MISS_PROBABILITY, shape, share)
    # A window that does not begin at 0 has half its width on each side of the expected count.
    width = np.minimum(above + 1, 2 * np.maximum(above - mean, mean - below) + 2)
    bits: Integers = np.clip(np.ceil(np.log2(width)), 1, MAX_COUNTER_BITS).astype(np.int64)
    return bits


def _draw_weights(seed: bytes, bits: int, count: int) -> Integers:
    stream = shake_256(b"blindtally counters v1\0" + seed + bytes([bits])).digest(4 * count)
    words = np.frombuffer(stream, "<u4").astype(np.int64)
    weights: Integers = 1 + words % (_CHECK_PRIME - 1)
    return weights


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
