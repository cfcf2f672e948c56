"""Answer of a study as its page shows it: items or options, a distribution, or means."""

import asyncio
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeAlias

from fastapi import Query

from protocol.api.messages import HeavyHitter, QueryResult, StudyView
from protocol.api.unlisted import (
    count_with_range,
    highest_bar,
    limits_of_list,
    option_counts,
    range_of_unlisted,
    why_nothing_is_listed,
)
from protocol.description import AnswerKind
from protocol.estimation.number_summary import NoNumbersError, NumberSummary
from protocol.mechanisms.registry import AnyPlan, AnyQuestion, mechanism_of
from protocol.quantiles.cdf import EmptyTreeError
from protocol.study_state import StudyState
from server.api.answers.distributions import query_results
from server.api.answers.heavy_hitters import counted_rounds
from server.db.repositories.studies.progress import RoundSummary
from server.db.store import Store
from server.pages.charts.drawing import Bar, Bars, estimate_bars
from server.pages.charts.histogram import Histogram, histogram
from server.pages.charts.round_history import RoundSize
from server.pages.rendering import drawn

PAGE_ITEMS: Final = 50
ItemOrder: TypeAlias = Literal["estimate", "item", "study"]
SHOWN_RANKS: Final = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True, slots=True)
class TableRow:
    """A listed item, or an option that is not listed: then its numbers are the ends alone."""

    heavy_hitter: HeavyHitter
    bar: Bar
    is_listed: bool


@dataclass(frozen=True, slots=True)
class ItemTable:
    """One page of the items that match a search, in an order.

    `has_keys` is true if a row seems to be the key of a string that was not fetched, `has_flags` if
    a row is of an item whose cohorts differ, and `has_shares` if counts are shares of devices.
    `axis_share` is the share at the end of the bars' axis.
    """

    rows: tuple[TableRow, ...]
    bars: Bars
    axis_share: float | None
    matching: int
    total: int
    has_keys: bool
    has_flags: bool
    order: ItemOrder
    page: int
    pages: int

    @property
    def has_shares(self) -> bool:
        return self.axis_share is not None

    @property
    def first(self) -> int:
        """Return the number of the first row among the matching items, from 1."""
        return (self.page - 1) * PAGE_ITEMS + 1


@dataclass(frozen=True, slots=True)
class ItemQuery:
    """A page of the items that contain `search` in any case.

    They are in the `order` of their estimates, the largest first, of their texts, or of the study's
    options. By default it is that of the options, if there are any. After the last `page` comes the
    last one again.
    """

    search: Annotated[str, Query(alias="q", max_length=200)] = ""
    order: Annotated[ItemOrder | None, Query()] = None
    page: Annotated[int, Query(ge=1, le=10**6)] = 1


def _table(
    items: Sequence[HeavyHitter],
    others: Sequence[HeavyHitter],
    study: StudyView,
    query: ItemQuery,
    devices: int | None,
) -> ItemTable:
    """Return those that `query` asks for, of the listed `items` and the `others`.

    `devices` are those in the sums; None if their number is secret.
    """
    question, text = study.question, query.search.casefold()
    options = {name: place for place, name in enumerate(mechanism_of(question).options(question))}
    order = query.order or ("study" if options else "estimate")
    rows = [each for each in (*items, *others) if text in each.item.casefold()]
    if order == "item":
        rows.sort(key=lambda each: (each.item.casefold(), each.item))
    elif order == "study":
        rows.sort(key=lambda each: options.get(each.item, len(options)))
    pages = max(1, -(-len(rows) // PAGE_ITEMS))
    page = min(query.page, pages)
    shown = rows[(page - 1) * PAGE_ITEMS : page * PAGE_ITEMS]
    unlisted, has_shares = {each.item for each in others}, question.share(1, devices) is not None
    bars = estimate_bars(shown, question.threshold, devices if has_shares else None)
    return ItemTable(
        tuple(
            TableRow(each, bar, each.item not in unlisted)
            for each, bar in zip(shown, bars.bars, strict=True)
        ),
        bars,
        question.share(bars.axis_end, devices),
        len(rows),
        len(items) + len(others),
        any(question.domain.is_key(each.item) for each in shown),
        any(each.cohort_p_value is not None for each in shown),
        order,
        page,
        pages,
    )


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
        "bytes per device, or a smaller limit of bytes of an item fetches more of them."
    )


@dataclass(frozen=True, slots=True)
class UnlistedItems:
    """Words on what a study does not list.

    `reason` is why it lists nothing, `limits` what its list leaves out, and `least` the count that
    all listed items reach. The other `options` have the `count` in words, and their ends as
    numbers if sums bound them.
    """

    reason: str
    limits: tuple[str, ...]
    options: tuple[HeavyHitter, ...]
    count: str
    least: str


def least_listed(bar: float, threshold: float, items: Sequence[HeavyHitter]) -> str:
    """Return the `bar` from which an item is listed, or the count of one that noise has listed."""
    if not threshold < bar < math.inf:
        return f"{threshold:,g}"
    return f"about {min([math.ceil(bar), *(round(item.estimate) for item in items)]):,}"


async def _unlisted_items(
    store: Store,
    study: StudyView,
    rounds: Sequence[RoundSummary],
    items: Sequence[HeavyHitter],
    devices: int | None,
) -> UnlistedItems | None:
    """Return the words on what is not among `items`; None before a round is over.

    `rounds` are the last ones, and `devices` those in the sums.
    """
    counted = await counted_rounds(store, study, rounds)
    if not counted.over:
        return None
    plan = await store.rounds.plan(study.id, study.round)
    share = study.question.share
    low, high = range_of_unlisted(plan, counted) or (0, 0)
    ends: dict[str, float | None] = {"estimate": 0, "standard_error": 0, "low": low, "high": high}
    if high:
        ends |= {"share_low": share(low, devices), "share_high": share(high, devices)}
    options = option_counts(plan, counted, (item.item for item in items))
    is_over = study.state in ("finished", "stopped")
    bar, threshold = highest_bar(plan, counted).count, study.question.threshold
    return UnlistedItems(
        why_nothing_is_listed(plan, counted, is_over=is_over),
        tuple(limits_of_list(plan, counted)) if items else (),
        tuple(HeavyHitter(item=option, **ends) for option in options),
        count_with_range(plan, counted),
        least_listed(bar, threshold, items),
    )


async def item_table(
    store: Store,
    study: StudyView,
    rounds: Sequence[RoundSummary],
    items: Sequence[HeavyHitter],
    query: ItemQuery,
    devices: int | None,
) -> tuple[ItemTable, UnlistedItems | None]:
    """Return those of the `items`, or of the options, that `query` asks for, and what is unlisted.

    Only an answer of items has rows. `rounds` are the last ones, and `devices` those in the sums.
    """
    is_list = mechanism_of(study.question).answer_kind(study.question) is AnswerKind.ITEMS
    listed = items if is_list else ()
    unlisted = await _unlisted_items(store, study, rounds, listed, devices)
    others = unlisted.options if unlisted and is_list else ()
    return _table(listed, others, study, query, devices), unlisted


@dataclass(frozen=True, slots=True)
class DistributionSummary:
    """Some quantiles of numbers, their mean, and the histogram, unless it cannot be drawn."""

    quantiles: tuple[QueryResult, ...]
    mean: QueryResult
    histogram: Histogram | None

    @property
    def median(self) -> QueryResult:
        return self.quantiles[SHOWN_RANKS.index(0.5)]


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


def number_rows(
    question: AnyQuestion, numbers: Sequence[NumberSummary], has_unlisted: bool
) -> list[tuple[str | None, NumberSummary | None]]:
    """Return the row of all devices, without a name, and those of the segments, in their order.

    A segment that is not shown has None, if there are words for it.
    """
    by_name = {row.segment: row for row in numbers}
    names = [None, *mechanism_of(question).options(question)]
    rows = [(name, by_name.get(name)) for name in names]
    return [row for row in rows if row[1] or (row[0] is not None and has_unlisted)]


def _summarise(study: str, plan: AnyPlan, state: StudyState) -> DistributionSummary | None:
    try:
        values = mechanism_of(plan).distribution(plan, state)
        quantiles = query_results(SHOWN_RANKS, values.quantile(SHOWN_RANKS))
        (mean,) = query_results(["mean"], values.mean())
    except (EmptyTreeError, ValueError):
        return None
    picture = drawn(study, "Histogram", lambda: histogram(values, quantiles, mean), otherwise=None)
    return DistributionSummary(quantiles, mean, picture)
