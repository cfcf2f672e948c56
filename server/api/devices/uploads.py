"""Uploads of a device after it has joined, from key shares to unmasking shares.

With `wait`, the response to an accepted message has the documents that the device receives next
(`documents.py`).

A body of the wrong size is refused before it is read. A body is checked during its phase. Later,
only the repetition of an accepted body is accepted, even if the cohort has failed or is summed.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

from fastapi import APIRouter, Request, Response

from protocol.api.messages_outside_sums import NEXT_DOCUMENTS
from protocol.api.phases import MESSAGE_KIND, PAIRWISE_SUM, MessageKind, Phase
from secagg.aggregator import (
    check_answers,
    check_complaints,
    check_confirmation,
    check_key_shares,
    check_masked_input,
    check_unmasking_shares,
)
from secagg.keys import SIGNATURE_BYTES
from secagg.messages import Answers, Complaints, KeyShares, MaskedInput, UnmaskingShares
from secagg.session import Transcript
from server.api.dependencies import (
    OCTET_STREAM_BODY,
    OCTET_STREAM_RESPONSE,
    PHASE_ORDER,
    SlotDep,
    WaitSeconds,
    as_malformed,
    problem_responses,
    require_message,
)
from server.api.devices.device_route import DeviceRoute
from server.api.devices.documents import DocumentStream, document_readers
from server.db.repositories.messages.participants import ParticipantSlot, Upload
from server.errors import ProblemError, out_of_phase
from server.http.request_limits import read_body
from server.service import Service, ServiceDep

router = APIRouter(
    prefix="/v1/participants/{participant}", tags=["devices"], route_class=DeviceRoute
)
_MAX_INLINE_BYTES = 2**20  # of a body that is checked in the event loop: about 0.7 ms
_MAX_INLINE_COMPLAINTS = 4
_FOLLOWING_RESPONSE = OCTET_STREAM_RESPONSE | {
    "description": "Accepted, with the documents that follow, each after its length in four bytes."
}
_Accept: TypeAlias = Callable[[ParticipantSlot, Request, Service], Awaitable[None]]


def _upload(kind: MessageKind) -> Callable[[_Accept], _Accept]:
    """Return the decorator of the function that accepts messages of `kind`."""
    following = NEXT_DOCUMENTS.get(kind, ())

    def add_route(accept: _Accept) -> _Accept:
        async def put(
            participant: SlotDep, request: Request, service: ServiceDep, wait: WaitSeconds = 0
        ) -> Response:
            await accept(participant, request, service)  # its end frees the body
            if not (wait and following):
                return Response(status_code=204)
            return DocumentStream((), document_readers(following, participant, service), wait)

        put.__name__, put.__doc__ = accept.__name__, accept.__doc__
        router.put(
            f"/{kind}",
            status_code=204,
            responses={
                **({200: _FOLLOWING_RESPONSE} if following else {}),
                **problem_responses(400, 404, 409, 410, 413, 415, 422),
            },
            openapi_extra=OCTET_STREAM_BODY,
        )(put)
        return accept

    return add_route


@_upload(MessageKind.KEY_SHARES)
async def put_key_shares(participant: ParticipantSlot, request: Request, service: Service) -> None:
    """Share the mask key and a seed among this participant's holders."""
    cohort = await service.cohort_cache.enrolled_cohort(participant.cohort)
    size = KeyShares.nbytes(cohort.session.parameters.holders)
    body = await read_body(request, size, size)

    async def check() -> None:
        with as_malformed():
            check_key_shares(cohort.session, participant.slot, KeyShares.unpack(body))

    upload = Upload.of(participant, MessageKind.KEY_SHARES, body)
    await _accept(service, participant, upload, check)


@_upload(MessageKind.COMPLAINTS)
async def put_complaints(participant: ParticipantSlot, request: Request, service: Service) -> None:
    """Complain about dealers whose shares this participant cannot use; usually about none."""
    cohort = await service.cohort_cache.enrolled_cohort(participant.cohort)
    body = await read_body(request, Complaints.nbytes(0), Complaints.nbytes(cohort.session.n - 1))

    async def check() -> None:
        slot = participant.slot
        received = await service.cohort_cache.received_shares(participant.cohort, slot)
        with as_malformed():
            message = Complaints.unpack(body)
            run = partial(check_complaints, cohort.session, slot, received, message)
            await _run_check(run, in_thread=len(message.signatures) > _MAX_INLINE_COMPLAINTS)

    upload = Upload.of(participant, MessageKind.COMPLAINTS, body)
    await _accept(service, participant, upload, check)


@_upload(MessageKind.ANSWERS)
async def put_answers(participant: ParticipantSlot, request: Request, service: Service) -> None:
    """Answer the complaints about this participant with its holders' shares."""
    cohort = await service.cohort_cache.enrolled_cohort(participant.cohort)
    max_size = Answers.nbytes(cohort.session.parameters.holders)
    body = await read_body(request, Answers.nbytes(1), max_size)

    async def check() -> None:
        slot, messages = participant.slot, service.store.messages
        complaints = await service.cohort_cache.complaints_by_dealer(participant.cohort)
        sent = await messages.body(participant.cohort, MessageKind.KEY_SHARES, slot)
        with as_malformed():
            answers, key_shares = Answers.unpack(body), KeyShares.unpack(sent or b"")
            check_answers(cohort.session, slot, key_shares, complaints.get(slot, {}), answers)

    upload = Upload.of(participant, MessageKind.ANSWERS, body)
    await _accept(service, participant, upload, check)


@_upload(MessageKind.MASKED_INPUT)
async def put_masked_input(
    participant: ParticipantSlot, request: Request, service: Service
) -> None:
    """Send the masked vector."""
    cohort = await service.cohort_cache.enrolled_cohort(participant.cohort)
    size = cohort.ring.nbytes + SIGNATURE_BYTES
    body = await read_body(request, size, size)
    with as_malformed():
        masked_input = MaskedInput.unpack(body)

    is_long = len(body) > _MAX_INLINE_BYTES
    await _run_check(lambda: masked_input.signed_input, in_thread=is_long)  # hashes the vector

    def check_input(transcript: Transcript) -> None:
        check_masked_input(transcript, participant.slot, masked_input)
        cohort.ring.check_packed(masked_input.vector)

    async def check() -> None:
        transcript = await service.cohort_cache.transcript(participant.cohort)
        with as_malformed():
            run = partial(check_input, transcript)
            await _run_check(run, in_thread=is_long)

    bodies = {
        MessageKind.MASKED_INPUT: masked_input.vector,
        MessageKind.INPUT_SIGNATURE: b"".join(masked_input.signed_input),
    }
    upload = Upload(
        participant.cohort, masked_input.digest, participant.slot, MessageKind.MASKED_INPUT, bodies
    )
    await _accept(service, participant, upload, check)


@_upload(MessageKind.CONFIRMATION)
async def put_confirmation(
    participant: ParticipantSlot, request: Request, service: Service
) -> None:
    """Sign the list of survivors."""
    body = await read_body(request, SIGNATURE_BYTES, SIGNATURE_BYTES)

    async def check() -> None:
        transcript = await service.cohort_cache.transcript(participant.cohort)
        survivors = await service.cohort_cache.survivors(participant.cohort)
        with as_malformed():
            check_confirmation(transcript, participant.slot, survivors, body)

    upload = Upload.of(participant, MessageKind.CONFIRMATION, body)
    await _accept(service, participant, upload, check)


@_upload(MessageKind.UNMASKING_SHARES)
async def put_unmasking_shares(
    participant: ParticipantSlot, request: Request, service: Service
) -> None:
    """Reveal the shares of survivors' seeds and of dropouts' mask keys."""
    cohort = await service.cohort_cache.enrolled_cohort(participant.cohort)
    body = await read_body(
        request, UnmaskingShares.nbytes(1), UnmaskingShares.nbytes(cohort.session.n)
    )

    async def check() -> None:
        unmasking = await service.cohort_cache.unmasking_request(participant.cohort)
        with as_malformed():
            message = UnmaskingShares.unpack(body)
            run = partial(check_unmasking_shares, unmasking, participant.slot, message)
            await _run_check(run, in_thread=len(body) > _MAX_INLINE_BYTES // 16)

    upload = Upload.of(participant, MessageKind.UNMASKING_SHARES, body)
    await _accept(service, participant, upload, check)


async def _run_check(check: Callable[[], object], *, in_thread: bool) -> None:
    """Run a check; in a thread only if it takes long, because the change of threads takes time."""
    if in_thread:
        await asyncio.to_thread(check)
    else:
        check()


async def _accept(
    service: Service,
    participant: ParticipantSlot,
    upload: Upload,
    check: Callable[[], Awaitable[None]],
) -> None:
    """Store a message, which `check` checks if the cohort is in its phase.

    Phases only move forward. A message that passes in the phase that is cached needs no query of
    the present phase: the transaction that stores it reads the phase. A message that does not pass
    may be late.

    Raises:
        ProblemError: if the phase has not begun, went on without this participant, or `check`
            refuses the message.
    """
    phase = upload.phase
    before = Phase.MASKING if phase is Phase.ANSWERING else phase  # both follow on checking
    previous = MESSAGE_KIND.get(PAIRWISE_SUM.phases[PAIRWISE_SUM.phases.index(before) - 1])

    async def check_in_phase() -> None:
        if previous is not None:
            await require_message(service, participant, phase, previous)
        await check()

    is_checked, refusal = False, None
    if (await service.status_cache.status(participant.cohort)).phase is phase:
        try:
            await check_in_phase()
            is_checked = True
        except ProblemError as error:
            refusal = error
    if not is_checked:
        status = await service.store.participants.status(participant.cohort)
        # The phase may begin before the transaction, which would store what nobody has checked.
        if PHASE_ORDER[status.phase] < PHASE_ORDER[phase]:
            raise out_of_phase(upload.kind, phase, status.phase)
        if status.phase is phase and refusal is not None:
            raise refusal
        if status.phase is phase:
            await check_in_phase()
    await service.receive(upload)
