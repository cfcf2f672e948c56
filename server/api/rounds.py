"""Rounds: list, show, wait for one to open, and read a cohort's sum."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from protocol.messages import ProblemType, RoundPage, RoundView
from server.api.parts import (
    OCTETS_OUT,
    CohortNumber,
    RoundNumber,
    StudyId,
    Wait,
    first_of,
    problems,
)
from server.api.rights import needs
from server.api.tagged import Tagged, tagged
from server.limits import OCTETS
from server.principals import Right
from server.refusals import Refusal
from server.service import Served
from server.watch import study_bell

router = APIRouter(prefix="/v1/studies/{study}/rounds", tags=["rounds"], route_class=Tagged)
After = Annotated[int, Query(ge=0, le=2**31 - 1, description="The last round already known.")]


@router.get("", dependencies=[needs(Right.READ)], responses=tagged(problems(404, 422)))
async def page(
    study: StudyId,
    service: Served,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    after: After = 0,
) -> RoundPage:
    """List rounds, first to last."""
    rounds, last = first_of(await service.store.rounds.page(study, limit + 1, after), limit)
    return RoundPage(rounds=rounds, next=last and last.number)


@router.get(
    "/open",
    dependencies=[needs(Right.READ, Right.TAKE_PART)],
    responses=tagged(problems(404, 409, 422)),
    tags=["devices"],
)
async def open_round(
    study: StudyId, service: Served, after: After = 0, wait: Wait = 0
) -> RoundView:
    """Return the round that takes devices now and comes after `after`."""
    view = await service.watch.until(
        study_bell(study), lambda: service.store.rounds.open(study, after), wait
    )
    if view is None:
        raise Refusal(ProblemType.NO_ROUND, f"no round after {after} takes devices now")
    return view


@router.get("/{number}", dependencies=[needs(Right.READ)], responses=tagged(problems(404, 422)))
async def show(study: StudyId, number: RoundNumber, service: Served) -> RoundView:
    """Show one round: its plan, how far each cohort is, what its sum said."""
    return await service.store.rounds.show(study, number)


@router.get(
    "/{number}/cohorts/{cohort}/sum",
    dependencies=[needs(Right.READ)],
    response_class=Response,
    responses=tagged({200: OCTETS_OUT, **problems(404, 409, 410, 422)}),
)
async def cohort_sum(
    study: StudyId, number: RoundNumber, cohort: CohortNumber, service: Served
) -> Response:
    """Return the sum of the survivors' vectors of one cohort, packed as a vector is."""
    packed = await service.store.messages.sum(study, number, cohort)
    return Response(packed, media_type=OCTETS)
