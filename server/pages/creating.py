"""A form that becomes a study, with what it will ask of a device worked out while it is filled.

The form says what a StudyRequest says, and is checked by what checks those: every fault is shown
at its field. Bytes, parameters and errors of reports follow from the plan; how many items a study
will find takes a simulation (`blindtally plan`), which is not for a server to run.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from random import Random
from typing import Annotated, Any
from uuid import uuid4

from fastapi import APIRouter, Query, Request, Response
from pydantic import ValidationError
from starlette.responses import RedirectResponse

from protocol.mechanisms import REPORTING, AnyPlan
from protocol.mechanisms.hierarchical_histogram import HierarchicalHistogramPlan
from protocol.mechanisms.local import LocalPlan
from protocol.messages import ProblemType, StudyRequest
from secagg.parameters import parameters
from server.api import studies as api
from server.api.creation import all_faults, limits_of
from server.api.rights import Caller, needs
from server.pages.guarding import Page, form_of
from server.pages.history import Load
from server.pages.kinds import KINDS, MORE, NAME, START, TERMS, Kind, document_of, fields_of
from server.pages.view import HEADERS, view
from server.pages.words import nbytes, number, short
from server.principals import Right
from server.refusals import Fault, Refusal, not_found
from server.service import Served
from server.store.asking import Asked, first_plan

router = APIRouter(
    prefix="/studies/new",
    route_class=Page,
    include_in_schema=False,
    dependencies=[needs(Right.WRITE)],
)
_FIRST = "tracked"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of advice."""

    what: str
    value: str
    note: str = ""


@router.get("")
async def ask(request: Request, kind: Annotated[str, Query(max_length=40)] = _FIRST) -> Response:
    """Show the form for a kind of question."""
    return _form(request, _kind(kind), None, ())


@router.post("")
async def create(request: Request, service: Served, caller: Caller) -> Response:
    """Create the study that the form says, or show what is wrong with it."""
    form = await form_of(request)
    kind = _kind(form.get("kind", ""))
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


@router.post("/advice")
async def advise(request: Request, service: Served) -> Response:
    """Say what a study would ask of a device, as far as the form is filled."""
    form = await form_of(request)
    kind = _kind(form.get("kind", ""))
    try:
        asked = Asked.model_validate(document_of(kind, form))
        limits = limits_of(service.settings)
        plan = await asyncio.to_thread(first_plan, asked, "none", limits, Random(0))
        lines = await asyncio.to_thread(_advice, plan)
    except (ValidationError, Refusal) as error:
        why = error.detail if isinstance(error, Refusal) else "some fields are not filled well yet"
        return view(request, "advice.html", lines=(), why=why, command=None)
    return view(request, "advice.html", lines=lines, why=None, command=_command(plan))


def _kind(name: str) -> Kind:
    found = KINDS.get(name)
    if found is None:
        raise not_found("kind of question")
    return found


def _form(
    request: Request, kind: Kind, form: Mapping[str, str] | None, faults: Sequence[Fault]
) -> Response:
    known = {field.at for field in fields_of(kind)}
    at = [(_place(fault["at"], known), fault["fault"]) for fault in faults]
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
        faults={place: [f for p, f in at if p == place] for place, _ in at if place},
        others=[f"{fault['at'].removeprefix('body.')}: {fault['fault']}".removeprefix("body: ")
                for fault, (place, _) in zip(faults, at, strict=True) if not place],
        key=uuid4().hex,
    )  # fmt: skip


def _place(at: str, known: set[str]) -> str:
    """Return the field that a fault is about, nothing if it is about none."""
    parts = at.removeprefix("body.").split(".")
    kept = [part for part in parts if part not in KINDS and part not in _DOMAINS]
    for end in range(len(kept), 0, -1):
        if (name := ".".join(kept[:end])) in known:
            return name
    return ""


_DOMAINS = ("hashed", "utf8", "alphabet", "interval", "listed")  # tags of a union


def _advice(plan: AnyPlan) -> list[Line]:
    load = Load.of(plan)
    terms = plan.terms
    lines = [Line("A device sends", nbytes(load.nbytes), "its vector or report, a round")]
    if plan.mechanism in REPORTING:
        lines.append(Line("Reports taken", number(terms.devices), "a round, at most"))
        if isinstance(plan, LocalPlan):
            error = sqrt(plan.oracle.spread[0] * terms.devices)
            lines.append(
                Line("Expected error", f"± {short(error)}", "of an item's count, one deviation")
            )
        return lines
    settled = parameters(terms.cohort_size, terms.assumptions)
    lines += [
        Line("Shares held by", number(settled.holders), "other devices, for each"),
        Line("Of which needed", number(settled.threshold), "to take a mask off"),
        Line("Still exact after", number(terms.assumptions.lost(terms.cohort_size)), "are lost"),
    ]
    if load.room is not None:
        lines.append(Line("Room for", number(load.room), "distinct items in a round's sum"))
        lines.append(Line("First sampling t", short(plan.t), "then the data decides"))
    if isinstance(plan, HierarchicalHistogramPlan) and plan.release.variance:
        deviation = sqrt(plan.variance(terms.minimum))
        lines.append(Line("Noise in a count", f"± {short(deviation)}", "one deviation, a cohort"))
    return lines


def _command(plan: AnyPlan) -> str | None:
    """Return how to have the command line predict what a study will find; None if it cannot."""
    question: Any = plan.question
    if plan.mechanism not in ("tracked", "adaptive-iblt"):
        return None
    return (
        f"blindtally plan --devices {plan.terms.devices} --rounds {plan.rounds} "
        f"--threshold {question.threshold:g} --words {question.words} "
        f"--contribution {question.contribution}"
    )
