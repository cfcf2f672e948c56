"""Enrolment of devices by enrolment tokens."""

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Request

from protocol.api.credentials import (
    ENROLMENT_TOKEN_PREFIX,
    bearer_secret,
    possession_statement,
    secret_digest,
)
from protocol.api.messages import EnrolmentRequest, ProblemType
from secagg.keys import check_identity, is_signed
from server.api.dependencies import as_malformed, json_only, problem_responses
from server.errors import ProblemError, malformed
from server.http.auth import client_address
from server.service import ServiceDep

router = APIRouter(prefix="/v1", tags=["access"])


async def _token_digest(
    request: Request, service: ServiceDep, authorization: Annotated[str | None, Header()] = None
) -> bytes:
    """Return the digest of the enrolment token; refuse a caller without one before its body."""
    token = bearer_secret(authorization, ENROLMENT_TOKEN_PREFIX)
    if token is None:
        await service.authenticator.record_failure(
            client_address(request.scope), "enrol", "without a token"
        )
        detail = (
            "Authorization: Bearer and an enrolment token are needed: bte_ and 43 letters, digits, "
            "- and _"
        )
        raise ProblemError(ProblemType.NOT_AUTHORISED, detail)
    return secret_digest(token)


async def _limit_enrolments(
    token: Annotated[bytes, Depends(_token_digest)], request: Request, service: ServiceDep
) -> None:
    """Count a request for enrolment before its body is checked; refuse it if there are too many."""
    service.authenticator.count_enrolment(client_address(request.scope), token)


@router.post(
    "/devices",
    status_code=204,
    dependencies=[Depends(_limit_enrolments), Depends(json_only)],
    responses=problem_responses(400, 409, 413, 415, 422),
)
async def enrol(
    token: Annotated[bytes, Depends(_token_digest)],
    enrolment: EnrolmentRequest,
    request: Request,
    service: ServiceDep,
) -> None:
    """Enrol an identity with an enrolment token; repeating the request changes nothing."""
    identity, credential = bytes.fromhex(enrolment.identity), bytes.fromhex(enrolment.credential)
    signature = bytes.fromhex(enrolment.signature)
    with as_malformed():
        check_identity(identity)
    if not is_signed(identity, possession_statement(credential), signature):
        await service.authenticator.record_failure(
            client_address(request.scope), "enrol", "with a bad signature"
        )
        raise malformed("the signature is not this identity's signature of the credential")
    service.authenticator.count_join(f"token {token.hex()}")
    try:
        await service.store.enrolments.enrol(token, enrolment.identity, credential)
    except ProblemError:
        service.authenticator.forget_valid(token)
        await service.authenticator.record_failure(
            client_address(request.scope), "enrol", enrolment.identity
        )
        raise
    service.authenticator.remember_enrolment(client_address(request.scope), token, credential)
