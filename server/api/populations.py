"""Privacy ledgers: of a population, which has a budget, and of one study."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from fastapi import Path as InPath

from protocol.messages import PopulationName, PopulationPage, PopulationRequest, PopulationView
from protocol.privacy.ledger import Statement
from protocol.privacy.loss import LEAST_DELTA
from server.api.parts import StudyId, first_of, json_only, problems
from server.api.rights import Caller, needs
from server.principals import Right
from server.service import Served

router = APIRouter(prefix="/v1", tags=["privacy"])
Name = Annotated[PopulationName, InPath()]
Delta = Annotated[
    float | None,
    Query(ge=LEAST_DELTA, lt=1, description="Odds to say epsilon at; else the budget's, or 1e-6."),
]
DELTA = 1e-6


@router.put(
    "/populations/{name}",
    status_code=201,
    dependencies=[needs(Right.WRITE), Depends(json_only)],
    responses={200: {"model": PopulationView}, **problems(400, 409, 413, 415, 422)},
)
async def create(
    name: Name, request: PopulationRequest, response: Response, service: Served, caller: Caller
) -> PopulationView:
    """Create a population with a budget, which its studies share and which never changes."""
    view, is_new = await service.store.populations.create(name, request)
    if is_new:
        await service.store.access.note(str(caller), "create population", name)
    else:
        response.status_code = 200
    return view


@router.get("/populations", dependencies=[needs(Right.READ)], responses=problems(422))
async def page(
    service: Served,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    after: Annotated[PopulationName | None, Query()] = None,
) -> PopulationPage:
    """List populations, by name."""
    found = await service.store.populations.page(limit + 1, after or "")
    populations, last = first_of(found, limit)
    return PopulationPage(populations=populations, next=last and last.name)


@router.get(
    "/populations/{name}/privacy",
    dependencies=[needs(Right.READ)],
    responses=problems(404, 422),
)
async def of_population(name: Name, service: Served, delta: Delta = None) -> Statement:
    """Say what the studies of a population tell of a device, whom, and what is left."""
    ledger = await service.store.populations.ledger(name)
    assert ledger.budget is not None  # every population has one
    return await asyncio.to_thread(ledger.statement, delta or ledger.budget.delta)


@router.get(
    "/studies/{study}/privacy",
    tags=["studies"],
    dependencies=[needs(Right.READ)],
    responses=problems(404, 422),
)
async def of_study(study: StudyId, service: Served, delta: Delta = None) -> Statement:
    """Say what one study tells of a device, and whom: if it runs, by all rounds that it may."""
    view = await service.store.studies.show(study)
    asked = delta or getattr(view.question, "delta", None) or DELTA
    ledger = await service.store.populations.of_study(study)
    return await asyncio.to_thread(ledger.statement, max(asked, LEAST_DELTA))
