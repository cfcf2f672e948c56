"""Measurement of the drift of rates between blocks of rounds, and of breaks in all of them.

The model of rates is in `rate_filter.py`. phi, trend and D are measured from items that were
counted exactly: the squared difference of two rates d blocks apart, divided by the mean rate times
(1/n + 1/n'), is D on average, plus phi^2 times d rate / (1/n + 1/n'), plus trend^2 times d as much.
This plane is fitted by weighted least squares to the pairs without a break between them. Where many
items jump together between two blocks, the population has a break there. The method is ours.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from protocol.estimation.segments import History
from protocol.mechanisms.tracked import tuning_constants as tuning
from protocol.mechanisms.tracked.rate_filter import STATIONARY, Drift
from protocol.numerics.array_types import Floats

_FULL_EXPOSURE = 1 - 1e-9  # of the devices of a block; sums of many rounds are rounded


@dataclass(frozen=True, slots=True)
class _CountPairs:
    """Pairs of counts of one item each, in the blocks `first` and `last`.

    The unit of squared differences is chance: their mean is D if rates do not move, and phi^2 adds
    `slopes` times phi^2. trend^2 adds as much for each block between.
    """

    squares: Floats
    slopes: Floats
    first: NDArray[np.int64]
    last: NDArray[np.int64]

    @property
    def lags(self) -> NDArray[np.int64]:
        return self.last - self.first

    def select(self, mask: NDArray[np.bool_]) -> "_CountPairs":
        return _CountPairs(self.squares[mask], self.slopes[mask], self.first[mask], self.last[mask])


def measure_drift(history: History) -> Drift:
    """Return the drift, from items that were counted exactly in two blocks."""
    pairs = _count_pairs(history)
    drift, breaks = _fit_drift(pairs), dict[int, float]()
    for _ in range(tuning.MAX_BREAKS):
        new_break = _find_break(pairs, drift, breaks)
        if new_break is None:
            break
        breaks |= new_break
        # The first counts after a break are left out too: items with high ones stay tracked.
        spans = [(pairs.first <= block) & (pairs.last >= block) for block in breaks]
        drift = _fit_drift(pairs.select(~np.any(spans, axis=0)))
    return replace(drift, breaks=breaks)


def _count_pairs(history: History) -> _CountPairs:
    columns = [(np.zeros(0), np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int64))]
    whole = (history.exposure >= _FULL_EXPOSURE * history.devices) & (history.devices > 0)
    for lag in tuning.DRIFT_LAGS:
        items, first = np.nonzero(whole[:, lag:] & whole[:, :-lag])
        devices, later_devices = history.devices[first], history.devices[first + lag]
        rate = history.observed[items, first] / devices
        later_rate = history.observed[items, first + lag] / later_devices
        mean, width = (rate + later_rate) / 2, 1 / devices + 1 / later_devices
        held = mean > 0
        squares = (rate - later_rate)[held] ** 2 / (mean * width)[held]
        columns.append((squares, lag * (mean / width)[held], first[held], first[held] + lag))
    return _CountPairs(*(np.concatenate(column) for column in zip(*columns, strict=True)))


def _fit_drift(pairs: _CountPairs) -> Drift:
    if len(pairs.squares) < tuning.MIN_COUNT_PAIRS:
        return STATIONARY
    columns = np.stack([np.ones_like(pairs.slopes), pairs.slopes, pairs.slopes * pairs.lags])
    fit = np.array([1.0, 0.0, 0.0])
    for _ in range(tuning.DRIFT_FIT_ITERATIONS):
        # Weights are those of a chi-square variable of one degree, with its mean on the plane. They
        # are summed without vector products, for which BLAS would start threads on all cores.
        weights = _weighted_sum(columns, fit) ** -2
        matrix = np.array([[(weights * a * b).sum() for a in columns] for b in columns])
        sums = np.array([(weights * a * pairs.squares).sum() for a in columns])
        fit = _least_squares(matrix, sums)
        fit[1:] = np.minimum(fit[1:], tuning.MAX_DRIFT_VARIANCE)
        residuals = pairs.squares - _weighted_sum(columns[1:], fit[1:])
        fit[0] = max(1.0, float((weights * residuals).sum() / weights.sum()))
    dispersion, level, slope = fit.tolist()
    return Drift(math.sqrt(level), dispersion, trend=math.sqrt(slope))


def _weighted_sum(columns: Floats, coefficients: Floats) -> Floats:
    return np.asarray((columns * coefficients[:, np.newaxis]).sum(axis=0), np.float64)


def _least_squares(matrix: Floats, sums: Floats) -> Floats:
    """Return the coefficients of least weighted squares; the last two are not negative."""
    widths = np.sqrt(np.diag(matrix))  # with many tokens, slopes are large and rounding matters
    matrix, sums = matrix / np.outer(widths, widths), sums / widths
    best, best_squares = np.zeros(3), math.inf
    for chosen in ([0], [0, 1], [0, 2], [0, 1, 2]):
        part = matrix[np.ix_(chosen, chosen)]
        if np.linalg.matrix_rank(part) < len(chosen):
            continue
        fit = np.zeros(3)
        fit[chosen] = np.linalg.solve(part, sums[chosen])
        squares = float(fit @ matrix @ fit - 2 * fit @ sums)
        if (fit[1:] >= 0).all() and squares < best_squares:
            best, best_squares = fit, squares
    return best / widths


def _find_break(
    pairs: _CountPairs, drift: Drift, known: Mapping[int, float]
) -> dict[int, float] | None:
    """Return a new block before which items jumped, with the size; None if there is none.

    Items that are tracked right after a break were selected by high first counts, so the block
    after a `known` break is skipped.
    """
    best, best_score = None, tuning.BREAK_Z_SCORE
    usual = math.hypot(drift.phi, drift.trend)
    min_jump = max(tuning.MIN_BREAK_JUMP, tuning.MIN_BREAK_JUMP_PER_DRIFT * usual)
    neighbours = pairs.select(pairs.last == pairs.first + 1)
    for block in np.unique(neighbours.last).tolist():
        here = neighbours.select(neighbours.last == block)
        if block in known or block - 1 in known or len(here.squares) < tuning.MIN_COUNT_PAIRS:
            continue
        jump, score = _jump_size(here, drift), _break_z_score(here, drift)
        if score > best_score and jump > min_jump and _break_persists(pairs, drift, block):
            best, best_score = {block: jump}, score
    return best


def _break_persists(pairs: _CountPairs, drift: Drift, block: int) -> bool:
    """Return whether blocks around `block` also differ without it, and without the one before.

    If not, one block was an exception, and the earlier rates continue after it.
    """
    for first in (block - 2, block - 1):
        here = pairs.select((pairs.first == first) & (pairs.last == first + 2))
        is_known = len(here.squares) >= tuning.MIN_COUNT_PAIRS
        if is_known and _break_z_score(here, drift) <= tuning.BREAK_Z_SCORE:
            return False
    return True


def _break_z_score(here: _CountPairs, drift: Drift) -> float:
    """Return the standard errors by which capped squares exceed the drift between neighbours."""
    moves = drift.phi**2 + drift.trend**2  # in multiples of slopes
    capped = np.minimum(
        here.squares / (drift.dispersion + moves * here.slopes), tuning.MAX_SQUARE_PER_EXPECTED
    )
    error = float(capped.std()) / math.sqrt(len(capped))
    return (float(capped.mean()) - 1) / max(error, 1e-9)


def _jump_size(here: _CountPairs, drift: Drift) -> float:
    """Return the phi that explains the squares of pairs with a break between their blocks."""
    excess = (here.squares - drift.dispersion).sum() / here.slopes.sum()
    return float(np.sqrt(min(max(excess, 0.0), tuning.MAX_BREAK_JUMP**2)))
