"""Descriptions of mechanisms, so that pages, commands and planners are written once for all.

A mechanism has a `Description`: what it finds, what bounds its messages, what it guarantees, and
the forms in which an analyst asks its question, one for each kind of what devices hold. For
example, the form of `tracked` for texts has the fields `question.threshold` and
`question.domain.max_bytes`, and fixes `domain.kind` to "hashed"; its other form is for listed
options. A mechanism without a form is usable over HTTP and by commands, but no page offers it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, Literal

# Guarantees, as headings of the list of mechanisms.
EXACT_SUM_GUARANTEE: Final = "secure sum of a cohort; the sum itself is seen"
RELEASE_GUARANTEE: Final = "central (epsilon, delta): of the sum with noise, else of what is shown"
PURE_REPORT_GUARANTEE: Final = "epsilon-local DP, replacing the item"


class HeldKind(StrEnum):
    """Kind of what a device holds, as an analyst chooses it first."""

    TEXTS = "texts"
    OPTIONS = "options"
    NUMBERS = "numbers"


class AnswerKind(StrEnum):
    """Kind of an answer, which decides how it is shown, queried and scored."""

    ITEMS = "items"  # counts of items that are heavy
    DISTRIBUTION = "distribution"  # quantiles, ranks and ranges of numbers
    MEANS = "means"  # mean and variance of numbers, of all and by segment
    NUMBER = "number"  # one estimate, listed at any size


@dataclass(frozen=True, slots=True)
class FormField:
    """One field of a form; `path` is its place in a StudyRequest, with dots between names."""

    path: str
    label: str
    default: str = ""
    widget: Literal["text", "whole", "number", "lines", "choice", "check"] = "whole"
    hint: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    is_optional: bool = False
    is_rare: bool = False  # few studies change it: it is folded away

    @property
    def is_held(self) -> bool:
        """Return whether the field says what a device holds."""
        held = ("question.domain.", "question.contribution", "question.threshold")
        return self.path.startswith(held)

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
    """Form of a kind of question; `fixed_fields` are fields of the question that it does not show.

    `terms` has other defaults of the fields of all studies, such as {"rounds": "8"}.
    """

    title: str
    text: str
    fixed_fields: Mapping[str, Any]
    fields: tuple[FormField, ...]
    terms: Mapping[str, str] = field(default_factory=dict)

    @property
    def held(self) -> HeldKind:
        """Return what devices hold: it follows from the kind of the domain."""
        domain = self.fixed_fields.get("domain", {})
        return held_kind(self.fixed_fields.get("domain.kind", domain.get("kind")))


def held_kind(domain_kind: str | None) -> HeldKind:
    """Return what devices hold whose items are in a domain of this kind; None is of any text."""
    kinds = {"listed": HeldKind.OPTIONS, "interval": HeldKind.NUMBERS}
    return kinds.get(domain_kind or "", HeldKind.TEXTS)


@dataclass(frozen=True, slots=True)
class Description:
    """Purpose of a mechanism, the cost of a device's message, and the guarantee, in words."""

    purpose: str
    cost: str
    guarantee: str = EXACT_SUM_GUARANTEE
    form: QuestionForm | None = None
    # Devices that hold something else have these.
    more_forms: tuple[QuestionForm, ...] = ()
    items_label: str = "Items shown"  # what `Mechanism.shown_distinct` counts
    items_note: str = ""  # a sentence about these items
    counted: str = "item"  # what an answer lists
    # Fields of a question that the command `studies create` fills.
    defaults: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlanFact:
    """A number that follows from a plan; `is_error` if it is the size of a random error."""

    label: str
    value: float
    note: str
    unit: str = ""
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """Smallest `count` that is listed because of a `cause`, and the `step` that lowers it.

    Where it `is_lower_bound`, other items may hide larger counts, too.
    """

    count: float
    cause: str
    step: str
    is_lower_bound: bool = False


THRESHOLD: Final = FormField(
    "question.threshold", "Threshold", "20", "number",
    "Items with at least this total count, over all rounds, are heavy.",
)  # fmt: skip
CONTRIBUTION: Final = FormField(
    "question.contribution", "Items per device", "3", hint="Largest number of items of one device."
)
MESSAGE_BYTES: Final = FormField(
    "question.message_bytes", "Bytes per device", "10000",
    hint="Largest message of a device: its numbers, and its key shares.",
)  # fmt: skip
EPSILON: Final = FormField(
    "question.epsilon", "Epsilon", "1", "number", "Privacy loss of all rounds."
)
DELTA: Final = FormField(
    "question.delta", "Delta", "1e-6", "number", "Probability that the loss exceeds epsilon."
)
REPORT_EPSILON: Final = FormField(
    "question.epsilon", "Epsilon", "2", "number", "Privacy loss of each device's report."
)
RELEASE_MODE: Final = FormField(
    "question.mode", "Release of counts", "noise", "choice", "How counts are hidden.",
    choices=(
        ("noise", "Devices add noise: private against the server too"),
        ("sample-threshold", "Sampling and a threshold: private against readers of the answer"),
    ),
)  # fmt: skip
MAX_BYTES: Final = FormField(
    "question.domain.max_bytes", "Longest item, bytes", "64", hint="Bytes of UTF-8."
)
STOP_FIELDS: Final = (
    FormField(
        "stop_at.precision", "Stop at precision", "", "number",
        "Expected share of listed items that are heavy, such as 0.95. The study ends early if it "
        "and the expected recall are reached.",
        is_optional=True, is_rare=True,
    ),
    FormField(
        "stop_at.recall", "Stop at recall", "", "number",
        "Expected share of heavy items that are listed, such as 0.9. The true values can be lower, "
        "above all if the list is short.",
        is_optional=True, is_rare=True,
    ),
)  # fmt: skip
OPTIONS: Final = FormField(
    "question.domain.items", "Options",
    "monday\ntuesday\nwednesday\nthursday\nfriday\nsaturday\nsunday", "lines",
    "One per line, from which a device holds some.",
)  # fmt: skip
SEGMENTS: Final = FormField(
    "question.domain.segments", "Segments", "", "lines",
    "One per line, such as countries, for an answer by segment. Devices pass pairs of a segment "
    "and an item.",
    is_optional=True, is_rare=True,
)  # fmt: skip
LOWEST_VALUE: Final = FormField(
    "question.domain.low", "Lowest value", "0", "number", "Others are left out."
)
HIGHEST_VALUE: Final = FormField(
    "question.domain.high", "Highest value", "100", "number", "Others are left out."
)
SHORT_MAX_BYTES: Final = replace(MAX_BYTES, default="12")
