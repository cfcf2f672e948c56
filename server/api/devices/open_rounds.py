"""Round that is open to devices, which every device of a study requests."""

from typing import Any, cast

from fastapi import APIRouter, Request, Response
from pydantic import TypeAdapter

from protocol.api.messages import ProblemType, RoundView
from server.api.dependencies import (
    AfterRound,
    StudyId,
    WaitSeconds,
    check_permission,
    problem_responses,
    read_study,
)
from server.api.devices.device_route import ThinRoute, query_parameters, validated, wait_seconds
from server.db.channels import study_channel
from server.errors import ProblemError
from server.http.response_headers import etag_responses, tag_response
from server.principals import Permission, Principal
from server.service import Service, ServiceDep

_AFTER = TypeAdapter[int](AfterRound)


class _OpenRoundRoute(ThinRoute):
    """Route of the open round."""

    async def arguments(self, request: Request, service: Service) -> dict[str, Any]:
        caller = cast("Principal", request.state.principal)
        await check_permission(caller, request, service, Permission.READ, Permission.TAKE_PART)
        study = await read_study(request.path_params["study"])
        after = query_parameters(request).get("after", "0")
        return {
            "study": study,
            "after": validated(_AFTER, after, "query", "after"),
            "wait": wait_seconds(request),
            "request": request,
            "service": service,
        }


router = APIRouter(
    prefix="/v1/studies/{study}/rounds", tags=["rounds", "devices"], route_class=_OpenRoundRoute
)


@router.get(
    "/open", response_model=RoundView, responses=etag_responses(problem_responses(404, 409, 422))
)
async def open_round(
    study: StudyId,
    request: Request,
    service: ServiceDep,
    after: AfterRound = 0,
    wait: WaitSeconds = 0,
) -> Response:
    """Return the round that is open to devices and comes after round `after`.

    Its cohorts name no survivors and nobody who is blamed. The numbers of their devices may be half
    a second old.
    """
    document = await service.notifier.wait_for(
        study_channel(study), lambda: service.status_cache.open_round(study, after), wait
    )
    if document is None:
        raise ProblemError(ProblemType.NO_ROUND, f"no round after {after} is open to devices now")
    return tag_response(request, Response(document, media_type="application/json"))
