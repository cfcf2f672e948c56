"""Confidence intervals of estimates, and the test whether a count reaches a threshold.

A count that is estimated from samples is a weighted sum of Poisson counts, and skewed if it rests
on few of them. So its interval is the one of a gamma distribution with the same mean and variance,
whose upper end is moved by one more sample of weight w = variance / count:

    low   =  quantile(a / 2)      of Gamma(mean y, variance v)
    high  =  quantile(1 - a / 2)  of Gamma(mean y + w, variance v + w^2)

If the variance is small compared with the count, as for an item that was counted exactly for most
of a study, it is the normal interval. It holds for an item that is chosen beforehand. Of the items
that are reported *because* their estimates are high, more are estimated too high than too low.

A count that is estimated from locally private reports is a sum over all devices of noise that is
much larger than the count's own part, and may be below 0. It is nearly normal, and its interval is

    count  -+  quantile(1 - a / 2) of the normal distribution  *  sqrt(variance)

which is not cut at 0.

Source: [FayFeuer97], for weighted sums of Poisson counts.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainccinv, gammaincinv, ndtri

from protocol.arrays import Floats

CONFIDENCE_LEVEL = 0.95


def gamma_interval(
    counts: Floats, variances: Floats, level: float = CONFIDENCE_LEVEL
) -> tuple[Floats, Floats]:
    """Return the ends of intervals that hold each true count with probability `level`."""
    low, high = counts.astype(np.float64), counts.astype(np.float64)
    regular = (variances > 0) & (counts > 0)
    y, v = low[regular], variances[regular]
    w, tail = v / y, (1 - level) / 2
    low[regular] = gammaincinv(y**2 / v, tail) * w
    mean, spread = y + w, v + w**2
    high[regular] = gammainccinv(mean**2 / spread, tail) * spread / mean
    return low, high


def normal_interval(
    counts: Floats, variances: Floats, level: float = CONFIDENCE_LEVEL
) -> tuple[Floats, Floats]:
    """Return the ends of normal intervals that hold each true count with probability `level`."""
    margin = -float(ndtri((1 - level) / 2)) * np.sqrt(np.maximum(variances, 0))
    return counts - margin, counts + margin


def reaches_threshold(
    counts: Floats, variances: Floats, threshold: float, confidence: float
) -> NDArray[np.bool_]:
    """Return for each count whether it is `threshold` or more with probability `confidence`.

    At 1/2 the estimate alone decides. An item with exactly this count is treated as heavy with
    probability about 1 - `confidence`.
    """
    margin = float(ndtri(confidence)) * np.sqrt(np.maximum(variances, 0))
    heavy: NDArray[np.bool_] = counts >= threshold + margin
    return heavy
