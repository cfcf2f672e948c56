"""How sure an estimate is: intervals, and whether a count reaches a threshold.

A count that is estimated from samples is a weighted sum of Poisson counts, skew where it rests on
few of them, so its interval is the one of a gamma distribution with the same mean and variance,
its upper end moved by one more sample of weight w = variance / count:

    low   =  quantile(a / 2)      of Gamma(mean y, variance v)
    high  =  quantile(1 - a / 2)  of Gamma(mean y + w, variance v + w^2)

Where the variance is small beside the count, as of an item that was counted exactly for most of
a study, it is the normal one. It holds for an item that is named beforehand: of the items that
are found *because* their estimates are high, more are estimated too high than too low.

A count that is estimated from locally private reports is a sum over all devices of noise that is
much larger than the count's own part, and may be below 0: nearly normal, and its interval is

    count  -+  quantile(1 - a / 2) of the normal  *  sqrt(variance)

which is cut nowhere, also where it reaches below 0.

Source: [FayFeuer97], for weighted sums of Poisson counts.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainccinv, gammaincinv, ndtri

from protocol.local_level import Floats

LEVEL = 0.95


def interval(counts: Floats, variances: Floats, level: float = LEVEL) -> tuple[Floats, Floats]:
    """Return the ends of intervals that hold the true counts with odds of `level` each.

    Both ends are the count where the variance is 0 or the count not positive.
    """
    low, high = counts.astype(np.float64), counts.astype(np.float64)
    some = (variances > 0) & (counts > 0)
    y, v = low[some], variances[some]
    w, tail = v / y, (1 - level) / 2
    low[some] = gammaincinv(y**2 / v, tail) * w
    more, spread = y + w, v + w**2
    high[some] = gammainccinv(more**2 / spread, tail) * spread / more
    return low, high


def normal_interval(
    counts: Floats, variances: Floats, level: float = LEVEL
) -> tuple[Floats, Floats]:
    """Return the ends of normal intervals, which hold the true counts with odds of `level` each."""
    margin = -float(ndtri((1 - level) / 2)) * np.sqrt(np.maximum(variances, 0))
    return counts - margin, counts + margin


def reaches(
    counts: Floats, variances: Floats, threshold: float, confidence: float
) -> NDArray[np.bool_]:
    """Return which counts are `threshold` or more, where that is as sure as `confidence`.

    An item of exactly that count is taken for heavy with odds of about 1 - `confidence`: 1/2
    where the estimate decides; more confidence takes fewer that are not heavy, and misses more
    that are.
    """
    margin = float(ndtri(confidence)) * np.sqrt(np.maximum(variances, 0))
    heavy: NDArray[np.bool_] = counts >= threshold + margin
    return heavy
