"""Whether the process lives, whether it can serve, and what it measures."""

from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import choose_encoder

from protocol.messages import ProblemType
from server import migrations
from server.api.parts import problems
from server.api.rights import needs
from server.principals import Right
from server.refusals import Refusal
from server.service import Served

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def alive() -> dict[str, str]:
    """Answer as long as the process does."""
    return {"status": "ok"}


@router.get("/readyz", responses=problems())
async def ready(service: Served) -> dict[str, str]:
    """Answer ok if the database is within reach, has room, and has this program's schema."""
    found = await service.store.database.read(lambda s: migrations.revision(s.connection()))
    if found != migrations.head():
        detail = f"the database has schema {found}; {migrations.head()} is needed"
        raise Refusal(ProblemType.UNAVAILABLE, detail)
    if not await service.store.room.is_there():
        detail = "the database's disk is full: make room, and the service goes on by itself"
        raise Refusal(ProblemType.UNAVAILABLE, detail)
    return {"status": "ok"}


@router.get("/metrics", dependencies=[needs(Right.OPERATE)], include_in_schema=False)
async def metrics(request: Request, service: Served) -> Response:
    """Return what this process measures, in the form that Prometheus asks for."""
    try:
        encode, media_type = choose_encoder(request.headers.get("accept", ""))
    except (TypeError, ValueError):  # by a version that is none
        encode, media_type = choose_encoder("")
    return Response(encode(service.metrics.registry), media_type=media_type)
