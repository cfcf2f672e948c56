"""Documents that a device in a round waits for, one or two before each of its messages.

A device gets them in the response to its message before, or by a GET request.

    enrolling    POST participants         (`joining.py`; a registrar seats them: `seatings.py`)
    sharing      GET roster             -> PUT key-shares
    checking     GET encrypted-shares   -> PUT complaints
    answering    GET complaints         -> PUT answers, if there are any
    masking      GET share-commitments  -> PUT masked-input
    confirming   GET survivors          -> PUT confirmation
    unmasking    GET confirmations,
                 GET signed-inputs      -> PUT unmasking-shares

The headers of the response are sent once the message is committed, so they acknowledge it. Each
document is in the body as soon as it exists. The body ends early if the wait is over or a document
is refused. Then the device asks for the document itself, and learns the reason.

`uploads.py` has the messages.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any, Final, TypeAlias

from fastapi import APIRouter, Response
from starlette.types import Receive, Scope, Send

from protocol.api.messages import Pending
from protocol.api.messages_outside_sums import DocumentKind, Survivors, frame_document, frame_length
from protocol.api.phases import MESSAGE_KIND, Phase
from secagg.messages import pack_signatures, pack_signed_inputs
from server.api.dependencies import (
    OCTET_STREAM_RESPONSE,
    PendingError,
    SlotDep,
    WaitSeconds,
    problem_responses,
    require_message,
    wait_for_end_of,
)
from server.api.devices.device_route import DeviceRoute
from server.db.database_errors import UNAVAILABLE_ERRORS
from server.db.repositories.messages.participants import ParticipantSlot
from server.errors import ProblemError, dropped_out
from server.http.request_limits import OCTET_STREAM
from server.service import Service, ServiceDep

_MAX_COPIED_BYTES = 2**14
DocumentReader: TypeAlias = Callable[[float], Awaitable[bytes]]  # takes the seconds to wait


class DocumentStream(Response):
    """Response with the documents `known`, and those that `readers` return within `wait` seconds.

    A reader raises PendingError or ProblemError if a GET would not return its document.
    """

    # Without a length, which is unknown; nginx passes each document on as it comes.
    _HEADERS = ((b"content-type", OCTET_STREAM.encode()), (b"x-accel-buffering", b"no"))

    def __init__(
        self,
        known: Sequence[bytes],
        readers: Sequence[DocumentReader],
        wait: float,
        status_code: int = 200,
    ) -> None:
        self.status_code = status_code
        self._known, self._readers, self._wait = known, readers, wait

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        start = {"status": self.status_code, "headers": self._HEADERS}
        await send({"type": "http.response.start", **start})
        deadline, body = monotonic() + self._wait, b"".join(map(frame_document, self._known))

        async def send_part(part: bytes) -> None:
            if part:
                await send({"type": "http.response.body", "body": part, "more_body": True})

        for place, read in enumerate(self._readers):
            # Documents that exist at the same time are sent together.
            document = await _read(read, 0.0) if place else None
            if document is None:
                await send_part(body)
                body, document = b"", await _read(read, deadline - monotonic())
            if document is None:
                break
            if len(document) <= _MAX_COPIED_BYTES:
                body += frame_document(document)
                continue
            # All devices of a cohort receive one roster, of which none needs a copy.
            await send_part(body + frame_length(document))
            await send_part(document)
            body = b""
        await send({"type": "http.response.body", "body": body})


async def _read(read: DocumentReader, wait: float) -> bytes | None:
    """Return a document, or None if a GET would not return it within `wait` seconds."""
    try:
        return await read(max(0.0, wait))
    except (PendingError, ProblemError, *UNAVAILABLE_ERRORS):
        return None


router = APIRouter(
    prefix="/v1/participants/{participant}", tags=["devices"], route_class=DeviceRoute
)
_PENDING_RESPONSE: dict[str, Any] = {
    "model": Pending,
    "description": "Not available yet: send the request again.",
    "headers": {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds; often 0."}},
}
_DOCUMENT_RESPONSES = {202: _PENDING_RESPONSE, **problem_responses(404, 409, 410, 422)}
_OCTET_OPTIONS: dict[str, Any] = {
    "response_class": Response,
    "responses": {200: OCTET_STREAM_RESPONSE, **_DOCUMENT_RESPONSES},
}
# Reads a document of a participant, and waits for it these seconds.
_Read: TypeAlias = Callable[[ParticipantSlot, Service, float], Awaitable[bytes]]
_READ: Final[dict[DocumentKind, _Read]] = {}


def _document(
    kind: DocumentKind, media_type: str = OCTET_STREAM, options: Mapping[str, Any] = _OCTET_OPTIONS
) -> Callable[[_Read], _Read]:
    """Return the decorator of the function that reads documents of `kind`."""

    def add_route(read: _Read) -> _Read:
        async def get(participant: SlotDep, service: ServiceDep, wait: WaitSeconds = 0) -> Response:
            try:
                return Response(await read(participant, service, wait), media_type=media_type)
            except PendingError as error:
                return _pending_response(error, service.retry_after(minimum=0))

        get.__name__, get.__doc__ = f"get_{kind.name.lower()}", read.__doc__
        router.get(f"/{kind}", **options)(get)
        _READ[kind] = read
        return read

    return add_route


def _pending_response(error: PendingError, retry_after: int) -> Response:
    pending = Pending(phase=error.status.phase, deadline=error.status.deadline)
    headers = {"Retry-After": str(retry_after)}
    return Response(pending.model_dump_json(), 202, headers, "application/json")


def document_readers(
    kinds: Sequence[DocumentKind], participant: ParticipantSlot, service: Service
) -> list[DocumentReader]:
    """Return functions that wait for the documents of `kinds` as GET requests do."""
    return [partial(_READ[kind], participant, service) for kind in kinds]


async def _wait_as_sender(
    participant: ParticipantSlot, service: Service, resource: str, phase: Phase, wait: float
) -> None:
    """Wait for the end of `phase`; refuse a participant that sent no message in it."""
    ended = await wait_for_end_of(service, participant, resource, phase, wait)
    await require_message(service, participant, ended, MESSAGE_KIND[phase])


@_document(DocumentKind.ROSTER)
async def read_roster(participant: ParticipantSlot, service: Service, wait: float) -> bytes:
    """Return the identity and keys of every participant, by slot."""
    phase = await wait_for_end_of(service, participant, "the roster", Phase.ENROLLING, wait)
    if not participant.is_final:  # the registrar may have moved it to another cohort meanwhile
        participant = await service.status_cache.slot(participant.participant)
        # This process may not yet know that the cohort is seated.
        phase = await wait_for_end_of(service, participant, "the roster", Phase.ENROLLING, 0)
    if phase is not Phase.SHARING:
        await require_message(service, participant, phase, MESSAGE_KIND[Phase.SHARING])
    return await service.cohort_cache.roster(participant.cohort)


@_document(DocumentKind.ENCRYPTED_SHARES)
async def read_encrypted_shares(
    participant: ParticipantSlot, service: Service, wait: float
) -> bytes:
    """Return the share pairs for this participant, by dealer."""
    await _wait_as_sender(participant, service, "the encrypted shares", Phase.SHARING, wait)
    received = await service.cohort_cache.received_shares(participant.cohort, participant.slot)
    return received.pack()


@_document(DocumentKind.COMPLAINTS)
async def read_complaints(participant: ParticipantSlot, service: Service, wait: float) -> bytes:
    """Return the signatures of the holders that complain about this participant, by slot."""
    await _wait_as_sender(participant, service, "the complaints", Phase.CHECKING, wait)
    complaints = await service.cohort_cache.complaints_by_dealer(participant.cohort)
    return pack_signatures(complaints.get(participant.slot, {}))


@_document(DocumentKind.SHARE_COMMITMENTS)
async def read_share_commitments(
    participant: ParticipantSlot, service: Service, wait: float
) -> bytes:
    """Return the graph nonces and share digests of the dealers that are not left out, by slot."""
    resource = "the share commitments"
    phase = await wait_for_end_of(service, participant, resource, Phase.CHECKING, wait)
    if phase is Phase.ANSWERING:
        phase = await wait_for_end_of(service, participant, resource, Phase.ANSWERING, wait)
    transcript = await service.cohort_cache.transcript(participant.cohort)
    if participant.slot not in transcript.share_commitments:
        raise dropped_out(phase)
    return await service.cohort_cache.share_commitments(participant.cohort)


@_document(
    DocumentKind.SURVIVORS,
    "application/json",
    {"response_model": Survivors, "responses": _DOCUMENT_RESPONSES},
)
async def read_survivors(participant: ParticipantSlot, service: Service, wait: float) -> bytes:
    """Return the slots whose vectors are in the sum."""
    await _wait_as_sender(participant, service, "the survivors", Phase.MASKING, wait)
    return await service.cohort_cache.survivors_document(participant.cohort)


@_document(DocumentKind.CONFIRMATIONS)
async def read_confirmations(participant: ParticipantSlot, service: Service, wait: float) -> bytes:
    """Return the signatures of the list of survivors, by slot."""
    await _wait_as_sender(participant, service, "the confirmations", Phase.CONFIRMING, wait)
    return await service.cohort_cache.confirmations_document(participant.cohort)


@_document(DocumentKind.SIGNED_INPUTS)
async def read_signed_inputs(participant: ParticipantSlot, service: Service, wait: float) -> bytes:
    """Return the signatures of the vectors of the survivors whose shares this participant holds."""
    await _wait_as_sender(participant, service, "the signed inputs", Phase.CONFIRMING, wait)
    request = await service.cohort_cache.unmasking_request(participant.cohort)
    signed = await service.cohort_cache.signed_inputs(participant.cohort)
    dealers = request.dealers_of(participant.slot) & request.survivors
    return pack_signed_inputs({dealer: signed[dealer] for dealer in dealers})
