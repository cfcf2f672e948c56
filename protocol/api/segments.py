"""Documents of the API about the segments of a study whose domain has segments."""

from collections.abc import Mapping, Sequence

from protocol.api.messages import HeavyHitter
from protocol.api.segment_totals import SegmentTotal
from protocol.domains.base import SEGMENT_SEPARATOR, BaseDomain, segments_of
from protocol.public_model import PublicModel, Rows


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
    items: Rows[HeavyHitter]


class SegmentSummaries(PublicModel):
    """Summaries of all segments, in the order of the study's list.

    The estimates rest on `decoded_rounds` of the `summed_rounds`, whose devices they stand for.
    """

    segments: Rows[SegmentSummary]
    summed_rounds: int
    decoded_rounds: int


def summarise_segments(
    domain: BaseDomain,
    totals: Mapping[str, SegmentTotal],
    items: Sequence[HeavyHitter],
    limit: int,
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
            items=tuple(by_segment.get(segment, ())[:limit]),
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
