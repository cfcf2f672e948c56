"""Routes of the members of a committee that opens one-shot sums.

    GET members/{identity}/rounds?study       the rounds that wait for a message of this member
    PUT .../members/{identity}/key            its key for the sum, while the committee convenes
    GET .../members/{identity}/columns?after  its part of each message, by rising identity
    PUT .../members/{identity}/complaints     about messages that devices made wrong
    GET .../message-set                       the one set of messages to sum
    PUT .../members/{identity}/set-signature  the member's signature over this set
    GET .../set-signatures                    all of them, after agreeing
    PUT .../members/{identity}/sum            the sum of the member's shares over the set

Each message has the member's signature, which the service checks before it stores the message. A
device that volunteers sends its registrar's signature with its key.
"""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi import Path as InPath

from protocol.api.messages import CommitteeRound, CommitteeRoundPage
from protocol.api.one_shot import SUM_NUMBER, VOLUNTEER_BYTES, committee_terms
from protocol.api.phases import DRAWN_SUM, MemberMessageKind, Phase
from protocol.committee_terms import VolunteerTerms
from protocol.public_model import Hex32
from secagg.keys import SIGNATURE_BYTES
from secagg.messages import pack_signatures
from secagg.oneshot.committee import ENTRY_BYTES, MemberEntry
from secagg.oneshot.member_messages import ComplaintList, MemberSum
from secagg.oneshot.opening import check_complaints, check_set_signature, check_sum
from secagg.roster import DIGEST_BYTES
from server.api.dependencies import (
    OCTET_STREAM_BODY,
    OCTET_STREAM_RESPONSE,
    Caller,
    RoundNumber,
    StudyId,
    WaitSeconds,
    as_malformed,
    problem_responses,
    require,
    require_own_identity,
)
from server.db.channels import COMMITTEES_CHANNEL
from server.db.repositories.access.committees import MemberMessage, OneShotStatus
from server.errors import cohort_failed, malformed, not_found, out_of_phase
from server.http.request_limits import OCTET_STREAM, read_body
from server.principals import Permission
from server.rounds.one_shot_sums import ServedSum, messages_deleted
from server.service import Service, ServiceDep

router = APIRouter(
    prefix="/v1",
    tags=["committees"],
    dependencies=[require(Permission.COMMITTEE, Permission.TAKE_PART)],
)
Member = Annotated[Hex32, InPath(description="The member's public key.")]
StudyFilter = Annotated[
    str | None,
    Query(max_length=64, description="Only this study, for whose committee a device volunteers."),
]
_ROUND = "/studies/{study}/rounds/{number}"


async def _own_identity(identity: Member, caller: Caller) -> None:
    """Refuse a device that acts as another member."""
    require_own_identity(caller, identity)


_OWN_IDENTITY = [Depends(_own_identity)]
_PUT: dict[str, Any] = {
    "status_code": 204,
    "dependencies": _OWN_IDENTITY,
    "responses": problem_responses(400, 403, 404, 409, 410, 413, 415, 422),
    "openapi_extra": OCTET_STREAM_BODY,
}
_GET_BYTES: dict[str, Any] = {
    "response_class": Response,
    "responses": {200: OCTET_STREAM_RESPONSE, **problem_responses(404, 409, 410, 422)},
}


@router.get(
    "/members/{identity}/rounds", dependencies=_OWN_IDENTITY, responses=problem_responses(403, 422)
)
async def pending(
    identity: Member, service: ServiceDep, study: StudyFilter = None, wait: WaitSeconds = 0
) -> CommitteeRoundPage:
    """List the rounds that wait for a message of a member; with a study also for volunteers."""

    async def rounds() -> tuple[CommitteeRound, ...] | None:
        return await service.store.committees.pending(identity, study) or None

    listed = await service.notifier.wait_for(COMMITTEES_CHANNEL, rounds, wait)
    return CommitteeRoundPage(rounds=listed or ())


@router.put(f"{_ROUND}/members/{{identity}}/key", **_PUT)
async def put_key(
    study: StudyId, number: RoundNumber, identity: Member, request: Request, service: ServiceDep
) -> None:
    """Register the member's key for this sum, with its signature."""
    plan = await service.round_cache.plan((study, number))
    status = await service.store.committees.status(study, number)
    terms = committee_terms(plan)
    if isinstance(terms, VolunteerTerms):
        size, max_keys = VOLUNTEER_BYTES, terms.volunteers
    elif identity in terms.members:
        size, max_keys = ENTRY_BYTES, len(terms.members)
    else:
        raise not_found("member of the committee")
    body = await read_body(request, size, size)
    with as_malformed():
        entry = MemberEntry.unpack(body[:ENTRY_BYTES])
    facts = await service.round_cache.signed_facts((study, number))
    if entry.identity.hex() != identity or not entry.is_authentic(facts.plan_digest, SUM_NUMBER):
        raise malformed("the key is not signed by this member for this round")
    if plan.terms.draws_committee:
        facts.check_enrolment(entry.identity, body[ENTRY_BYTES:])
    key = MemberMessage.of(status.cohort, MemberMessageKind.KEY, identity, body, max_keys)
    await service.receive(key)


@router.get(f"{_ROUND}/members/{{identity}}/columns", dependencies=_OWN_IDENTITY, **_GET_BYTES)
async def columns(
    study: StudyId,
    number: RoundNumber,
    identity: Member,
    service: ServiceDep,
    after: Annotated[
        str, Query(pattern=r"^([0-9a-f]{64})?$", description="Last identity of a page.")
    ] = "",
) -> Response:
    """Return the member's part of up to 1,000 messages, by rising identity of their devices.

    The messages are complete once the round no longer collects them.
    """
    served, member, status = await _member(service, study, number, identity)
    _require_phase(status, "columns of messages", Phase.CHECKING)
    if status.phase is Phase.SUMMED:
        raise messages_deleted()
    page = await service.round_cache.message_page(study, number, after, identity)
    content = await asyncio.to_thread(page.columns, served.session, member)
    return Response(content, media_type=OCTET_STREAM)


@router.put(f"{_ROUND}/members/{{identity}}/complaints", **_PUT)
async def put_complaints(
    study: StudyId, number: RoundNumber, identity: Member, request: Request, service: ServiceDep
) -> None:
    """Name the messages that the member cannot use by their digests; usually none."""
    served, member, _ = await _member(service, study, number, identity)
    longest = served.plan.terms.cohort_size * DIGEST_BYTES + SIGNATURE_BYTES
    body = await read_body(request, SIGNATURE_BYTES, longest)

    def check() -> None:
        check_complaints(served.session, member, ComplaintList.unpack(body))

    with as_malformed():
        await asyncio.to_thread(check)  # about up to all messages
    await service.receive(
        MemberMessage.of(served.cohort, MemberMessageKind.COMPLAINTS, identity, body)
    )


@router.get(f"{_ROUND}/message-set", **_GET_BYTES)
async def message_set(study: StudyId, number: RoundNumber, service: ServiceDep) -> Response:
    """Return the set of messages that all members sum, by their digests in rising order."""
    status = await service.store.committees.status(study, number)
    _require_phase(status, "the set of messages", Phase.AGREEING)
    digests = await service.store.one_shot_messages.message_set(status.cohort)
    return Response(digests, media_type=OCTET_STREAM)


@router.put(f"{_ROUND}/members/{{identity}}/set-signature", **_PUT)
async def put_set_signature(
    study: StudyId, number: RoundNumber, identity: Member, request: Request, service: ServiceDep
) -> None:
    """Sign the set of messages: a member signs one set in a round."""
    served, member, status = await _member(service, study, number, identity)
    _require_phase(status, "signatures of the set", Phase.AGREEING)
    body = await read_body(request, SIGNATURE_BYTES, SIGNATURE_BYTES)
    digest = await service.round_cache.set_digest((study, number))
    with as_malformed():
        check_set_signature(served.session, member, digest, body)
    await service.receive(
        MemberMessage.of(served.cohort, MemberMessageKind.SET_SIGNATURE, identity, body)
    )


@router.get(f"{_ROUND}/set-signatures", **_GET_BYTES)
async def set_signatures(study: StudyId, number: RoundNumber, service: ServiceDep) -> Response:
    """Return the signatures of members over the set: number of the member, then signature."""
    status = await service.store.committees.status(study, number)
    _require_phase(status, "signatures of the set", Phase.RELEASING)
    served = await service.round_cache.one_shot_sum((study, number))
    bodies = await service.store.committees.bodies(served.cohort, MemberMessageKind.SET_SIGNATURE)
    return Response(pack_signatures(served.by_number(bodies)), media_type=OCTET_STREAM)


@router.put(f"{_ROUND}/members/{{identity}}/sum", **_PUT)
async def put_sum(
    study: StudyId, number: RoundNumber, identity: Member, request: Request, service: ServiceDep
) -> None:
    """Release the sum of the member's shares over the set."""
    served, member, status = await _member(service, study, number, identity)
    _require_phase(status, "sums of members", Phase.RELEASING)
    size = served.session.sharing.sum_bytes + SIGNATURE_BYTES
    body = await read_body(request, size, size)
    digest = await service.round_cache.set_digest((study, number))
    with as_malformed():
        check_sum(served.session, member, digest, MemberSum.unpack(body, served.session))
    await service.receive(MemberMessage.of(served.cohort, MemberMessageKind.SUM, identity, body))


async def _member(
    service: Service, study: str, number: int, identity: str
) -> tuple[ServedSum, int, OneShotStatus]:
    """Return the sum of a round, and the number of a member of its committee."""
    status = await service.store.committees.status(study, number)
    served = await service.round_cache.one_shot_sum((study, number))
    member = served.number_of(bytes.fromhex(identity))
    if member is None:
        raise not_found("member of the committee")
    return served, member, status


def _require_phase(status: OneShotStatus, resource: str, earliest: Phase) -> None:
    """Refuse a request before the phase `earliest`, or after a failure."""
    if status.phase is Phase.FAILED:
        raise cohort_failed(status.failure)
    order = (*DRAWN_SUM.phases, Phase.SUMMED)
    if order.index(status.phase) < order.index(earliest):
        raise out_of_phase(resource, earliest, status.phase)
