"""The list of studies, and one study for its analyst: what was found, and what stayed hidden."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import RedirectResponse

from protocol.mechanisms import REPORTING
from protocol.messages import HeavyHitterPage, ProblemType, StudyView
from protocol.privacy.loss import LEAST_DELTA
from server.api import studies as api
from server.api.answers import csv_table
from server.api.parts import StudyId, first_of
from server.api.populations import DELTA
from server.api.rights import Caller, needs
from server.pages import charts
from server.pages.answers import curve, table
from server.pages.guarding import Page
from server.pages.history import Histories, Load
from server.pages.parts import MOST_ROUNDS, Recalled, cost, follow
from server.pages.promise import promise
from server.pages.view import HEADERS, view
from server.principals import Right
from server.refusals import Refusal
from server.service import Served, Service
from server.store.progress import Step

router = APIRouter(route_class=Page, include_in_schema=False)
_A_PAGE = 50
Search = Annotated[str, Query(alias="q", max_length=200)]


@router.get("/", dependencies=[needs(Right.READ)])
async def every(
    request: Request,
    service: Served,
    after: Annotated[str | None, Query(pattern="^[0-9A-Za-z]{1,64}$")] = None,
) -> Response:
    """List studies, newest first."""
    shown, last = first_of(await service.store.studies.page(_A_PAGE + 1, after), _A_PAGE)
    progress = await service.store.overview.of([study.id for study in shown])
    rows = [(study, progress[study.id], cost(study)) for study in shown]
    now = await service.store.overview.now()
    return view(request, "studies.html", now=now, rows=rows, after=after, next=last and last.id)


@router.get("/studies/{study}", dependencies=[needs(Right.READ)])
async def show(
    study: StudyId, request: Request, service: Served, histories: Recalled, search: Search = ""
) -> Response:
    """Show one study: its answer, its rounds, and what the server could see."""
    followed = await follow(service.store, study)
    found = await service.store.studies.show(study)
    context = await _context(service, histories, found, search)
    return view(
        request,
        "study.html",
        study=found,
        search=search,
        **followed,
        **context,
    )


async def _context(
    service: Service, histories: Histories, study: StudyView, search: str
) -> dict[str, Any]:
    store = service.store
    steps = await store.overview.steps(study.id, MOST_ROUNDS)
    loads = await histories.loads(study.id, [step.number for step in steps])
    past, is_pending = await histories.past(study, steps, _largest(loads))
    heavy = await store.answers.heavy_hitters(study.id)
    entry = await store.populations.entry(study.id)
    ledger = await store.populations.of_study(study.id)
    delta = max(getattr(study.question, "delta", None) or DELTA, LEAST_DELTA)
    drawn = charts.of_rounds(study, steps, loads)
    counts = charts.of_counts(study, [one.item for one in heavy], past)
    return {
        "now": await store.overview.now(),
        "progress": (await store.overview.of([study.id]))[study.id],
        "steps": _rows(steps, loads),
        "is_cut": study.round > len(steps),
        "table": table(heavy, past, search, study.question.domain),
        "curve": await curve(store, study),
        "charts": [counts, *drawn] if counts else drawn,
        "is_pending": is_pending,
        "promise": promise(study, entry),
        "statement": await asyncio.to_thread(ledger.statement, delta),
        "cost": cost(study),
        "is_reporting": study.question.mechanism in REPORTING,
    }


def _largest(loads: dict[int, Load]) -> int:
    return max((load.nbytes for load in loads.values()), default=0)


def _rows(steps: tuple[Step, ...], loads: dict[int, Load]) -> list[tuple[Step, Load]]:
    return [(step, loads[step.number]) for step in reversed(steps)]


@router.post("/studies/{study}/start", dependencies=[needs(Right.WRITE)])
async def start(study: StudyId, service: Served, caller: Caller) -> Response:
    """Start a study, and show it."""
    await api.start(study, service, caller)
    return RedirectResponse(f"/studies/{study}", 303, HEADERS)


@router.post("/studies/{study}/stop", dependencies=[needs(Right.WRITE)])
async def stop(study: StudyId, service: Served, caller: Caller) -> Response:
    """Stop a study, and show it."""
    await api.stop(study, service, caller)
    return RedirectResponse(f"/studies/{study}", 303, HEADERS)


@router.get("/studies/{study}/heavy-hitters.{form}", dependencies=[needs(Right.READ)])
async def download(study: StudyId, form: str, service: Served) -> Response:
    """Return all heavy hitters in a file."""
    every = await service.store.answers.heavy_hitters(study)
    if form == "csv":
        body, media_type = csv_table(every), "text/csv; charset=utf-8"
    elif form == "json":
        body = HeavyHitterPage(heavy_hitters=every, next=None).model_dump_json()
        media_type = "application/json"
    else:
        raise Refusal(ProblemType.NOT_FOUND, "heavy hitters come as csv and as json")
    name = f"heavy-hitters-{study}.{form}"
    headers = {**HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
    return Response(body, 200, headers, media_type)
