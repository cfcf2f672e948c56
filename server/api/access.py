"""Letting devices in by enrolment tokens, and the audit trail."""

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request

from protocol.messages import AuditPage, Enrolment, ProblemType, possession
from secagg.keys import check_identity, is_signed
from server.api.parts import json_only, problems
from server.api.placed import blame
from server.api.rights import needs
from server.credentials import ENROLMENT_TOKEN, Right, bearer, digest
from server.doorkeeper import address
from server.refusals import Refusal, malformed
from server.service import Served

router = APIRouter(prefix="/v1", tags=["access"])


async def _token(
    request: Request,
    service: Served,
    authorization: Annotated[str | None, Header()] = None,
) -> bytes:
    """Return the digest of the token that is shown: whoever shows none is told nothing else."""
    token = bearer(authorization)
    if token is None or not token.startswith(ENROLMENT_TOKEN):
        await service.keeper.fail(address(request.scope), "enrol", "without a token")
        detail = "Authorization: Bearer and an enrolment token are needed"
        raise Refusal(ProblemType.NOT_AUTHORISED, detail)
    return digest(token)


@router.post(
    "/devices",
    status_code=204,
    dependencies=[Depends(json_only)],
    responses=problems(400, 401, 403, 409, 413, 415, 422, 429),
)
async def enrol(
    token: Annotated[bytes, Depends(_token)],
    asked: Enrolment,
    request: Request,
    service: Served,
) -> None:
    """Let an identity in by an enrolment token; saying it again changes nothing."""
    identity, credential = bytes.fromhex(asked.identity), bytes.fromhex(asked.credential)
    with blame():
        check_identity(identity)
    if not is_signed(identity, possession(credential), bytes.fromhex(asked.signature)):
        raise malformed("the signature is not that of the identity under the credential")
    try:
        await service.store.access.enrol(token, asked.identity, credential)
    except Refusal:
        await service.keeper.fail(address(request.scope), "enrol", asked.identity)
        raise


@router.get("/audit", dependencies=[needs(Right.OPERATE)], responses=problems(401, 403, 422))
async def trail(
    service: Served,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
) -> AuditPage:
    """List who did what, newest first."""
    entries = await service.store.access.trail(limit + 1, before)
    following = entries[limit - 1].id if len(entries) > limit else None
    return AuditPage(entries=entries[:limit], next=following)
