"""How much reports tell at least, measured: a lower bound on epsilon from many of them.

Whoever sees a report says which of two values it is of. With P, P' the odds that an event is
seen of the one and of the other, epsilon is at least log(P / P'). Reports are made by the real
code, bytes and all, and each is sorted by what it says of both values, by each of its bits, and
by the whole of it if it is short. One quarter of the reports makes of each sorting the event that
tells most, another chooses among those, and the half that had no say in that measures the one
that was chosen, with the exact bounds of Clopper and Pearson.

So the bound is above what an honest oracle claims with odds of no more than 1 - `confidence`,
however many events are tried. It proves no privacy: that is what `distribution` is for. It
finds mistakes of the path between odds and bytes.

Source: [Jagielski20, section 4] for the bound; [ClopperPearson34].
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from protocol.chance import Chance
from protocol.oracles.counts import Reports
from protocol.oracles.oracle import Oracle

_SHORT = 16  # bits of a report that is looked at as a whole
_Kinds = NDArray[np.int64]  # (2, runs): the kind of each report, of either value


@dataclass(frozen=True, slots=True)
class Finding:
    """Reports tell at least `epsilon`, by `event`, as sure as `confidence`."""

    epsilon: float
    event: str
    confidence: float


@dataclass(frozen=True, slots=True)
class _Event:
    """Reports whose kind in a sorting is one of `kinds`, likelier of value `of`."""

    name: str
    sorting: _Kinds
    kinds: NDArray[np.int64]
    of: int

    def bound(self, some: slice, tail: float) -> float:
        """Return the bound on epsilon by some of the runs."""
        seen = np.isin(self.sorting[:, some], self.kinds)
        mine, theirs = seen[[self.of, 1 - self.of]].sum(axis=1, keepdims=True)
        return float(_bound(mine, theirs, seen.shape[1], tail)[0])


def audit(
    oracle: Oracle,
    values: tuple[int, int],
    runs: int,
    chance: Chance,
    confidence: float = 0.999,
) -> Finding:
    """Return what `runs` reports of each of two `values` show; `runs` is 100 at least.

    Raises:
        ValueError: if there are fewer, or a value is not in the domain.
    """
    if runs < 100:
        raise ValueError(f"runs must be 100 or more, not {runs}")
    pair = np.array(values, np.uint64)
    made = [oracle.perturb(np.full(runs, value, np.uint64), chance) for value in pair]
    return _finding(_sortings(oracle, made, pair), runs, confidence)


def compare(one: Reports, other: Reports, confidence: float = 0.999) -> Finding:
    """Return what as many reports of each of two values show by their bytes alone.

    Raises:
        ValueError: if they are not of one shape, or fewer than 100.
    """
    if one.shape != other.shape or len(one) < 100:
        raise ValueError("100 reports or more of each value expected")
    return _finding(_by_bits(np.array([one, other]), 8 * one.shape[1]), len(one), confidence)


def _finding(sortings: Iterator[tuple[str, _Kinds]], runs: int, confidence: float) -> Finding:
    """Return the highest bound of an event that is chosen by some of the runs, by others."""
    first, second, rest = slice(runs // 4), slice(runs // 4, runs // 2), slice(runs // 2, runs)
    tail = (1 - confidence) / 2
    events = [_event(name, kinds, of, first, tail) for name, kinds in sortings for of in (0, 1)]
    best = max(events, key=lambda event: event.bound(second, tail))
    return Finding(max(0.0, best.bound(rest, tail)), best.name, confidence)


def _sortings(
    oracle: Oracle, made: list[Reports], pair: NDArray[np.uint64]
) -> Iterator[tuple[str, _Kinds]]:
    votes = np.array([oracle.votes(reports, pair) for reports in made]).astype(np.int64) + 1
    yield "votes for both values", 3 * votes[..., 0] + votes[..., 1]
    yield from _by_bits(np.array(made), oracle.bits)


def _by_bits(both: Reports, count: int) -> Iterator[tuple[str, _Kinds]]:
    """Yield the sortings of reports `(2, n, nbytes)` by each bit, and by all if they are few."""
    bits = np.unpackbits(both, axis=2, bitorder="little").astype(np.int64)
    for bit in range(count):
        yield f"bit {bit}", bits[..., bit]
    if count <= _SHORT:
        yield "the whole report", bits @ (1 << np.arange(bits.shape[2]))


def _event(name: str, sorting: _Kinds, of: int, some: slice, tail: float) -> _Event:
    """Return the likeliest kinds, as many as give the highest bound by some of the runs."""
    kinds = sorting[:, some]
    found, where = np.unique(kinds, return_inverse=True)
    counts = np.array([np.bincount(row, minlength=len(found)) for row in where.reshape(2, -1)])
    order = np.argsort(-(counts[of] + 0.5) / (counts[1 - of] + 0.5), kind="stable")
    mine, theirs = (counts[who][order].cumsum() for who in (of, 1 - of))
    last = int(np.argmax(_bound(mine, theirs, kinds.shape[1], tail)))
    return _Event(name, sorting, found[order[: last + 1]], of)


def _bound(
    mine: NDArray[np.int64], theirs: NDArray[np.int64], n: int, tail: float
) -> NDArray[np.float64]:
    """Return the least log(P / P') by counts of n each; each end is missed with odds `tail`."""
    some = np.minimum(theirs, n - 1)
    seen = np.maximum(mine, 1)
    least = np.where(mine > 0, betaincinv(seen, n - seen + 1, tail), 0.0)
    most = np.where(theirs < n, betaincinv(some + 1, n - some, 1 - tail), 1.0)
    with np.errstate(divide="ignore"):  # the log of 0: nothing is shown
        found: NDArray[np.float64] = np.log(least) - np.log(most)
    return found
