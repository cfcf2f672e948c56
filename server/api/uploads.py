"""Uploads of a device after it has joined: key shares, masked input, confirmation, unmasking.

A repeated upload is accepted again and counted once. Bodies are bytes. Their size is known
beforehand, so a body of the wrong size is refused before it is read. A body is checked during
its phase. Later, only the repetition of an accepted body is accepted, even if the cohort has
failed or is summed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from fastapi import APIRouter, Request

from protocol.phases import MESSAGE_KIND, MessageKind, Phase, participant_phases
from secagg.aggregator import (
    UnmaskingRequest,
    check_confirmation,
    check_key_shares,
    check_masked_input,
    check_unmasking_shares,
)
from secagg.keys import SIGNATURE_BYTES
from secagg.messages import KeyShares, MaskedInput, SeedShares, UnmaskingShares
from secagg.session import Transcript
from server.api.common import OCTET_STREAM_BODY, problem_responses
from server.api.dependencies import PHASE_ORDER, SlotDep, as_malformed, require_message
from server.db.repositories.messages import EnrolledCohort
from server.db.repositories.participants import DeviceUpload, ParticipantSlot
from server.errors import ProblemError, out_of_phase
from server.http.limits import read_body
from server.service import Service, ServiceDep

router = APIRouter(prefix="/v1/participants/{participant}", tags=["devices"])
_UPLOAD_PROBLEMS = problem_responses(400, 404, 409, 410, 413, 415, 422)


@router.put(
    "/key-shares", status_code=204, responses=_UPLOAD_PROBLEMS, openapi_extra=OCTET_STREAM_BODY
)
async def put_key_shares(participant: SlotDep, request: Request, service: ServiceDep) -> None:
    """Share the mask key among this participant's holders."""
    cohort = await service.cohort_cache.enrolled_cohort(participant.cohort)
    size = KeyShares.nbytes(cohort.session.parameters.holders)
    body = await read_body(request, size, size)

    async def check() -> None:
        with as_malformed():
            check_key_shares(cohort.session, participant.slot, KeyShares.unpack(body))

    await _check(service, participant, cohort, Phase.SHARING, check)
    rows = {MessageKind.KEY_SHARES: body}
    await _accept(service, participant, cohort, Phase.SHARING, rows)


@router.put(
    "/masked-input", status_code=204, responses=_UPLOAD_PROBLEMS, openapi_extra=OCTET_STREAM_BODY
)
async def put_masked_input(participant: SlotDep, request: Request, service: ServiceDep) -> None:
    """Send the masked vector, and share the seed of the mask among the holders."""
    cohort = await service.cohort_cache.enrolled_cohort(participant.cohort)
    vector_bytes = cohort.ring.nbytes
    min_size = SeedShares.nbytes(0) + vector_bytes + SIGNATURE_BYTES
    max_size = SeedShares.nbytes(cohort.session.parameters.holders) + vector_bytes + SIGNATURE_BYTES
    body = await read_body(request, min_size, max_size)
    with as_malformed():
        masked_input = MaskedInput.unpack(body, vector_bytes)

    async def check() -> None:
        transcript = await service.cohort_cache.transcript(participant.cohort)
        with as_malformed():
            await asyncio.to_thread(
                _check_masked_input, cohort, transcript, participant.slot, masked_input
            )

    await _check(service, participant, cohort, Phase.MASKING, check)
    rows = {
        MessageKind.MASKED_INPUT: masked_input.vector,
        MessageKind.SEED_SHARES: masked_input.seed_shares.pack() + masked_input.signature,
    }
    await _accept(service, participant, cohort, Phase.MASKING, rows)


def _check_masked_input(
    cohort: EnrolledCohort, transcript: Transcript, slot: int, masked_input: MaskedInput
) -> None:
    check_masked_input(transcript, slot, masked_input)
    cohort.ring.check_packed(masked_input.vector)


@router.put(
    "/confirmation", status_code=204, responses=_UPLOAD_PROBLEMS, openapi_extra=OCTET_STREAM_BODY
)
async def put_confirmation(participant: SlotDep, request: Request, service: ServiceDep) -> None:
    """Sign the list of survivors."""
    cohort = await service.cohort_cache.enrolled_cohort(participant.cohort)
    body = await read_body(request, SIGNATURE_BYTES, SIGNATURE_BYTES)

    async def check() -> None:
        transcript = await service.cohort_cache.transcript(participant.cohort)
        survivors = await service.cohort_cache.survivors(participant.cohort)
        with as_malformed():
            check_confirmation(transcript, participant.slot, survivors, body)

    await _check(service, participant, cohort, Phase.CONFIRMING, check)
    rows = {MessageKind.CONFIRMATION: body}
    await _accept(service, participant, cohort, Phase.CONFIRMING, rows)


@router.put(
    "/unmasking-shares",
    status_code=204,
    responses=_UPLOAD_PROBLEMS,
    openapi_extra=OCTET_STREAM_BODY,
)
async def put_unmasking_shares(participant: SlotDep, request: Request, service: ServiceDep) -> None:
    """Reveal the shares of survivors' seeds and of dropouts' mask keys."""
    cohort = await service.cohort_cache.enrolled_cohort(participant.cohort)
    body = await read_body(
        request, UnmaskingShares.nbytes(1), UnmaskingShares.nbytes(cohort.session.n)
    )

    async def check() -> None:
        unmasking = await service.cohort_cache.unmasking_request(participant.cohort)
        with as_malformed():
            await asyncio.to_thread(_check_unmasking_shares, unmasking, participant.slot, body)

    await _check(service, participant, cohort, Phase.UNMASKING, check)
    rows = {MessageKind.UNMASKING_SHARES: body}
    await _accept(service, participant, cohort, Phase.UNMASKING, rows)


def _check_unmasking_shares(unmasking: UnmaskingRequest, slot: int, body: bytes) -> None:
    check_unmasking_shares(unmasking, slot, UnmaskingShares.unpack(body))


async def _check(
    service: Service,
    participant: ParticipantSlot,
    cohort: EnrolledCohort,
    phase: Phase,
    check: Callable[[], Awaitable[None]],
) -> None:
    """Run `check` on a body if the cohort is in `phase`.

    Phases only move forward. A body that passes in the phase that the orchestrator last knew
    needs no query of the present phase: `_accept` reads it in its transaction. A body that does
    not pass may be late.

    Raises:
        ProblemError: if the phase has not begun, went on without this participant, or `check`
            refuses the body.
    """
    previous = _previous_kind(cohort, phase)
    if service.orchestrator.last_phase(participant.cohort) is phase:
        with suppress(ProblemError):
            await _check_in(service, participant, phase, previous, check)
            return
    status = await service.store.participants.status(participant.cohort)
    if PHASE_ORDER[status.phase] < PHASE_ORDER[phase]:
        raise out_of_phase(MESSAGE_KIND[phase], phase, status.phase)
    if status.phase is phase:
        await _check_in(service, participant, phase, previous, check)


async def _check_in(
    service: Service,
    participant: ParticipantSlot,
    phase: Phase,
    previous: MessageKind | None,
    check: Callable[[], Awaitable[None]],
) -> None:
    if previous is not None:
        await require_message(service, participant, phase, previous)
    await check()


def _previous_kind(cohort: EnrolledCohort, phase: Phase) -> MessageKind | None:
    """Return the kind of message that must precede `phase`, or None if none must."""
    phases = participant_phases(cohort.session.assumptions.mode)
    return MESSAGE_KIND.get(phases[phases.index(phase) - 1]) if phase in phases else None


async def _accept(
    service: Service,
    participant: ParticipantSlot,
    cohort: EnrolledCohort,
    phase: Phase,
    rows: Mapping[MessageKind, bytes | memoryview],
) -> None:
    upload = DeviceUpload(MESSAGE_KIND[phase], _previous_kind(cohort, phase), rows)
    await service.store.participants.accept(participant, upload)
    service.orchestrator.wake()
