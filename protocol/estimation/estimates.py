"""Estimated counts of items, with their intervals, and the expected errors of a list of them.

The estimates of earlier rounds are columns of the study state (`study_state.py`).

**A round that is not read**, because its table is too full, shows no counts. Its devices have
counted all the same, so totals are estimated for them too. An item with c tokens in the D_r devices
of the rounds that were read is assumed to have had the same rate in the D_u devices of the others:

    total     =  c (1 + g),   g = D_u / D_r
    variance  =  v (1 + g)^2 + c g (1 + g)

The first term is that of the estimate of c, whose variance is v. The second is that of the tokens:
they are Poisson in both, so that the unread ones differ from c g by c g + c g^2. It holds if rates
do not change; the lists of `tracked` measure how they do. An item that is counted exactly has its
counts in a round whose table was not read, too.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.domains import Domain
from protocol.numerics import special
from protocol.numerics.array_types import Floats, Indices
from protocol.public_model import PublicModel
from protocol.study_state import StudyState, read_devices

CONFIDENCE_LEVEL = 0.95
COUNT_COLUMN, VARIANCE_COLUMN = "count", "variance"  # columns of a study state
HOLDERS_COLUMN = "fewest holders"  # devices that are needed for the counts of the rounds
_COHORT_EVIDENCE_COLUMN = "cohort evidence"  # -ln of the smallest p-value of a round, if notable
MAX_SHOWN_ESTIMATES = 1000  # of the estimates of one round


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated count of an item in one round, or over several rounds, with its variance.

    `cohort_p_value` is the probability that cohorts of honest devices differ as much as in one of
    the rounds; None if that is not notable, or the cohorts were not compared. `probability` is that
    of a heavy item, if the mechanism estimates it from the distribution of all items. The count
    stands for all devices, and `counted_share` is the share of them whose counts it rests on: less
    than 1 if cohorts were left out.
    """

    item: str
    count: float
    variance: float
    cohort_p_value: float | None = None
    probability: float | None = None
    counted_share: float = 1.0


class ListQuality(PublicModel):
    """Expected errors of a list of heavy hitters, and the items that are not on it.

    `expected_precision` is the expected share of listed items that are heavy, `expected_recall` the
    expected share of heavy items that are listed, both None if nothing is listed, and
    `expected_missed` the expected number of heavy items that are not listed. In precision and
    recall, items whose strings are not known count as wrong. All three are expectations of a
    model, which is fitted to the items that may be shown (`Mechanism.shown`).
    """

    expected_precision: float | None
    expected_recall: float | None
    expected_missed: float


def missed_text(missed: float) -> str:
    """Return an expected number of missed items; a few are not rounded to none: 0.5, 2.2, 1,234."""
    return f"{missed:,.1f}" if 0.05 <= missed < 9.95 else f"{missed:,.0f}"


def quality_sentence(quality: ListQuality, *, has_keys: bool) -> str:
    """Return `quality` in words; `has_keys` means that the strings of some items are not known."""
    missed = missed_text(quality.expected_missed)
    rest = f"The number of items that reach the threshold and are not listed is about {missed}."
    precision, recall = quality.expected_precision, quality.expected_recall
    if precision is None or recall is None:
        return rest
    keys = " (keys without their strings count as wrong)" if has_keys else ""
    return (
        f"Of the listed items, about {precision:.1%} reach the threshold (precision), and of those "
        f"that reach it, about {recall:.1%} are listed (recall){keys}. {rest}"
    )


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    """Heavy hitters of a study, highest estimate first; `quality` is None if it is not known."""

    heavy_hitters: tuple[Estimate, ...]
    quality: ListQuality | None = None


def ranked(estimates: Iterable[Estimate]) -> list[Estimate]:
    """Return `estimates`, highest count first; equal counts in the order of items."""
    return sorted(estimates, key=lambda estimate: (-estimate.count, estimate.item))


def estimates_of_values(
    domain: Domain,
    values: Indices,
    counts: Floats,
    variances: Floats,
    probabilities: Floats | None = None,
) -> list[Estimate]:
    """Return the ranked estimates of `values`, which are also the indices of their counts."""
    names = domain.names_of(values.astype(np.uint64))
    return ranked(
        Estimate(
            name,
            float(counts[value]),
            float(variances[value]),
            probability=None if probabilities is None else float(probabilities[value]),
        )
        for name, value in zip(names, values.tolist(), strict=True)
        if name is not None
    )


def estimates_of_rows(
    state: StudyState,
    rows: Indices,
    counts: Floats,
    variances: Floats,
    probabilities: Floats | None = None,
) -> list[Estimate]:
    """Return the ranked estimates of the items in `rows` of `state`, with their p-values."""
    evidence = state.column(_COHORT_EVIDENCE_COLUMN)
    return ranked(
        Estimate(
            state.items[row],
            float(counts[row]),
            float(variances[row]),
            math.exp(-evidence[row]) if evidence[row] else None,
            None if probabilities is None else float(probabilities[row]),
        )
        for row in rows.tolist()
    )


def flags(state: StudyState) -> NDArray[np.bool_]:
    """Return for each item of `state` whether its cohorts differed notably in a round."""
    flagged: NDArray[np.bool_] = state.column(_COHORT_EVIDENCE_COLUMN) > 0
    return flagged


def add_estimates(
    state: StudyState, estimates: Sequence[Estimate], max_device_counts: Floats | float = 1.0
) -> StudyState:
    """Return `state` with the counts and variances of a round's `estimates` added.

    One device adds at most `max_device_counts` to each count. Of the p-values of an item in several
    rounds, the smallest is kept.
    """
    counts = np.array([estimate.count for estimate in estimates], np.float64)
    variances = np.array([estimate.variance for estimate in estimates], np.float64)
    columns = {COUNT_COLUMN: counts, VARIANCE_COLUMN: variances}
    columns[HOLDERS_COLUMN] = counts / max_device_counts
    items = [estimate.item for estimate in estimates]
    state = state.add(items, columns)
    flagged = [each for each in estimates if each.cohort_p_value is not None]
    if not flagged:
        return state
    evidence = state.column(_COHORT_EVIDENCE_COLUMN).copy()
    for each in flagged:
        assert each.cohort_p_value is not None
        row, of_round = state.rows[each.item], -math.log(max(each.cohort_p_value, math.ulp(0)))
        evidence[row] = max(evidence[row], of_round)
    return state.with_column(_COHORT_EVIDENCE_COLUMN, evidence)


def replace_estimates(state: StudyState, estimates: Sequence[Estimate]) -> StudyState:
    """Return `state` with its estimates replaced by `estimates`, which cover all rounds."""
    return add_estimates(StudyState(arrays=state.arrays), estimates)


def count_significant(estimates: Iterable[Estimate]) -> float:
    """Return the number of `estimates` above three of their standard deviations."""
    return float(sum(each.count > 3 * each.variance**0.5 for each in estimates))


def gamma_interval(
    counts: Floats, variances: Floats, level: float = CONFIDENCE_LEVEL
) -> tuple[Floats, Floats]:
    """Return the ends of intervals that hold each true count with probability `level`.

    A count that is estimated from samples is a weighted sum of Poisson counts, and skewed if it
    rests on few of them. So its interval is the one of a gamma distribution with the same mean y
    and variance v, whose upper end is moved by one more sample of weight w = v / y:

        low   =  quantile(a / 2)      of Gamma(mean y, variance v)
        high  =  quantile(1 - a / 2)  of Gamma(mean y + w, variance v + w^2)

    It is nearly the normal interval if v is small compared with y. It holds for an item that is
    chosen beforehand. Of the items that are reported *because* their estimates are high, more are
    estimated too high than too low.

    Source: [FayFeuer97], for weighted sums of Poisson counts.
    """
    low, high = counts.astype(np.float64), counts.astype(np.float64)
    regular = (variances > 0) & (counts > 0)
    y, v = low[regular], variances[regular]
    w, tail = v / y, (1 - level) / 2
    low[regular] = special.gammaincinv(y**2 / v, tail) * w
    mean, spread = y + w, v + w**2
    high[regular] = special.gammainccinv(mean**2 / spread, tail) * spread / mean
    return low, high


def normal_interval(
    counts: Floats, variances: Floats, level: float = CONFIDENCE_LEVEL
) -> tuple[Floats, Floats]:
    """Return the ends of normal intervals that hold each true count with probability `level`.

    They are for counts that are estimated from locally private reports: sums of noise that is much
    larger than the count's own part. They may be below 0.
    """
    margin = -float(special.ndtri((1 - level) / 2)) * np.sqrt(np.maximum(variances, 0))
    return counts - margin, counts + margin


def reaches_threshold(
    counts: Floats, variances: Floats, threshold: float, confidence: float
) -> NDArray[np.bool_]:
    """Return for each count whether it is `threshold` or more with probability `confidence`.

    At 1/2 the estimate alone decides. An item with exactly this count is treated as heavy with
    probability about 1 - `confidence`.
    """
    margin = float(special.ndtri(confidence)) * np.sqrt(np.maximum(variances, 0))
    heavy: NDArray[np.bool_] = counts >= threshold + margin
    return heavy


def totals_of_all_rounds(
    state: StudyState, variances: Floats | None = None
) -> tuple[Floats, Floats]:
    """Return the estimated counts of the items of `state` in all rounds, and their variances.

    `variances` are those of the estimates in the rounds that were read, by default the stored ones.
    """
    counts = state.column(COUNT_COLUMN)
    variances = state.column(VARIANCE_COLUMN) if variances is None else variances
    read, unread = read_devices(state)
    growth = unread / read
    tokens = np.maximum(counts, 0) * growth * (1 + growth)
    return counts * (1 + growth), variances * (1 + growth) ** 2 + tokens
