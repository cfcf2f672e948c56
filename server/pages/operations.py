"""What the operator looks after: processes, their work, who may do what, and who did."""

import asyncio
from collections import Counter
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from protocol.messages import PopulationView
from protocol.privacy.ledger import Statement
from server.api.parts import first_of
from server.api.rights import needs
from server.pages.guarding import Page
from server.pages.view import view
from server.principals import Right
from server.service import Served, Service

router = APIRouter(
    prefix="/operations",
    route_class=Page,
    include_in_schema=False,
    dependencies=[needs(Right.OPERATE)],
)
_MOST = 20  # processes, leases
_MOST_KEYS = 100
_ENTRIES = 50  # of the audit trail on one page
Before = Annotated[int | None, Query(ge=1, le=2**31 - 1)]


@router.get("")
async def show(request: Request, service: Served, before: Before = None) -> Response:
    """Show what goes on in the service, from its rows."""
    store = service.store
    trail = await store.access.trail(_ENTRIES + 1, before)
    entries, last = first_of(trail, _ENTRIES)
    return view(
        request,
        "operations.html",
        now=await store.overview.now(),
        is_sqlite=store.database.is_sqlite,
        me=service.orchestrator.presence.name,
        processes=await store.processes.every(_MOST),
        leases=await store.leases.latest(_MOST),
        waiting=await _waiting(service),
        streams=service.streams.count,
        keys=(await store.access.keys())[-_MOST_KEYS:],
        tokens=(await store.access.tokens())[-_MOST_KEYS:],
        entries=entries,
        before=before,
        older=last and last.id,
        ledgers=await _ledgers(service),
    )


async def _waiting(service: Service) -> list[dict[str, Any]]:
    """Return how many cohorts wait in each phase, and how many devices were heard there."""
    found = await service.store.cohorts.waiting()
    cohorts = Counter(due.waiting.phase for due in found)
    heard: Counter[str] = Counter()
    for due in found:
        heard[due.waiting.phase] += due.waiting.heard
    return [
        {"phase": phase, "cohorts": count, "heard": heard[phase]}
        for phase, count in sorted(cohorts.items())
    ]


async def _ledgers(service: Service) -> list[tuple[PopulationView, Statement]]:
    found = []
    for population in await service.store.populations.page(_MOST, ""):
        ledger = await service.store.populations.ledger(population.name)
        told = await asyncio.to_thread(ledger.statement, population.budget.delta)
        found.append((population, told))
    return found
