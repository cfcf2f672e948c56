"""Questions that the form can ask, and their fields, each with its path in a StudyRequest.

The API accepts more: every mechanism and every field (`docs/mechanisms/`). The form has what
most studies need, with defaults that work.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from protocol.mechanisms.registry import REPORT_MECHANISMS
from server.errors import not_found


@dataclass(frozen=True, slots=True)
class FormField:
    """One field of the form; `path` is its place in a StudyRequest, with dots between names."""

    path: str
    label: str
    default: str = ""
    widget: Literal["text", "whole", "number", "lines", "choice", "check"] = "whole"
    hint: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    is_optional: bool = False
    is_rare: bool = False  # few studies change it: it is folded away

    def convert(self, text: str) -> object:
        """Return the value of `text`; the request's validation refuses a text of the wrong type."""
        if self.widget == "lines":
            return [line for line in map(str.strip, text.splitlines()) if line]
        if self.widget == "check":
            return True
        if self.widget in ("whole", "number"):
            try:
                return int(text) if self.widget == "whole" else float(text)
            except ValueError:
                return text
        return text


@dataclass(frozen=True, slots=True)
class QuestionForm:
    """A kind of question; `fixed_fields` are those fields of the question that no form shows.

    `rounds` is the default number of rounds.
    """

    name: str
    title: str
    description: str
    fixed_fields: Mapping[str, Any]
    fields: Sequence[FormField]
    rounds: str = "5"

    @property
    def terms_fields(self) -> tuple[FormField, ...]:
        """Return the fields of rounds and of their devices."""
        is_reporting = self.name in REPORT_MECHANISMS
        rounds, *others = REPORT_TERMS_FIELDS if is_reporting else TERMS_FIELDS
        return replace(rounds, default=self.rounds), *others

    @property
    def sum_fields(self) -> tuple[FormField, ...]:
        """Return the fields of who opens a sum, none for reports."""
        return () if self.name in REPORT_MECHANISMS else SUM_FIELDS


_THRESHOLD = FormField(
    "question.threshold", "Threshold", "20", "number",
    "Items with at least this total count, over all rounds, are heavy.",
)  # fmt: skip
_CONTRIBUTION = FormField(
    "question.contribution", "Items per device", "3", hint="Largest number of items of one device."
)
_WORDS = FormField(
    "question.words", "Words per device", "1000",
    hint="Largest number of 16-bit words that a device sends per round.",
)  # fmt: skip
_EPSILON = FormField("question.epsilon", "Epsilon", "1", "number", "Privacy loss of all rounds.")
_DELTA = FormField(
    "question.delta", "Delta", "1e-6", "number", "Probability that the loss exceeds epsilon."
)
_REPORT_EPSILON = FormField(
    "question.epsilon", "Epsilon", "2", "number", "Privacy loss of each device's report."
)
_MODE = FormField(
    "question.mode", "Release of counts", "noise", "choice",
    choices=(
        ("noise", "Devices add noise: private against the server too"),
        ("sample-threshold", "Sampling and a threshold: private against readers of the answer"),
    ),
)  # fmt: skip
_BYTES = FormField("question.domain.max_bytes", "Longest item, bytes", "64", hint="Bytes of UTF-8.")
_STOP_PRECISION = FormField(
    "stop_at.precision", "Stop at precision", "", "number",
    "Expected share of listed items that are heavy, such as 0.95. The study ends early if it and "
    "the expected recall are reached.",
    is_optional=True, is_rare=True,
)  # fmt: skip
_STOP_RECALL = FormField(
    "stop_at.recall", "Stop at recall", "", "number",
    "Expected share of heavy items that are listed, such as 0.9. The true values can be lower, "
    "above all if the list is short.",
    is_optional=True, is_rare=True,
)  # fmt: skip
_SEGMENTS = FormField(
    "question.domain.segments", "Segments", "", "lines",
    "One per line, such as countries, for an answer by segment. Devices pass pairs of a segment "
    "and an item.",
    is_optional=True, is_rare=True,
)  # fmt: skip
_SHORT_BYTES = replace(_BYTES, default="12")

QUESTION_FORMS: Final[Mapping[str, QuestionForm]] = {
    question.name: question
    for question in (
        QuestionForm(
            "tracked",
            "Common items, fewest words",
            "Heavy hitters among strings of any length. Items found so far are counted exactly, "
            "and each plan reveals them to devices.",
            {"domain.kind": "hashed"},
            (_THRESHOLD, _CONTRIBUTION, _BYTES, _WORDS, _SEGMENTS, _STOP_PRECISION, _STOP_RECALL),
        ),
        QuestionForm(
            "adaptive-iblt",
            "Common items, plans reveal none",
            "Heavy hitters among short strings. A plan has a threshold and a seed, and no items.",
            {"domain.kind": "utf8"},
            (
                *(_THRESHOLD, _CONTRIBUTION, _SHORT_BYTES, replace(_WORDS, default="5000")),
                *(_STOP_PRECISION, _STOP_RECALL),
            ),
        ),
        QuestionForm(
            "hierarchical-histogram",
            "Distribution of numbers",
            "Quantiles, ranks and ranges of one number per device, with differential privacy.",
            {"threshold": 1, "contribution": 1, "domain.kind": "interval"},
            (
                FormField("question.domain.low", "Lowest value", "0", "number"),
                FormField("question.domain.high", "Highest value", "100", "number"),
                FormField("question.domain.alpha", "Branches per level", "4"),
                FormField(
                    "question.domain.length", "Levels", "4", hint="There are branches^levels bins."
                ),
                _EPSILON,
                _DELTA,
                _MODE,
                _WORDS,
            ),
        ),
        QuestionForm(
            "number-sums",
            "Mean and variance of numbers",
            "Exact sums of one number per device, and intervals for the population's mean. A round "
            "counts if it has enough devices.",
            {"contribution": 1, "domain.kind": "interval", "words": 65536},
            (
                replace(
                    _THRESHOLD,
                    label="Devices per answer",
                    default="5",
                    hint="A round with fewer numbers than this does not count.",
                ),
                FormField("question.domain.low", "Lowest value", "0", "number"),
                FormField("question.domain.high", "Highest value", "100", "number"),
                FormField("question.domain.alpha", "Base of a digit", "10"),
                FormField(
                    "question.domain.length",
                    "Digits",
                    "4",
                    hint="Numbers are rounded to base^digits steps of the interval.",
                ),
                _SEGMENTS,
            ),
        ),
        QuestionForm(
            "triehh",
            "Common strings, differentially private",
            "Strings without a known list, found symbol by symbol. Devices take part in each "
            "round.",
            {"threshold": 1, "domain.kind": "alphabet", "domain.pad": "$"},
            (
                FormField(
                    "question.domain.characters",
                    "Characters",
                    "abcdefghijklmnopqrstuvwxyz$",
                    "text",
                    "Includes $, which pads short strings.",
                ),
                FormField(
                    "question.domain.length",
                    "Longest string",
                    "8",
                    hint="In characters: each takes one round.",
                ),
                replace(_CONTRIBUTION, default="1"),
                _EPSILON,
                _DELTA,
                _MODE,
                _WORDS,
            ),
            rounds="8",  # one for each character of the longest string
        ),
        QuestionForm(
            "ocms-gf",
            "Counts of a list, from private reports",
            "The count of each item of a list. Each device sends one report that is private by "
            "itself, so that no sum must be trusted.",
            {"contribution": 1, "domain.kind": "listed"},
            (
                FormField(
                    "question.domain.items",
                    "Items",
                    "monday\ntuesday\nwednesday\nthursday\nfriday\nsaturday\nsunday",
                    "lines",
                    "One item per line.",
                ),
                _THRESHOLD,
                _REPORT_EPSILON,
            ),
        ),
        QuestionForm(
            "prefix-extension",
            "Common strings, from private reports",
            "Strings without a known list, from one private report per device. It needs many "
            "devices.",
            {"contribution": 1, "domain.kind": "utf8"},
            (
                _SHORT_BYTES,
                replace(_THRESHOLD, default="1000"),
                replace(_REPORT_EPSILON, default="4"),
            ),
        ),
    )
}
NAME_FIELD: Final = FormField("name", "Name", "", "text", "Shown in the list of studies.")
_REGISTRAR: Final = FormField(
    "terms.registrar", "Registrar", "", "text",
    "Public key, 64 hexadecimal digits: blindtally registrar FILE --show prints it. Devices "
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
    FormField(
        "terms.mode", "Server", "active", "choice",
        choices=(
            ("active", "may depart from the protocol"),
            ("semi-honest", "follows the protocol"),
        ),
        is_rare=True,
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
        hint="Public key, 64 hexadecimal digits: blindtally registrar FILE --show prints it. Only "
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


def form_fields(question: QuestionForm) -> tuple[FormField, ...]:
    """Return all fields of the form for `question`.

    Those of cohorts come after those of committees: faults that name `corrupt` are of cohorts.
    """
    return (
        *(NAME_FIELD, *question.fields, *question.sum_fields, *question.terms_fields, *MORE_FIELDS),
        START_FIELD,
    )


def question_form(name: str) -> QuestionForm:
    """Return the kind of question with this name; raises ProblemError if there is none."""
    question = QUESTION_FORMS.get(name)
    if question is None:
        raise not_found("kind of question")
    return question


def study_document(question: QuestionForm, form: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON of the StudyRequest in a filled `form`; it has not been validated."""
    values = {f"question.{name}": value for name, value in question.fixed_fields.items()}
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
