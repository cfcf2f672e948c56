"""Page of the rates of a study over time: what is rising, new or gone, and another study."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Final

from fastapi import Query, Request, Response

from protocol.api.messages import ProblemType, StudyView
from protocol.api.rates import RATE_DEVICES, ItemChange, ItemChanges, RoundRate
from protocol.estimation.rate_changes import ChangeKind, RateHistory
from server.api.answers.changes import compared_studies, item_changes, rate_history, round_rates
from server.api.dependencies import Caller, StudyId, check_study
from server.errors import ProblemError
from server.pages.charts.drawing import Sparkline, rate_sparkline
from server.pages.page_requests import page_router
from server.pages.rendering import drawn, render
from server.principals import Permission
from server.service import Service, ServiceDep

router = page_router(Permission.READ)
_FALSE_DISCOVERY_RATE: Final = 0.05
_MAX_ROWS: Final = 100
MIN_ROUNDS: Final = 3  # of rates next to an answer: two rounds show no course
_MAX_OTHER_STUDIES: Final = 200  # of which a reader selects one to compare
_Search = Annotated[str, Query(alias="q", max_length=200)]
_OtherStudy = Annotated[str, Query(pattern="^[0-9A-Za-z]{0,64}$")]


@dataclass(frozen=True, slots=True)
class ItemRates:
    """Rates of an item by round: the line, the last round that observed it, if any, and the change.

    The change is a word, "steady" if none is significant, and empty before two rounds were read.
    """

    item: str
    sparkline: Sparkline | None
    last: RoundRate | None
    change: str = ""

    @classmethod
    def of(cls, study: str, item: str, rates: Sequence[RoundRate]) -> "ItemRates":
        known = [rate for rate in rates if rate.rate is not None]
        line = drawn(study, "Rates by round", lambda: rate_sparkline(rates), otherwise=None)
        return cls(item, line, known[-1] if known else None)


@dataclass(frozen=True, slots=True)
class ChangeTable:
    """The first rows of `answer`, each with its rates by round if they are of one study.

    `reason` states why there is no answer.
    """

    answer: ItemChanges | None = None
    rows: tuple[tuple[ItemChange, Sparkline | None], ...] = ()
    reason: str = ""


@router.get("/studies/{study}/changes")
async def show(
    study: StudyId,
    request: Request,
    service: ServiceDep,
    caller: Caller,
    search: _Search = "",
    compare: _OtherStudy = "",
) -> Response:
    """Show the changes in a study, rates by round, and how another study differs."""
    if compare:
        await check_study(caller, request, service, compare)
    view = await service.store.studies.show(study)
    items = [row.item for row in await service.store.answers.heavy_hitters(study)]
    rates: tuple[ItemRates, ...] = ()
    try:
        history = await rate_history(service, view, items)
    except ProblemError as problem:
        changed = ChangeTable(reason=_reason(problem))
    else:
        changed, rates = await asyncio.to_thread(_over_time, study, items, history, search)
    return render(
        request,
        "changes.html",
        study=view,
        search=search,
        compare=compare,
        unit=f"per {RATE_DEVICES:,} devices",
        changed=changed,
        others=[] if caller.study else await _other_studies(service, study, compare),
        compared=await _compared(service, view, compare) if compare else None,
        rates=rates,
    )


async def _other_studies(service: Service, study: str, compared: str) -> list[StudyView]:
    """Return the newest studies that `study` can be compared with, and the `compared` one."""
    newest = await service.store.studies.page(_MAX_OTHER_STUDIES, None, None)
    others = [each for each in newest if each.round and each.id != study]
    if compared and compared not in {each.id for each in others}:
        with suppress(ProblemError):  # unknown; the comparison reports it
            others.append(await service.store.studies.show(compared))
    return others


def _over_time(
    study: str, items: Sequence[str], history: RateHistory, search: str
) -> tuple[ChangeTable, tuple[ItemRates, ...]]:
    """Return the changes, and the rates of the most frequent items that contain `search`."""
    text = search.casefold()
    rows = [row for row, item in enumerate(items) if text in item.casefold()][:_MAX_ROWS]
    rates = _rates_of(study, [items[row] for row in rows], history.select(rows))
    try:
        answer = item_changes(items, history, None, _FALSE_DISCOVERY_RATE, _MAX_ROWS)
    except ProblemError as problem:
        return ChangeTable(reason=_reason(problem)), rates
    places = {item: row for row, item in enumerate(items)}
    changed = [row.item for row in answer.changes]
    lines = _rates_of(study, changed, history.select([places[item] for item in changed]))
    pairs = zip(answer.changes, (each.sparkline for each in lines), strict=True)
    return ChangeTable(answer, tuple(pairs)), rates


async def rates_by_round(
    service: Service, study: StudyView, items: Sequence[str], shown: Sequence[str]
) -> dict[str, ItemRates]:
    """Return the rates of the `shown` ones among all heavy `items`, with their changes.

    Empty before the third round, and if the mechanism does not keep rounds apart.
    """
    if not shown or study.round < MIN_ROUNDS:
        return {}
    try:
        history = await rate_history(service, study, items)
    except ProblemError as problem:
        _reason(problem)
        return {}
    if len(history.devices) < MIN_ROUNDS:
        return {}
    return await asyncio.to_thread(_rates_with_changes, study.id, items, shown, history)


def _rates_with_changes(
    study: str, items: Sequence[str], shown: Sequence[str], history: RateHistory
) -> dict[str, ItemRates]:
    kinds, other = dict[str, ChangeKind | None](), ""
    with suppress(ProblemError):  # fewer than two rounds were read
        changed = item_changes(items, history, None, _FALSE_DISCOVERY_RATE, len(items))
        kinds, other = {row.item: row.change for row in changed.changes}, "steady"
    places = {item: row for row, item in enumerate(items)}
    rates = _rates_of(study, shown, history.select([places[item] for item in shown]))
    return {each.item: replace(each, change=kinds.get(each.item) or other) for each in rates}


def _rates_of(study: str, items: Sequence[str], history: RateHistory) -> tuple[ItemRates, ...]:
    return tuple(map(partial(ItemRates.of, study), items, round_rates(items, history)))


async def _compared(service: Service, study: StudyView, other: str) -> ChangeTable:
    try:
        answer = await compared_studies(service, study.id, other, _FALSE_DISCOVERY_RATE, _MAX_ROWS)
    except ProblemError as problem:
        return ChangeTable(reason=_reason(problem))
    return ChangeTable(answer, tuple((row, None) for row in answer.changes))


def _reason(problem: ProblemError) -> str:
    """Return the reason why a study has no rates; raises other problems."""
    expected = (ProblemType.WRONG_STATE, ProblemType.NOT_FOUND, ProblemType.MALFORMED)
    if problem.kind not in expected:
        raise problem
    return problem.detail
