"""Totals of counts of which only some were seen: a local-level model of each item's rate.

An item's tokens are *seen* in part: all of them in rounds that count it exactly, a share 1/t of
them in rounds that sample it, none in rounds that fail. Rounds are gathered in blocks; block b
has n_b devices, and an item is *exposed* to e_b of them (n_b where it is counted, n_b / t where
it is sampled). Of its tokens, s_b are seen. With x_b its rate, in tokens a device,

    s_b       ~  mean x_b e_b, variance D x_b e_b              (D = 1: Poisson)
    x_(b+1)   =  x_b + noise of variance (phi x)^2
    total     =  sum of s_b + sum of x_b (n_b - e_b)           what was seen, what was not

so a round that sees everything adds no error, and one that sees little borrows from the rounds
around it: from all of them alike if phi = 0 (the population is *stationary*), from the nearest
only if phi is large. phi and D are measured, from how much the counts of all items that are
counted exactly differ from round to round: neighbours in time differ by D alone, distant ones by
phi as well.

The estimate is exact Bayes for the linear Gaussian model (a Kalman filter whose state is the
rate and the sum of what was missed), with variances taken at each item's mean rate.

Source: the local-level model of [Harvey89, chapter 2]; the sum of the missed in the state, and
phi from pooled differences, are ours.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_LAGS = (1, 2, 4, 8)
_LEAST_PAIRS = 40  # of counts that are compared; from fewer nothing is concluded
_VAGUE = 3.0  # sd of the first rate, in multiples of its mean
_LEAST_TOKENS = 0.25  # the rate of what was never seen is taken for this many over all exposure


@dataclass(frozen=True, slots=True)
class Drift:
    """How much rates move from block to block (`phi`, relative), and how counts scatter (D)."""

    phi: float
    dispersion: float


STATIONARY = Drift(0.0, 1.0)


@dataclass(frozen=True, slots=True)
class History:
    """What was seen of k items in B blocks: `seen` and `exposed` (k, B), `devices` (B,)."""

    seen: Floats
    exposed: Floats
    devices: Floats

    @property
    def rates(self) -> Floats:
        """Return each item's mean rate (k,), more than zero."""
        exposed = np.maximum(self.exposed.sum(axis=1), 1e-9)
        rates: Floats = np.maximum(self.seen.sum(axis=1), _LEAST_TOKENS) / exposed
        return rates


@dataclass(frozen=True, slots=True)
class Levels:
    """Totals of k items with their variances, and each item's rate at the end with its variance."""

    totals: Floats
    variances: Floats
    rates: Floats
    rate_variances: Floats


def filter_levels(history: History, drift: Drift) -> Levels:
    """Return what `history` says of each item under `drift`; time is linear in blocks."""
    mean = history.rates
    noise = (drift.phi * mean) ** 2
    rate, missed = mean.copy(), np.zeros_like(mean)
    rate_var, missed_var = (_VAGUE * mean) ** 2, np.zeros_like(mean)
    covariance = np.zeros_like(mean)
    unexposed = np.zeros_like(mean)
    for block, devices in enumerate(history.devices):
        seen, exposed = history.seen[:, block], history.exposed[:, block]
        if block:
            rate_var = rate_var + noise
        hidden = np.maximum(devices - exposed, 0)
        missed = missed + hidden * rate
        missed_var = missed_var + 2 * hidden * covariance + hidden**2 * rate_var
        covariance = covariance + hidden * rate_var
        unexposed = unexposed + hidden
        spread = exposed * rate_var + drift.dispersion * mean  # times `exposed`: of `seen`
        gain, missed_gain = rate_var / spread, covariance / spread
        surprise = seen - exposed * rate
        rate, missed = rate + gain * surprise, missed + missed_gain * surprise
        missed_var = missed_var - missed_gain * exposed * covariance
        covariance = covariance - gain * exposed * covariance
        rate_var = rate_var - gain * exposed * rate_var
    missed = np.maximum(missed, 0)
    variances = np.maximum(missed_var, 0) + drift.dispersion * np.minimum(missed, unexposed * mean)
    return Levels(history.seen.sum(axis=1) + missed, variances, np.maximum(rate, 0), rate_var)


def measure_drift(history: History) -> Drift:
    """Return the drift by the counts of items that were counted exactly in two blocks each.

    Of two such rates d blocks apart, the squared difference over mean rate (1/n + 1/n') is D
    on average plus phi^2 times d rate / (1/n + 1/n'): a line, fitted by weighted least squares.
    """
    squares, slopes = [np.zeros(0)], [np.zeros(0)]
    whole = (history.exposed >= history.devices) & (history.devices > 0)
    for lag in _LAGS:
        both = whole[:, lag:] & whole[:, :-lag]
        items, blocks = np.nonzero(both)
        n, later = history.devices[blocks], history.devices[blocks + lag]
        one, other = history.seen[items, blocks] / n, history.seen[items, blocks + lag] / later
        mean, width = (one + other) / 2, 1 / n + 1 / later
        some = mean > 0
        squares.append((one - other)[some] ** 2 / (mean * width)[some])
        slopes.append(lag * (mean / width)[some])
    return _fit(np.concatenate(squares), np.concatenate(slopes))


def _fit(squares: Floats, slopes: Floats) -> Drift:
    """Return intercept and root of the slope of the line through (slopes, squares)."""
    if len(squares) < _LEAST_PAIRS:
        return STATIONARY
    phi_squared, dispersion = 0.0, 1.0
    for _ in range(3):  # weights are those of a chi-square of one degree about the line
        weights = (dispersion + phi_squared * slopes) ** -2
        # Sums, not products of vectors: BLAS would set all cores to work on these few.
        total, first = weights.sum(), (weights * slopes).sum()
        second = (weights * slopes**2).sum()
        top = total * (weights * slopes * squares).sum() - first * (weights * squares).sum()
        bottom = total * second - first**2
        phi_squared = min(1.0, max(0.0, top / bottom)) if bottom > 0 else 0.0
        left = squares - phi_squared * slopes
        dispersion = max(1.0, float((weights * left).sum() / total))
    return Drift(float(np.sqrt(phi_squared)), dispersion)
