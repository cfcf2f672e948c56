"""Totals of all items at the end of a study, from counts and samples.

If rates do not move gradually (`rate_filter.py`), they are those of `estimation/change_points.py`,
with the factors of `estimation/common_factors.py`: a device in a block of factor g counts g times.
"""

from protocol.estimation.change_points import measure_change_rates, relevant_rows, segmented_totals
from protocol.estimation.common_factors import measure_common_factors
from protocol.estimation.history import History
from protocol.mechanisms.tracked import tuning_constants as tuning
from protocol.mechanisms.tracked.rate_filter import Drift, estimate_levels
from protocol.numerics.arrays import Floats


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
