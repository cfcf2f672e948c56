"""The questions that a form can ask, each with its fields: which part of a request they fill.

The API takes more than this: every mechanism, every field (docs/mechanisms.md). Here is what most
studies want, with defaults that work.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from server.refusals import not_found


@dataclass(frozen=True, slots=True)
class Field:
    """One field of the form; `at` is where in a StudyRequest it belongs, dots between names."""

    at: str
    label: str
    default: str = ""
    kind: Literal["text", "whole", "number", "lines", "choice", "check"] = "whole"
    hint: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    is_optional: bool = False

    def value(self, text: str) -> object:
        """Return what the text says; text that is no number is left for the request to refuse."""
        if self.kind == "lines":
            return [line for line in (one.strip() for one in text.splitlines()) if line]
        if self.kind == "check":
            return True
        if self.kind in ("whole", "number"):
            try:
                return int(text) if self.kind == "whole" else float(text)
            except ValueError:
                return text
        return text


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of question; `fixed` is what of the request no field says."""

    name: str
    title: str
    what: str
    fixed: Mapping[str, Any]
    fields: Sequence[Field]


_THRESHOLD = Field(
    "question.threshold", "Threshold", "20", "number", "Find items held so many times or more, "
    "over all rounds."
)  # fmt: skip
_CONTRIBUTION = Field("question.contribution", "Items per device", "3", hint="At most.")
_WORDS = Field(
    "question.words",
    "Words per device",
    "1000",
    hint="Of 16 bits, a round, at most.",
)
_EPSILON = Field("question.epsilon", "Epsilon", "1", "number", "For the whole study.")
_DELTA = Field("question.delta", "Delta", "1e-6", "number", "Odds that it tells more.")
_A_REPORT = Field("question.epsilon", "Epsilon", "2", "number", "Of each device's report.")
_MODE = Field(
    "question.mode", "How counts are released", "noise", "choice",
    choices=(
        ("noise", "Noise by devices: private from the server, too"),
        ("sample-threshold", "Sampling and a threshold: private from whoever sees the answer"),
    ),
)  # fmt: skip
_BYTES = Field("question.domain.max_bytes", "Longest item, bytes", "64", hint="UTF-8.")

KINDS: Final[Mapping[str, Kind]] = {
    kind.name: kind
    for kind in (
        Kind(
            "tracked",
            "Common items, fewest words",
            "Heavy hitters among strings of any length. What is known is counted exactly; each "
            "plan tells devices what was found so far.",
            {"question": {"mechanism": "tracked", "domain": {"kind": "hashed"}}},
            (_THRESHOLD, _CONTRIBUTION, _BYTES, _WORDS),
        ),
        Kind(
            "adaptive-iblt",
            "Common items, plans tell nothing",
            "Heavy hitters among short strings. Devices hear a threshold and a seed, and no items.",
            {"question": {"mechanism": "adaptive-iblt", "domain": {"kind": "utf8"}}},
            (
                _THRESHOLD,
                _CONTRIBUTION,
                Field("question.domain.max_bytes", "Longest item, bytes", "12", hint="UTF-8."),
                Field("question.words", "Words per device", "5000", hint=_WORDS.hint),
            ),
        ),
        Kind(
            "hierarchical-histogram",
            "How numbers are distributed",
            "Quantiles, ranks and ranges of one number per device, differentially private.",
            {
                "question": {
                    "mechanism": "hierarchical-histogram",
                    "threshold": 1,
                    "contribution": 1,
                    "domain": {"kind": "interval"},
                }
            },
            (
                Field("question.domain.low", "Lowest value", "0", "number"),
                Field("question.domain.high", "Highest value", "100", "number"),
                Field("question.domain.alpha", "Branches per level", "4"),
                Field("question.domain.length", "Levels", "4", hint="Branches^levels bins."),
                _EPSILON,
                _DELTA,
                _MODE,
                _WORDS,
            ),
        ),
        Kind(
            "triehh",
            "Common strings, differentially private",
            "Strings that nobody can list, found symbol by symbol; devices come back each round.",
            {
                "question": {
                    "mechanism": "triehh",
                    "threshold": 1,
                    "domain": {"kind": "alphabet", "pad": "$"},
                }
            },
            (
                Field(
                    "question.domain.characters",
                    "Characters",
                    "abcdefghijklmnopqrstuvwxyz$",
                    "text",
                    "With $, which fills short strings up.",
                ),
                Field("question.domain.length", "Longest string", "8", hint="One round for each."),
                Field("question.contribution", "Items per device", "1"),
                _EPSILON,
                _DELTA,
                _MODE,
                _WORDS,
            ),
        ),
        Kind(
            "ocms-gf",
            "Counts of a list, by private reports",
            "How often each item of a list is held. Each device sends one report that is private "
            "by itself: no sum has to be trusted.",
            {
                "question": {
                    "mechanism": "ocms-gf",
                    "contribution": 1,
                    "domain": {"kind": "listed"},
                }
            },
            (
                Field(
                    "question.domain.items",
                    "Items",
                    "monday\ntuesday\nwednesday\nthursday\nfriday\nsaturday\nsunday",
                    "lines",
                    "One a line.",
                ),
                _THRESHOLD,
                _A_REPORT,
            ),
        ),
        Kind(
            "prefix-extension",
            "Common strings, by private reports",
            "Strings that nobody can list, by one private report a device. Takes many devices.",
            {
                "question": {
                    "mechanism": "prefix-extension",
                    "contribution": 1,
                    "domain": {"kind": "utf8"},
                }
            },
            (
                Field("question.domain.max_bytes", "Longest item, bytes", "12", hint="UTF-8."),
                Field("question.threshold", "Threshold", "1000", "number", _THRESHOLD.hint),
                Field("question.epsilon", "Epsilon", "4", "number", "Of each device's report."),
            ),
        ),
    )
}
NAME: Final = Field("name", "Name", "", "text", "For you and whoever reads the list.")
TERMS: Final = (
    Field("rounds", "Rounds", "5"),
    Field("terms.cohort_size", "Devices in a cohort, at most", "200"),
    Field("terms.minimum", "Devices in a cohort, at least", "100", hint="Else it is not run."),
    Field("terms.cohorts", "Cohorts a round", "1"),
    Field("terms.corrupt", "Share that may be corrupt", "0.1", "number", "Of a cohort."),
    Field("terms.dropout", "Share that may vanish", "0.2", "number", "Of a cohort."),
    Field(
        "terms.mode", "The server", "active", "choice",
        choices=(("active", "may lie to devices"), ("semi-honest", "keeps to the protocol")),
    ),
    Field(
        "terms.registrar", "Registrar", "", "text", "Its public key, 64 hexadecimal digits: only "
        "devices that it signed take part.", is_optional=True,
    ),
)  # fmt: skip
MORE: Final = (
    Field("population", "Population", "", "text", "Whose privacy budget pays.", is_optional=True),
    Field("timeouts.enrolling", "Seconds to enrol", "600", "number"),
    Field("timeouts.patience", "Seconds of silence that end a phase", "5", "number"),
)
START: Final = Field("start", "Start at once", "on", "check")


def fields_of(kind: Kind) -> tuple[Field, ...]:
    """Return all fields of the form for `kind`."""
    return (NAME, *kind.fields, *TERMS, *MORE, START)


def kind_of(name: str) -> Kind:
    """Return the kind of this name.

    Raises:
        Refusal: if there is none.
    """
    found = KINDS.get(name)
    if found is None:
        raise not_found("kind of question")
    return found


def document_of(kind: Kind, form: Mapping[str, str]) -> dict[str, Any]:
    """Return the StudyRequest that a filled `form` says, as JSON has it; it may be wrong."""
    document: dict[str, Any] = {}
    _merge(document, kind.fixed)
    for field in fields_of(kind):
        text = form.get(field.at, "").strip() if field.kind != "lines" else form.get(field.at, "")
        if text:
            *parents, last = field.at.split(".")
            place = document
            for parent in parents:
                place = place.setdefault(parent, {})
            place[last] = field.value(text)
    return document


def _merge(into: dict[str, Any], fixed: Mapping[str, Any]) -> None:
    for name, value in fixed.items():
        if isinstance(value, Mapping):
            _merge(into.setdefault(name, {}), value)
        else:
            into[name] = value
