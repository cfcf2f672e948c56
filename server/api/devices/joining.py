"""Join of a device: it advertises its keys for a round and gets a slot."""

from dataclasses import replace
from typing import Any, cast

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError

from protocol.api.messages import SlotAssignment
from protocol.api.messages_outside_sums import DocumentKind, JoinRequest
from protocol.api.phases import Phase
from secagg.keys import PublicKeys, is_signed
from secagg.roster import RosterEntry
from secagg.session import advertisement_statement
from server.api.dependencies import (
    Caller,
    CredentialDigest,
    RoundNumber,
    StudyId,
    WaitSeconds,
    as_malformed,
    check_permission,
    credential_digest,
    json_only,
    limit_joins,
    problem_responses,
    read_study,
    require_own_identity,
)
from server.api.devices.device_route import ThinRoute, validated, wait_seconds
from server.api.devices.documents import DocumentStream, document_readers
from server.db.repositories.messages.joins import Join
from server.db.repositories.messages.participants import JoiningDevice
from server.errors import malformed
from server.http.request_limits import header, read_all
from server.principals import Permission, Principal
from server.service import Service, ServiceDep

_ROUND_NUMBER = TypeAdapter[int](RoundNumber)


class _JoinRoute(ThinRoute):
    """Route of a device that joins a round; its body is read after all other checks."""

    async def arguments(self, request: Request, service: Service) -> dict[str, Any]:
        caller, parameters = cast("Principal", request.state.principal), request.path_params
        study = await read_study(parameters["study"])
        number = validated(_ROUND_NUMBER, parameters["number"], "path", "number")
        await check_permission(caller, request, service, Permission.TAKE_PART)
        await limit_joins(request, service)
        await json_only(request)
        credential = await credential_digest(header(request.scope, b"authorization"))
        wait, wish = wait_seconds(request), _join_request(await read_all(request))
        return {"study": study, "number": number, "caller": caller, "credential": credential} | {
            "service": service,
            "wait": wait,
            "wish": wish,
        }


def _join_request(body: bytes) -> JoinRequest:
    try:
        return JoinRequest.model_validate_json(body)
    except ValidationError as error:
        faults = [fault | {"loc": ("body", *fault["loc"])} for fault in error.errors()]
        raise RequestValidationError(faults) from None


router = APIRouter(prefix="/v1", tags=["devices"], route_class=_JoinRoute)


@router.post(
    "/studies/{study}/rounds/{number}/participants",
    status_code=201,
    response_model=SlotAssignment,
    responses={
        200: {"model": SlotAssignment, "description": "The device has joined before."},
        **problem_responses(400, 404, 409, 413, 415, 422),
    },
)
async def join(  # noqa: PLR0917 - FastAPI passes them by name
    caller: Caller,
    credential: CredentialDigest,
    study: StudyId,
    number: RoundNumber,
    wish: JoinRequest,
    service: ServiceDep,
    wait: WaitSeconds = 0,
) -> Response:
    """Join a round.

    The Authorization header has the credential that the device enrolled. If the service is open,
    it has 32 random bytes that the device chooses and keeps secret. With `wait`, the response has
    two documents, each after its length in four bytes: the slot, and the roster as soon as it is
    fixed.
    """
    require_own_identity(caller, wish.identity)
    plan = await service.round_cache.plan((study, number))
    facts = await service.round_cache.signed_facts((study, number))
    with as_malformed():
        keys = PublicKeys(bytes.fromhex(wish.mask_key), bytes.fromhex(wish.encryption_key))
        registrar_signature = (
            bytes.fromhex(wish.registrar_signature or "") if facts.registry else b""
        )
        signature = bytes.fromhex(wish.signature)
        entry = RosterEntry(bytes.fromhex(wish.identity), keys, signature, registrar_signature)
    signed = advertisement_statement(facts.plan_digest, keys)
    if not is_signed(entry.identity, signed, signature):
        raise malformed("the signature is not this identity's signature of its keys and the plan")
    facts.check_enrolment(entry.identity, registrar_signature)
    device = JoiningDevice(credential, entry)
    joined = await service.store.joins.join(Join(plan, device))
    assignment, slot = joined.assignment, joined.slot
    service.orchestrator.on_message(slot.cohort, Phase.ENROLLING, slot.slot + 1)
    if plan.terms.is_seated:
        assignment = assignment.model_copy(update={"cohort": None, "slot": None})
        slot = replace(slot, is_final=False)
    else:
        service.status_cache.remember_slot(slot)
    status, document = 201 if joined.is_new else 200, assignment.model_dump_json().encode()
    if not wait:
        return Response(document, status, media_type="application/json")
    readers = document_readers((DocumentKind.ROSTER,), slot, service)
    return DocumentStream((document,), readers, wait, status)
