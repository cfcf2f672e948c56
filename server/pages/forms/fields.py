"""Questions that the form can ask, and their fields, each with its path in a StudyRequest.

The API accepts more: every mechanism and every field (`docs/mechanisms/`). The form has what
most studies need, with defaults that work.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from protocol.description import FormField, QuestionForm
from protocol.mechanisms.registry import MECHANISMS, REPORT_MECHANISMS
from server.errors import not_found


@dataclass(frozen=True, slots=True)
class StudyForm:
    """The form of studies of one mechanism: its question's form, and the fields of all studies."""

    name: str
    question: QuestionForm

    @property
    def fields(self) -> tuple[FormField, ...]:
        """Return the fields of the question."""
        return self.question.fields

    @property
    def terms_fields(self) -> tuple[FormField, ...]:
        """Return the fields of rounds and of their devices."""
        is_reporting = self.name in REPORT_MECHANISMS
        rounds, *others = REPORT_TERMS_FIELDS if is_reporting else TERMS_FIELDS
        return replace(rounds, default=self.question.rounds), *others

    @property
    def sum_fields(self) -> tuple[FormField, ...]:
        """Return the fields of who opens a sum, none for reports."""
        return () if self.name in REPORT_MECHANISMS else SUM_FIELDS


QUESTION_FORMS: Final[Mapping[str, StudyForm]] = {
    name: StudyForm(name, mechanism.description.form)
    for name, mechanism in MECHANISMS.items()
    if mechanism.description.form is not None
}
NAME_FIELD: Final = FormField("name", "Name", "", "text", "Shown in the list of studies.")
_REGISTRAR: Final = FormField(
    "terms.registrar", "Registrar", "", "text",
    "Public key, 64 hexadecimal digits: blindtally registrar show FILE prints it. Devices "
    "with default settings refuse a sum without a registrar.",
    is_optional=True,
)  # fmt: skip
TERMS_FIELDS: Final = (
    FormField("rounds", "Rounds", "5"),
    FormField(
        "terms.cohort_size", "Devices in a cohort, at most", "200",
        hint="A cohort is a group of devices that are added up. A round has one, or several.",
    ),
    FormField(
        "terms.minimum", "Devices in a cohort, at least", "100",
        hint="A cohort with fewer devices fails.",
    ),
    FormField("terms.cohorts", "Cohorts per round", "1", is_rare=True),
    FormField(
        "terms.corrupt", "Share of corrupt devices", "0.1", "number",
        "Largest share of a cohort that may work for the server.", is_rare=True,
    ),
    FormField(
        "terms.dropout", "Share of dropouts", "0.2", "number",
        "Largest share of a cohort that may drop out.", is_rare=True,
    ),
    _REGISTRAR,
)  # fmt: skip
REPORT_TERMS_FIELDS: Final = (  # a report needs no other devices, and so no cohorts
    FormField("rounds", "Rounds", "5"),
    FormField("terms.cohort_size", "Reports in a round, at most", "200"),
    FormField(
        "terms.minimum", "Reports in a round, at least", "100",
        hint="A round with fewer reports fails.",
    ),
    replace(
        _REGISTRAR,
        hint="Public key, 64 hexadecimal digits: blindtally registrar show FILE prints it. Only "
        "devices that it enrolled may then send a report.",
    ),
)  # fmt: skip
SUM_FIELDS: Final = (
    FormField(
        "terms.sum", "Sums are opened by", "pairwise", "choice",
        "With a committee a device sends one message and may go, instead of six.",
        choices=(("pairwise", "the devices"), ("one-shot", "a committee")), is_rare=True,
    ),
    FormField(
        "terms.committee.members", "Members of the committee", "", "lines",
        "Public keys of operators, one per line: blindtally member FILE --show prints it. A "
        "device accepts only members that its policy names.",
        is_optional=True, is_rare=True,
    ),
    FormField(
        "terms.committee.corrupt", "Share of corrupt members", "0.2", "number",
        "Largest share of the members that may work for the server.", is_rare=True,
    ),
    FormField(
        "terms.committee.dropout", "Share of absent members", "0.2", "number",
        "Largest share of the members without which a sum still opens.", is_rare=True,
    ),
)  # fmt: skip
MORE_FIELDS: Final = (
    FormField(
        "population", "Population", "", "text",
        "Devices that several studies share, with their privacy budget.",
        is_optional=True, is_rare=True,
    ),
    FormField(
        "timeouts.enrolling", "Seconds to enrol", "600", "number",
        "Longest time in which devices may join a round.", is_rare=True,
    ),
    FormField(
        "timeouts.idle", "Idle seconds", "5", "number",
        "A phase with enough devices ends when no message arrives for this time.", is_rare=True,
    ),
)  # fmt: skip
START_FIELD: Final = FormField("start", "Start at once", "on", "check")


def form_fields(question: StudyForm) -> tuple[FormField, ...]:
    """Return all fields of the form for `question`.

    Those of cohorts come after those of committees: faults that name `corrupt` are of cohorts.
    """
    return (
        *(NAME_FIELD, *question.fields, *question.sum_fields, *question.terms_fields, *MORE_FIELDS),
        START_FIELD,
    )


def question_form(name: str) -> StudyForm:
    """Return the kind of question with this name; raises ProblemError if there is none."""
    question = QUESTION_FORMS.get(name)
    if question is None:
        raise not_found("kind of question")
    return question


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
