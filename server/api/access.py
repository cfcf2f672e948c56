"""Letting devices in by enrolment tokens, and the audit trail."""

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request

from protocol.credentials import ENROLMENT_TOKEN, bearer, digest, possession
from protocol.messages import AuditPage, Enrolment, ProblemType
from secagg.keys import check_identity, is_signed
from server.api.parts import first_of, json_only, problems
from server.api.placed import blame
from server.api.rights import needs
from server.doorkeeper import address
from server.principals import Right
from server.refusals import Refusal, malformed
from server.service import Served

router = APIRouter(prefix="/v1", tags=["access"])


async def _token(
    request: Request,
    service: Served,
    authorization: Annotated[str | None, Header()] = None,
) -> bytes:
    """Return the digest of the token that is shown: whoever shows none is told nothing else."""
    token = bearer(authorization, ENROLMENT_TOKEN)
    if token is None:
        await service.keeper.fail(address(request.scope), "enrol", "without a token")
        detail = "Authorization: Bearer and an enrolment token are needed"
        raise Refusal(ProblemType.NOT_AUTHORISED, detail)
    return digest(token)


@router.post(
    "/devices",
    status_code=204,
    dependencies=[Depends(json_only)],
    responses=problems(400, 409, 413, 415, 422),
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
        await service.keeper.fail(address(request.scope), "enrol", "with a bad signature")
        raise malformed("the signature is not that of the identity under the credential")
    try:
        await service.store.access.enrol(token, asked.identity, credential)
    except Refusal:
        await service.keeper.fail(address(request.scope), "enrol", asked.identity)
        raise


@router.get("/audit", dependencies=[needs(Right.OPERATE)], responses=problems(422))
async def trail(
    service: Served,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
) -> AuditPage:
    """List who did what, newest first."""
    entries, last = first_of(await service.store.access.trail(limit + 1, before), limit)
    return AuditPage(entries=entries, next=last and last.id)
