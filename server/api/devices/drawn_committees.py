"""Routes of the committee of a round: show it to its parties, and let a registrar draw it.

    GET .../committee   the plan of a one-shot round, its phase and its committee
    GET .../volunteers  for the registrar: key and enrolment of each volunteer, by rising identity
    PUT .../committee   the committee that the registrar drew and signed

The service checks the signature and the members before it stores a committee. Devices and members
check the signature again.
"""

import asyncio
from collections.abc import Sequence

from fastapi import APIRouter, Request, Response

from protocol.api.messages import CommitteeView
from protocol.api.one_shot import OneShotRound
from protocol.api.phases import ONE_SHOT_SUM
from protocol.mechanisms.registry import AnyPlan
from secagg.errors import UnsafeRequestError
from secagg.oneshot.committee import ENTRY_BYTES, Committee, committee_bytes
from server.api.dependencies import (
    OCTET_STREAM_BODY,
    OCTET_STREAM_RESPONSE,
    RoundNumber,
    StudyId,
    as_malformed,
    problem_responses,
    require,
)
from server.db.channels import cohort_channel
from server.http.request_limits import OCTET_STREAM, read_body
from server.http.response_headers import ETagRoute, etag_responses
from server.principals import Permission
from server.service import ServiceDep

router = APIRouter(
    prefix="/v1/studies/{study}/rounds/{number}", tags=["committees"], route_class=ETagRoute
)


@router.get(
    "/committee",
    dependencies=[require(Permission.COMMITTEE, Permission.TAKE_PART, Permission.SEAT)],
    responses=etag_responses(problem_responses(404, 409, 422)),
)
async def show(study: StudyId, number: RoundNumber, service: ServiceDep) -> CommitteeView:
    """Return the plan of a one-shot round, its phase and its committee."""
    status = await service.store.committees.status(study, number)
    plan = await service.round_cache.plan((study, number))
    committee = None
    if status.phase in ONE_SHOT_SUM.phases[1:]:
        served = await service.round_cache.one_shot_sum((study, number))
        committee = served.session.committee.pack().hex()
    return CommitteeView(
        plan=plan, phase=status.phase, deadline=status.deadline, committee=committee
    )


@router.get(
    "/volunteers",
    dependencies=[require(Permission.SEAT)],
    response_class=Response,
    responses=etag_responses({200: OCTET_STREAM_RESPONSE, **problem_responses(404, 409, 422)}),
)
async def volunteers(study: StudyId, number: RoundNumber, service: ServiceDep) -> Response:
    """Return the keys of the volunteers, each with the registrar's signature of its identity."""
    keys = await service.store.volunteers.keys(study, number)
    return Response(b"".join(keys), media_type=OCTET_STREAM)


@router.put(
    "/committee",
    dependencies=[require(Permission.SEAT)],
    status_code=204,
    responses=problem_responses(400, 404, 409, 410, 413, 415, 422),
    openapi_extra=OCTET_STREAM_BODY,
)
async def draw(study: StudyId, number: RoundNumber, request: Request, service: ServiceDep) -> None:
    """Send the committee that the registrar drew from the volunteers and signed.

    Devices send their messages from then on. A committee that comes too late is refused, and counts
    as a draw of each volunteer.
    """
    keys = await service.store.volunteers.keys(study, number)
    plan = await service.round_cache.plan((study, number))
    digest = (await service.round_cache.signed_facts((study, number))).plan_digest
    assert plan.terms.committee is not None, "`keys` refuses other rounds"
    size = committee_bytes(plan.terms.committee.largest, has_signature=True)
    body = await read_body(request, size, size)
    with as_malformed():
        committee = await asyncio.to_thread(_checked_committee, plan, digest, keys, body)
    cohort = await service.store.volunteers.convene(study, number, committee)
    service.orchestrator.check(cohort_channel(cohort))


def _checked_committee(
    plan: AnyPlan, digest: bytes, keys: Sequence[bytes], body: bytes
) -> Committee:
    """Return the committee in `body`; raises ValueError unless devices and members accept it."""
    committee = Committee.unpack(body)
    volunteered = {key[:ENTRY_BYTES] for key in keys}
    if not all(entry.pack() in volunteered for entry in committee.entries):
        raise ValueError("a member of the committee has not volunteered")
    try:
        OneShotRound.of(plan, digest, committee).session.check_authority()
    except UnsafeRequestError as error:
        raise ValueError(f"the registrar {error}") from None
    return committee
