"""What a device says once it has joined: shares, vector, confirmation, reveal.

What is said twice is accepted twice and counted once. Bodies are raw bytes; how large they may
be is known beforehand, so a wrong one is refused before it is read. A body is checked while
its phase lasts: afterwards only the repetition of one that was accepted is.
"""

import asyncio
from collections.abc import Callable, Mapping

from fastapi import APIRouter, Request

from protocol.round import Phase, phases
from secagg.aggregator import check_confirmation, check_reveal, check_shares, check_upload
from secagg.deals import KeyDeal, Reveal, SeedDeal, Upload
from secagg.keys import SIGNATURE_BYTES
from server.api.parts import OCTETS_IN, problems
from server.api.placed import ORDER, Placed, blame
from server.limits import read_body
from server.refusals import cohort_failed, out_of_phase
from server.service import Served, Service
from server.store.messages import Facts
from server.store.participants import Place, Said
from server.store.views import KIND

router = APIRouter(prefix="/v1/participants/{participant}", tags=["devices"])
_UPLOAD = problems(400, 401, 404, 409, 410, 413, 415, 422)


@router.put("/shares", status_code=204, responses=_UPLOAD, openapi_extra=OCTETS_IN)
async def put_shares(place: Placed, request: Request, service: Served) -> None:
    """Share the mask key among the holders that were picked."""
    facts = await service.frozen.facts(place.cohort)
    size = KeyDeal.nbytes(facts.sum.parameters.holders)
    body = await read_body(request, size, size)
    if await _is_now(service, place, Phase.SHARING):
        with blame():
            check_shares(facts.sum, place.slot, KeyDeal.unpack(body))
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
    if await _is_now(service, place, Phase.MASKING):
        view = await service.frozen.view(place.cohort)
        with blame():
            await _checked(lambda: facts.ring.unpack(upload.vector))
            await _checked(lambda: check_upload(view, place.slot, upload))
    seeds = upload.deal.pack() + upload.signature
    rows = {"vector": upload.vector, "seeds": seeds}
    await _accept(service, place, facts, Phase.MASKING, rows)


@router.put("/confirmation", status_code=204, responses=_UPLOAD, openapi_extra=OCTETS_IN)
async def put_confirmation(place: Placed, request: Request, service: Served) -> None:
    """Sign the set of survivors."""
    facts = await service.frozen.facts(place.cohort)
    body = await read_body(request, SIGNATURE_BYTES, SIGNATURE_BYTES)
    if await _is_now(service, place, Phase.CONFIRMING):
        view = await service.frozen.view(place.cohort)
        survivors = await service.frozen.survivors(place.cohort)
        with blame():
            check_confirmation(view, place.slot, survivors, body)
    await _accept(service, place, facts, Phase.CONFIRMING, {"confirmation": body})


@router.put("/reveal", status_code=204, responses=_UPLOAD, openapi_extra=OCTETS_IN)
async def put_reveal(place: Placed, request: Request, service: Served) -> None:
    """Give the shares of survivors' seeds and of lost ones' mask keys."""
    facts = await service.frozen.facts(place.cohort)
    body = await read_body(request, 0, Reveal.nbytes(facts.sum.n))
    with blame():
        reveal = Reveal.unpack(body)
    if await _is_now(service, place, Phase.UNMASKING):
        settled = await service.frozen.settled(place.cohort)
        with blame():
            await _checked(lambda: check_reveal(settled, place.slot, reveal))
    await _accept(service, place, facts, Phase.UNMASKING, {"reveal": body})


async def _checked(check: Callable[[], object]) -> None:
    """Run what takes a moment in a thread."""
    await asyncio.to_thread(check)


async def _is_now(service: Service, place: Place, phase: Phase) -> bool:
    """Return whether `phase` lasts, False if it is over.

    Raises:
        Refusal: if it is yet to come, or the cohort failed.
    """
    standing = await service.store.participants.standing(place.cohort)
    if standing.phase is Phase.FAILED:
        raise cohort_failed(standing.failure)
    if ORDER[standing.phase] < ORDER[phase]:
        raise out_of_phase(KIND[phase], phase, standing.phase)
    return standing.phase is phase


async def _accept(
    service: Service, place: Place, facts: Facts, phase: Phase, rows: Mapping[str, bytes]
) -> None:
    heard = [KIND.get(one) for one in phases(facts.sum.assumptions.mode)]
    before = heard[heard.index(KIND[phase]) - 1] if KIND[phase] in heard else None
    await service.store.participants.accept(place, Said(KIND[phase], before, rows))
    service.orchestrator.wake()
