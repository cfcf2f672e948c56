"""A form that becomes a study.

It says what a StudyRequest says, and is checked by what checks those: every fault is shown at its
field. What it would ask of a device is told beside it (`advising.py`).
"""

from collections.abc import Mapping, Sequence
from typing import Annotated
from uuid import uuid4

from fastapi import APIRouter, Query, Request, Response
from pydantic import ValidationError
from starlette.responses import RedirectResponse

from protocol.messages import ProblemType, StudyRequest
from server.api import studies as api
from server.api.creation import all_faults, limits_of
from server.api.rights import Caller, needs
from server.pages.faulting import sorted_out
from server.pages.guarding import Page, form_of
from server.pages.kinds import (
    KINDS,
    MORE,
    NAME,
    START,
    TERMS,
    Kind,
    document_of,
    fields_of,
    kind_of,
)
from server.pages.view import HEADERS, view
from server.principals import Right
from server.refusals import Fault, Refusal
from server.service import Served

router = APIRouter(
    prefix="/studies/new",
    route_class=Page,
    include_in_schema=False,
    dependencies=[needs(Right.WRITE)],
)
_FIRST = "tracked"


@router.get("")
async def ask(request: Request, kind: Annotated[str, Query(max_length=40)] = _FIRST) -> Response:
    """Show the form for a kind of question."""
    return _form(request, kind_of(kind), None, ())


@router.post("")
async def create(request: Request, service: Served, caller: Caller) -> Response:
    """Create the study that the form says, or show what is wrong with it."""
    form = await form_of(request)
    kind = kind_of(form.get("kind", ""))
    document = document_of(kind, form)
    key = form.get("key", "")
    try:
        asked = StudyRequest.model_validate(document)
        made = await api.create(asked, Response(), service, caller, key or None)
    except ValidationError:
        faults = await all_faults(document, limits_of(service.settings))
        return _form(request, kind, form, faults)
    except Refusal as refusal:
        if refusal.kind in (ProblemType.UNAVAILABLE, ProblemType.INTERNAL):
            raise
        said: Fault = {"at": "body", "fault": refusal.detail}
        return _form(request, kind, form, refusal.errors or [said])
    return RedirectResponse(f"/studies/{made.id}", 303, HEADERS)


def _form(
    request: Request, kind: Kind, form: Mapping[str, str] | None, faults: Sequence[Fault]
) -> Response:
    found = sorted_out(kind, faults)
    filled = {field.at: field.default for field in fields_of(kind)} if form is None else form
    return view(
        request,
        "new.html",
        status=422 if faults else 200,
        kind=kind,
        kinds=tuple(KINDS.values()),
        sections=(
            ("Question", (NAME, *kind.fields)),
            ("Rounds and cohorts", TERMS),
            ("More", MORE),
        ),
        start=START,
        filled=filled,
        faults=found.at,
        others=found.others,
        key=uuid4().hex,
    )
