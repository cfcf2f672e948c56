"""Liveness, readiness and metrics of the process."""

from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import choose_encoder

from protocol.api.messages import ProblemType
from server.api.common import problem_responses
from server.api.dependencies import require
from server.db import migrations
from server.errors import ProblemError
from server.principals import Permission
from server.service import ServiceDep

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def liveness() -> dict[str, str]:
    """Return ok as long as the process runs."""
    return {"status": "ok"}


@router.get("/readyz", responses=problem_responses())
async def readiness(service: ServiceDep) -> dict[str, str]:
    """Return ok if the database is available, accepts writes, and has this program's schema."""
    revision = await service.store.database.read(lambda s: migrations.revision(s.connection()))
    if revision != migrations.head_revision():
        detail = f"the database has schema {revision}, not {migrations.head_revision()}"
        raise ProblemError(ProblemType.UNAVAILABLE, detail)
    if not await service.store.write_probe.accepts_writes():
        detail = (
            "the database refuses writes: its disk is full, it is read-only, or another process "
            "has locked it; the service resumes as soon as it accepts them"
        )
        raise ProblemError(ProblemType.UNAVAILABLE, detail)
    return {"status": "ok"}


@router.get("/metrics", dependencies=[require(Permission.OPERATE)], include_in_schema=False)
async def metrics(request: Request, service: ServiceDep) -> Response:
    """Return the metrics of this process in the format that Prometheus accepts."""
    try:
        encode, media_type = choose_encoder(request.headers.get("accept", ""))
    except (TypeError, ValueError):  # the Accept header names a version that is not a number
        encode, media_type = choose_encoder("")
    return Response(encode(service.metrics.registry), media_type=media_type)
