"""Upload of the one message of a device to a one-shot sum, which may be repeated."""

from typing import Annotated

from fastapi import APIRouter, Path, Request

from secagg.oneshot.message import DeviceMessage, FaultyMessageError, Layout, check_message
from server.api.common import OCTET_STREAM_BODY, RoundNumber, StudyId, problem_responses
from server.api.dependencies import Caller, as_malformed, require, require_own_identity
from server.db.channels import cohort_channel
from server.db.repositories.devices.one_shot_messages import OneShotUpload
from server.errors import malformed
from server.http.request_bodies import read_body
from server.principals import Permission
from server.service import ServiceDep

router = APIRouter(prefix="/v1/studies/{study}/rounds/{number}/messages", tags=["devices"])
IdentityPath = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="The device's identity.")]


@router.put(
    "/{identity}",
    status_code=204,
    dependencies=[require(Permission.TAKE_PART)],
    responses=problem_responses(400, 404, 409, 410, 413, 415, 422),
    openapi_extra=OCTET_STREAM_BODY,
)
async def put_message(
    study: StudyId,
    number: RoundNumber,
    identity: IdentityPath,
    request: Request,
    service: ServiceDep,
    caller: Caller,
) -> None:
    """Send the device's message, whose encrypted shares only the members can read."""
    require_own_identity(caller, identity)
    served = await service.cohort_cache.one_shot_sum((study, number))
    session, terms = served.session, served.plan.terms
    size = Layout.of(session).message_bytes
    body = await read_body(request, size, size)
    with as_malformed():
        message = DeviceMessage.unpack(body, session)
    if message.identity.hex() != identity:
        raise malformed("the message has another identity than its path")
    try:
        digest = check_message(session, message)
    except FaultyMessageError as error:
        raise malformed(str(error)) from None
    upload = OneShotUpload(
        served.cohort,
        study,
        number,
        identity,
        digest,
        body,
        terms.cohort_size,
        counts_once=not served.plan.question.asks_every_round,
    )
    await service.store.one_shot_messages.accept(upload)
    service.orchestrator.check(cohort_channel(served.cohort))
