"""Tokens in each segment of a domain with segments, also those of items that are not listed.

A mechanism that remembers all items that it sampled has an unbiased estimate of each (0 for an item
that was never sampled), so their sum is unbiased too. Items are sampled independently, so variances
add up. A segment's total T has an interval as an item's count. Its share p = T / (T + U) among all
segments, with the total U of the others, varies by

    var p  ~  (U^2 var T + T^2 var U) / (T + U)^4

A total below the threshold is not shown, as the count of an item is not, nor one that four devices
with all of their items could have (`sampled_counts.py`). Shares are those among the shown segments:
otherwise the difference from all would show the others.
"""

from dataclasses import dataclass

import numpy as np

from protocol.estimation.estimates import CONFIDENCE_LEVEL, totals_of_all_rounds
from protocol.mechanisms.registry import MECHANISMS, AnyQuestion
from protocol.mechanisms.sampled_counts import segments_of, shown_segments
from protocol.numerics import special
from protocol.numerics.arrays import Floats
from protocol.study_state import StudyState


@dataclass(frozen=True, slots=True)
class BoundedNumber:
    """An estimate with the ends of its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class SegmentTotal:
    """Tokens in a segment, and their share of those in all shown segments."""

    total: BoundedNumber
    share: BoundedNumber


def segment_totals(question: AnyQuestion, state: StudyState) -> dict[str, SegmentTotal]:
    """Return the total of each segment that reaches the threshold of `question`, of many devices.

    Empty if the domain has no segments, or `Mechanism.remembers_all` is false.
    """
    mechanism, segments = MECHANISMS[question.mechanism], segments_of(question.domain)
    if not segments or not mechanism.remembers_all(state):
        return {}
    places, is_shown = shown_segments(question, state)
    # The variances of the samples themselves: rates over all rounds are for the items one by one.
    counts, variances = (
        np.bincount(places, column, len(segments)).astype(np.float64)
        for column in totals_of_all_rounds(state)
    )
    shown = np.flatnonzero(is_shown)
    counts, variances = counts[shown], variances[shown]
    low, high = mechanism.confidence_interval(counts, variances)
    shares, errors = _shares(counts, variances)
    margins = -float(special.ndtri((1 - CONFIDENCE_LEVEL) / 2)) * errors
    ends = np.maximum(shares - margins, 0), np.minimum(shares + margins, 1)
    columns = [each.tolist() for each in (shown, counts, low, high, shares, *ends)]
    return {
        segments[row]: SegmentTotal(BoundedNumber(*numbers[:3]), BoundedNumber(*numbers[3:]))
        for row, *numbers in zip(*columns, strict=True)
    }


def _shares(counts: Floats, variances: Floats) -> tuple[Floats, Floats]:
    """Return the share of each count in the sum of all, and its standard error."""
    whole, other_variances = counts.sum(), variances.sum() - variances
    others = whole - counts
    spread = others**2 * variances + counts**2 * other_variances
    return counts / whole, np.sqrt(np.maximum(spread, 0)) / whole**2
