"""How much rates move from block to block, measured by items that were counted exactly.

Rates differ by chance alone between neighbours in time, and between distant blocks also by what
they moved: a random step a block makes squared differences that grow like the time between, and
a trend makes them grow like its square. All items together tell how large both are, and by
how much counts scatter more than Poisson's (`local_level.py` has the model).

Source: pooled differences are ours.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from protocol.local_level import STATIONARY, Drift, Floats, History

_LAGS = (1, 2, 4, 8)
_WHOLE = 1 - 1e-9  # of a block's devices, which is all of them: sums of many rounds are rounded
_LEAST_PAIRS = 40  # of counts that are compared; from fewer nothing is concluded
_TIMES = 3  # that the weights of a fit are taken from the last one
_LEAST_JUMP = 0.5  # of rates, in multiples of their mean, that is a break
_LEAST_TIMES = 2.0  # and of what they move anyhow
_SURE = 5.0  # standard errors by which squares must be more than rates that move make them
_CAP = 9.0  # times what is usual: more of a square than that is one item's own matter
_MOST_BREAKS = 8  # of a study
_MOST_JUMP = 3.0  # of a rate at a break, in multiples of its mean


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Two counts each of one item: squared differences, and what phi^2 adds to them on average.

    In units of chance: where rates stand still, a square is D on average. `first` and `last`
    are the blocks of the two. A trend's square adds the slope once for each block between.
    """

    squares: Floats
    slopes: Floats
    first: NDArray[np.int64]
    last: NDArray[np.int64]

    @property
    def lags(self) -> NDArray[np.int64]:
        """Return the blocks between the two."""
        return self.last - self.first

    def where(self, mask: NDArray[np.bool_]) -> "_Pairs":
        """Return some of the pairs."""
        return _Pairs(self.squares[mask], self.slopes[mask], self.first[mask], self.last[mask])


def measure_drift(history: History) -> Drift:
    """Return the drift by the counts of items that were counted exactly in two blocks each.

    Of two such rates d blocks apart, the squared difference over mean rate (1/n + 1/n') is D
    on average, plus phi^2 times d rate / (1/n + 1/n'), plus trend^2 times d as much: a plane,
    fitted by weighted least squares to the pairs that no break lies between.
    """
    pairs = _pairs(history)
    drift, breaks = _fit(pairs), dict[int, float]()
    for _ in range(_MOST_BREAKS):
        found = _break(pairs, drift, breaks)
        if found is None:
            break
        breaks |= found
        # Nor with what was counted right after one: items stay tracked if that is high by chance.
        spans = [(pairs.first <= block) & (pairs.last >= block) for block in breaks]
        drift = _fit(pairs.where(~np.any(spans, axis=0)))
    return replace(drift, breaks=breaks)


def _pairs(history: History) -> _Pairs:
    found = [(np.zeros(0), np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int64))]
    whole = (history.exposed >= _WHOLE * history.devices) & (history.devices > 0)
    for lag in _LAGS:
        items, first = np.nonzero(whole[:, lag:] & whole[:, :-lag])
        n, later = history.devices[first], history.devices[first + lag]
        one, other = history.seen[items, first] / n, history.seen[items, first + lag] / later
        mean, width = (one + other) / 2, 1 / n + 1 / later
        some = mean > 0
        squares = (one - other)[some] ** 2 / (mean * width)[some]
        found.append((squares, lag * (mean / width)[some], first[some], first[some] + lag))
    return _Pairs(*(np.concatenate(column) for column in zip(*found, strict=True)))


def _fit(pairs: _Pairs) -> Drift:
    """Return the coefficients of the plane through (slopes, slopes times lag, squares)."""
    if len(pairs.squares) < _LEAST_PAIRS:
        return STATIONARY
    columns = np.stack([np.ones_like(pairs.slopes), pairs.slopes, pairs.slopes * pairs.lags])
    found = np.array([1.0, 0.0, 0.0])
    for _ in range(_TIMES):  # weights are those of a chi-square of one degree about the plane
        # Sums, not products of vectors: BLAS would set all cores to work on these few.
        weights = _sum(columns, found) ** -2
        matrix = np.array([[(weights * a * b).sum() for a in columns] for b in columns])
        sums = np.array([(weights * a * pairs.squares).sum() for a in columns])
        found = _least_squares(matrix, sums)
        found[1:] = np.minimum(found[1:], 1.0)
        left = pairs.squares - _sum(columns[1:], found[1:])
        found[0] = max(1.0, float((weights * left).sum() / weights.sum()))
    dispersion, level, slope = found.tolist()
    return Drift(math.sqrt(level), dispersion, trend=math.sqrt(slope))


def _sum(columns: Floats, coefficients: Floats) -> Floats:
    total: Floats = (columns * coefficients[:, np.newaxis]).sum(axis=0)
    return total


def _least_squares(matrix: Floats, sums: Floats) -> Floats:
    """Return the coefficients, the last two not below 0, with the least weighted squares."""
    widths = np.sqrt(np.diag(matrix))  # where tokens are many slopes are, and rounding matters
    matrix, sums = matrix / np.outer(widths, widths), sums / widths
    best, least = np.zeros(3), math.inf
    for kept in ([0], [0, 1], [0, 2], [0, 1, 2]):
        some = matrix[np.ix_(kept, kept)]
        if np.linalg.matrix_rank(some) < len(kept):
            continue
        found = np.zeros(3)
        found[kept] = np.linalg.solve(some, sums[kept])
        squares = float(found @ matrix @ found - 2 * found @ sums)
        if (found[1:] >= 0).all() and squares < least:
            best, least = found, squares
    return best / widths


def _break(pairs: _Pairs, drift: Drift, known: Mapping[int, float]) -> dict[int, float] | None:
    """Return the block, not `known` yet, before which items surely jumped; None if there is none.

    Squares are capped, so that it takes many items, whatever a few did. Right after a break items
    are tracked by their first counts after it, which are high by chance: that is no second one.
    """
    best, surest = None, _SURE
    least = max(_LEAST_JUMP, _LEAST_TIMES * math.hypot(drift.phi, drift.trend))
    neighbours = pairs.where(pairs.last == pairs.first + 1)
    for block in np.unique(neighbours.last).tolist():
        here = neighbours.where(neighbours.last == block)
        if block in known or block - 1 in known or len(here.squares) < _LEAST_PAIRS:
            continue
        jump, sure = _jump(here, drift), _sureness(here, drift)
        if sure > surest and jump > least and _lasts(pairs, drift, block):
            best, surest = {block: jump}, sure
    return best


def _lasts(pairs: _Pairs, drift: Drift, block: int) -> bool:
    """Return whether blocks about `block` differ also without it, or without the one before it.

    If not, one block was odd, and what came before it goes on after it.
    """
    for first in (block - 2, block - 1):
        here = pairs.where((pairs.first == first) & (pairs.last == first + 2))
        if len(here.squares) >= _LEAST_PAIRS and _sureness(here, drift) <= _SURE:
            return False
    return True


def _sureness(here: _Pairs, drift: Drift) -> float:
    """Return by how many standard errors squares, capped, are above what neighbours move."""
    moves = drift.phi**2 + drift.trend**2  # in multiples of slopes
    capped = np.minimum(here.squares / (drift.dispersion + moves * here.slopes), _CAP)
    error = float(capped.std()) / math.sqrt(len(capped))
    return (float(capped.mean()) - 1) / max(error, 1e-9)


def _jump(here: _Pairs, drift: Drift) -> float:
    """Return the phi that explains the squares of pairs with a break between the two."""
    excess = (here.squares - drift.dispersion).sum() / here.slopes.sum()
    return float(np.sqrt(min(max(excess, 0.0), _MOST_JUMP**2)))
