"""Exact counters of known items, a few bits each, that are read near the expected count.

Each *tracked* item of a study has a counter modulo q: 2^b, or in a one-shot sum the smallest prime
of 2^b or more that the committee can share. b is as small as the count is predictable: the sum
gives the count modulo q, and the count is the one number with this remainder in the *window* of q
counts around the expected count. Counters of one width form a group. Each group has two more lanes:
its total, wide enough for any sum, and its *check*, the sum of w_i c_i modulo a prime p, with
random weights w_i from the seed of the round. The counters of a group add up to its total modulo q,
for any data of devices. This is a linear law, which false vectors break.

If one count has left its window, however far, the total differs by the missing amount, and the
check by w_i times this amount. Their quotient is w_i, so the count is corrected. If j windows of
q are missing in all, j counts may have left by one window each, for instance because many items
have gone. What was read shows which ones: a count at the end of its window is improbable, and the
count one window away would be usual after a jump of the rate. The j most likely counts are moved
by a window, then pairs of about equal probability are exchanged, until the check agrees. A wrong
choice agrees with probability 2^-24, and one of all that are tried with 2^-14.

If nothing agrees, or a device lied, a count is moved by a window only where that is far more
probable; others that left their windows are wrong by multiples of q. The amount then missing from
the total, or two windows if that is more, is the *slip* of the group. Where counts were moved,
twice their number left unseen, some up and some down, and the slip is that number of windows. Its
items are unknown, so it is a variance of all items, and more so of those at the ends of their
windows. It is also a reason for wider windows in the next round. Since a lie can make a slip of any
size, a slip counts for at most a quarter of the group's windows, or eight windows if that is more.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import shake_256
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from protocol.mechanisms.tracked import tuning_constants as tuning
from protocol.numerics import special
from protocol.numerics.arrays import Flags, Floats, Integers
from protocol.public_model import PublicModel, Text
from secagg.oneshot.moduli import PAIRWISE, Moduli
from secagg.ring import Lane, Vector

MAX_COUNTER_BITS = 40
_CHECK_PRIME = 16_777_213  # largest prime below 2^24
_MAX_LOGIT, _BISECTIONS = 50.0, 60

N = TypeVar("N", np.int64, np.float64)


class CounterGroup(PublicModel):
    """Items whose counters have `bits` bits each, in the order of their lane."""

    bits: int = Field(ge=1, le=MAX_COUNTER_BITS)
    items: tuple[Text, ...] = Field(min_length=1, max_length=2**20)


@dataclass(frozen=True)
class Counters:
    """Counters of `groups`. All counts add up to at most `max_total`. `seed` gives the weights.

    Lanes have `moduli` of the sum.
    """

    groups: tuple[CounterGroup, ...]
    max_total: int
    seed: bytes = bytes(32)
    moduli: Moduli = PAIRWISE

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Return three lanes for each group: its counters, their total and their check."""
        own = (Lane(q, len(g.items)) for q, g in zip(self._group_windows, self.groups, strict=True))
        lanes = ((lane, *check_lanes(self.max_total, self.moduli)) for lane in own)
        return tuple(lane for group in lanes for lane in group)

    @property
    def nbytes(self) -> int:
        """Return the bytes of all lanes."""
        return sum(map(self.moduli.lane_bytes, self.lanes))

    @cached_property
    def items(self) -> tuple[str, ...]:
        return tuple(item for group in self.groups for item in group.items)

    @cached_property
    def rows(self) -> Mapping[str, int]:
        return {item: row for row, item in enumerate(self.items)}

    @cached_property
    def windows(self) -> Integers:
        """Return the modulus of each item's counter."""
        return np.repeat(self._group_windows, self._sizes).astype(np.int64)

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
        self, vector: Vector, expected: Floats, deviations: Floats
    ) -> tuple[Integers, Integers]:
        """Return the count of each item and the slip of its group.

        The arguments have the expected counts with their standard deviations. A slip is not
        negative, though the missing amount may be.
        """
        remainders = np.concatenate([part.astype(np.int64) for part in vector[::3]])
        lows = window_starts(expected, self.windows)
        counts = lows + (remainders - lows) % self.windows
        slips = np.zeros_like(counts)
        parts = map(self._parts, (expected, np.maximum(deviations, 0.5)))
        columns = self._parts(counts), self._parts(slips), *parts, self._weights
        for window, part, slip, usual, spread, weights, total, check in zip(
            self._group_windows, *columns, vector[1::3], vector[2::3], strict=True
        ):
            sums = int(total[0]), int(check[0])
            if _correct_one_count(part, weights, *sums):
                continue
            if _read_as_smallest(part, weights, *sums, window):
                continue
            if not _correct_windows(part, weights, *sums, window, _Usual(usual, spread)):
                moved = _move_improbable_counts(part, window, _Usual(usual, spread))
                missing = abs(sums[0] - int(part.sum()))
                unseen = tuning.SLIPS_PER_MOVED_COUNT * moved * window
                windows = max(tuning.MIN_SLIP_WINDOWS, int(tuning.MAX_SLIP_FRACTION * len(part)))
                slip[:] = min(max(missing, unseen, 2 * window), windows * window)
        return counts, slips

    def variances(
        self, counts: Integers, slips: Integers, expected: Floats, deviations: Floats
    ) -> Floats:
        """Return the variance of each count, if each count outside its window is one window off.

        If j windows are missing in a group, j of its items left their windows. An item at the end
        of its window did so more probably than one at its expected count. By how much is known
        badly after a sudden change, so half of the variance is shared equally. Of web words that
        change weekly, 2 of 855 had errors beyond 5 standard errors, and 9 if all of it is. The
        arguments are those of `decode`, and what it returned.
        """
        variances = np.zeros(len(counts))
        parts = self._parts(expected), self._parts(np.maximum(deviations, 0.5))
        columns = self._parts(variances), self._parts(counts), self._parts(slips), *parts
        for window, part, of_group, slip, means, spread in zip(
            self._group_windows, *columns, strict=True
        ):
            if not slip[0]:
                continue
            evidence = _Usual(means, spread).best_evidence(of_group, window)[0]
            share = slip[0] / window
            part[:] = (_share_out(share, evidence) + min(1.0, share / len(part))) / 2 * window**2
        return variances

    def _parts(self, values: NDArray[N]) -> list[NDArray[N]]:
        return np.split(values, np.cumsum(self._sizes))[:-1]

    @cached_property
    def _weights(self) -> list[Integers]:
        """Return the weights of each group, from 1 to p - 1."""
        return [_draw_weights(self.seed, group.bits, len(group.items)) for group in self.groups]

    @property
    def _group_windows(self) -> list[int]:
        """Return the modulus of each group."""
        return [self.moduli.above(2**group.bits - 1) for group in self.groups]

    @property
    def _sizes(self) -> list[int]:
        return [len(group.items) for group in self.groups]


def check_lanes(most: int, moduli: Moduli) -> tuple[Lane, Lane]:
    """Return the lanes of a group's total and check, for sums of counts up to `most`.

    In a one-shot sum both have the same modulus if it is large enough, because each modulus costs
    bytes in a message (`secagg.oneshot.joined_lanes`).
    """
    q = moduli.above(most)
    if moduli.min_prime and q < _CHECK_PRIME:
        q = _CHECK_PRIME
    return Lane(q, 1), Lane(_CHECK_PRIME, 1)


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


@dataclass(frozen=True, slots=True)
class _Usual:
    """Expected counts of the items of a group, and their standard deviations."""

    means: Floats
    deviations: Floats

    def jump_evidence(self, counts: Integers, moved: Integers) -> Floats:
        """Return the log likelihood ratio of each count being the `moved` one.

        An item whose rate has jumped has a gamma distribution of shape 1/2 around its usual count
        (`totals.py`), others a normal one. A count below 0 is impossible.
        """
        surprise = ((counts - self.means) / self.deviations) ** 2 / 2 + np.log(self.deviations)
        means = np.maximum(self.means, 0.5)
        alike = np.log((np.maximum(moved, 0) + 0.5) * means) / 2 + np.maximum(moved, 0) / means / 2
        return np.where(moved >= 0, surprise - alike, -np.inf)

    def best_evidence(self, counts: Integers, window: int) -> tuple[Floats, Integers]:
        """Return `jump_evidence` of the more probable neighbouring window, and its change."""
        directions = np.array([[window], [-window]])
        evidence = self.jump_evidence(counts, counts + directions)
        return evidence.max(axis=0), directions[evidence.argmax(axis=0), 0]


def _share_out(number: float, evidence: Floats) -> Floats:
    """Return the probability of each item being one of `number`, given log likelihood ratios."""
    if number >= len(evidence):
        return np.ones(len(evidence))
    # The logit of the prior probability, by bisection: the probabilities add up to the number.
    low, high = -_MAX_LOGIT - evidence.max(), _MAX_LOGIT - evidence.min()
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        is_less = special.expit(evidence + middle).sum() < number
        low, high = (middle, high) if is_less else (low, middle)
    shares: Floats = special.expit(evidence + high)
    return shares


def _correct_windows(
    counts: Integers, weights: Integers, total: int, check: int, window: int, usual: _Usual
) -> bool:
    """Move in place the counts that probably left by a window; return whether the check agrees."""
    missing = total - int(counts.sum())
    windows, direction = abs(missing) // window, window if missing > 0 else -window
    evidence = usual.jump_evidence(counts, counts + direction)
    if missing % window or not 0 < windows <= np.isfinite(evidence).sum():
        return False
    order = np.argsort(-evidence, kind="stable")
    moved, others = order[:windows], order[windows:][: tuning.MAX_EXCHANGED_COUNTS]
    others = others[np.isfinite(evidence[others])]
    off = (
        check - _check(counts, weights) - _check(np.full(windows, direction), weights[moved])
    ) % (_CHECK_PRIME)
    if off:
        unlikely = moved[-tuning.MAX_EXCHANGED_COUNTS :]
        change = (weights[others] - weights[unlikely, np.newaxis]) * direction % _CHECK_PRIME
        stays, goes = np.nonzero(change == off)
        if len(stays) != 1:
            return False
        moved = np.append(moved[moved != unlikely[stays[0]]], others[goes[0]])
    counts[moved] += direction
    return True


def _move_improbable_counts(counts: Integers, window: int, usual: _Usual) -> int:
    """Move in place each count that is far more probable one window away; return their number."""
    evidence, changes = usual.best_evidence(counts, window)
    is_improbable = evidence > tuning.MIN_JUMP_EVIDENCE
    counts[is_improbable] += changes[is_improbable]
    return int(is_improbable.sum())
