"""What a device says once it has joined: shares, vector, confirmation, reveal.

What is said twice is accepted twice and counted once. Bodies are raw bytes; how large they may
be is known beforehand, so a wrong one is refused before it is read. A body is checked while
its phase lasts: afterwards only the repetition of one that was accepted is, even if the cohort
failed or is summed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from fastapi import APIRouter, Request

from protocol.round import Phase, phases
from secagg.aggregator import (
    Settled,
    check_confirmation,
    check_reveal,
    check_shares,
    check_upload,
)
from secagg.cohort import View
from secagg.deals import KeyDeal, Reveal, SeedDeal, Upload
from secagg.keys import SIGNATURE_BYTES
from server.api.parts import OCTETS_IN, problems
from server.api.placed import ORDER, Placed, blame, refuse_silent
from server.limits import read_body
from server.refusals import Refusal, out_of_phase
from server.service import Served, Service
from server.store.messages import Facts
from server.store.participants import Place, Said
from server.store.views import KIND

router = APIRouter(prefix="/v1/participants/{participant}", tags=["devices"])
_UPLOAD = problems(400, 404, 409, 410, 413, 415, 422)


@router.put("/shares", status_code=204, responses=_UPLOAD, openapi_extra=OCTETS_IN)
async def put_shares(place: Placed, request: Request, service: Served) -> None:
    """Share the mask key among the holders that were picked."""
    facts = await service.frozen.facts(place.cohort)
    size = KeyDeal.nbytes(facts.sum.parameters.holders)
    body = await read_body(request, size, size)

    async def check() -> None:
        with blame():
            check_shares(facts.sum, place.slot, KeyDeal.unpack(body))

    await _check(service, place, facts, Phase.SHARING, check)
    await _accept(service, place, facts, Phase.SHARING, {"shares": body})


@router.put("/vector", status_code=204, responses=_UPLOAD, openapi_extra=OCTETS_IN)
async def put_vector(place: Placed, request: Request, service: Served) -> None:
    """Send the masked vector, and share the seed of its own mask."""
    facts = await service.frozen.facts(place.cohort)
    vector_bytes = facts.ring.nbytes
    least = SeedDeal.nbytes(0) + vector_bytes + SIGNATURE_BYTES
    most = SeedDeal.nbytes(facts.sum.parameters.holders) + vector_bytes + SIGNATURE_BYTES
    body = await read_body(request, least, most)
    with blame():
        upload = Upload.unpack(body, vector_bytes)

    async def check() -> None:
        view = await service.frozen.view(place.cohort)
        with blame():
            await asyncio.to_thread(_check_vector, facts, view, place.slot, upload)

    await _check(service, place, facts, Phase.MASKING, check)
    seeds = upload.deal.pack() + upload.signature
    rows = {"vector": upload.vector, "seeds": seeds}
    await _accept(service, place, facts, Phase.MASKING, rows)


def _check_vector(facts: Facts, view: View, slot: int, upload: Upload) -> None:
    check_upload(view, slot, upload)
    facts.ring.check_packed(upload.vector)


@router.put("/confirmation", status_code=204, responses=_UPLOAD, openapi_extra=OCTETS_IN)
async def put_confirmation(place: Placed, request: Request, service: Served) -> None:
    """Sign the set of survivors."""
    facts = await service.frozen.facts(place.cohort)
    body = await read_body(request, SIGNATURE_BYTES, SIGNATURE_BYTES)

    async def check() -> None:
        view = await service.frozen.view(place.cohort)
        survivors = await service.frozen.survivors(place.cohort)
        with blame():
            check_confirmation(view, place.slot, survivors, body)

    await _check(service, place, facts, Phase.CONFIRMING, check)
    await _accept(service, place, facts, Phase.CONFIRMING, {"confirmation": body})


@router.put("/reveal", status_code=204, responses=_UPLOAD, openapi_extra=OCTETS_IN)
async def put_reveal(place: Placed, request: Request, service: Served) -> None:
    """Give the shares of survivors' seeds and of lost ones' mask keys."""
    facts = await service.frozen.facts(place.cohort)
    body = await read_body(request, Reveal.nbytes(1), Reveal.nbytes(facts.sum.n))

    async def check() -> None:
        settled = await service.frozen.settled(place.cohort)
        with blame():
            await asyncio.to_thread(_check_reveal, settled, place.slot, body)

    await _check(service, place, facts, Phase.UNMASKING, check)
    await _accept(service, place, facts, Phase.UNMASKING, {"reveal": body})


def _check_reveal(settled: Settled, slot: int, body: bytes) -> None:
    check_reveal(settled, slot, Reveal.unpack(body))


async def _check(
    service: Service,
    place: Place,
    facts: Facts,
    phase: Phase,
    check: Callable[[], Awaitable[None]],
) -> None:
    """Let `check` refuse a body while `phase` lasts.

    Phases only move forward. So what passes in the phase that was seen last needs no look at
    how far the cohort is now, which `_accept` takes in its transaction; what does not may be late.

    Raises:
        Refusal: if the phase is yet to come, went on without this participant, or `check` does.
    """
    before = _before(facts, phase)
    if service.orchestrator.seen(place.cohort) is phase:
        with suppress(Refusal):
            await _check_in(service, place, phase, before, check)
            return
    standing = await service.store.participants.standing(place.cohort)
    if ORDER[standing.phase] < ORDER[phase]:
        raise out_of_phase(KIND[phase], phase, standing.phase)
    if standing.phase is phase:
        await _check_in(service, place, phase, before, check)


async def _check_in(
    service: Service,
    place: Place,
    phase: Phase,
    before: str | None,
    check: Callable[[], Awaitable[None]],
) -> None:
    if before is not None:
        await refuse_silent(service, place, phase, before)
    await check()


def _before(facts: Facts, phase: Phase) -> str | None:
    """Return what a participant must have said before `phase`, None if it need not."""
    heard = phases(facts.sum.assumptions.mode)
    return KIND.get(heard[heard.index(phase) - 1]) if phase in heard else None


async def _accept(
    service: Service,
    place: Place,
    facts: Facts,
    phase: Phase,
    rows: Mapping[str, bytes | memoryview],
) -> None:
    said = Said(KIND[phase], _before(facts, phase), rows)
    await service.store.participants.accept(place, said)
    service.orchestrator.wake()
