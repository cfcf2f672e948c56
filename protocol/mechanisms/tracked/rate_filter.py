"""Filter of the rates and totals of partly observed items: a local-level model with a slope.

A round *observes* all tokens of the items that it counts exactly, a share 1/t of the tokens of the
items that it samples, and none if it fails. Rounds are grouped in blocks. Block b has n_b devices,
and an item's *exposure* e_b is the number of devices that it is observed in: n_b if it is counted,
n_b / t if it is sampled. Of its tokens s_b are observed. With x_b its rate, in tokens per device,

    s_b       ~  mean x_b e_b, variance D x_b e_b              (D = 1: Poisson)
    x_(b+1)   =  x_b + v + noise of variance (phi x)^2,  v of variance (trend x)^2
    total     =  sum of s_b + sum of x_b (n_b - e_b)           observed and unobserved tokens

So a round that observes everything adds no error, and a round that observes little uses the
rounds around it: all of them alike if phi and trend are 0 (a *stationary* population), only the
nearest ones if phi is large. Each item has its own trend v, which stays, so that later rounds
determine the direction of earlier ones.

Where many items jump together between two blocks, the population has a *break*: this step has
its own phi, and the blocks after it reveal little about the blocks before. If one item is observed
more or less often than chance can explain, the item has jumped by itself: the variance of its rate
grows by the amount that explains it.

The estimate is exact Bayes for the linear Gaussian model: a Kalman filter whose state is the rate,
its slope and the sum of unobserved tokens. Variances are taken at each item's mean rate, or at
given rates. A fixed-interval smoother goes back through the filter for the rates of all blocks.

phi, trend and D are measured from items that were counted exactly (`drift_measurement.py`).

If rates do not move gradually, totals are those of `estimation/change_points.py`, with its common
factors: a device in a block of factor g counts g times.

Source: the local-level and local linear trend models of [Harvey89, chapters 2 and 3], with a
constant slope; the sum of unobserved tokens in the state is ours. The smoother is from
[RauchTungStriebel65].
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from protocol.estimation.change_points import (
    measure_change_rates,
    measure_common_factors,
    relevant_rows,
    segmented_totals,
)
from protocol.estimation.segments import History
from protocol.mechanisms.tracked import tuning_constants as tuning
from protocol.numerics.array_types import Floats

_SINGULAR_DETERMINANT = 1e-12  # relative to the variance of the rate; below, it counts as 0


@dataclass(frozen=True, slots=True)
class Drift:
    """Movement of rates from block to block, and scatter of counts (`dispersion`, D).

    `phi` is the standard deviation of a random step and `trend` of a constant one, both in
    multiples of an item's mean rate. `breaks` maps each block that rates jumped before to the size
    of the jump.
    """

    phi: float
    dispersion: float
    breaks: Mapping[int, float] = field(default_factory=dict)
    trend: float = 0.0


STATIONARY = Drift(0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Levels:
    """Totals of k items, their rates in the next block, and in all blocks so far (k, B)."""

    totals: Floats
    variances: Floats
    rates: Floats
    rate_variances: Floats
    smoothed_rates: Floats


def estimate_levels(history: History, drift: Drift) -> Levels:
    """Return totals and rates of each item, by two passes of the filter.

    The variances of counts are those at the rates of a first pass. At the mean rate, items whose
    rates fell had rms errors of 1.5 standard errors, since they were sampled when they were common.
    """
    rates = filter_levels(history, drift).smoothed_rates
    min_rates = tuning.MIN_RATE_PER_MEAN * history.rates[:, np.newaxis]
    return filter_levels(history, drift, np.maximum(rates, min_rates))


def filter_levels(history: History, drift: Drift, rates: Floats | None = None) -> Levels:
    """Return totals and rates of each item, given `history` and `drift`; time is linear in blocks.

    The variance of counts is taken at `rates` (k, B), by default `History.rates_between`.
    """
    means = history.rates_between(drift.breaks)
    rates = means if rates is None else rates
    state = _KalmanState.initial(means[:, 0], drift)
    predicted, updated = list[tuple[Floats, Floats]](), list[tuple[Floats, Floats]]()
    hidden = np.maximum(history.devices - history.exposure, 0)
    for block in range(len(history.devices)):
        scatter = drift.dispersion * rates[:, block]
        if block:
            state.predict(drift, block, np.maximum(means[:, block - 1], means[:, block]))
        observed, exposure, unobserved = (
            column[:, block] for column in (history.observed, history.exposure, hidden)
        )
        surprise = state.innovation(observed, exposure, scatter)
        predicted.append(state.rate_distribution())
        state.update(surprise, exposure, unobserved, scatter)
        updated.append(state.rate_distribution())
    chance = (hidden * rates).sum(axis=1)
    smoothed = _smooth_rates(predicted, updated)
    return state.result(history.observed.sum(axis=1), chance, drift, smoothed)


@dataclass(slots=True)
class _KalmanState:
    """Mean (3, k) and covariance (3, 3, k) of rate, slope and sum of unobserved tokens."""

    mean: Floats
    covariance: Floats

    @classmethod
    def initial(cls, rates: Floats, drift: Drift) -> "_KalmanState":
        zero, covariance = np.zeros(len(rates)), np.zeros((3, 3, len(rates)))
        covariance[0, 0] = (tuning.FIRST_RATE_SD * rates) ** 2
        covariance[1, 1] = (drift.trend * rates) ** 2
        return cls(np.stack([rates, zero, zero]), covariance)

    def predict(self, drift: Drift, block: int, rates: Floats) -> None:
        """Move rates into `block`, by their slopes and by random steps."""
        self.mean[0] += self.mean[1]
        self.covariance[0] += self.covariance[1]
        self.covariance[:, 0] += self.covariance[:, 1]
        self.covariance[0, 0] += (drift.breaks.get(block, drift.phi) * rates) ** 2
        if block in drift.breaks:
            self.covariance[1, 1] += (drift.trend * rates) ** 2

    def innovation(self, observed: Floats, exposure: Floats, scatter: Floats) -> Floats:
        """Return `observed` less its expectation; add to the variance of rates that jumped."""
        surprise: Floats = observed - exposure * self.mean[0]
        self.covariance[0, 0] += _item_jump_variance(
            surprise, exposure, self.covariance[0, 0], scatter
        )
        return surprise

    def update(
        self, surprise: Floats, exposure: Floats, unobserved: Floats, scatter: Floats
    ) -> None:
        """Condition on the observed tokens of a block, and add its unobserved ones to their sum."""
        self.mean[2] += unobserved * self.mean[0]
        self.covariance[2] += unobserved * self.covariance[0]
        self.covariance[:, 2] += unobserved * self.covariance[:, 0]
        with_rate = self.covariance[0].copy()
        gain = with_rate / (exposure * with_rate[0] + scatter)
        self.mean += gain * surprise
        self.covariance -= gain * exposure * with_rate[:, np.newaxis]

    def rate_distribution(self) -> tuple[Floats, Floats]:
        return self.mean[:2].copy(), self.covariance[:2, :2].copy()

    def result(
        self, observed: Floats, chance: Floats, drift: Drift, smoothed_rates: Floats
    ) -> Levels:
        """Return totals and rates after the last block, for `observed` tokens in all blocks.

        `chance` is the variance of unobserved tokens by chance, divided by D.
        """
        unobserved = np.maximum(self.mean[2], 0)
        by_chance = drift.dispersion * np.minimum(unobserved, chance)
        variances = np.maximum(self.covariance[2, 2], 0) + by_chance
        rates = np.maximum(self.mean[0] + self.mean[1], 0)
        spread = self.covariance[:2, :2].sum(axis=(0, 1))
        return Levels(observed + unobserved, variances, rates, spread, smoothed_rates)


def _smooth_rates(
    predicted: Sequence[tuple[Floats, Floats]], updated: Sequence[tuple[Floats, Floats]]
) -> Floats:
    """Return the rates of each block (k, B), given the observations of all blocks.

    The arguments have mean and covariance of each block's rate and slope, before and after its
    observations.
    """
    smoothed = updated[-1][0]
    rates = [smoothed[0]]
    for (mean, covariance), following in zip(updated[-2::-1], predicted[:0:-1], strict=True):
        expected, (first, second) = following
        later = covariance.copy()  # with the next block, whose rate includes the slope
        later[:, 0] += covariance[:, 1]
        determinant = first[0] * second[1] - first[1] * second[0]
        rate_change, slope_change = smoothed - expected
        # Without a trend all slopes are 0, so only the rate counts.
        is_regular = determinant > _SINGULAR_DETERMINANT * first[0] ** 2
        combined = second[1] * rate_change - first[1] * slope_change
        by_rate = np.where(is_regular, combined, rate_change)
        by_slope = np.where(is_regular, first[0] * slope_change - second[0] * rate_change, 0.0)
        scale = np.where(is_regular, determinant, first[0])
        smoothed = mean + (later[:, 0] * by_rate + later[:, 1] * by_slope) / scale
        rates.append(smoothed[0])
    return np.stack(rates[::-1], axis=1)


def _item_jump_variance(
    surprise: Floats, exposure: Floats, rate_variance: Floats, scatter: Floats
) -> Floats:
    """Return the addition to the variance of each rate that makes its surprise one deviation.

    It is 0 for a surprise below `ITEM_JUMP_Z_SCORE` standard deviations.
    """
    usual = exposure * (exposure * rate_variance + scatter)
    excess = surprise**2 - usual
    skewed = usual + np.abs(surprise) / tuning.SKEW_DIVISOR  # few tokens are skewed
    jumped = np.abs(surprise) > tuning.ITEM_JUMP_Z_SCORE * np.sqrt(skewed)
    added: Floats = np.where(jumped, excess / np.maximum(exposure, 1e-9) ** 2, 0.0)
    return added


def estimate_totals(history: History, drift: Drift, threshold: float) -> tuple[Floats, Floats]:
    """Return the totals of the items of `history`, and their variances.

    If rates move gradually, the totals are those of `rate_filter.py`. Otherwise those that may be
    relevant for the threshold are from change points, which need more time.
    """
    levels = estimate_levels(history, drift)
    totals, variances = levels.totals.copy(), levels.variances.copy()
    rows = relevant_rows(totals, variances, threshold)
    if drift.trend >= tuning.MIN_TREND or not len(rows):
        return totals, variances
    part = history.select(rows)
    factors = measure_common_factors(part, drift.dispersion)
    part = part.scaled(factors)
    change_rates = measure_change_rates(part, drift.dispersion)
    segmented = segmented_totals(part, change_rates, drift.dispersion)
    totals[rows], variances[rows] = segmented.totals, segmented.variances
    return totals, variances
