"""Dependencies of routes on the caller: permissions, a device's credential, and its cohort's phase.

The authentication middleware has already identified the caller. Of a participant's credential only
the SHA-256 is stored and compared.

The module also has the parameters and media types that several routes share.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hmac import compare_digest
from typing import Annotated, Any, Final, TypeVar, cast

from fastapi import Depends, Header, Query, Request, params
from fastapi import Path as InPath

from protocol.api.credentials import bearer_secret, secret_digest
from protocol.api.messages import ProblemType
from protocol.api.phases import MessageKind, Phase
from secagg.errors import FaultyParticipantError, PortableError
from server.db.channels import cohort_channel
from server.db.repositories.messages.participants import CohortStatus, ParticipantSlot
from server.errors import ProblemError, cohort_failed, dropped_out, malformed, not_found
from server.http.auth import client_address, received_path
from server.http.request_limits import OCTET_STREAM, check_media_type, header
from server.http.response_headers import etag_responses
from server.principals import Permission, Principal
from server.service import Service, ServiceDep
from server.telemetry.logs import bind_log_fields

T = TypeVar("T")
_MAX_ID_CHARS = 64
MAX_WAIT_SECONDS: Final = 30
WaitSeconds = Annotated[
    float,
    Query(
        ge=0,
        le=MAX_WAIT_SECONDS,
        description="Seconds to wait for the answer if it does not exist yet.",
    ),
]
AfterRound = Annotated[
    int, Query(ge=0, le=2**31 - 1, description="Number of the last known round.")
]
RoundNumber = Annotated[int, InPath(ge=1, le=2**31 - 1)]
CohortNumber = Annotated[int, InPath(ge=0, le=2**31 - 1)]


def is_id(text: str) -> bool:
    return len(text) <= _MAX_ID_CHARS and text.isascii() and text.isalnum()


async def read_study(study: str) -> str:
    """Return the study's id; refuse a text that cannot be an id without a query."""
    if not is_id(study):
        raise not_found("study")
    bind_log_fields(study=study)
    return study


StudyId = Annotated[str, Depends(read_study)]


def paginate(rows: Sequence[T], limit: int) -> tuple[tuple[T, ...], T | None]:
    """Return the first `limit` rows, and the last of them if more rows follow, otherwise None."""
    page = tuple(rows[:limit])
    return page, page[-1] if len(rows) > limit else None


def service_url(request: Request, service: Service) -> str:
    """Return the address of the service in browsers and for programs, without a last slash."""
    return service.settings.public_url or str(request.base_url).rstrip("/")


async def json_only(request: Request) -> None:
    """Refuse a body whose media type is not JSON."""
    check_media_type(request, "application/json")


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI documentation of a route that may refuse with `statuses`."""
    timeout = (408,) if 413 in statuses else ()  # of routes that read a body
    return {
        status: {"description": _DESCRIPTIONS[status]} for status in (*statuses, *timeout, 500, 503)
    }


_DESCRIPTIONS = {
    400: "The body is not JSON, or ended too early.",
    401: "The credential is missing or belongs to another participant.",
    403: "The registrar did not sign this identity, or the identity is barred from the study.",
    404: "No such study, round, cohort or participant.",
    408: "The body did not arrive in time.",
    409: "Not possible in this phase or state, or in conflict with an earlier message: see `type`.",
    410: "The cohort failed or went on without this participant.",
    413: "The body is too large.",
    415: "The body has the wrong media type.",
    422: "Malformed: `errors` lists every fault of a document.",
    429: "Too many requests, or too many refused requests: try again after Retry-After.",
    431: "The headers or the address are too large.",
    500: "A fault of the service.",
    503: "The database is busy or unavailable. Nothing was changed; try again after Retry-After.",
}

OCTET_STREAM_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {OCTET_STREAM: {"schema": {"type": "string", "format": "binary"}}},
    }
}
OCTET_STREAM_RESPONSE: dict[str, Any] = {
    "content": {OCTET_STREAM: {"schema": {"type": "string", "format": "binary"}}}
}


PHASE_ORDER = {phase: position for position, phase in enumerate(Phase)}


async def _caller(request: Request) -> Principal:
    return cast("Principal", request.state.principal)


Caller = Annotated[Principal, Depends(_caller)]


def require(*permissions: Permission, is_filtered: bool = False) -> params.Depends:
    """Return the dependency that refuses callers without any of `permissions`.

    A key of one study is accepted at paths of that study, and where a route lists only what
    `Principal.study` allows (`is_filtered`).
    """

    async def check(caller: Caller, request: Request, service: ServiceDep) -> None:
        await check_permission(caller, request, service, *permissions, is_filtered=is_filtered)

    return cast("params.Depends", Depends(check))


async def check_permission(
    caller: Principal,
    request: Request,
    service: Service,
    *permissions: Permission,
    is_filtered: bool = False,
) -> None:
    """Raise ProblemError if the caller has none of `permissions`, or not for this path."""
    if caller.permissions.isdisjoint(permissions):
        detail = f"this requires the permission {' or '.join(permissions)}"
        await _refuse(caller, request, service, detail)
    if not is_filtered:
        await check_study(caller, request, service, request.path_params.get("study"))


async def check_study(
    caller: Principal, request: Request, service: Service, study: str | None
) -> None:
    """Raise ProblemError if the caller's key is limited to a study, and this is not `study`.

    A route that reads more than the study in its path needs this for each of them.
    """
    if caller.study not in (None, study):  # whether another one exists or not
        await _refuse(caller, request, service, "this key is limited to one study")


async def _refuse(caller: Principal, request: Request, service: Service, detail: str) -> None:
    await service.authenticator.record_failure(
        client_address(request.scope),
        "forbidden",
        f"{caller}: {received_path(request.scope)}",
        str(caller),
    )
    raise ProblemError(ProblemType.FORBIDDEN, detail)


def reading(*statuses: int, is_filtered: bool = False) -> dict[str, Any]:
    """Return the options of a route with tags that needs READ and may refuse with `statuses`."""
    responses = etag_responses(problem_responses(*statuses))
    needed = require(Permission.READ, is_filtered=is_filtered)
    return {"dependencies": [needed], "responses": responses}


def require_own_identity(caller: Principal, identity: str) -> None:
    """Raise ProblemError if the caller is a device that uses another one's identity."""
    if caller.identity not in (None, identity):
        raise ProblemError(ProblemType.FORBIDDEN, "this credential belongs to another identity")


async def limit_joins(request: Request, service: ServiceDep) -> None:
    """Count a device that joins or enrols; refuse it if too many came from its address."""
    service.authenticator.count_join(client_address(request.scope))


async def credential_digest(authorization: Annotated[str | None, Header()] = None) -> bytes:
    """Return the SHA-256 of the credential in the header of a request."""
    credential = bearer_secret(authorization, "")
    if credential is None:
        detail = "Authorization: Bearer and 32 random bytes in base64url are needed"
        raise ProblemError(ProblemType.NOT_AUTHORISED, detail)
    return secret_digest(credential)


CredentialDigest = Annotated[bytes, Depends(credential_digest)]


async def authenticated_slot(
    request: Request, participant: str, service: Service
) -> ParticipantSlot:
    """Return the slot of the participant whose credential the request has.

    Raises:
        ProblemError: if it has none or another one's, or too many requests came with it.
    """
    digest = await credential_digest(header(request.scope, b"authorization"))
    if not is_id(participant):
        raise not_found("participant")
    slot: ParticipantSlot | None
    try:
        slot = await service.status_cache.slot(participant)
    except ProblemError:
        if service.authenticator.is_open:
            raise
        slot = None  # strangers cannot find out which participants exist
    if slot is None or not compare_digest(slot.credential_digest, digest):
        # The study of an enrolled device may have been deleted while the device took part.
        if slot is not None or not await _is_enrolled(request, service):
            service.authenticator.forget_valid(digest)
            await service.authenticator.record_failure(
                client_address(request.scope), "bad credential", participant
            )
        detail = "this credential belongs to another participant"
        raise ProblemError(ProblemType.NOT_AUTHORISED, detail)
    service.authenticator.remember_valid(digest)
    service.authenticator.count_request(f"participant {participant}")
    bind_log_fields(cohort_id=slot.cohort)
    return slot


async def _is_enrolled(request: Request, service: Service) -> bool:
    """Return whether the credential in the header of a request is that of an enrolled device."""
    secret = bearer_secret(header(request.scope, b"authorization"), "")
    owner = await service.authenticator.authenticate(secret)
    return owner is not None and owner.identity is not None


async def _described_slot(
    _digest: CredentialDigest, participant: str, request: Request, service: ServiceDep
) -> ParticipantSlot:
    return await authenticated_slot(request, participant, service)


# Describes the parameters of a `DeviceRoute`, which calls `authenticated_slot` itself.
SlotDep = Annotated[ParticipantSlot, Depends(_described_slot)]


@contextmanager
def as_malformed() -> Iterator[None]:
    """Turn the errors of a body's checks into a refusal of the request."""
    try:
        yield
    except (ValueError, FaultyParticipantError) as error:
        raise malformed(str(error)) from None


class PendingError(PortableError):
    """A document does not exist yet, because the cohort has the status `status`."""

    def __init__(self, status: CohortStatus) -> None:
        super().__init__(status.phase)
        self.status = status


async def wait_for_end_of(
    service: Service, participant: ParticipantSlot, resource: str, phase: Phase, seconds: float
) -> Phase:
    """Return the cohort's phase once `phase` is over.

    The seating of a round counts as a part of enrolling.

    Raises:
        PendingError: if `phase` is not over after `seconds`.
        ProblemError: if the cohort failed, is summed, or has not reached `phase`.
    """
    early = (phase, Phase.SEATING) if phase is Phase.ENROLLING else (phase,)

    async def status_after_phase() -> CohortStatus | None:
        status = await service.status_cache.status(participant.cohort)
        return None if status.phase in early else status

    channel = cohort_channel(participant.cohort)
    changed = await service.notifier.wait_for(channel, status_after_phase, seconds)
    status = changed or await service.status_cache.status(participant.cohort)
    if status.phase is Phase.FAILED:
        raise cohort_failed(status.failure)
    if status.phase in early:
        raise PendingError(status)
    if status.phase is Phase.SUMMED or PHASE_ORDER[status.phase] < PHASE_ORDER[phase]:
        detail = f"{resource} can be read after {phase} and before the sum: the cohort is now "
        detail += status.phase
        raise ProblemError(ProblemType.WRONG_PHASE, detail, phase=status.phase)
    return status.phase


async def require_message(
    service: Service, participant: ParticipantSlot, phase: Phase, kind: MessageKind
) -> None:
    """Refuse a participant whose message of `kind` did not arrive before its phase was closed."""
    if participant.slot not in await service.cohort_cache.senders(participant.cohort, kind):
        raise dropped_out(phase)
