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

`uploads.py` has the messages. A study in the semi-honest mode has no confirming phase, no
confirmations and no signed inputs.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from fastapi import APIRouter, Response

from protocol.api.device_messages import DocumentKind, Survivors
from protocol.api.messages import Pending
from protocol.api.phases import MESSAGE_KIND, Phase
from secagg.messages import pack_signatures, pack_signed_inputs
from server.api.common import OCTET_STREAM_RESPONSE, WaitSeconds, problem_responses
from server.api.dependencies import SlotDep, require_message, wait_for_end_of
from server.api.devices.device_route import DeviceRoute
from server.api.devices.document_stream import DocumentReader
from server.db.repositories.devices.participants import ParticipantSlot
from server.errors import dropped_out, out_of_phase
from server.http.request_bodies import OCTET_STREAM
from server.service import Service, ServiceDep

router = APIRouter(
    prefix="/v1/participants/{participant}", tags=["devices"], route_class=DeviceRoute
)
_PENDING_RESPONSE: dict[str, Any] = {
    "model": Pending,
    "description": "Not available yet: send the request again.",
    "headers": {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds; often 0."}},
}
_DOCUMENT_RESPONSES = {202: _PENDING_RESPONSE, **problem_responses(404, 409, 410, 422)}
_get_octets = partial(
    router.get,
    response_class=Response,
    responses={200: OCTET_STREAM_RESPONSE, **_DOCUMENT_RESPONSES},
)


async def _wait_as_sender(
    service: Service, participant: ParticipantSlot, resource: str, phase: Phase, wait: float
) -> Response | None:
    """Return a response if `phase` is not over; None for a sender of its message once it is."""
    ended = await wait_for_end_of(service, participant, resource, phase, wait)
    if isinstance(ended, Response):
        return ended
    await require_message(service, participant, ended, MESSAGE_KIND[phase])
    return None


async def _wait_for_confirmations(
    service: Service, participant: ParticipantSlot, resource: str, wait: float
) -> Response | None:
    """Return a response if the confirmations are pending; None once they are there."""
    phase = await wait_for_end_of(service, participant, resource, Phase.CONFIRMING, wait)
    if isinstance(phase, Response):
        return phase
    cohort = await service.cohort_cache.enrolled_cohort(participant.cohort)
    if not cohort.session.assumptions.is_active:
        raise out_of_phase("a confirmation", Phase.CONFIRMING, phase)
    await require_message(service, participant, phase, MESSAGE_KIND[Phase.CONFIRMING])
    return None


def _octets(body: bytes) -> Response:
    return Response(body, media_type=OCTET_STREAM)


@_get_octets("/roster")
async def get_roster(participant: SlotDep, service: ServiceDep, wait: WaitSeconds = 0) -> Response:
    """Return the identity and keys of every participant, by slot."""
    phase = await wait_for_end_of(service, participant, "the roster", Phase.ENROLLING, wait)
    if isinstance(phase, Response):
        return phase
    if not participant.is_final:  # the registrar may have moved it to another cohort meanwhile
        participant = await service.cohort_cache.slot(participant.participant)
        phase = await wait_for_end_of(service, participant, "the roster", Phase.ENROLLING, 0)
        if isinstance(phase, Response):  # this process may not yet know that the cohort is seated
            return phase
    if phase is not Phase.SHARING:
        await require_message(service, participant, phase, MESSAGE_KIND[Phase.SHARING])
    return _octets(await service.cohort_cache.roster(participant.cohort))


@_get_octets("/encrypted-shares")
async def get_encrypted_shares(
    participant: SlotDep, service: ServiceDep, wait: WaitSeconds = 0
) -> Response:
    """Return the share pairs for this participant, by dealer."""
    pending = await _wait_as_sender(
        service, participant, "the encrypted shares", Phase.SHARING, wait
    )
    if pending is not None:
        return pending
    received = await service.cohort_cache.received_shares(participant.cohort, participant.slot)
    return _octets(received.pack())


@_get_octets("/complaints")
async def get_complaints(
    participant: SlotDep, service: ServiceDep, wait: WaitSeconds = 0
) -> Response:
    """Return the signatures of the holders that complain about this participant, by slot."""
    pending = await _wait_as_sender(service, participant, "the complaints", Phase.CHECKING, wait)
    if pending is not None:
        return pending
    complaints = await service.cohort_cache.complaints_by_dealer(participant.cohort)
    return _octets(pack_signatures(complaints.get(participant.slot, {})))


@_get_octets("/share-commitments")
async def get_share_commitments(
    participant: SlotDep, service: ServiceDep, wait: WaitSeconds = 0
) -> Response:
    """Return the graph nonces and share digests of the dealers that are not left out, by slot."""
    resource = "the share commitments"
    phase = await wait_for_end_of(service, participant, resource, Phase.CHECKING, wait)
    if phase is Phase.ANSWERING:
        phase = await wait_for_end_of(service, participant, resource, Phase.ANSWERING, wait)
    if isinstance(phase, Response):
        return phase
    transcript = await service.cohort_cache.transcript(participant.cohort)
    if participant.slot not in transcript.share_commitments:
        raise dropped_out(phase)
    return _octets(await service.cohort_cache.share_commitments(participant.cohort))


@router.get("/survivors", response_model=Survivors, responses=_DOCUMENT_RESPONSES)
async def get_survivors(
    participant: SlotDep, service: ServiceDep, wait: WaitSeconds = 0
) -> Response:
    """Return the slots whose vectors are in the sum."""
    pending = await _wait_as_sender(service, participant, "the survivors", Phase.MASKING, wait)
    if pending is not None:
        return pending
    document = await service.cohort_cache.survivors_document(participant.cohort)
    return Response(document, media_type="application/json")


@_get_octets("/confirmations")
async def get_confirmations(
    participant: SlotDep, service: ServiceDep, wait: WaitSeconds = 0
) -> Response:
    """Return the signatures of the list of survivors, by slot."""
    pending = await _wait_for_confirmations(service, participant, "the confirmations", wait)
    if pending is not None:
        return pending
    return _octets(await service.cohort_cache.confirmations_document(participant.cohort))


@_get_octets("/signed-inputs")
async def get_signed_inputs(
    participant: SlotDep, service: ServiceDep, wait: WaitSeconds = 0
) -> Response:
    """Return the signatures of the vectors of the survivors whose shares this participant holds."""
    pending = await _wait_for_confirmations(service, participant, "the signed inputs", wait)
    if pending is not None:
        return pending
    request = await service.cohort_cache.unmasking_request(participant.cohort)
    signed = await service.cohort_cache.signed_inputs(participant.cohort)
    dealers = request.dealers_of(participant.slot) & request.survivors
    return _octets(pack_signed_inputs({dealer: signed[dealer] for dealer in dealers}))


_ENDPOINTS: Final = {
    DocumentKind.ROSTER: get_roster,
    DocumentKind.ENCRYPTED_SHARES: get_encrypted_shares,
    DocumentKind.COMPLAINTS: get_complaints,
    DocumentKind.SHARE_COMMITMENTS: get_share_commitments,
    DocumentKind.SURVIVORS: get_survivors,
    DocumentKind.CONFIRMATIONS: get_confirmations,
    DocumentKind.SIGNED_INPUTS: get_signed_inputs,
}


def document_readers(
    kinds: Sequence[DocumentKind], participant: ParticipantSlot, service: Service
) -> list[DocumentReader]:
    """Return functions that wait for the documents of `kinds` as GET requests do."""
    return [partial(_ENDPOINTS[kind], participant, service) for kind in kinds]
