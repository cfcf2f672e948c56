"""Bias and variance of the medians of a sketch's rows, from keys that nobody holds.

Row j estimates the count of a key by its cell there, which holds other keys too. The estimate is
the median over the H rows of w cells. Where a few keys hold much of F2, its variance is far below
pi / 2 H of F2 / w, since the median ignores a few rows with such keys. And without signs what else
is in the median's cell is below the mean N / w. So both are measured: keys that nobody holds are
read from the same sketch, and their medians are pure noise m.

**One sum** (`estimate_medians`). The m have the same distribution as the noise of a key x:

    estimate    median over rows, less E[m] if there are no signs
    variance    a + b d^2, fitted to E[(m - E[m])^2 | d] by least squares, where d is the distance
                of the two rows next to the median: it is large for the few keys that share cells
                with frequent keys in several rows

The own count of x is not noise of x. So for the highest estimates, those keys are left out that
meet x in a cell.

**Sums over rounds with the same cells** (`estimate_sums_of_rounds`). The same keys meet x in
every round, with fresh signs, so rows differ in their variance:

    estimate    median over rows j of the sums over rounds
    s_j^2       sum over rounds of the squared distances of row j from the round's median
    variance    k E[median over j of s_j Z_j]^2 with normal Z, by simulation

k makes it true on average for the keys that nobody holds; it is near 1.

Source: [Charikar02] and [CormodeMuthukrishnan05] for the medians; [DengRafiei07] for the
subtraction of noise, of which they take the mean. Keys that nobody holds are ours.
"""

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from protocol.numerics.array_types import Floats, Indices, Keys

_KEYS_OF_NOBODY = 2**14  # by which noise is measured: its variance to about 2%
_MAX_KEYS_OF_NOBODY = 2**18
_MAX_LEFT_OUT = 32  # highest estimates whose own count is left out of their noise
_FREQUENT_Z_SCORE = 10  # standard errors from which an own count may matter in the noise
_MIN_KEYS_APART = 100  # keys of nobody by which such an estimate's noise can be measured
_SIMULATED_MEDIANS = 200
_MIN_ROWS_WITH_DEVIATIONS = 3  # of fewer rows, distances from the median do not show the variances
_WEIGHT_FLOOR = 0.05  # share of the mean variance that keeps weights of tiny variances finite

F = TypeVar("F", np.float32, np.float64)


class RowEstimates(NamedTuple):
    """Estimates of keys by each row, and their cells, both of shape `(rows, n)`."""

    values: Floats
    cells: Indices


class MedianEstimates(NamedTuple):
    """Estimates of keys over all rows, and their variances."""

    counts: Floats
    variances: Floats


def keys_of_nobody(chunks: int, candidates: int = 0) -> Keys:
    """Return keys of `chunks` chunks outside every domain, one for each of the `candidates`.

    Fewer keys do not show the largest noise of the candidates.
    """
    count = min(max(candidates, _KEYS_OF_NOBODY), _MAX_KEYS_OF_NOBODY)
    first = 2**32 - count  # domains have bounds below 2^31
    return np.repeat(np.arange(first, 2**32, dtype=np.uint64)[:, np.newaxis], chunks, axis=1)


def estimate_medians(
    rows: RowEstimates, noise_rows: RowEstimates, *, has_signs: bool
) -> tuple[MedianEstimates, MedianEstimates]:
    """Return the medians of `rows` and those of `noise_rows`, corrected and with variances.

    `noise_rows` are those of keys that nobody holds. They have no own count to leave out.
    """
    middles, gaps = _medians(rows.values)
    noise, noise_gaps = _medians(noise_rows.values)
    bias, base, slope = _fit_noise(noise, noise_gaps)
    counts, variances = middles - bias * (not has_signs), base + slope * gaps**2
    of_nobody = MedianEstimates(noise - bias * (not has_signs), base + slope * noise_gaps**2)
    frequent = np.flatnonzero(counts > _FREQUENT_Z_SCORE * np.sqrt(variances))
    for key in frequent[np.argsort(-counts[frequent])][:_MAX_LEFT_OUT]:
        is_apart = (noise_rows.cells != rows.cells[:, key, np.newaxis]).all(axis=0)
        if is_apart.sum() < _MIN_KEYS_APART:
            continue
        bias, base, slope = _fit_noise(noise[is_apart], noise_gaps[is_apart])
        counts[key] = middles[key] - bias * (not has_signs)
        variances[key] = base + slope * gaps[key] ** 2
    return MedianEstimates(counts, variances), of_nobody


def estimate_sums_of_rounds(
    rounds: Iterable[Floats], count: int, rng: np.random.Generator
) -> MedianEstimates:
    """Return the estimates of `count` keys over all `rounds`, whose signs are fresh.

    Each round has the estimates of each row, `(rows, n)`: of the keys, and then of keys that nobody
    holds.
    """
    sums, squares = np.zeros((1, 1)), np.zeros((1, 1))
    for rows in rounds:
        sums = sums + rows
        squares = squares + (rows - median(rows)) ** 2
    totals, variances = median(sums), _median_variances(np.sqrt(squares), rng)
    noise, expected = totals[count:] ** 2, variances[count:]
    if not expected.any():
        return MedianEstimates(totals[:count], variances[:count])
    weights = 1 / (expected + _WEIGHT_FLOOR * expected.mean())
    scale = (noise * weights).sum() / (expected * weights).sum()
    return MedianEstimates(totals[:count], scale * variances[:count])


def median(rows: NDArray[F]) -> NDArray[F]:
    """Return the medians of the columns of `rows`, by exchanging whole rows."""
    count = len(rows)
    if count > 15:
        ordered = list(np.sort(rows, axis=0))
    else:
        ordered, spare = list(rows.copy()), np.empty_like(rows[0])
        # The largest of the rest moves to the end.
        for end in range(count - 1, (count - 1) // 2 - 1, -1):
            for at in range(end):
                low, high = ordered[at], ordered[at + 1]
                np.minimum(low, high, out=spare)
                np.maximum(low, high, out=high)
                ordered[at], spare = spare, low
    if count % 2 == 0:
        ordered[count // 2] += ordered[count // 2 - 1]
        ordered[count // 2] /= 2
    middle: NDArray[F] = ordered[count // 2]
    return middle


def _median_variances(deviations: Floats, rng: np.random.Generator) -> Floats:
    """Return the variances of medians over normal rows with `deviations`, up to a factor."""
    rows, count = deviations.shape
    if rows < _MIN_ROWS_WITH_DEVIATIONS:
        return np.ones(count)
    variances = np.zeros(count)
    for normal in rng.standard_normal((_SIMULATED_MEDIANS, rows, 1)):
        variances += median(normal * deviations) ** 2 / _SIMULATED_MEDIANS
    return variances


def _medians(rows: Floats) -> tuple[Floats, Floats]:
    """Return the medians of the columns of `rows`, and the distances of the rows next to them."""
    ordered, last = np.sort(rows, axis=0), len(rows) - 1
    low, high = last // 2, len(rows) // 2
    gaps = ordered[min(high + 1, last)] - ordered[max(low - 1, 0)]
    return (ordered[low] + ordered[high]) / 2, gaps


def _fit_noise(noise: Floats, gaps: Floats) -> tuple[float, float, float]:
    """Return the mean of `noise`, and a and b of its variance a + b gaps^2, none below 0."""
    bias, regressor = float(noise.mean()), gaps**2
    squares = (noise - bias) ** 2
    variance, mean, spread = float(squares.mean()), float(regressor.mean()), regressor.var()
    if spread == 0:
        return bias, variance, 0.0
    slope = float(((regressor - mean) * squares).mean() / spread)
    slope = min(max(slope, 0.0), variance / mean)
    return bias, max(variance - slope * mean, 0.0), slope  # the difference may be rounded below 0
