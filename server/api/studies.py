"""Studies: create, list, show, start, stop, delete.

A request for a study is checked before its handler runs, so that a refusal lists every fault of
its fields, and of the plan that the valid fields describe.
"""

from collections.abc import Mapping
from datetime import timedelta
from hashlib import sha256
from random import Random
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from pydantic import ValidationError

from protocol.api.messages import (
    CreatedStudy,
    ProblemType,
    SharedLink,
    ShareRequest,
    StudyPage,
    StudyRequest,
    StudyView,
)
from protocol.mechanisms.registry import AnyPlan
from protocol.validation_errors import validation_faults
from server.api.dependencies import (
    Caller,
    StudyId,
    json_only,
    paginate,
    problem_responses,
    reading,
    require,
    service_url,
)
from server.db.idempotency import IdempotentRequest
from server.db.repositories.studies.study_filter import StudyFilter
from server.errors import FieldError, ProblemError, malformed_fields
from server.first_plan import DeviceLimits, PlanRequest, first_plan
from server.http.auth import SHARED_PREFIX
from server.http.problem_details import field_error
from server.http.response_headers import ETagRoute
from server.notify.webhooks import may_be_public
from server.principals import Permission
from server.service import Service, ServiceDep
from server.settings import MAX_DEVICE_DELTA, Settings, is_secure_url

_SCOPE = "studies"
IdempotencyKeyHeader = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern="^[!-~]{1,200}$",
        description="Key of your choice, new for each study. Repeat a request with the same key.",
    ),
]
_CREATED_RESPONSE: dict[str, Any] = {
    "headers": {
        "Location": {"schema": {"type": "string"}, "description": "Path of the study."},
        "Idempotent-Replayed": {
            "schema": {"const": "true"},
            "description": "The study was created by an earlier request with this key.",
        },
    }
}
router = APIRouter(prefix="/v1/studies", tags=["studies"], route_class=ETagRoute)


def device_limits(settings: Settings) -> DeviceLimits:
    """Return the operator's limits on what a study may cost one device."""
    return DeviceLimits(settings.max_upload_bytes, settings.max_device_epsilon, MAX_DEVICE_DELTA)


async def compute_plan(request: PlanRequest, service: Service) -> AnyPlan:
    """Return the plan of round 1 of a study; raises ProblemError if there is none."""
    limits = device_limits(service.settings)
    return await service.store.studies.planning_queue.run(
        first_plan, request, "none", limits, Random(0)
    )


async def check_study_request(request: Request, service: ServiceDep) -> None:
    """Refuse a request for a study with every fault of its document.

    If no field has a fault, the repository makes the plan and finds the plan's faults.

    Raises:
        ProblemError: if a field has a fault.
    """
    if not await request.body():
        return  # FastAPI refuses a missing body
    document = await request.json()  # FastAPI has refused a body that is not JSON
    if errors := await find_field_errors(document, service):
        raise malformed_fields(errors, 422)


async def find_field_errors(document: object, service: Service) -> list[FieldError]:
    """Return every fault of a StudyRequest; if all fields are valid, its plan is not checked."""
    try:
        StudyRequest.model_validate(document)
    except ValidationError as error:
        errors = [
            field_error(("body", *location), detail)
            for location, detail in validation_faults(error, StudyRequest)
        ]
        if isinstance(document, Mapping):
            errors += await _plan_errors(document, service)
        return errors
    return []


async def _plan_errors(document: Mapping[str, object], service: Service) -> list[FieldError]:
    """Return the faults of the plan; none if a field that the plan needs has a fault."""
    try:
        request = PlanRequest.model_validate(document)
        await compute_plan(request, service)
    except ValidationError:
        return []
    except ProblemError as problem:
        if problem.errors is None:
            raise
        return list(problem.errors)
    return []


@router.post(
    "",
    status_code=201,
    dependencies=[require(Permission.WRITE), Depends(json_only), Depends(check_study_request)],
    responses={201: _CREATED_RESPONSE, **problem_responses(400, 404, 409, 413, 415, 422)},
)
async def create(
    request: StudyRequest,
    response: Response,
    service: ServiceDep,
    caller: Caller,
    key: IdempotencyKeyHeader = None,
    # A response of the type StudyView | CreatedStudy would be written without the secret.
) -> CreatedStudy | StudyView:
    """Create a study, and start it if `start` is true; only this shows a webhook's secret.

    A repetition of the request with the same Idempotency-Key within a day creates nothing. It
    gets the first response again, with Idempotent-Replayed.
    """
    _check_webhook(request.webhook, service)
    intent = None
    if key is not None:
        # A key of the form has not passed the check of the header.
        if len(key) > 200 or not all("!" <= each <= "~" for each in key):
            detail = "must be 1 to 200 characters of ASCII without blanks"
            raise malformed_fields([{"location": "body.key", "detail": detail}], 422)
        # Equal documents have equal digests, regardless of white space and the order of fields.
        digest = sha256(request.model_dump_json(exclude_unset=True).encode()).digest()
        intent = IdempotentRequest(f"{_SCOPE} {caller.name}", key, digest)
    limits = device_limits(service.settings)
    study, is_new = await service.store.studies.create(request, limits, intent, caller.owner)
    if is_new:
        await service.store.access.record_audit(str(caller), "create study", study.id)
    else:
        response.headers["Idempotent-Replayed"] = "true"
    response.headers["Location"] = f"/v1/studies/{study.id}"
    if request.webhook is None:
        return study
    secret = await service.store.webhooks.secret(study.id)
    return CreatedStudy.model_validate(dict(study) | {"webhook_secret": secret})


def _check_webhook(url: str | None, service: Service) -> None:
    """Raise ProblemError if a webhook is not safe: others could read it, or it leads inside."""
    allows_loopback = service.settings.open
    if url is not None and not (is_secure_url(url) and may_be_public(url, allows_loopback)):
        detail = "must be an https:// URL of a public host; an open service also sends to localhost"
        raise malformed_fields([{"location": "body.webhook", "detail": detail}], 422)


@router.get("", **reading(422, is_filtered=True))
async def page(
    service: ServiceDep,
    caller: Caller,
    chosen: Annotated[StudyFilter, Depends()],
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    after: Annotated[str | None, Query(pattern="^[0-9A-Za-z]{1,64}$")] = None,
) -> StudyPage:
    """List the studies that the caller may read, newest first.

    Filters: `search` is a part of the name, the question or a tag; `tag`, `owner`, `state` and
    `name` are whole ones.
    """
    rows = await service.store.studies.page(limit + 1, after, caller.study, chosen)
    studies, last = paginate(rows, limit)
    return StudyPage(studies=studies, next=last and last.id)


@router.get("/{study}", **reading(404))
async def show(study: StudyId, service: ServiceDep) -> StudyView:
    """Show one study."""
    return await service.store.studies.show(study)


@router.post(
    "/{study}/start",
    dependencies=[require(Permission.WRITE)],
    responses=problem_responses(404, 409),
)
async def start(study: StudyId, service: ServiceDep, caller: Caller) -> StudyView:
    """Start a study and open its first round; a running study does not change."""
    try:
        view = await service.store.studies.start(study)
    except ValueError as error:  # an older program accepted it
        raise ProblemError(ProblemType.WRONG_STATE, str(error)) from None
    await service.store.access.record_audit(str(caller), "start study", study)
    return view


@router.post(
    "/{study}/stop", dependencies=[require(Permission.WRITE)], responses=problem_responses(404)
)
async def stop(study: StudyId, service: ServiceDep, caller: Caller) -> StudyView:
    """Stop a study: its running round fails and no other opens; results stay."""
    view = await service.store.studies.stop(study)
    await service.store.access.record_audit(str(caller), "stop study", study)
    return view


@router.post(
    "/{study}/share",
    status_code=201,
    dependencies=[require(Permission.READ), require(Permission.WRITE)],
    responses=problem_responses(404, 413, 422),
)
async def share(
    study: StudyId, share: ShareRequest, request: Request, service: ServiceDep, caller: Caller
) -> SharedLink:
    """Make a link at which everybody can read one study without a key; it is shown only once."""
    lifetime = timedelta(days=share.days)
    secret, expires = await service.store.links.create(study, caller, lifetime)
    await service.store.access.record_audit(str(caller), "share study", study)
    url = f"{service_url(request, service)}{SHARED_PREFIX}{study}?token={secret}"
    return SharedLink(url=url, expires=expires)


@router.delete(
    "/{study}/share",
    status_code=204,
    dependencies=[require(Permission.WRITE)],
    responses=problem_responses(404),
)
async def end_links(study: StudyId, service: ServiceDep, caller: Caller) -> None:
    """End all links to a study."""
    await service.store.links.end_all(study)
    await service.store.access.record_audit(str(caller), "end links", study)


@router.delete(
    "/{study}",
    status_code=204,
    dependencies=[require(Permission.WRITE)],
    responses=problem_responses(404, 409),
)
async def delete(study: StudyId, service: ServiceDep, caller: Caller) -> None:
    """Delete a study that is not running, with its answer and all that it stored of devices.

    Its audit entries stay, and so does what it has spent of the budget of its population.
    """
    await service.store.retention.delete_study(study)
    await service.store.access.record_audit(str(caller), "delete study", study)
