"""Privacy ledgers: the ledger of a population, which has a budget, and the ledger of one study."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from fastapi import Path as InPath

from protocol.api.messages import (
    PopulationName,
    PopulationPage,
    PopulationRequest,
    PopulationView,
    StudyView,
)
from protocol.privacy.events import LedgerEntry
from protocol.privacy.ledger import Ledger, Statement
from protocol.privacy.loss_distributions import MIN_DELTA
from server.api.dependencies import Caller, StudyId, json_only, paginate, problem_responses, require
from server.principals import Permission
from server.service import ServiceDep

router = APIRouter(prefix="/v1", tags=["privacy"])
PopulationPath = Annotated[PopulationName, InPath()]
Delta = Annotated[
    float | None,
    Query(
        ge=MIN_DELTA,
        lt=1,
        description="Delta at which epsilon is computed; default: the delta of the budget or "
        "question, otherwise 1e-6.",
    ),
]
_DEFAULT_DELTA = 1e-6


@router.put(
    "/populations/{name}",
    status_code=201,
    dependencies=[require(Permission.WRITE), Depends(json_only)],
    responses={200: {"model": PopulationView}, **problem_responses(400, 409, 413, 415, 422)},
)
async def create(
    name: PopulationPath,
    request: PopulationRequest,
    response: Response,
    service: ServiceDep,
    caller: Caller,
) -> PopulationView:
    """Create a population; its studies share its budget, if it has one, which never changes."""
    view, is_new = await service.store.populations.create(name, request)
    if is_new:
        await service.store.access.record_audit(str(caller), "create population", name)
    else:
        response.status_code = 200
    return view


@router.get(
    "/populations", dependencies=[require(Permission.READ)], responses=problem_responses(422)
)
async def page(
    service: ServiceDep,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    after: Annotated[PopulationName | None, Query()] = None,
) -> PopulationPage:
    """List populations, by name."""
    rows = await service.store.populations.page(limit + 1, after or "")
    populations, last = paginate(rows, limit)
    return PopulationPage(populations=populations, next=last and last.name)


@router.get(
    "/populations/{name}/privacy",
    dependencies=[require(Permission.READ)],
    responses=problem_responses(404, 422),
)
async def population_privacy(
    name: PopulationPath, service: ServiceDep, delta: Delta = None
) -> Statement:
    """Return the privacy loss of a device from all studies of a population, and the budget left."""
    ledger = await service.store.populations.ledger(name)
    return await asyncio.to_thread(population_statement, ledger, delta)


@router.get(
    "/studies/{study}/privacy",
    tags=["studies"],
    dependencies=[require(Permission.READ)],
    responses=problem_responses(404, 422),
)
async def study_privacy(study: StudyId, service: ServiceDep, delta: Delta = None) -> Statement:
    """Return the privacy loss of a device from one study; a running study counts all rounds."""
    view = await service.store.studies.show(study)
    entry = await service.store.populations.ledger_entry(study)
    return await asyncio.to_thread(study_statement, view, entry, delta)


def population_statement(ledger: Ledger, delta: float | None = None) -> Statement:
    """Return the privacy loss of a device from all studies of a population."""
    own_delta = _DEFAULT_DELTA if ledger.budget is None else ledger.budget.delta
    return ledger.statement(delta or own_delta)


def study_statement(study: StudyView, entry: LedgerEntry, delta: float | None = None) -> Statement:
    """Return the privacy loss of a device from `study`, whose entry in the ledger is `entry`."""
    at_delta = delta or getattr(study.question, "delta", None) or _DEFAULT_DELTA
    return Ledger(entries=(entry,)).statement(max(at_delta, MIN_DELTA))
