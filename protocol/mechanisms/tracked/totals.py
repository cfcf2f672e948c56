"""Totals of all items at the end of a study, from counts, samples and sketches.

If rates do not move gradually (`rate_filter.py`), they are those of `estimation/change_points.py`,
with the factors of `estimation/common_factors.py`: a device in a block of factor g counts g times.

A sketch that shows the unobserved tokens of a block with variance v (`past_sketch.py`) counts as an
observation of a share p = u / (u + v) of them, where u is their expected number: the variance that
remains is u (1 - p) for both. A sketch that shows c tokens of an item that was absent shows noise:
with the densities n of normal distributions, the item was absent with the likelihood ratio

    n(c; 0, v) / n(c; u, u + v)

Sketches as partial observations are ours.
"""

import numpy as np

from protocol.domains import Domain
from protocol.estimation.change_points import measure_change_rates, relevant_rows, segmented_totals
from protocol.estimation.common_factors import measure_common_factors
from protocol.estimation.history import History
from protocol.mechanisms.tracked import tuning_constants as tuning
from protocol.mechanisms.tracked.past_sketch import (
    estimate_levels,
    filtered_rate_variances,
    limited_rates,
    with_sketch_counts,
)
from protocol.mechanisms.tracked.rate_filter import STATIONARY, Drift
from protocol.numerics.arrays import Floats
from protocol.study_state import StudyState


def estimate_totals(
    domain: Domain, state: StudyState, history: History, drift: Drift | None, threshold: float
) -> tuple[Floats, Floats]:
    """Return the totals of the items of `state`, and their variances.

    Without a drift, or if rates move gradually, the totals are those of `rate_filter.py`. Otherwise
    those that may be relevant for the threshold are from change points, which need more time.
    """
    levels = estimate_levels(domain, state, history, drift or STATIONARY)
    totals, variances = levels.totals.copy(), levels.variances.copy()
    rows = relevant_rows(totals, variances, threshold)
    if drift is None or drift.trend >= tuning.MIN_TREND or not len(rows):
        return totals, variances
    part = history.select(rows)
    factors = measure_common_factors(part, drift.dispersion)
    part = part.scaled(factors)
    change_rates = measure_change_rates(part, drift.dispersion)
    segmented = segmented_totals(part, change_rates, drift.dispersion)
    rates = limited_rates(history, levels.smoothed_rates)
    rates[rows] = segmented.rates * factors
    rate_variances = filtered_rate_variances(history, drift, rates)
    rate_variances[rows] = segmented.rate_variances * factors**2
    sketched = with_sketch_counts(domain, state, history, drift, rates, rate_variances)
    if sketched.sketch_counts is not None:
        part = with_sketches(sketched.select(rows).scaled(factors), segmented.rates)
        segmented = segmented_totals(part, change_rates, drift.dispersion)
    totals[rows], variances[rows] = segmented.totals, segmented.variances
    return totals, variances


def with_sketches(history: History, rates: Floats) -> History:
    """Return `history` with the counts of its sketches as observations, expected at `rates`.

    They are never none. So the likelihoods of items that were absent are in `History.absence`.
    """
    if history.sketch_counts is None or history.sketch_variances is None:
        return history
    hidden = np.maximum(history.devices - history.exposure, 0)
    expected = np.maximum(rates * hidden, tuning.MIN_EXPECTED_TOKENS)
    is_known = np.isfinite(history.sketch_variances) & (hidden > 0)
    variances = np.where(is_known, history.sketch_variances, 1.0)
    shares = np.where(is_known, expected / (expected + variances), 0.0)
    counts = np.where(is_known, history.sketch_counts, expected)
    tokens, exposure = shares * counts, shares * hidden
    # As the likelihoods of segments, without the factors that do not depend on the rate.
    at_rate = tokens * np.log(expected / np.where(is_known, hidden, 1.0)) - shares * expected
    squares = (counts - expected) ** 2 / (expected + variances) - counts**2 / variances
    ratio = (squares + np.log1p(expected / variances)) / 2
    absence = history.log_absence + np.where(is_known, at_rate + ratio, 0.0)
    return History(
        history.observed + tokens, history.exposure + exposure, history.devices, absence=absence
    )
