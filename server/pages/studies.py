"""Pages of the list of studies, and of one study with its answer and its privacy summary."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated, Any, Final, get_args
from uuid import uuid4

from fastapi import Depends, Query, Request, Response
from pydantic import ValidationError
from starlette.responses import RedirectResponse

from protocol.api.messages import ProblemType, ShareRequest, StudyView
from protocol.description import AnswerKind
from protocol.mechanisms.registry import REPORT_MECHANISMS, mechanism_of
from server.api import studies as api
from server.api.answers.heavy_hitters import csv_table, heavy_hitter_page, unlisted_option_counts
from server.api.answers.segments import segment_summaries
from server.api.dependencies import Caller, StudyId, paginate, require, service_url
from server.api.populations import study_statement
from server.db.repositories.studies.progress import RoundSummary, StudyProgress
from server.db.repositories.studies.study_filter import StudyFilter, StudyOutcome
from server.errors import ProblemError, malformed_fields, not_found
from server.pages.answer_summary import (
    answer_sentence,
    answer_title,
    quality_chips,
    question_in_words,
)
from server.pages.answers import (
    ItemQuery,
    distribution_summary,
    item_table,
    number_rows,
    number_summaries,
    unresolved_keys,
)
from server.pages.changes import rates_by_round
from server.pages.charts import study_charts
from server.pages.charts.round_history import RoundSizes, RoundSizesDep
from server.pages.charts.segment_figures import segment_figures
from server.pages.commands import copied_queries, fleet_command
from server.pages.forms.cloning import can_clone, next_tries, settings
from server.pages.join import accepts_browsers
from server.pages.page_requests import page_router, read_form
from server.pages.privacy_summary import privacy_cost, privacy_summary
from server.pages.rendering import PAGE_HEADERS, event_context, render, render_svg
from server.pages.rounds import PhaseProgress, round_progress
from server.principals import Permission, Principal
from server.service import Service, ServiceDep

router = page_router()
_PAGE_SIZE = 50
_ITEMS_PER_SEGMENT = 100  # of which the most common ones of all segments are shown
MAX_ROUNDS_SHOWN: Final = 100  # of a study on its page, the last ones


@router.get("/", dependencies=[require(Permission.READ, is_filtered=True)])
async def list_studies(
    request: Request,
    service: ServiceDep,
    caller: Caller,
    chosen: Annotated[StudyFilter, Depends()],
    after: Annotated[str, Query(pattern="^[0-9A-Za-z]{0,64}$")] = "",
) -> Response:
    """List the studies that the caller may read, newest first."""
    page = service.store.studies.page
    views = await page(_PAGE_SIZE + 1, after or None, caller.study, chosen)
    studies, last = paginate(views, _PAGE_SIZE)
    progress = await service.store.progress.of_studies([study.id for study in studies])
    rows = [(each, progress[each.id], privacy_cost(each), _is_list(each)) for each in studies]
    now = await service.store.database.read_now()
    return render(
        request,
        "studies.html",
        now=now,
        rows=rows,
        after=after,
        chosen={name: value for name, value in asdict(chosen).items() if value},
        states=get_args(StudyOutcome)[1:],
        next=last and last.id,
        key=uuid4().hex,
        has_example=request.app.state.simulator is not None,
    )


def _is_list(study: StudyView) -> bool:
    return mechanism_of(study.question).answer_kind(study.question) is AnswerKind.ITEMS


@router.get("/studies", dependencies=[require(Permission.READ, is_filtered=True)])
async def list_of_studies() -> Response:
    """Send the browser to the list, whose address one may guess from that of a study."""
    return RedirectResponse("/", 307, PAGE_HEADERS)


@router.get("/studies/{study}", dependencies=[require(Permission.READ)])
async def show(
    study: StudyId,
    request: Request,
    service: ServiceDep,
    round_sizes: RoundSizesDep,
    query: Annotated[ItemQuery, Depends()],
) -> Response:
    """Show one study: its answer, its rounds, and its privacy summary."""
    context = await study_context(service, round_sizes, study, query)
    url = service_url(request, service)
    context["fleet_command"] = fleet_command(context["study"], url)
    context["queries"] = copied_queries(context["study"], url)
    context["link_ends"] = await service.store.links.ends(study)
    return render(request, "study.html", **context, link={})


async def study_context(
    service: Service, round_sizes: RoundSizes, study_id: str, query: ItemQuery
) -> dict[str, Any]:
    """Return what the page shows of a study to everybody who may read the study."""
    store = service.store
    live = await event_context(store, study_id)
    study = await store.studies.show(study_id)
    rounds = await store.progress.round_summaries(study.id, MAX_ROUNDS_SHOWN)
    sizes = await round_sizes.of_rounds(study.id, [each.number for each in rounds])
    progress = (await store.progress.of_studies([study.id]))[study.id]
    entry = await store.populations.ledger_entry(study.id)
    now = await store.database.read_now()
    running = await _running_round(service, study, now)
    answer = await _answer_context(service, study, rounds, progress, query)
    has_keys = answer["table"].has_keys
    return {
        **live,
        **answer,
        "study": study,
        "search": query.search,
        "now": now,
        "asked": question_in_words(study),
        "can_clone": can_clone(study),
        "settings": [*settings(study)],
        "next_tries": next_tries(study, progress) if study.state in ("finished", "stopped") else {},
        "running": running,
        "is_joinable": running is None or running.phases[0].state == "now",
        "progress": progress,
        "rounds": [(each, sizes[each.number]) for each in reversed(rounds)],
        "is_cut": study.round > len(rounds),
        "charts": study_charts.round_charts(study, rounds, sizes),
        "unresolved_keys": unresolved_keys(study, sizes.values()) if has_keys else None,
        "privacy": privacy_summary(study, entry),
        "accepts_browsers": accepts_browsers(study, entry.event),
        "statement": await asyncio.to_thread(study_statement, study, entry),
        "cost": privacy_cost(study),
        "is_reporting": study.question.mechanism in REPORT_MECHANISMS,
    }


async def _answer_context(
    service: Service,
    study: StudyView,
    rounds: Sequence[RoundSummary],
    progress: StudyProgress,
    query: ItemQuery,
) -> dict[str, Any]:
    """Return the answer of a study: a sentence, a list or numbers, and how good they are."""
    store, mechanism = service.store, mechanism_of(study.question)
    kind = mechanism.answer_kind(study.question)
    items = await store.answers.heavy_hitters(study.id)
    table, unlisted = await item_table(store, study, rounds, items, query, progress.devices)
    quality = await store.answers.list_quality(study.id)
    listed = items if kind is AnswerKind.ITEMS else ()
    names = [row.heavy_hitter.item for row in table.rows if row.is_listed]
    distribution = await distribution_summary(store, study)
    numbers = await number_summaries(store, study)
    segments = await segment_summaries(service, study, _ITEMS_PER_SEGMENT) if names else ()
    has_options = bool(unlisted and unlisted.options)
    means = number_rows(study.question, numbers, has_options) if kind is AnswerKind.MEANS else []
    return {
        "sentence": answer_sentence(study, progress, items, numbers, distribution, unlisted),
        "chips": [*quality_chips(study, quality, listed, numbers, distribution)],
        "unlisted": unlisted,
        "table": table,
        "rates": await rates_by_round(service, study, [item.item for item in listed], names),
        "has_files": bool(items or table.total),
        "answer_title": answer_title(study, table, unlisted),
        "items_note": mechanism.description.items_note,
        "number": items[0] if kind is AnswerKind.NUMBER and items else None,
        "distribution": distribution,
        "numbers": means,
        "rounding": numbers[0].rounding if numbers else None,
        "segments": segment_figures(segments) if segments else None,
        "has_options": bool(mechanism.options(study.question)),
        "is_list": kind is AnswerKind.ITEMS,
    }


@dataclass(frozen=True, slots=True)
class RunningRound:
    """The open round of a study, with the phases of all of its cohorts together."""

    number: int
    phases: tuple[PhaseProgress, ...]

    @property
    def step(self) -> PhaseProgress:
        """The phase in which most cohorts are now, or that they will come to."""
        return next(
            (each for each in self.phases if each.state in ("now", "ahead")), self.phases[-1]
        )


async def _running_round(service: Service, study: StudyView, now: datetime) -> RunningRound | None:
    if study.state != "running" or not study.round:
        return None
    view = await service.store.rounds.show(study.id, study.round)
    if view.state != "running" or not view.cohorts:
        return None
    return RunningRound(view.number, round_progress(view, now))


def _button(
    action: Callable[[str, Service, Principal], Awaitable[object]], back: str
) -> Callable[..., Awaitable[Response]]:
    """Return the handler of a button that does an `action` of the API, and then shows a page."""

    async def press(study: StudyId, service: ServiceDep, caller: Caller) -> Response:
        await action(study, service, caller)
        return RedirectResponse(back.format(study), 303, PAGE_HEADERS)

    return press


for _path, _handler in {
    "start": _button(api.start, "/studies/{}"),
    "stop": _button(api.stop, "/studies/{}"),
    "delete": _button(api.delete, "/"),
    "share/end": _button(api.end_links, "/studies/{}"),
}.items():
    router.post(f"/studies/{{study}}/{_path}", dependencies=[require(Permission.WRITE)])(_handler)


_SHARER = [require(Permission.READ), require(Permission.WRITE)]


@router.post("/studies/{study}/share", dependencies=_SHARER)
async def share(study: StudyId, request: Request, service: ServiceDep, caller: Caller) -> Response:
    """Make a link to a study, and show it once."""
    try:
        asked = ShareRequest.model_validate({"days": (await read_form(request)).get("days")})
    except ValidationError:
        detail = "must be a number of days above 0, at most 3,650"
        raise malformed_fields([{"location": "body.days", "detail": detail}], 422) from None
    link = await api.share(study, asked, request, service, caller)
    view = await service.store.studies.show(study)
    return render(request, "shown_once.html", study=view, secret=link.url, expires=link.expires)


@router.get("/studies/{study}/heavy-hitters.{file_format}", dependencies=[require(Permission.READ)])
async def download(study: StudyId, file_format: str, service: ServiceDep) -> Response:
    """Return all heavy hitters as a file, with the options that are not listed."""
    return await answer_file(service, study, file_format)


@router.get("/studies/{study}/charts/{chart}.svg", dependencies=[require(Permission.READ)])
async def chart_file(
    study: StudyId, chart: str, service: ServiceDep, round_sizes: RoundSizesDep
) -> Response:
    """Return a chart of the page as a drawing of its own; `items` are the bars of the list."""
    return await chart_svg(service, round_sizes, study, chart)


async def chart_svg(service: Service, round_sizes: RoundSizes, study: str, name: str) -> Response:
    """Return the SVG of a study's chart; raises ProblemError if there is none with this name."""
    store, view = service.store, await service.store.studies.show(study)
    if name == "histogram":
        numbers = await distribution_summary(store, view)
        if numbers and numbers.histogram:
            return render_svg("histogram.svg", study=view, chart=numbers.histogram)
    rounds = await store.progress.round_summaries(study, MAX_ROUNDS_SHOWN)
    if name == "items":
        items = await store.answers.heavy_hitters(study)
        devices = (await store.progress.of_studies([study]))[study].devices
        table, unlisted = await item_table(store, view, rounds, items, ItemQuery(), devices)
        if table.rows:
            return render_svg("bars.svg", study=view, table=table, unlisted=unlisted)
    sizes = await round_sizes.of_rounds(study, [each.number for each in rounds])
    for each in study_charts.round_charts(view, rounds, sizes):
        if each.chart is not None and each.chart.name == name:
            return render_svg("chart.svg", study=view, chart=each.chart)
    raise not_found("chart")


async def answer_file(service: Service, study: str, file_format: str) -> Response:
    """Return all heavy hitters of a study as `csv` or `json`, or raise ProblemError."""
    items = await service.store.answers.heavy_hitters(study)
    listed = (item.item for item in items)
    unlisted = await unlisted_option_counts(service.store, study, listed)
    if file_format == "csv":
        body, media_type = csv_table(items, unlisted), "text/csv; charset=utf-8"
    elif file_format == "json":
        page = (await heavy_hitter_page(service, study, items)).model_dump(mode="json")
        body = json.dumps(page | {"unlisted": unlisted}, ensure_ascii=False)
        media_type = "application/json"
    else:
        raise ProblemError(ProblemType.NOT_FOUND, "heavy hitters are available as csv and as json")
    name = f"heavy-hitters-{study}.{file_format}"
    headers = {**PAGE_HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
    return Response(body, 200, headers, media_type)
