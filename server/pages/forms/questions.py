"""Kinds of question that the form can ask: what devices hold, and how they are protected.

An analyst chooses what a device holds, and one of three methods. Both follow from what mechanisms
declare: the domain of a form, and whether a mechanism asks for reports or for an epsilon. The first
mechanism of each pair is offered next to the others' methods; all others are one fold away.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from protocol.description import FormField, QuestionForm
from protocol.mechanisms.registry import MECHANISMS, REPORT_MECHANISMS
from server.errors import not_found
from server.pages.forms.fields import (
    MORE_FIELDS,
    NAME_FIELD,
    REPORT_TERMS_FIELDS,
    START_FIELD,
    SUM_FIELDS,
    TERMS_FIELDS,
)

Method: TypeAlias = Literal["exact", "private", "reports"]  # which protects devices
METHODS: Final[tuple[Method, ...]] = ("exact", "private", "reports")


@dataclass(frozen=True, slots=True)
class StudyForm:
    """The form of studies of one mechanism: its question's form, and the fields of all studies.

    `key` is the mechanism's `name`, and in its further forms also what devices hold.
    """

    key: str
    name: str
    question: QuestionForm

    @property
    def method(self) -> Method:
        """Return how devices are protected, which follows from the fields of the question."""
        if self.name in REPORT_MECHANISMS:
            return "reports"
        paths = [field.path for field in self.question.fields]
        return "private" if "question.epsilon" in paths else "exact"

    @property
    def terms_fields(self) -> tuple[FormField, ...]:
        """Return the fields of rounds and of their devices."""
        fields = REPORT_TERMS_FIELDS if self.name in REPORT_MECHANISMS else TERMS_FIELDS
        terms = self.question.terms
        return tuple(
            replace(each, default=terms[each.path], is_rare=False) if each.path in terms else each
            for each in fields
        )

    @property
    def sum_fields(self) -> tuple[FormField, ...]:
        """Return the fields of who opens a sum, none for reports."""
        return () if self.name in REPORT_MECHANISMS else SUM_FIELDS


def _forms() -> Iterator[StudyForm]:
    for name, mechanism in MECHANISMS.items():
        if form := mechanism.description.form:
            yield StudyForm(name, name, form)
        for other in mechanism.description.more_forms:
            yield StudyForm(f"{name}:{other.held}", name, other)


QUESTION_FORMS: Final[Mapping[str, StudyForm]] = {form.key: form for form in _forms()}


def question_form(key: str) -> StudyForm:
    """Return the kind of question with this key; raises ProblemError if there is none."""
    question = QUESTION_FORMS.get(key)
    if question is None:
        raise not_found("kind of question")
    return question


def offered_forms(held: str) -> tuple[StudyForm, ...]:
    """Return the first form of each method for devices that hold this."""
    forms: dict[Method, StudyForm] = {}
    for each in QUESTION_FORMS.values():
        if each.question.held == held:
            forms.setdefault(each.method, each)
    return tuple(forms[method] for method in METHODS if method in forms)


def chosen_form(form: Mapping[str, str]) -> StudyForm:
    """Return the kind of question that is chosen in a filled `form`.

    The form was `shown` with the fields of one kind. If it `holds` something else now, the method
    stays, and otherwise its `question` is the choice. Raises ProblemError if that is unknown.
    """
    question = question_form(form.get("question", ""))
    shown = QUESTION_FORMS.get(form.get("shown", ""), question)
    holds = form.get("holds", question.question.held)
    if holds in (question.question.held, shown.question.held):
        return question
    offered = offered_forms(holds)
    same = (each for each in offered if each.method == question.method)
    return next(same, offered[0] if offered else question)


def values_for(question: StudyForm, form: Mapping[str, str]) -> dict[str, str]:
    """Return the values of the fields of `question`: those in `form` that were typed, or defaults.

    A value that is the default of the kind that was shown before gives way to the new default.
    """
    shown = QUESTION_FORMS.get(form.get("shown", ""), question)
    before = {field.path: field.default for field in form_fields(shown)}
    values = dict(form)
    for field in form_fields(question):
        is_typed = field.path in form and form[field.path] != before.get(field.path)
        if not is_typed and field is not START_FIELD:
            values[field.path] = field.default
    return values


def form_fields(question: StudyForm) -> tuple[FormField, ...]:
    """Return all fields of the form for `question`.

    Those of cohorts come after those of committees: faults that name `corrupt` are of cohorts.
    """
    return (
        *(NAME_FIELD, *question.question.fields, *question.sum_fields, *question.terms_fields),
        *MORE_FIELDS,
        START_FIELD,
    )


def study_document(question: StudyForm, form: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON of the StudyRequest in a filled `form`; it has not been validated."""
    values = {f"question.{name}": value for name, value in question.question.fixed_fields.items()}
    values["question.mechanism"] = question.name
    for field in form_fields(question):
        text = form.get(field.path, "")
        if field.widget != "lines":
            text = text.strip()
        if text.strip():
            values[field.path] = field.convert(text)
    document: dict[str, Any] = {}
    for path, value in values.items():
        *parents, name = path.split(".")
        target = document
        for parent in parents:
            target = target.setdefault(parent, {})
        target[name] = value
    document["question"]["domain"] = _with_segments(document["question"]["domain"])
    terms = document.get("terms", {})
    if terms.get("sum") != "one-shot" and "members" not in terms.get("committee", {}):
        terms.pop("committee", None)
    return document


def _with_segments(domain: dict[str, Any]) -> dict[str, Any]:
    """Return the domain of pairs with a segment, if the form has segments for `domain`."""
    if "segments" not in domain:
        return domain
    if domain["kind"] == "hashed":
        return domain | {"kind": "hashed-product"}
    inner = {name: value for name, value in domain.items() if name != "segments"}
    return {"kind": "product", "segments": domain["segments"], "inner": inner}
