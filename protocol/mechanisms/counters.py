"""Exact counters for items that are known: a few bits each, read near what is expected.

Each of a study's *tracked* items has a counter modulo 2^b, with b as small as its count is
predictable: the sum tells the count modulo 2^b, and of the counts that leave this remainder the
one in the *window* of 2^b counts around the expected one is taken. Counters of one width form a
group, and each group has two lanes more: for its total, wide enough for any sum, and for the
*check*, the sum of w_i c_i modulo a prime p, with random weights w_i of the round's seed. A group's
counters add up to its total modulo 2^b, whatever anybody holds: a linear law, which poison breaks.

If a count has left its window, however far, the total is off by what is missing, and the check by
w_i times that: the quotient names it, and it is put right. If several have, or somebody lied, the
quotient is nobody's weight (but for odds of a group's size / p, 2^-13 for 2,000), and all are left
as they were read: those that left are wrong by multiples of 2^b, the others are right. What is
missing from the total then, and two windows at least, is the group's *slip*. Nobody knows whose it
is: it is a variance of all, and a reason to make their windows wider in the next round. As a lie
makes a slip of any size, one of more than a quarter of the group's windows counts as a quarter of
them (as eight, if that is more).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import shake_256
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from protocol.local_level import Floats
from protocol.public import Public, Text
from secagg.ring import Lane, Vector

MOST_BITS = 40
ODDS = 1e-4  # that a count is above its window, or below
_P = 16_777_213  # the largest prime below 2^24
_MOST_SLIP, _FEW = 0.25, 8  # of a group's windows; so many count in any case

Counts = NDArray[np.int64]
N = TypeVar("N", np.int64, np.float64)


class Group(Public):
    """Items whose counters have `bits` each, in the order of their lane."""

    bits: int = Field(ge=1, le=MOST_BITS)
    items: tuple[Text, ...] = Field(min_length=1, max_length=2**20)


@dataclass(frozen=True)
class Counters:
    """The counters of `groups`; no sum of all counts reaches `most`; weights are of `seed`."""

    groups: tuple[Group, ...]
    most: int
    seed: bytes = bytes(32)

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Return three lanes for each group: its counters, their total, and their check."""
        of = ((Lane(2**g.bits, len(g.items)), *beside(self.most)) for g in self.groups)
        return tuple(lane for lanes in of for lane in lanes)

    @cached_property
    def items(self) -> tuple[str, ...]:
        """Return the tracked items, group after group."""
        return tuple(item for group in self.groups for item in group.items)

    @cached_property
    def rows(self) -> Mapping[str, int]:
        """Return the place of each item among `items`."""
        return {item: row for row, item in enumerate(self.items)}

    @cached_property
    def moduli(self) -> Counts:
        """Return the modulus of each item's counter."""
        return np.repeat([2**group.bits for group in self.groups], self._sizes).astype(np.int64)

    def encode(self, counts: Counts) -> Vector:
        """Return the lanes of `counts`, one for each of `items`."""
        vector, lanes = [], iter(self.lanes)
        for part, weights in zip(self._parts(counts), self._weights, strict=True):
            lane, total, check = next(lanes), next(lanes), next(lanes)
            vector.append((part % lane.q).astype(lane.dtype))
            vector.append(np.array([part.sum() % total.q]).astype(total.dtype))
            vector.append(np.array([_check(part, weights)]).astype(check.dtype))
        return tuple(vector)

    def fault(self, vector: Vector, most: int) -> str | None:
        """Return which law the lanes break: totals that counters belie, or beyond `most`."""
        for group, counters, total in zip(self.groups, vector[::3], vector[1::3], strict=True):
            missing = int(total[0]) - int(counters.sum(dtype=np.uint64))
            if missing % 2**group.bits:
                return f"counters of {group.bits} bits do not add up to their total"
        whole = sum(int(total[0]) for total in vector[1::3])
        if whole > most:
            return f"the counters add up to {whole:,}, which is more than {most:,}"
        return None

    def decode(self, vector: Vector, expected: Floats) -> tuple[Counts, Counts]:
        """Return the count of each item, where so many were expected, and the slip of its group.

        A slip is not negative; what is missing may be.
        """
        read = np.concatenate([part.astype(np.int64) for part in vector[::3]])
        lows = window_lows(expected, self.moduli)
        counts = lows + (read - lows) % self.moduli
        slips = np.zeros_like(counts)
        parts = self._parts(counts), self._parts(slips), self._parts(self.moduli), self._weights
        for part, slip, moduli, weights, total, check in zip(
            *parts, vector[1::3], vector[2::3], strict=True
        ):
            if not _put_right(part, weights, int(total[0]), int(check[0])):
                missing, window = abs(int(total[0]) - int(part.sum())), int(moduli[0])
                most = max(_FEW, int(_MOST_SLIP * len(part))) * window
                slip[:] = min(max(missing, 2 * window), most)
        return counts, slips

    def variances(self, slips: Counts) -> Floats:
        """Return the variance of each count, if those that left did so by one window each.

        Of k items j have then left, j windows missing: j / k is the odds of each to be one.
        """
        sizes = np.repeat([len(group.items) for group in self.groups], self._sizes)
        variances: Floats = slips * self.moduli / sizes
        return variances

    def _parts(self, values: NDArray[N]) -> list[NDArray[N]]:
        return np.split(values, np.cumsum(self._sizes))[:-1]

    @cached_property
    def _weights(self) -> list[Counts]:
        """Return each group's weights, from 1 to p - 1."""
        return [_draw_weights(self.seed, group.bits, len(group.items)) for group in self.groups]

    @property
    def _sizes(self) -> list[int]:
        return [len(group.items) for group in self.groups]


def beside(most: int) -> tuple[Lane, Lane]:
    """Return the lanes of a group's total and check, where no sum of counts reaches `most`."""
    return Lane(2 ** most.bit_length(), 1), Lane(_P, 1)


def window_lows(expected: Floats, moduli: Counts) -> Counts:
    """Return the least count of each window: centred on what is expected, and not below 0."""
    lows: Counts = np.maximum(np.floor(expected - moduli / 2).astype(np.int64) + 1, 0)
    return lows


def bits_for(expected: Floats, deviations: Floats) -> Counts:
    """Return the bits of counters that leave their windows with odds of about `ODDS`.

    A count is taken for negative binomial, a Poisson one whose rate is not known well.
    """
    mean = np.maximum(expected, 1e-6)
    variance = np.maximum(deviations**2, mean * (1 + 1e-6))
    shape, share = mean**2 / (variance - mean), mean / variance
    # Devices never come here, and are spared the half second that this import takes. Quantiles
    # of scipy.special are no way out: they fail for counts of nearly Poisson's variance.
    from scipy.stats import nbinom  # noqa: PLC0415

    above = nbinom.isf(ODDS, shape, share)
    below = nbinom.ppf(ODDS, shape, share)
    # A window that is not cut at 0 has half its width on each side of what is expected.
    width = np.minimum(above + 1, 2 * np.maximum(above - mean, mean - below) + 2)
    bits: Counts = np.clip(np.ceil(np.log2(width)), 1, MOST_BITS).astype(np.int64)
    return bits


def _draw_weights(seed: bytes, bits: int, count: int) -> Counts:
    stream = shake_256(b"blindtally counters v1\0" + seed + bytes([bits])).digest(4 * count)
    words = np.frombuffer(stream, "<u4").astype(np.int64)
    weights: Counts = 1 + words % (_P - 1)
    return weights


def _check(counts: Counts, weights: Counts) -> int:
    """Return the sum of each count times its weight, modulo `_P`."""
    return int((weights * (counts % _P) % _P).sum() % _P)


def _put_right(counts: Counts, weights: Counts, total: int, check: int) -> bool:
    """Move, in place, the one count that left its window, if there is one.

    Return whether total and check are right then: if not, several have left, or somebody lied.
    """
    missing, off = total - int(counts.sum()), (check - _check(counts, weights)) % _P
    if missing % _P == 0:
        return missing == off == 0
    rows = np.flatnonzero(weights == off * pow(missing, -1, _P) % _P)
    if len(rows) != 1 or counts[rows[0]] + missing < 0:
        return False
    counts[rows[0]] += missing
    return True
