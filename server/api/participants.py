"""A device's messages: join, then in each phase hear something and say something.

    enrolling    POST participants
    sharing      GET roster     -> PUT envelopes
    masking      GET envelopes  -> PUT vector
    unmasking    GET survivors  -> PUT reveal

What is said twice is accepted twice and counted once. Large bodies are raw bytes; their size
is known beforehand, so a wrong one is refused before it is read.
"""

import asyncio
import re
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from hmac import compare_digest
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Request, Response

from protocol.messages import (
    Join,
    Neighbour,
    Pending,
    ProblemType,
    Roster,
    Seat,
    Survivors,
    unpack_envelopes,
    unpack_reveal,
)
from protocol.round import AFTER, Phase
from secagg.aggregator import check_envelopes, check_reveal
from secagg.errors import FaultyParticipantError
from secagg.keys import PublicKeys
from secagg.participant import ENVELOPE_BYTES
from secagg.shamir import SHARE_BYTES
from server.api.parts import (
    OCTETS_IN,
    OCTETS_OUT,
    ParticipantId,
    RoundNumber,
    StudyId,
    Wait,
    json_only,
    problems,
)
from server.frozen import Once
from server.limits import OCTETS, read_body
from server.refusals import Refusal, cohort_failed, left_out, malformed, out_of_phase
from server.service import Served, Service
from server.store.participants import Application, Place, Standing
from server.watch import cohort_bell

router = APIRouter(prefix="/v1", tags=["devices"])
_TICKET = re.compile(r"Bearer ([A-Za-z0-9_-]{43})")
_LARGE = 32 * 2**10  # bytes; checking more than that takes a thread's while
_ORDER = {phase: place for place, phase in enumerate(Phase)}
_PENDING: dict[str, Any] = {"model": Pending, "description": "Not yet: ask again."}
_UPLOAD = problems(400, 401, 404, 409, 410, 413, 415, 422)
_QUESTION = problems(401, 404, 409, 410, 422)


async def _ticket(authorization: Annotated[str | None, Header()] = None) -> bytes:
    """Return the SHA-256 of the ticket: nothing else of it is kept or compared."""
    match = _TICKET.fullmatch(authorization or "")
    if match is None:
        detail = "Authorization: Bearer and 32 random bytes in base64url are needed"
        raise Refusal(ProblemType.NOT_AUTHORISED, detail)
    return sha256(urlsafe_b64decode(match[1] + "=")).digest()


Ticket = Annotated[bytes, Depends(_ticket)]


async def _place(ticket: Ticket, participant: ParticipantId, service: Served) -> Place:
    place = await service.frozen.place(participant)
    if not compare_digest(place.ticket, ticket):
        raise Refusal(ProblemType.NOT_AUTHORISED, "this is another participant's ticket")
    return place


Placed = Annotated[Place, Depends(_place)]


@router.post(
    "/studies/{study}/rounds/{number}/participants",
    status_code=201,
    dependencies=[Depends(json_only)],
    responses={
        200: {"model": Seat, "description": "This device has its seat already."},
        **problems(400, 401, 404, 409, 413, 415, 422),
    },
)
async def join(
    ticket: Ticket,
    study: StudyId,
    number: RoundNumber,
    wish: Join,
    response: Response,
    service: Served,
) -> Seat:
    """Take part in a round. The ticket is the device's own choice; keep it to yourself."""
    try:
        keys = PublicKeys(bytes.fromhex(wish.mask_key), bytes.fromhex(wish.seal_key))
    except ValueError as error:
        raise malformed(str(error)) from None
    commitment = bytes.fromhex(wish.commitment)
    application = Application(wish.device, ticket, keys, commitment)
    seat, is_new = await service.store.participants.join(study, number, application)
    if not is_new:
        response.status_code = 200
    service.orchestrator.wake()
    return seat


@contextmanager
def _blame() -> Iterator[None]:
    """Turn what a body does wrong into the refusal of the body: nothing else changes."""
    try:
        yield
    except (ValueError, FaultyParticipantError) as error:
        raise malformed(str(error)) from None


async def _past(
    service: Service, place: Place, what: str, closing: Phase, seconds: float
) -> Phase | Response:
    """Return the phase once `closing` is over, else, after `seconds`, the answer to give.

    Raises:
        Refusal: if the cohort failed, is over, or is not even in `closing`.
    """

    async def ask() -> Standing | None:
        standing = await service.store.participants.standing(place.cohort)
        return None if standing.phase is closing else standing

    found = await service.watch.until(cohort_bell(place.cohort), ask, seconds)
    standing = found or await service.store.participants.standing(place.cohort)
    if standing.phase is Phase.FAILED:
        raise cohort_failed(standing.failure)
    if standing.phase is closing:
        pending = Pending(phase=standing.phase, deadline=standing.deadline)
        return Response(pending.model_dump_json(), 202, media_type="application/json")
    if standing.phase is Phase.SUMMED or _ORDER[standing.phase] < _ORDER[closing]:
        raise out_of_phase(what, AFTER[closing], standing.phase)
    return standing.phase


async def _refuse_left_out(
    heard: Once[int, frozenset[int]], place: Place, phase: Phase
) -> frozenset[int]:
    """Return who was heard in a closed phase, if `place` was."""
    slots = await heard(place.cohort)
    if place.slot not in slots:
        raise left_out(phase)
    return slots


async def _accept(service: Service, place: Place, kind: str, body: bytes) -> None:
    await service.store.participants.accept(place, kind, body)
    service.orchestrator.wake()


@router.get(
    "/participants/{participant}/roster",
    response_model=Roster,
    responses={202: _PENDING, **_QUESTION},
)
async def roster(place: Placed, service: Served, wait: Wait = 0) -> Roster | Response:
    """Return this participant's neighbours and what it needs to check them."""
    phase = await _past(service, place, "the roster", Phase.ENROLLING, wait)
    if isinstance(phase, Response):
        return phase
    if phase is not Phase.SHARING:
        await _refuse_left_out(service.frozen.sharers, place, phase)
    facts = await service.frozen.facts(place.cohort)
    return Roster(
        slot=place.slot,
        n=facts.sum.n,
        degree=facts.sum.parameters.degree,
        threshold=facts.sum.parameters.threshold,
        seed=facts.sum.seed.hex(),
        digest=facts.sum.digest.hex(),
        neighbours=tuple(
            Neighbour(
                slot=slot,
                mask_key=facts.keys[slot].mask.hex(),
                seal_key=facts.keys[slot].seal.hex(),
            )
            for slot in facts.sum.graph.neighbours(place.slot)
        ),
    )


@router.put(
    "/participants/{participant}/envelopes",
    status_code=204,
    responses=_UPLOAD,
    openapi_extra=OCTETS_IN,
)
async def put_envelopes(place: Placed, request: Request, service: Served) -> None:
    """Share two secrets: one envelope for each neighbour."""
    facts = await service.frozen.facts(place.cohort)
    size = (4 + ENVELOPE_BYTES) * facts.sum.parameters.degree
    body = await read_body(request, size, size)
    with _blame():
        check_envelopes(facts.sum, place.slot, unpack_envelopes(body))
    await _accept(service, place, "envelopes", body)


@router.get(
    "/participants/{participant}/envelopes",
    response_class=Response,
    responses={200: OCTETS_OUT, 202: _PENDING, **_QUESTION},
)
async def get_envelopes(place: Placed, service: Served, wait: Wait = 0) -> Response:
    """Return the envelopes addressed to this participant, by sender."""
    phase = await _past(service, place, "the envelopes", Phase.SHARING, wait)
    if isinstance(phase, Response):
        return phase
    await _refuse_left_out(service.frozen.sharers, place, phase)
    mail = await service.frozen.mail(place.cohort)
    return Response(mail.get(place.slot, b""), media_type=OCTETS)


@router.put(
    "/participants/{participant}/vector",
    status_code=204,
    responses=_UPLOAD,
    openapi_extra=OCTETS_IN,
)
async def put_vector(place: Placed, request: Request, service: Served) -> None:
    """Send the masked vector."""
    ring = (await service.frozen.facts(place.cohort)).ring
    body = await read_body(request, ring.nbytes, ring.nbytes)
    with _blame():
        if ring.nbytes > _LARGE:
            await asyncio.to_thread(ring.unpack, body)
        else:
            ring.unpack(body)
    await _accept(service, place, "vector", body)


@router.get(
    "/participants/{participant}/survivors",
    response_model=Survivors,
    responses={202: _PENDING, **_QUESTION},
)
async def get_survivors(place: Placed, service: Served, wait: Wait = 0) -> Survivors | Response:
    """Return whose vectors are in the sum, and who shared but was lost since."""
    phase = await _past(service, place, "the survivors", Phase.MASKING, wait)
    if isinstance(phase, Response):
        return phase
    survivors = await _refuse_left_out(service.frozen.survivors, place, phase)
    lost = await service.frozen.sharers(place.cohort) - survivors
    return Survivors(survivors=tuple(sorted(survivors)), lost=tuple(sorted(lost)))


@router.put(
    "/participants/{participant}/reveal",
    status_code=204,
    responses=_UPLOAD,
    openapi_extra=OCTETS_IN,
)
async def put_reveal(place: Placed, request: Request, service: Served) -> None:
    """Give one share for each neighbour: of a survivor's seed, of a lost one's key."""
    facts = await service.frozen.facts(place.cohort)
    most = (5 + SHARE_BYTES) * (facts.sum.parameters.degree + 1)
    body = await read_body(request, 0, most)
    standing = await service.store.participants.standing(place.cohort)
    if _ORDER[standing.phase] < _ORDER[Phase.UNMASKING]:
        raise out_of_phase("reveal", Phase.UNMASKING, standing.phase)
    with _blame():
        reveal = unpack_reveal(body)
        if standing.phase is Phase.UNMASKING:  # afterwards only a repetition is accepted
            sharers = await service.frozen.sharers(place.cohort)
            survivors = await _refuse_left_out(service.frozen.survivors, place, standing.phase)
            check_reveal(facts.sum, place.slot, sharers, survivors, reveal)
    await _accept(service, place, "reveal", body)
