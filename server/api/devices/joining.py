"""Join of a device: it advertises its keys for a round and gets a slot."""

from fastapi import APIRouter, Depends, Response

from protocol.api.device_messages import JoinRequest
from protocol.api.messages import ProblemType, SlotAssignment
from secagg.keys import PublicKeys, is_signed
from secagg.roster import RosterEntry
from secagg.session import advertisement_statement
from server.api.common import RoundNumber, StudyId, json_only, problem_responses
from server.api.dependencies import (
    Caller,
    CredentialDigest,
    as_malformed,
    limit_joins,
    require,
    require_own_identity,
)
from server.db.channels import cohort_channel
from server.db.repositories.devices.joins import Join
from server.db.repositories.devices.participants import JoiningDevice
from server.errors import ProblemError, malformed
from server.principals import Permission
from server.service import ServiceDep

router = APIRouter(prefix="/v1", tags=["devices"])


@router.post(
    "/studies/{study}/rounds/{number}/participants",
    status_code=201,
    dependencies=[require(Permission.TAKE_PART), Depends(limit_joins), Depends(json_only)],
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
    request: JoinRequest,
    response: Response,
    service: ServiceDep,
) -> SlotAssignment:
    """Join a round.

    The Authorization header has the credential that the device enrolled. If the service is open,
    it has 32 random bytes that the device chooses and keeps secret.
    """
    require_own_identity(caller, request.identity)
    plan = await service.cohort_cache.plan((study, number))
    with as_malformed():
        keys = PublicKeys(bytes.fromhex(request.mask_key), bytes.fromhex(request.encryption_key))
        registrar_signature = (
            bytes.fromhex(request.registrar_signature or "") if plan.registry else b""
        )
        signature = bytes.fromhex(request.signature)
        entry = RosterEntry(bytes.fromhex(request.identity), keys, signature, registrar_signature)
    digest = await service.cohort_cache.plan_digest((study, number))
    if not is_signed(entry.identity, advertisement_statement(digest, keys), signature):
        raise malformed("the signature is not this identity's signature of its keys and the plan")
    if plan.registry and not plan.registry.admits(entry.identity, registrar_signature):
        detail = "the registrar of this study has not signed this identity for it"
        raise ProblemError(ProblemType.NOT_ENROLLED, detail)
    device = JoiningDevice(credential, entry)
    by_coin = plan.join_probability < 1
    joined = await service.store.joins.join(Join(study, number, device, by_coin))
    if not joined.is_new:
        response.status_code = 200
    service.orchestrator.check(cohort_channel(joined.slot.cohort))
    if plan.terms.is_seated:
        return joined.assignment.model_copy(update={"cohort": None, "slot": None})
    service.cohort_cache.remember_slot(joined.slot)
    return joined.assignment
