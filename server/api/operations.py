"""Liveness, readiness and metrics of the process, and the audit trail."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from prometheus_client.exposition import choose_encoder

from protocol.api.messages import AuditPage, ProblemType
from server.api.dependencies import paginate, problem_responses, require
from server.errors import ProblemError
from server.http.response_headers import accepted_ranges
from server.principals import Permission
from server.service import ServiceDep

router = APIRouter()


@router.get("/healthz", tags=["health"])
async def liveness() -> dict[str, str]:
    """Return ok as long as the process runs."""
    return {"status": "ok"}


@router.get("/readyz", tags=["health"], responses=problem_responses())
async def readiness(service: ServiceDep) -> dict[str, str]:
    """Return ok if the database can be used, and has this program's schema."""
    if (reason := await service.store.readiness.reason()) is not None:
        raise ProblemError(ProblemType.UNAVAILABLE, reason)
    return {"status": "ok"}


@router.get("/metrics", dependencies=[require(Permission.OPERATE)], include_in_schema=False)
async def metrics(request: Request, service: ServiceDep) -> Response:
    """Return the metrics of this process in the format that Prometheus accepts."""
    accepted = [each for each, weight in accepted_ranges(request.scope).items() if weight > 0]
    try:
        encode, media_type = choose_encoder(",".join(accepted))
    except (TypeError, ValueError):  # the Accept header names a version that is not a number
        encode, media_type = choose_encoder("")
    return Response(encode(service.metrics.registry), media_type=media_type)


@router.get(
    "/v1/audit",
    tags=["access"],
    dependencies=[require(Permission.OPERATE)],
    responses=problem_responses(422),
)
async def list_audit_entries(
    service: ServiceDep,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
) -> AuditPage:
    """List the actions of all callers, newest first."""
    entries, last = paginate(await service.store.access.audit_entries(limit + 1, before), limit)
    return AuditPage(entries=entries, next=last and last.id)
