"""Totals of all items at the end of a study, from counts, samples and sketches."""

from dataclasses import replace

import numpy as np

from protocol.domains.registry import Domain
from protocol.mechanisms.tracked import tuning_constants as tuning
from protocol.mechanisms.tracked.change_point_totals import (
    measure_change_rates,
    segmented_totals,
    with_sketches,
)
from protocol.mechanisms.tracked.past_sketch import estimate_levels, with_sketch_counts
from protocol.mechanisms.tracked.rate_filter import STATIONARY, Drift, History
from protocol.numerics.arrays import Floats
from protocol.study_state import StudyState


def estimate_totals(
    domain: Domain, state: StudyState, history: History, drift: Drift | None, threshold: float
) -> tuple[Floats, Floats]:
    """Return the totals of the items of `state`, and their variances.

    Without a drift, or if rates move gradually, the totals are those of `rate_filter.py`. Otherwise
    those that may be relevant for the threshold are from change points
    (`change_point_totals.py`), which need more time.
    """
    levels = estimate_levels(domain, state, history, drift or STATIONARY)
    totals, variances = levels.totals.copy(), levels.variances.copy()
    margin = tuning.RELEVANT_Z_SCORE * np.sqrt(variances)
    rows = np.flatnonzero(totals + margin >= threshold * tuning.RELEVANT_THRESHOLD_SHARE)
    if drift is None or drift.trend >= tuning.MIN_TREND or not len(rows):
        return totals, variances
    part = History(history.observed[rows], history.exposure[rows], history.devices)
    change_rates = measure_change_rates(part, drift.dispersion)
    segmented = segmented_totals(part, change_rates, drift.dispersion)
    rates = levels.smoothed_rates.copy()
    rates[rows] = segmented.rates
    sketched = with_sketch_counts(domain, state, history, drift, rates)
    if sketched.sketch_counts is not None:
        sketched = with_sketches(sketched, rates)
        part = replace(part, observed=sketched.observed[rows], exposure=sketched.exposure[rows])
        segmented = segmented_totals(part, change_rates, drift.dispersion)
    totals[rows], variances[rows] = segmented.totals, segmented.variances
    return totals, variances
