"""Audit trail: the actions of all callers."""

from typing import Annotated

from fastapi import APIRouter, Query

from protocol.api.messages import AuditPage
from server.api.dependencies import paginate, problem_responses, require
from server.principals import Permission
from server.service import ServiceDep

router = APIRouter(prefix="/v1", tags=["access"])


@router.get("/audit", dependencies=[require(Permission.OPERATE)], responses=problem_responses(422))
async def list_audit_entries(
    service: ServiceDep,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
) -> AuditPage:
    """List the actions of all callers, newest first."""
    entries, last = paginate(await service.store.access.audit_entries(limit + 1, before), limit)
    return AuditPage(entries=entries, next=last and last.id)
