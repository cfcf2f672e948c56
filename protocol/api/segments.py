"""Tokens of the shown items in each segment of a domain with segments, and their documents.

A segment's total is the sum of the estimated totals of its *shown* items: those that are listed, or
that five devices or more were counted with (`sampled_counts.py`). Rarer items are in no total:
otherwise the difference between a segment and its items would show what a single device holds. For
example, a segment whose 40 devices all hold different items has no total.

Errors of different items are correlated, because the rates of all items are estimated together. If
many of them have bursts, all totals may be too low. Errors of items with the standard errors s_i
add up to the variance

    (1 - c) sum of s_i^2 + c (sum of s_i)^2        c = `ERROR_CORRELATION`

A segment's total T has an interval as an item's count. Its share p = T / (T + U) among all
segments, with the total U of the others, varies by

    var p  ~  (U^2 var T + T^2 var U) / (T + U)^4

A total below the threshold is not shown, as the count of an item is not. Shares are those among the
shown segments.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np

from protocol.api.messages import HeavyHitter
from protocol.domains.base import SEGMENT_SEPARATOR, BaseDomain, segments_of
from protocol.estimation.estimates import CONFIDENCE_LEVEL
from protocol.mechanisms.registry import MECHANISMS, AnyQuestion
from protocol.numerics import special
from protocol.numerics.array_types import Floats, Integers
from protocol.public_model import PublicModel, Rows
from protocol.study_state import StudyState

# Root mean square of the errors of sums of all totals, in sums of standard errors, in 24 studies by
# three data sets and eight drifts: 0.02 to 0.4, and 0.5 for long strings with a sudden change.
ERROR_CORRELATION: Final = 0.25**2


@dataclass(frozen=True, slots=True)
class BoundedNumber:
    """An estimate with the ends of its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class SegmentTotal:
    """Tokens of a segment's shown items, and their share of those of all shown segments."""

    total: BoundedNumber
    share: BoundedNumber
    variance: float


def segment_totals(question: AnyQuestion, state: StudyState) -> dict[str, SegmentTotal]:
    """Return the total of each segment that reaches the threshold of `question`.

    Empty if the domain has no segments, or the mechanism has no totals of items below the threshold
    (`Mechanism.shown_totals`).
    """
    mechanism, segments = MECHANISMS[question.mechanism], segments_of(question.domain)
    if not segments:
        return {}
    rows = {segment: row for row, segment in enumerate(segments)}
    totals = mechanism.shown_totals(question, state)
    names = [question.domain.segment_of(each.item) or "" for each in totals]
    places = np.array([rows[name] for name in names], np.int64)
    counts = np.bincount(places, [each.count for each in totals], len(segments)).astype(np.float64)
    spread = np.array([each.variance for each in totals], np.float64)
    variances = sum_variances(spread, places, len(segments))
    shown = np.flatnonzero(counts >= question.threshold)
    counts, variances = counts[shown], variances[shown]
    low, high = mechanism.confidence_interval(counts, variances)
    shares, errors = _shares(counts, variances)
    margins = _margin_sds() * errors
    ends = np.maximum(shares - margins, 0), np.minimum(shares + margins, 1)
    columns = [each.tolist() for each in (shown, counts, low, high, shares, *ends, variances)]
    return {
        segments[row]: SegmentTotal(BoundedNumber(*n[:3]), BoundedNumber(*n[3:6]), n[6])
        for row, *n in zip(*columns, strict=True)
    }


def sum_variances(variances: Floats, places: Integers, sums: int) -> Floats:
    """Return the variances of sums of estimates, whose errors are correlated."""
    independent, together = (
        np.bincount(places, each, sums).astype(np.float64)
        for each in (variances, np.sqrt(variances))
    )
    variance: Floats = independent + ERROR_CORRELATION * (together**2 - independent)
    return variance


def _shares(counts: Floats, variances: Floats) -> tuple[Floats, Floats]:
    """Return the share of each count in the sum of all, and its standard error."""
    whole, other_variances = counts.sum(), variances.sum() - variances
    others = whole - counts
    spread = others**2 * variances + counts**2 * other_variances
    return counts / whole, np.sqrt(np.maximum(spread, 0)) / whole**2


@cache
def _margin_sds() -> float:
    return -float(special.ndtri((1 - CONFIDENCE_LEVEL) / 2))


class SegmentItem(HeavyHitter):
    """A heavy hitter of a segment, with its share of the segment's total in a 95% interval.

    The share is null where the segment has no total.
    """

    segment_share: float | None = None
    segment_share_low: float | None = None
    segment_share_high: float | None = None

    @classmethod
    def of(cls, item: HeavyHitter, total: SegmentTotal | None) -> "SegmentItem":
        """Return `item` with its share p = T / (T + U), whose variance is that of segments."""
        if total is None:
            return cls(**dict(item))
        counts = np.array([item.estimate, max(0.0, total.total.value - item.estimate)])
        variance = item.standard_error**2
        shares, errors = _shares(counts, np.array([variance, max(0, total.variance - variance)]))
        share, margin = float(shares[0]), _margin_sds() * float(errors[0])
        ends = {"segment_share_low": max(0, share - margin)}
        ends |= {"segment_share_high": min(1, share + margin), "segment_share": share}
        return cls(**dict(item), **ends)


class SegmentSummary(PublicModel):
    """Total of a segment, its share of all segments, and its most frequent items.

    The total counts all tokens in the segment, also of items that are not listed, and `low` and
    `high` ends are 95% intervals. It is null below the study's threshold, where the mechanism
    does not remember all items that it sampled, and where many rounds were not read. Shares are
    those among the segments with a total.
    `heavy_hitters` items reach the threshold, and `items` are the first of these, without their
    segment.
    """

    segment: str
    total: float | None = None
    total_low: float | None = None
    total_high: float | None = None
    share: float | None = None
    share_low: float | None = None
    share_high: float | None = None
    heavy_hitters: int
    items: Rows[SegmentItem]


class SegmentSummaries(PublicModel):
    """Summaries of all segments, in the order of the study's list.

    The estimates rest on `decoded_rounds` of the `summed_rounds`, whose devices they stand for.
    """

    segments: Rows[SegmentSummary]
    summed_rounds: int
    decoded_rounds: int


def summarise_segments(
    domain: BaseDomain, totals: Mapping[str, SegmentTotal], items: Sequence[HeavyHitter], limit: int
) -> tuple[SegmentSummary, ...]:
    """Return the summary of each segment, with `limit` of its items at most, the first first."""
    by_segment: dict[str | None, list[HeavyHitter]] = {}
    for each in items:
        rest = each.item.partition(SEGMENT_SEPARATOR)[2] or each.item  # a key has no text yet
        inside = by_segment.setdefault(domain.segment_of(each.item), [])
        inside.append(each.model_copy(update={"item": rest}))
    return tuple(
        SegmentSummary(
            segment=segment,
            heavy_hitters=len(by_segment.get(segment, ())),
            items=tuple(
                SegmentItem.of(each, totals.get(segment))
                for each in by_segment.get(segment, ())[:limit]
            ),
            **_fields(totals.get(segment)),
        )
        for segment in segments_of(domain)
    )


def _fields(total: SegmentTotal | None) -> dict[str, float]:
    if total is None:
        return {}
    return {
        "total": total.total.value,
        "total_low": total.total.low,
        "total_high": total.total.high,
        "share": total.share.value,
        "share_low": total.share.low,
        "share_high": total.share.high,
    }
