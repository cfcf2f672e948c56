"""Preview of a study while its form is filled: its cost for a device, and its expected results.

The cost follows from the first plan. Results are read from simulated studies (`expected_f1.py`).
"""

import asyncio
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from fastapi import Request, Response
from pydantic import ValidationError

from protocol.api.unlisted import why_nothing_can_be_listed
from protocol.committee_terms import AnyCommitteeTerms
from protocol.device_policy.plan_check import default_refusals
from protocol.mechanisms.registry import REPORT_MECHANISMS, AnyPlan, mechanism_of
from protocol.question_and_plan import Terms
from protocol.round_sizes import WORD_BYTES, message_bytes_of
from secagg.parameters import choose_parameters
from server.api.studies import compute_plan, find_field_errors
from server.errors import FieldError, ProblemError
from server.first_plan import PlanRequest
from server.pages.charts.round_history import RoundSize
from server.pages.formatting import items_label, nbytes, number, significant, summed_group
from server.pages.forms.errors import FormErrors, assign_to_fields
from server.pages.forms.expected_f1 import WORD_RANGE, ExpectedF1, expected_f1
from server.pages.forms.fields import NAME_FIELD
from server.pages.forms.questions import StudyForm, chosen_form, study_document, values_for
from server.pages.page_requests import page_router, read_form
from server.pages.rendering import render
from server.principals import Permission
from server.service import Service, ServiceDep

router = page_router(Permission.WRITE, prefix="/studies/new")


@dataclass(frozen=True, slots=True)
class AdviceLine:
    """One fact of a preview: a label, its value, and a note on the value."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Preview:
    """Results and costs of the study in a form, and `details` of its sums; none with `errors`."""

    errors: FormErrors
    lines: tuple[AdviceLine, ...] = ()
    details: tuple[AdviceLine, ...] = ()
    command: str | None = None

    @classmethod
    def of_plan(cls, plan: AnyPlan) -> "Preview":
        """Return the preview of the study that begins with `plan`."""
        expected = expected_f1(plan)
        size = RoundSize.of_plan(plan)
        lines = [*_facts(plan), *_cost_lines(plan, size.sent_bytes)]
        details = [] if plan.mechanism in REPORT_MECHANISMS else _sum_lines(plan, size.capacity)
        if expected is not None:
            note = "in 90% of simulated studies, of flat to steep counts"
            f1 = AdviceLine("Expected F1", f"{expected.low:.2f} to {expected.high:.2f}", note)
            lines, details = [f1, *lines], [*_f1_lines(expected, plan.terms), *details]
        return cls(FormErrors({}, []), tuple(lines), tuple(details), _plan_command(plan))


@router.post("/preview")
async def preview(request: Request, service: ServiceDep) -> Response:
    """Show the cost of the study for a device, and its expected results, if the form is filled."""
    form = await read_form(request)
    question = chosen_form(form)
    shown = await preview_of(question, values_for(question, form), service)
    return render(request, "preview.html", preview=shown, question=question)


async def preview_of(question: StudyForm, form: Mapping[str, str], service: Service) -> Preview:
    """Return the preview of the study in a filled `form`."""
    document = study_document(question, form)
    try:
        plan = await compute_plan(PlanRequest.model_validate(document), service)
    except ValidationError:
        errors = assign_to_fields(question, await find_field_errors(document, service))
        errors.by_field.pop(NAME_FIELD.path, None)  # the name costs a device nothing
        return Preview(errors)
    except ProblemError as problem:
        fault: FieldError = {"location": "body", "detail": problem.detail}
        return Preview(assign_to_fields(question, problem.errors or [fault]))
    return await asyncio.to_thread(Preview.of_plan, plan)


def _cost_lines(plan: AnyPlan, sent_bytes: int) -> Iterator[AdviceLine]:
    is_reporting = plan.mechanism in REPORT_MECHANISMS
    note = f"its {'report' if is_reporting else 'table and shares of keys'}, once in a round"
    if plan.terms.is_one_shot:
        note = "the one message of a round, with shares of all members"
    yield AdviceLine("Message of a device", nbytes(sent_bytes), note)
    in_round = plan.terms.max_devices
    needed = in_round if plan.question.asks_every_round else in_round * plan.rounds
    asked = "all in each round" if plan.question.asks_every_round else "each takes part once"
    rounds = "1 round" if plan.rounds == 1 else f"{number(plan.rounds)} rounds"
    note = f"{rounds} of at most {number(in_round)}; {asked}"
    yield AdviceLine("Devices asked", number(needed), note)
    if not is_reporting:
        note = "nobody can read the items of one device in it"
        yield AdviceLine("Smallest sum", f"{number(plan.terms.min_summed)} devices", note)
    refusals = [*default_refusals(plan)]
    for refusal in refusals:
        yield AdviceLine("Devices refuse it", "by default", f"because the study {refusal.reason}")
    if not refusals:
        yield AdviceLine("Devices accept it", "by default")
    if reason := why_nothing_can_be_listed(plan):
        yield AdviceLine("Items listed", "none", reason)


def _sum_lines(plan: AnyPlan, capacity: int | None) -> list[AdviceLine]:
    committee = plan.terms.committee
    lines = _committee_lines(committee) if committee else _cohort_lines(plan.terms)
    if capacity is not None:
        label = items_label(plan.mechanism).lower()
        lines.append(AdviceLine("Table capacity", number(capacity), f"{label} in a round's sum"))
        note = "a device keeps an item with probability count / t; later rounds adapt it"
        lines.append(AdviceLine("Sampling threshold t", significant(plan.t), note))
    return lines


def _committee_lines(committee: AnyCommitteeTerms) -> list[AdviceLine]:
    parameters = committee.parameters
    of_members = f"of {number(parameters.members)} members of the committee"
    return [
        AdviceLine(
            "Colluders tolerated",
            number(parameters.corrupt),
            f"{of_members}: more of them could read devices",
        ),
        AdviceLine(
            "Sum opens without",
            number(parameters.dropouts),
            f"{of_members}, which are absent, refuse or lie",
        ),
        AdviceLine("A lying device can spoil", "the sum", "of a round, noticed or not"),
    ]


def _cohort_lines(terms: Terms) -> list[AdviceLine]:
    parameters = choose_parameters(terms.cohort_size, terms.assumptions)
    max_dropouts = terms.assumptions.max_dropouts(terms.cohort_size)
    group = summed_group(terms)
    return [
        AdviceLine("Shares of a device", number(parameters.holders), "each held by another device"),
        AdviceLine("Shares needed", number(parameters.threshold), "to remove the device's mask"),
        AdviceLine("Sum is exact up to", number(max_dropouts), f"dropouts in a {group}"),
        AdviceLine(
            "Colluders tolerated",
            number(terms.max_colluders),
            f"of {number(terms.cohorts * terms.minimum)} or more devices of a round"
            if terms.is_seated
            else f"in the whole study: the server chooses the members of a {group}",
        ),
        AdviceLine(
            "A lying device can spoil",
            "the sum" if terms.cohorts == 1 else f"1 of {number(terms.cohorts)} cohorts",
            "in one round, then its identity has no slot again"
            if terms.registrar
            else "in every round: without a registrar it returns under new identities",
        ),
    ]


def _facts(plan: AnyPlan) -> list[AdviceLine]:
    return [
        AdviceLine(
            fact.label,
            f"{'± ' * fact.is_error}{significant(fact.value)} {fact.unit}".strip(),
            fact.note,
        )
        for fact in mechanism_of(plan).plan_facts(plan)
    ]


def _f1_lines(expected: ExpectedF1, terms: Terms) -> Iterator[AdviceLine]:
    yield AdviceLine("Mean F1", f"{expected.f1:.2f}", "if shares fall as 1 / rank, as below")
    fewest, most = WORD_RANGE
    for goal, words in expected.words_by_goal.items():
        message = message_bytes_of(terms, WORD_BYTES * math.ceil(words or most))
        size = f"{float(f'{message:.2g}'):,.0f}"
        about = "more than" if words is None else "at most" if words == fewest else "about"
        yield AdviceLine(f"Bytes per device for an F1 of {goal}", f"{about} {size}")


def _plan_command(plan: AnyPlan) -> str | None:
    """Return the command that predicts the results of a study; None if there is none."""
    mechanism, question = mechanism_of(plan), cast("Any", plan.question)
    if not mechanism.is_planned or mechanism.options(question):
        return None
    options = {
        "devices": plan.terms.max_devices,
        "rounds": plan.rounds,
        "threshold": f"{question.threshold:g}",
        "message-bytes": question.message_bytes,
        "contribution": question.contribution,
    }
    return " ".join(["blindtally plan", *(f"--{name} {value}" for name, value in options.items())])
