"""Routes of a registrar that seats rounds: find them, read their joiners, and send the seats.

    GET registrars/{key}/seatings  the rounds that wait for this registrar
    GET .../seating                the plan of a round, and the number of its joiners
    GET .../joiners?after          their identities and enrolments, in the order of joining
    PUT .../seating                signatures of all cohorts, and the joiner of each seat

The service checks every signature before it stores the seats. Devices check them again. A job moves
the joiners to their seats (`server/rounds/jobs.py`).
"""

import asyncio
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from fastapi import Path as InPath

from protocol.api.messages import SeatingPage, SeatingView
from protocol.api.phases import Phase
from protocol.mechanisms.registry import AnyPlan
from protocol.public_model import Hex32
from secagg.keys import SIGNATURE_BYTES
from secagg.seating import CohortSeating, split_identities
from server.api.dependencies import (
    OCTET_STREAM_BODY,
    OCTET_STREAM_RESPONSE,
    RoundNumber,
    StudyId,
    as_malformed,
    problem_responses,
    require,
)
from server.db.channels import cohorts_channel
from server.errors import out_of_phase
from server.http.request_limits import OCTET_STREAM, read_body
from server.principals import Permission
from server.service import Service, ServiceDep

router = APIRouter(prefix="/v1", tags=["registrars"], dependencies=[require(Permission.SEAT)])
JOINERS_PER_PAGE = 10_000  # 96 bytes each
_SEAT_BYTES = 4


@router.get("/registrars/{registrar}/seatings", responses=problem_responses(422))
async def pending(
    service: ServiceDep, registrar: Annotated[Hex32, InPath(description="Its public key.")]
) -> SeatingPage:
    """List the rounds whose joiners wait for a registrar to seat them."""
    return SeatingPage(rounds=await service.store.seatings.pending(registrar))


@router.get("/studies/{study}/rounds/{number}/seating", responses=problem_responses(404, 409, 422))
async def show(study: StudyId, number: RoundNumber, service: ServiceDep) -> SeatingView:
    """Return the plan of a round whose joiners are fixed, and the number of its joiners."""
    lobby = await service.store.seatings.lobby(study, number)
    plan = await service.round_cache.plan((study, number))
    return SeatingView(plan=plan, joiners=lobby.joiners)


@router.get(
    "/studies/{study}/rounds/{number}/joiners",
    response_class=Response,
    responses={200: OCTET_STREAM_RESPONSE, **problem_responses(404, 409, 422)},
)
async def joiners(
    study: StudyId,
    number: RoundNumber,
    service: ServiceDep,
    after: Annotated[int, Query(ge=0, le=2**31 - 1, description="Joiners to skip.")] = 0,
) -> Response:
    """Return identity and enrolment of up to 10,000 joiners, in the order of joining."""
    lobby = await service.store.seatings.lobby(study, number)
    if not lobby.is_waiting:
        return Response(b"", media_type=OCTET_STREAM)
    rows = await service.store.seatings.joiners(lobby.cohort, after, JOINERS_PER_PAGE)
    body = b"".join(bytes.fromhex(identity) + enrolment for identity, enrolment in rows)
    return Response(body, media_type=OCTET_STREAM)


@router.put(
    "/studies/{study}/rounds/{number}/seating",
    status_code=204,
    responses=problem_responses(400, 404, 409, 413, 415, 422),
    openapi_extra=OCTET_STREAM_BODY,
)
async def seat(study: StudyId, number: RoundNumber, request: Request, service: ServiceDep) -> None:
    """Seat the joiners: a signature for each cohort, and the number of the joiner in each seat.

    Seats are in the order of cohorts and slots; joiners are numbered in the order of joining.
    Repeating the request changes nothing. Sharing starts when all joiners have moved. Seats that
    come too late are refused, and count as a draw of each joiner.
    """
    lobby = await service.store.seatings.lobby(study, number)
    plan = await service.round_cache.plan((study, number))
    cohorts = plan.terms.cohorts
    size = cohorts * SIGNATURE_BYTES + lobby.joiners * _SEAT_BYTES
    body = await read_body(request, size, size)
    signatures = [body[start : start + SIGNATURE_BYTES] for start in _starts(cohorts)]
    seatings = [CohortSeating(i, lobby.joiners, each) for i, each in enumerate(signatures)]
    order = np.frombuffer(body, ">u4", offset=cohorts * SIGNATURE_BYTES).astype(np.int64)
    if lobby.is_waiting or lobby.is_late:
        identities = await _identities(service, lobby.cohort)
        with as_malformed():
            await asyncio.to_thread(_check_seats, plan, identities, order.tolist(), seatings)
    phase = await service.store.seatings.accept(study, number, order.tolist(), seatings)
    if phase is Phase.FAILED:
        raise out_of_phase("the seating of a round", Phase.SEATING, phase)
    service.orchestrator.check(cohorts_channel(study))


def _starts(cohorts: int) -> range:
    return range(0, cohorts * SIGNATURE_BYTES, SIGNATURE_BYTES)


async def _identities(service: Service, lobby: int) -> list[bytes]:
    identities: list[bytes] = []
    while rows := await service.store.seatings.joiners(lobby, len(identities), JOINERS_PER_PAGE):
        identities += [bytes.fromhex(identity) for identity, _ in rows]
    return identities


def _check_seats(
    plan: AnyPlan, identities: list[bytes], order: list[int], seatings: list[CohortSeating]
) -> None:
    """Raise ValueError unless each joiner has one seat, and the registrar signed all cohorts."""
    if sorted(order) != list(range(len(identities))):
        raise ValueError("each joiner must have one seat")
    seated_round = plan.seated_round(len(identities))
    parts = split_identities([identities[joiner] for joiner in order], len(seatings))
    for seating, part in zip(seatings, parts, strict=True):
        if not seated_round.is_authentic(seating, part):
            raise ValueError(f"the registrar did not sign these seats of cohort {seating.cohort}")
