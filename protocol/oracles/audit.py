"""How much reports tell at least, measured: a lower bound on epsilon from many of them.

Whoever sees a report says which of two values it is of. With P, P' the odds that an event is
seen of the one and of the other, epsilon is at least log(P / P'). Reports are made by the real
code, bytes and all, and each is sorted by what it says of both values, by each of its bits, and
by the whole of it if it is short. One half of the reports chooses the event that tells most; the
other half, which had no say in that, measures it, with the exact bounds of Clopper and Pearson.

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
    """Reports of certain `kinds` of a sorting, likelier if the device holds value `of`."""

    name: str
    sorting: int
    kinds: NDArray[np.int64]
    of: int
    bound: float


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
    sortings = list(_sortings(oracle, made, pair))
    half, tail = runs // 2, (1 - confidence) / 2
    best = max(
        (
            _choose(name, number, kinds[:, :half], of, tail)
            for number, (name, kinds) in enumerate(sortings)
            for of in (0, 1)
        ),
        key=lambda event: event.bound,
    )
    seen = np.isin(sortings[best.sorting][1][:, half:], best.kinds).sum(axis=1)
    bound = _bound(seen[best.of], seen[1 - best.of], runs - half, tail)
    return Finding(max(0.0, float(bound)), best.name, confidence)


def _sortings(
    oracle: Oracle, made: list[Reports], pair: NDArray[np.uint64]
) -> Iterator[tuple[str, _Kinds]]:
    votes = np.array([oracle.votes(reports, pair) for reports in made]).astype(np.int64) + 1
    yield "votes for both values", 3 * votes[..., 0] + votes[..., 1]
    both = np.array(made)
    bits = np.unpackbits(both, axis=2, bitorder="little").astype(np.int64)
    for bit in range(oracle.bits):
        yield f"bit {bit}", bits[..., bit]
    if oracle.bits <= _SHORT:
        yield "the whole report", bits @ (1 << np.arange(bits.shape[2]))


def _choose(name: str, number: int, kinds: _Kinds, of: int, tail: float) -> _Event:
    """Return the likeliest kinds, as many as give the highest bound."""
    found, where = np.unique(kinds, return_inverse=True)
    counts = np.array([np.bincount(row, minlength=len(found)) for row in where.reshape(2, -1)])
    order = np.argsort(-(counts[of] + 0.5) / (counts[1 - of] + 0.5), kind="stable")
    mine, theirs = (counts[who][order].cumsum() for who in (of, 1 - of))
    bounds = _bound(mine, theirs, kinds.shape[1], tail)
    last = int(np.argmax(bounds))
    return _Event(name, number, found[order[: last + 1]], of, float(bounds[last]))


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
