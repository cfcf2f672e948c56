"""Answer of a study as its page shows it: heavy hitters, a distribution, or means."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeAlias

from fastapi import Query

from protocol.api.messages import HeavyHitter, QueryResult, StudyView
from protocol.api.unlisted import (
    count_of_unlisted,
    limits_of_list,
    option_counts,
    range_of_unlisted,
    why_nothing_is_listed,
)
from protocol.description import AnswerKind
from protocol.estimation.number_summary import NoNumbersError, NumberSummary
from protocol.mechanisms.registry import AnyPlan, AnyQuestion, mechanism_of
from protocol.quantiles.cdf import EmptyTreeError
from protocol.quantiles.distribution import Distribution
from protocol.study_state import StudyState
from server.api.answers.distributions import query_results
from server.api.answers.heavy_hitters import counted_rounds
from server.db.repositories.studies.progress import RoundSummary
from server.db.store import Store
from server.pages.charts.drawing import (
    Bar,
    Bars,
    Chart,
    Series,
    Sparkline,
    estimate_bars,
    sparkline,
)
from server.pages.charts.round_history import EstimateHistory, RoundSize
from server.pages.rendering import DrawnChart, draw_chart, drawn

PAGE_ITEMS: Final = 50
ItemOrder: TypeAlias = Literal["estimate", "item"]
_CDF_POINTS, _CDF_TITLE = 101, "Cumulative distribution"
SHOWN_RANKS: Final = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True, slots=True)
class RankedItem:
    """An item with its rank from 1, and the history of its estimate."""

    rank: int
    heavy_hitter: HeavyHitter
    bar: Bar
    sparkline: Sparkline | None


@dataclass(frozen=True, slots=True)
class ItemTable:
    """One page of the items that match a search, in an order.

    `has_keys` is true if a row seems to be the key of a string that was not fetched, `has_flags` if
    a row is of an item whose cohorts differ, and `has_shares` if counts are shares of devices.
    """

    rows: tuple[RankedItem, ...]
    bars: Bars
    matching: int
    total: int
    has_keys: bool
    has_flags: bool
    has_shares: bool
    order: ItemOrder
    page: int
    pages: int

    @property
    def first(self) -> int:
        """Return the number of the first row among the matching items, from 1."""
        return (self.page - 1) * PAGE_ITEMS + 1


@dataclass(frozen=True, slots=True)
class ItemQuery:
    """A page of the items that contain `search` in any case.

    They are in the `order` of their estimates, the largest first, or of their texts. After the last
    `page` comes the last one again.
    """

    search: Annotated[str, Query(alias="q", max_length=200)] = ""
    order: Annotated[ItemOrder, Query()] = "estimate"
    page: Annotated[int, Query(ge=1, le=10**6)] = 1


def item_table(
    items: Sequence[HeavyHitter], history: EstimateHistory, study: StudyView, query: ItemQuery
) -> ItemTable:
    """Return those `items` that `query` asks for, each with its history."""
    question, text = study.question, query.search.casefold()
    ranked = [(rank, item) for rank, item in enumerate(items, 1) if text in item.item.casefold()]
    if query.order == "item":
        ranked.sort(key=lambda row: (row[1].item.casefold(), row[1].item))
    pages = max(1, -(-len(ranked) // PAGE_ITEMS))
    page = min(query.page, pages)
    ranked_rows = ranked[(page - 1) * PAGE_ITEMS : page * PAGE_ITEMS]
    bars = estimate_bars([item for _, item in ranked_rows], question.threshold)
    rows = tuple(
        RankedItem(rank, item, bar, _history_line(study.id, item.item, history))
        for (rank, item), bar in zip(ranked_rows, bars.bars, strict=True)
    )
    has_keys = any(question.domain.is_key(row.heavy_hitter.item) for row in rows)
    has_flags = any(row.heavy_hitter.cohort_p_value is not None for row in rows)
    has_shares = any(row.heavy_hitter.share is not None for row in rows)
    counts = len(ranked), len(items)
    return ItemTable(rows, bars, *counts, has_keys, has_flags, has_shares, query.order, page, pages)


def _history_line(study: str, item: str, history: EstimateHistory) -> Sparkline | None:
    estimates = history.estimates_of(item)
    return drawn(study, "Estimate so far", lambda: sparkline(estimates), otherwise=None)


def unresolved_keys(study: StudyView, sizes: Iterable[RoundSize]) -> str:
    """Return the reason why items of `study` have no strings, and what would fetch more."""
    key = "An item that begins with # is the key of an item whose string"
    largest = max((size.fetched_strings for size in sizes), default=0)
    limit = "A round fetches a limited number of strings, those of the most common items first"
    if study.state not in ("finished", "stopped"):
        return f"{key} is not known yet. {limit}, beginning with the second round."
    if study.round < 2:
        return (
            f"{key} was not fetched: strings are fetched from the second round on, and this study "
            "had one. A clone with more rounds fetches them."
        )
    most = f"at most {largest:,}" if largest else "there was no room for any"
    return (
        f"{key} was not fetched. {limit}; in this study {most}. A clone with more rounds, more "
        "words per device, or a smaller limit of bytes of an item fetches more of them."
    )


@dataclass(frozen=True, slots=True)
class UnlistedItems:
    """Words on what a study does not list.

    `reason` is why it lists nothing, and `limits` what its list leaves out. The first of the other
    `options` have the `count` in words; `more` is the number of further ones.
    """

    reason: str
    limits: tuple[str, ...]
    options: tuple[str, ...]
    more: int
    count: str


async def unlisted_items(
    store: Store, study: StudyView, rounds: Sequence[RoundSummary], items: Sequence[HeavyHitter]
) -> UnlistedItems | None:
    """Return the words on what is not among `items`; None before a round is over.

    `rounds` are the last ones.
    """
    counted = await counted_rounds(store, study, rounds)
    if not counted.over:
        return None
    plan = await store.rounds.plan(study.id, study.round)
    options = option_counts(plan, counted, (item.item for item in items))
    is_over = study.state in ("finished", "stopped")
    ends = range_of_unlisted(plan, counted)
    return UnlistedItems(
        why_nothing_is_listed(plan, counted, is_over=is_over),
        tuple(limits_of_list(plan, counted)) if items else (),
        tuple(options)[:PAGE_ITEMS],
        max(0, len(options) - PAGE_ITEMS),
        count_of_unlisted(plan, counted) + (f" ({ends[0]} to {ends[1]:,})" if ends else ""),
    )


@dataclass(frozen=True, slots=True)
class DistributionSummary:
    """Some quantiles of numbers, and their chart."""

    quantiles: tuple[QueryResult, ...]
    chart: DrawnChart | None


async def distribution_summary(store: Store, study: StudyView) -> DistributionSummary | None:
    """Return the distribution of numbers; None if the study has none, or no counts yet."""
    if not study.round or _kind(study.question) is not AnswerKind.DISTRIBUTION:
        return None
    plan = await store.rounds.plan(study.id, study.round)
    state = await store.answers.shown_state(study.id)
    return await asyncio.to_thread(_summarise, study.id, plan, state)


async def number_summaries(store: Store, study: StudyView) -> tuple[NumberSummary, ...]:
    """Return the means of all and of each segment; empty if nothing was summed yet."""
    if not study.round or _kind(study.question) is not AnswerKind.MEANS:
        return ()
    plan = await store.rounds.plan(study.id, study.round)
    try:
        state = await store.answers.shown_state(study.id)
        return mechanism_of(plan).number_summaries(plan, state).results
    except NoNumbersError:
        return ()


def _kind(question: AnyQuestion) -> AnswerKind:
    return mechanism_of(question).answer_kind(question)


def _summarise(study: str, plan: AnyPlan, state: StudyState) -> DistributionSummary | None:
    try:
        values = mechanism_of(plan).distribution(plan, state)
        quantiles = query_results(SHOWN_RANKS, values.quantile(SHOWN_RANKS))
    except (EmptyTreeError, ValueError):
        return None
    chart = draw_chart(study, _CDF_TITLE, lambda: _cdf_chart(values))
    return DistributionSummary(quantiles, chart)


def _cdf_chart(values: Distribution) -> Chart:
    positions, ranks = values.cdf(_CDF_POINTS)
    series = [
        Series("share of devices below", ranks.values.tolist()),
        Series("95% interval, low", ranks.low.tolist(), "band"),
        Series("95% interval, high", ranks.high.tolist(), "band"),
    ]
    return Chart(
        "cdf",
        _CDF_TITLE,
        [float(position) for position in positions.tolist()],
        series,
        x_label="value",
        y_label="share of devices",
        scale="share",
        note="The share of devices whose value is below x, with its 95% interval.",
    )
