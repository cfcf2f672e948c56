"""Routes of the form that creates a study, with every fault at its field."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from secrets import token_bytes
from typing import Annotated
from uuid import uuid4

from fastapi import Query, Request, Response
from pydantic import ValidationError
from starlette.responses import RedirectResponse

from protocol.api.credentials import key_file_text
from protocol.api.messages import ProblemType, StudyRequest, StudyView
from protocol.description import FormField
from secagg.keys import KEY_BYTES, Identity
from server.api import studies as api
from server.api.dependencies import Caller, StudyId, require
from server.errors import FieldError, ProblemError, not_found
from server.pages.forms.cloning import EXAMPLE, lost_fields, values_of
from server.pages.forms.errors import FormErrors, assign_to_fields
from server.pages.forms.fields import (
    MORE_FIELDS,
    NAME_FIELD,
    QUESTION_FORMS,
    START_FIELD,
    StudyForm,
    form_fields,
    question_form,
    study_document,
)
from server.pages.page_requests import page_router, read_form
from server.pages.rendering import PAGE_HEADERS, render
from server.principals import Permission
from server.service import Service, ServiceDep

router = page_router(Permission.WRITE, prefix="/studies/new")
_DEFAULT_QUESTION = "tracked"
_REGISTRAR_STUDIES = 50  # whose registrars the form offers


@router.get("")
async def show_form(
    request: Request,
    service: ServiceDep,
    question: Annotated[str, Query(max_length=40)] = _DEFAULT_QUESTION,
) -> Response:
    """Show the form for a kind of question."""
    return await _form(request, service, question_form(question), None, ())


@router.post("/test-registrar")
async def make_test_registrar(request: Request, service: ServiceDep) -> Response:
    """Show the form with a new registrar, whose secret key is shown and stored nowhere.

    A server that makes the registrar could invent devices, so only an open service does.
    """
    if not service.authenticator.is_open:
        raise not_found("page")
    form, secret = await read_form(request), token_bytes(KEY_BYTES)
    filled = dict(form) | {"terms.registrar": Identity.of(secret).public.hex()}
    key_file = key_file_text("registrar", secret)
    question = question_form(form.get("question", ""))
    return await _form(request, service, question, filled, (), key_file=key_file)


@router.get("/from/{study}", dependencies=[require(Permission.READ)])
async def clone(study: StudyId, request: Request, service: ServiceDep) -> Response:
    """Show the form with the values of another study."""
    view = await service.store.studies.show(study)
    question = question_form(view.question.mechanism)
    values = values_of(view)
    return await _form(
        request, service, question, values, (), original=view, lost=lost_fields(view, values)
    )


@router.post("/example")
async def create_example(request: Request, service: ServiceDep, caller: Caller) -> Response:
    """Create the example study, and show it."""
    form = await read_form(request)
    study = await api.create(EXAMPLE, Response(), service, caller, form.get("key") or None)
    return RedirectResponse(f"/studies/{study.id}", 303, PAGE_HEADERS)


@router.post("")
async def create(request: Request, service: ServiceDep, caller: Caller) -> Response:
    """Create the study in the form, or show the form with its faults."""
    form = await read_form(request)
    question = question_form(form.get("question", ""))
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
    return RedirectResponse(f"/studies/{study.id}", 303, PAGE_HEADERS)


@dataclass(frozen=True, slots=True)
class FormSection:
    """A section of the form; its `rare` fields are folded away unless `is_open`."""

    title: str
    usual: tuple[FormField, ...]
    rare: tuple[FormField, ...]
    is_open: bool

    @classmethod
    def of(
        cls, title: str, fields: Sequence[FormField], form: Mapping[str, str], errors: FormErrors
    ) -> "FormSection":
        """Return a section, open if a rare field has an error or another value than its default."""
        rare = tuple(field for field in fields if field.is_rare)
        is_open = any(
            field.path in errors.by_field or form.get(field.path, field.default) != field.default
            for field in rare
        )
        return cls(title, tuple(field for field in fields if not field.is_rare), rare, is_open)

    @property
    def summary(self) -> str:
        """Return the labels of the rare fields."""
        return ", ".join(field.label for field in self.rare).capitalize()


async def _known_registrars(service: Service) -> dict[str, str]:
    """Return the registrars of the last studies, each with the name of one of its studies."""
    studies = await service.store.studies.page(_REGISTRAR_STUDIES, None, None)
    named = ((each.terms.registrar, each.name) for each in studies)
    return {registrar: name for registrar, name in named if registrar is not None}


async def _form(
    request: Request,
    service: Service,
    question: StudyForm,
    form: Mapping[str, str] | None,
    faults: Sequence[FieldError],
    *,
    original: StudyView | None = None,
    lost: Sequence[str] = (),
    key_file: str = "",
) -> Response:
    """Return the form page; without a `form` that was sent, fields have their defaults.

    The form of a clone has the values of the `original`, but not those of its fields in `lost`.
    """
    errors = assign_to_fields(question, faults)
    if form is None:
        form = {field.path: field.default for field in form_fields(question)}
    return render(
        request,
        "new_study.html",
        status=422 if faults else 200,
        question=question,
        questions=tuple(QUESTION_FORMS.values()),
        sections=[
            FormSection.of(title, fields, form, errors)
            for title, fields in (
                ("Question", (NAME_FIELD, *question.fields)),
                ("Rounds and devices", question.terms_fields),
                ("Sums", question.sum_fields),
                ("More", MORE_FIELDS),
            )
            if fields
        ],
        start=START_FIELD,
        values=form,
        field_errors=errors.by_field,
        general_errors=errors.general,
        key=uuid4().hex,
        original=original,
        lost=lost,
        registrars=await _known_registrars(service),
        key_file=key_file,
    )
