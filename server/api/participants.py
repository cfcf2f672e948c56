"""A device's messages: join, then in each phase hear something and say something.

    enrolling    POST participants
    sharing      GET roster          -> PUT shares
    masking      GET sharers         -> PUT vector
    confirming   GET survivors       -> PUT confirmation
    unmasking    GET confirmations,
                 GET parcels         -> PUT reveal

Here is what a device hears; what it says after joining is in `uploads.py`. A study that is
safe from a semi-honest server only has no confirming and no confirmations.
"""

from typing import Any

from fastapi import APIRouter, Depends, Response

from protocol.messages import (
    Join,
    Pending,
    ProblemType,
    Seat,
    Survivors,
    pack_confirmations,
)
from protocol.round import Phase, phases
from secagg.cohort import Entry, advertisement
from secagg.keys import PublicKeys, is_signed
from server.api.parts import OCTETS_OUT, RoundNumber, StudyId, Wait, json_only, problems
from server.api.placed import Placed, Ticket, blame, past, refuse_silent
from server.api.rights import Caller, needs, only_itself
from server.limits import OCTETS
from server.principals import Right
from server.refusals import Refusal, malformed, out_of_phase
from server.service import Served, Service
from server.store.participants import Application, Place
from server.store.views import KIND

router = APIRouter(prefix="/v1", tags=["devices"])
_PENDING: dict[str, Any] = {
    "model": Pending,
    "description": "Not yet: ask again.",
    "headers": {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds; often 0."}},
}
_QUESTION = problems(404, 409, 410, 422)


@router.post(
    "/studies/{study}/rounds/{number}/participants",
    status_code=201,
    dependencies=[needs(Right.TAKE_PART), Depends(json_only)],
    responses={
        200: {"model": Seat, "description": "This device has its seat already."},
        **problems(400, 404, 409, 413, 415, 422),
    },
)
async def join(  # noqa: PLR0917 - FastAPI passes them by name
    caller: Caller,
    ticket: Ticket,
    study: StudyId,
    number: RoundNumber,
    wish: Join,
    response: Response,
    service: Served,
) -> Seat:
    """Take part in a round.

    The ticket is the credential that the device was let in with, or, where the service asks
    nobody, 32 random bytes of its own choice; keep it to yourself.
    """
    only_itself(caller, wish.identity)
    plan = await service.frozen.plan((study, number))
    with blame():
        keys = PublicKeys(bytes.fromhex(wish.mask_key), bytes.fromhex(wish.seal_key))
        enrolment = bytes.fromhex(wish.enrolment or "") if plan.registry else b""
        signature = bytes.fromhex(wish.signature)
        entry = Entry(bytes.fromhex(wish.identity), keys, signature, enrolment)
    digest = await service.frozen.digest((study, number))
    if not is_signed(entry.identity, advertisement(digest, keys), signature):
        raise malformed("the signature is not that of the identity under keys and plan")
    if plan.registry and not plan.registry.admits(entry.identity, enrolment):
        detail = "the registrar of this study has not signed this identity for it"
        raise Refusal(ProblemType.NOT_ENROLLED, detail)
    seat, is_new = await service.store.participants.join(
        study, number, Application(ticket, entry), by_coin=plan.invited < 1
    )
    if not is_new:
        response.status_code = 200
    service.orchestrator.wake()
    return seat


async def _last(service: Service, place: Place) -> Phase:
    """Return the last phase before the unmasking: confirming, if there is one."""
    return phases((await service.frozen.facts(place.cohort)).sum.assumptions.mode)[-2]


def _octets(body: bytes) -> Response:
    return Response(body, media_type=OCTETS)


@router.get(
    "/participants/{participant}/roster",
    response_class=Response,
    responses={200: OCTETS_OUT, 202: _PENDING, **_QUESTION},
)
async def get_roster(place: Placed, service: Served, wait: Wait = 0) -> Response:
    """Return everybody's identity and keys, by slot."""
    phase = await past(service, place, "the roster", Phase.ENROLLING, wait)
    if isinstance(phase, Response):
        return phase
    if phase is not Phase.SHARING:
        await refuse_silent(service, place, phase, "shares")
    return _octets(await service.frozen.roster(place.cohort))


@router.get(
    "/participants/{participant}/sharers",
    response_class=Response,
    responses={200: OCTETS_OUT, 202: _PENDING, **_QUESTION},
)
async def get_sharers(place: Placed, service: Served, wait: Wait = 0) -> Response:
    """Return who shared: contributions to the graph, and digests of shares, by slot."""
    phase = await past(service, place, "the sharers", Phase.SHARING, wait)
    if isinstance(phase, Response):
        return phase
    await refuse_silent(service, place, phase, "shares")
    return _octets(await service.frozen.sharers(place.cohort))


@router.get(
    "/participants/{participant}/survivors",
    response_model=Survivors,
    responses={202: _PENDING, **_QUESTION},
)
async def get_survivors(place: Placed, service: Served, wait: Wait = 0) -> Survivors | Response:
    """Return whose vectors are in the sum."""
    phase = await past(service, place, "the survivors", Phase.MASKING, wait)
    if isinstance(phase, Response):
        return phase
    await refuse_silent(service, place, phase, "vector")
    return Survivors(survivors=tuple(sorted(await service.frozen.survivors(place.cohort))))


@router.get(
    "/participants/{participant}/confirmations",
    response_class=Response,
    responses={200: OCTETS_OUT, 202: _PENDING, **_QUESTION},
)
async def get_confirmations(place: Placed, service: Served, wait: Wait = 0) -> Response:
    """Return the signatures under the survivors, by slot."""
    phase = await past(service, place, "the confirmations", Phase.CONFIRMING, wait)
    if isinstance(phase, Response):
        return phase
    if await _last(service, place) is not Phase.CONFIRMING:
        raise out_of_phase("a confirmation", Phase.CONFIRMING, phase)
    await refuse_silent(service, place, phase, "confirmation")
    return _octets(pack_confirmations(await service.frozen.confirmations(place.cohort)))


@router.get(
    "/participants/{participant}/parcels",
    response_class=Response,
    responses={200: OCTETS_OUT, 202: _PENDING, **_QUESTION},
)
async def get_parcels(place: Placed, service: Served, wait: Wait = 0) -> Response:
    """Return the shares addressed to this participant: of survivors' seeds, of others' keys."""
    closing = await _last(service, place)
    phase = await past(service, place, "the parcels", closing, wait)
    if isinstance(phase, Response):
        return phase
    await refuse_silent(service, place, phase, KIND[closing])
    settled = await service.frozen.settled(place.cohort)
    return _octets(settled.inboxes[place.slot].pack())
