"""Small multiples: the same items in each segment, as bars on one scale."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from protocol.api.messages import HeavyHitter
from protocol.api.segments import SegmentItem, SegmentSummary
from server.pages.charts.drawing import Bar, estimate_bars

_MAX_ITEMS: Final = 6


@dataclass(frozen=True, slots=True)
class FigureRow:
    """An item of a segment, and its bars on the scales of shares and of counts."""

    item: SegmentItem
    share_bar: Bar
    count_bar: Bar


@dataclass(frozen=True, slots=True)
class SegmentFigures:
    """The rows of each segment by the `names` of items, the same in all, with one scale.

    The names are the most common ones of any segment. `empty` segments have no listed item.
    `share_end` and `count_end` end the scales. Shares need totals, which not all methods have.
    """

    figures: tuple[tuple[SegmentSummary, dict[str, FigureRow]], ...]
    names: tuple[str, ...]
    empty: tuple[str, ...]
    has_shares: bool
    share_end: float
    count_end: float


def segment_figures(segments: Sequence[SegmentSummary]) -> SegmentFigures:
    """Return the figures of `segments`, whose items are their most frequent ones."""
    ranked = sorted(
        (item for segment in segments for item in segment.items),
        key=lambda item: (item.segment_share or 0.0, item.estimate),
        reverse=True,
    )
    names = tuple(dict.fromkeys(item.item for item in ranked))[:_MAX_ITEMS]
    pairs = [
        (segment.segment, item)
        for segment in segments
        for item in segment.items
        if item.item in names
    ]
    shares = estimate_bars([_as_share(item) for _, item in pairs], 0)
    counts = estimate_bars([item for _, item in pairs], 0)
    rows: dict[str, dict[str, FigureRow]] = {}
    for (segment, item), *bars in zip(pairs, shares.bars, counts.bars, strict=True):
        rows.setdefault(segment, {})[item.item] = FigureRow(item, *bars)
    return SegmentFigures(
        tuple((each, rows.get(each.segment, {})) for each in segments if each.items),
        names,
        tuple(each.segment for each in segments if not each.items),
        any(item.segment_share is not None for item in ranked),
        min(1.0, shares.axis_end),
        counts.axis_end,
    )


def _as_share(item: SegmentItem) -> HeavyHitter:
    """Return `item` with its share of the segment in place of its count; 0 if it has none."""
    ends = {"low": item.segment_share_low or 0.0, "high": item.segment_share_high or 0.0}
    return item.model_copy(update={"estimate": item.segment_share or 0.0, **ends})
