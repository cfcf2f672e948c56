"""Studies: create, list, show, start, stop."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from protocol.messages import ProblemType, StudyPage, StudyRequest, StudyView
from server.api.creation import CREATED, Key, digest_of, limits_of, whole
from server.api.parts import StudyId, first_of, json_only, problems
from server.api.rights import Caller, needs
from server.api.tagged import Tagged, tagged
from server.principals import Right
from server.refusals import Refusal
from server.service import Served
from server.store.creations import Intent
from server.watch import study_bell

_SCOPE = "studies"
router = APIRouter(prefix="/v1/studies", tags=["studies"], route_class=Tagged)


@router.post(
    "",
    status_code=201,
    dependencies=[needs(Right.WRITE), Depends(json_only), Depends(whole)],
    responses={201: CREATED, **problems(400, 404, 409, 413, 415, 422)},
)
async def create(
    request: StudyRequest,
    response: Response,
    service: Served,
    caller: Caller,
    key: Key = None,
) -> StudyView:
    """Create a study, and start it at once if `start` says so.

    With an Idempotency-Key, the same request within a day is the same study, and gets the same
    answer, with Idempotent-Replayed.
    """
    intent = None if key is None else Intent(f"{_SCOPE} {caller.name}", key, digest_of(request))
    limits = limits_of(service.settings)
    study, is_new = await service.store.studies.create(request, limits, intent)
    if is_new:
        await service.store.access.note(str(caller), "create study", study.id)
    else:
        response.headers["Idempotent-Replayed"] = "true"
    response.headers["Location"] = f"/v1/studies/{study.id}"
    service.orchestrator.wake()
    return study


@router.get("", dependencies=[needs(Right.READ)], responses=tagged(problems(422)))
async def page(
    service: Served,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    after: Annotated[str | None, Query(pattern="^[0-9A-Za-z]{1,64}$")] = None,
) -> StudyPage:
    """List studies, newest first."""
    studies, last = first_of(await service.store.studies.page(limit + 1, after), limit)
    return StudyPage(studies=studies, next=last and last.id)


@router.get("/{study}", dependencies=[needs(Right.READ)], responses=tagged(problems(404)))
async def show(study: StudyId, service: Served) -> StudyView:
    """Show one study."""
    return await service.store.studies.show(study)


@router.post(
    "/{study}/start",
    dependencies=[needs(Right.WRITE)],
    responses=problems(404, 409),
)
async def start(study: StudyId, service: Served, caller: Caller) -> StudyView:
    """Start a study: its first round opens. Starting a running one changes nothing."""
    try:
        view = await service.store.studies.start(study)
    except ValueError as error:  # an older program accepted it
        raise Refusal(ProblemType.WRONG_STATE, str(error)) from None
    await service.store.access.note(str(caller), "start study", study)
    service.orchestrator.wake()
    service.watch.ring(study_bell(study))
    return view


@router.post(
    "/{study}/stop",
    dependencies=[needs(Right.WRITE)],
    responses=problems(404),
)
async def stop(study: StudyId, service: Served, caller: Caller) -> StudyView:
    """Stop a study: its running round fails, no other opens. What is over stays as it is."""
    view = await service.store.studies.stop(study)
    await service.store.access.note(str(caller), "stop study", study)
    service.orchestrator.wake()
    service.watch.ring(study_bell(study))
    return view
