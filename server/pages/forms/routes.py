"""Routes of the form that creates a study, with every fault at its field."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from secrets import token_bytes
from typing import Annotated
from uuid import uuid4

from fastapi import Query, Request, Response
from pydantic import ValidationError
from starlette.responses import RedirectResponse

from protocol.api.credentials import key_file_text
from protocol.api.messages import CreatedStudy, ProblemType, StudyRequest, StudyView
from protocol.question_and_plan import MAX_ROUNDS
from secagg.keys import KEY_BYTES, Identity
from server.api import studies as api
from server.api.dependencies import Caller, StudyId, require
from server.errors import FieldError, ProblemError, not_found
from server.pages.forms.cloning import form_of, lost_fields, values_of
from server.pages.forms.errors import assign_to_fields
from server.pages.forms.example import EXAMPLE_QUESTION, Simulator, example_request
from server.pages.forms.fields import NAME_FIELD, START_FIELD
from server.pages.forms.preview import preview_of
from server.pages.forms.questions import (
    QUESTION_FORMS,
    StudyForm,
    chosen_form,
    form_fields,
    offered_forms,
    question_form,
    study_document,
    values_for,
)
from server.pages.page_requests import page_router, read_form
from server.pages.rendering import PAGE_HEADERS, is_partial, render
from server.principals import Permission
from server.service import Service, ServiceDep

router = page_router(Permission.WRITE, prefix="/studies/new")
_REGISTRAR_STUDIES = 50  # whose registrars the form offers


@router.get("")
async def show_form(
    request: Request,
    service: ServiceDep,
    question: Annotated[str, Query(max_length=40)] = EXAMPLE_QUESTION,
) -> Response:
    """Show the form for a kind of question."""
    return await _form(request, service, question_form(question), {START_FIELD.path: "on"})


@router.post("/check")
async def check(request: Request, service: ServiceDep) -> Response:
    """Show the form for the choices in it, with all faults of its values, and create nothing."""
    form = await read_form(request)
    return await _form(request, service, chosen_form(form), form)


@router.post("/test-registrar")
async def make_test_registrar(request: Request, service: ServiceDep) -> Response:
    """Show the form with a new registrar, whose secret key is shown and stored nowhere.

    A server that makes the registrar could invent devices, so only an open service does.
    """
    if not service.authenticator.is_open:
        raise not_found("page")
    form, secret = await read_form(request), token_bytes(KEY_BYTES)
    filled = form | {"terms.registrar": Identity.of(secret).public.hex()}
    key_file = key_file_text("registrar", secret)
    return await _form(request, service, chosen_form(form), filled, key_file=key_file)


@router.get("/from/{study}", dependencies=[require(Permission.READ)])
async def clone(
    study: StudyId,
    request: Request,
    service: ServiceDep,
    threshold: Annotated[float | None, Query(ge=1, le=1e12)] = None,
    rounds: Annotated[int | None, Query(ge=1, le=MAX_ROUNDS)] = None,
) -> Response:
    """Show the form with the values of another study, of which two may be changed."""
    view = await service.store.studies.show(study)
    question, values = form_of(view), values_of(view)
    lost = lost_fields(view, values)
    changes = {"question.threshold": threshold, "rounds": rounds}
    values |= {path: f"{value:.15g}" for path, value in changes.items() if value is not None}
    return await _form(request, service, question, values, original=view, lost=lost)


@router.post("/example")
async def create_example(request: Request, service: ServiceDep, caller: Caller) -> Response:
    """Create the example for simulated devices, if any, or show the one that they are busy with."""
    form = await read_form(request)
    simulator: Simulator | None = request.app.state.simulator
    async with simulator.lock if simulator else nullcontext():
        if simulator and simulator.study:
            return RedirectResponse(f"/studies/{simulator.study}", 303, PAGE_HEADERS)
        example = example_request(simulator.registrar if simulator else None)
        study = await api.create(example, Response(), service, caller, form.get("key") or None)
        if simulator and study.state == "running":
            simulator.play(study, *request.scope["server"])
    return RedirectResponse(f"/studies/{study.id}", 303, PAGE_HEADERS)


@router.post("")
async def create(request: Request, service: ServiceDep, caller: Caller) -> Response:
    """Create the study in the form, or show the form with its faults.

    Without scripts a choice may have been made whose fields were not shown: show them first.
    """
    form = await read_form(request)
    question = chosen_form(form)
    if form.get("shown", question.key) != question.key:
        return await _form(request, service, question, form)
    document = study_document(question, form)
    key = form.get("key", "")
    try:
        study_request = StudyRequest.model_validate(document)
        study = await api.create(study_request, Response(), service, caller, key or None)
    except ValidationError:
        faults = await api.find_field_errors(document, service)
        return await _form(request, service, question, form, faults)
    except ProblemError as problem:
        if problem.kind in (ProblemType.UNAVAILABLE, ProblemType.INTERNAL):
            raise
        fault: FieldError = {"location": "body", "detail": problem.detail}
        return await _form(request, service, question, form, problem.errors or [fault])
    if isinstance(study, CreatedStudy):
        secret = study.webhook_secret
        return render(request, "shown_once.html", study=study, secret=secret, expires=None)
    return RedirectResponse(f"/studies/{study.id}", 303, PAGE_HEADERS)


async def _form(
    request: Request,
    service: Service,
    question: StudyForm,
    form: Mapping[str, str],
    faults: Sequence[FieldError] = (),
    *,
    original: StudyView | None = None,
    lost: Sequence[str] = (),
    key_file: str = "",
) -> Response:
    """Return the form page for `question`; values that `form` lacks are defaults.

    It has the `faults` of a study that was not created. The form of a clone has the values of the
    `original`, but not those of its fields in `lost`.
    """
    values = values_for(question, form)
    # A page with scripts asks for the preview after a choice, as a plan may take seconds.
    preview = None if is_partial(request) else await preview_of(question, values, service)
    errors = assign_to_fields(question, faults) if preview is None or faults else preview.errors
    rare = [field for field in form_fields(question) if field.is_rare]
    offered = offered_forms(question.question.held)
    may_read = Permission.READ in request.state.principal.permissions
    studies = await service.store.studies.page(_REGISTRAR_STUDIES, None, None) if may_read else ()
    return render(
        request,
        "new_study.html",
        status=422 if faults else 200,
        question=question,
        offered=offered,
        others=[each for each in QUESTION_FORMS.values() if each not in offered],
        name=NAME_FIELD,
        rare=rare,
        has_rare=any(
            field.path in errors.by_field or values[field.path] != field.default for field in rare
        ),
        start=START_FIELD,
        values=values,
        errors=errors,
        is_refused=bool(faults),
        preview=preview,
        key=uuid4().hex,
        original=original,
        lost=lost,
        registrars={each.terms.registrar: each.name for each in studies if each.terms.registrar},
        key_file=key_file,
        has_example=request.app.state.simulator is not None,
    )
