"""Page of the operator: processes, jobs, privacy ledgers, keys and tokens, the audit trail."""

import asyncio
from collections import Counter
from typing import Annotated, Any

from fastapi import Query, Request, Response

from protocol.api.messages import PopulationView
from protocol.privacy.ledger import Statement
from server.api.dependencies import paginate
from server.api.populations import population_statement
from server.db.repositories.leases import ALIVE_WITHIN
from server.pages.page_requests import page_router
from server.pages.rendering import render
from server.principals import Permission
from server.service import Service, ServiceDep

router = page_router(Permission.OPERATE, prefix="/operations")
_MAX_ROWS = 20  # processes, leases
_MAX_KEYS = 100
_AUDIT_PAGE_SIZE = 50
Before = Annotated[int | None, Query(ge=1, le=2**31 - 1)]


@router.get("")
async def show(request: Request, service: ServiceDep, before: Before = None) -> Response:
    """Show the state of the service, and the audit entries before `before`."""
    store = service.store
    rows = await store.access.audit_entries(_AUDIT_PAGE_SIZE + 1, before)
    entries, last = paginate(rows, _AUDIT_PAGE_SIZE)
    now = await store.database.read_now()
    return render(
        request,
        "operations.html",
        now=now,
        alive_since=now - ALIVE_WITHIN,
        is_sqlite=store.database.is_sqlite,
        process_name=service.orchestrator.heartbeat.name,
        processes=await store.processes.latest(_MAX_ROWS),
        leases=await store.leases.latest(_MAX_ROWS),
        pending=await _pending_by_phase(service),
        streams=service.event_streams.count,
        keys=(await store.access.keys())[-_MAX_KEYS:],
        tokens=(await store.access.tokens())[-_MAX_KEYS:],
        entries=entries,
        before=before,
        older=last and last.id,
        ledgers=await _ledgers(service),
        clock=await store.retention.clock(),
    )


async def _pending_by_phase(service: Service) -> list[dict[str, Any]]:
    statuses = [pending.phase_status for pending in await service.store.cohorts.pending()]
    cohorts = Counter(status.phase for status in statuses)
    received: Counter[str] = Counter()
    for status in statuses:
        received[status.phase] += status.received
    return [
        {"phase": phase, "cohorts": count, "received": received[phase]}
        for phase, count in sorted(cohorts.items())
    ]


async def _ledgers(service: Service) -> list[tuple[PopulationView, Statement]]:
    ledgers = []
    for population in await service.store.populations.page(_MAX_ROWS, ""):
        ledger = await service.store.populations.ledger(population.name)
        statement = await asyncio.to_thread(population_statement, ledger)
        ledgers.append((population, statement))
    return ledgers
