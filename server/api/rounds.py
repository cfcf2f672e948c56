"""Rounds: list, show, and read a cohort's sum."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from protocol.api.messages import RoundPage, RoundView
from server.api.dependencies import (
    OCTET_STREAM_RESPONSE,
    AfterRound,
    CohortNumber,
    RoundNumber,
    StudyId,
    paginate,
    problem_responses,
    reading,
    require,
)
from server.http.request_limits import OCTET_STREAM
from server.http.response_headers import ETagRoute, etag_responses
from server.principals import Permission
from server.service import ServiceDep

router = APIRouter(prefix="/v1/studies/{study}/rounds", tags=["rounds"], route_class=ETagRoute)


@router.get("", **reading(404, 422))
async def page(
    study: StudyId,
    service: ServiceDep,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    after: AfterRound = 0,
) -> RoundPage:
    """List rounds, first to last."""
    rounds, last = paginate(await service.store.rounds.page(study, limit + 1, after), limit)
    return RoundPage(rounds=rounds, next=last and last.number)


@router.get("/{number}", **reading(404, 422))
async def show(study: StudyId, number: RoundNumber, service: ServiceDep) -> RoundView:
    """Show one round: its plan, the progress of each cohort, and the outcome of its sum."""
    return await service.store.rounds.show(study, number)


@router.get(
    "/{number}/cohorts/{cohort}/sum",
    dependencies=[require(Permission.OPERATE)],
    response_class=Response,
    responses=etag_responses({200: OCTET_STREAM_RESPONSE, **problem_responses(404, 409, 410, 422)}),
)
async def cohort_sum(
    study: StudyId, number: RoundNumber, cohort: CohortNumber, service: ServiceDep
) -> Response:
    """Return the sum of the survivors' vectors of one cohort, packed like a vector.

    It has every item of a table, also items of one device, which no analyst is to read.
    """
    packed = await service.store.messages.sum(study, number, cohort)
    return Response(packed, media_type=OCTET_STREAM)
