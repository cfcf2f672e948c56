"""Upload of the one message of a device to a one-shot sum, which may be repeated."""

from typing import Annotated, Any, cast

from fastapi import APIRouter, Path, Request, Response
from pydantic import TypeAdapter

from protocol.public_model import Hex32
from secagg.oneshot.message import DeviceMessage, FaultyMessageError, Layout, check_message
from server.api.dependencies import (
    OCTET_STREAM_BODY,
    Caller,
    RoundNumber,
    StudyId,
    as_malformed,
    check_permission,
    problem_responses,
    read_study,
    require_own_identity,
)
from server.api.devices.device_route import ThinRoute, validated
from server.db.repositories.messages.one_shot_messages import OneShotMessage
from server.errors import malformed
from server.http.request_limits import read_body
from server.principals import Permission, Principal
from server.service import Service, ServiceDep

_ROUND_NUMBER = TypeAdapter[int](RoundNumber)
_IDENTITY = TypeAdapter[str](Hex32)
IdentityPath = Annotated[Hex32, Path(description="The device's identity.")]


class _MessageRoute(ThinRoute):
    """Route of a device that sends its message; the body is read after all other checks."""

    async def arguments(self, request: Request, service: Service) -> dict[str, Any]:
        caller, parameters = cast("Principal", request.state.principal), request.path_params
        study = await read_study(parameters["study"])
        number = validated(_ROUND_NUMBER, parameters["number"], "path", "number")
        identity = validated(_IDENTITY, parameters["identity"], "path", "identity")
        await check_permission(caller, request, service, Permission.TAKE_PART)
        return {
            "study": study,
            "number": number,
            "identity": identity,
            "request": request,
            "service": service,
            "caller": caller,
        }


router = APIRouter(
    prefix="/v1/studies/{study}/rounds/{number}/devices",
    tags=["devices"],
    route_class=_MessageRoute,
)


@router.put(
    "/{identity}/message",
    status_code=204,
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
) -> Response:
    """Send the device's message, whose encrypted shares only the members can read."""
    require_own_identity(caller, identity)
    served = await service.round_cache.one_shot_sum((study, number))
    session, terms = served.session, served.plan.terms
    size = Layout.of(session).message_bytes
    body = await read_body(request, size, size)
    with as_malformed():
        message = DeviceMessage.unpack(body, session)
    if message.identity.hex() != identity:
        raise malformed("the message has another identity than its path")
    try:
        digest = check_message(session, message).digest(message.proof)
    except FaultyMessageError as error:
        raise malformed(str(error)) from None
    checked = OneShotMessage(
        served.cohort,
        digest,
        study,
        number,
        identity,
        body,
        counts_once=not served.plan.question.asks_every_round,
        max_messages=terms.cohort_size,
    )
    await service.receive(checked)
    return Response(status_code=204)
