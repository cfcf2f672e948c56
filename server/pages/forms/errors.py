"""Errors of a filled form, with the labels of the form instead of the names of the API.

Each fault is shown at its field, or otherwise after the name of its section.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from server.errors import FieldError
from server.pages.forms.questions import QUESTION_FORMS, StudyForm, form_fields

# Tags of unions of domains and committees, and the place of a domain in one with segments.
_UNION_TAGS: Final = (
    *("hashed", "hashed-product", "utf8", "alphabet", "interval", "listed", "product", "inner"),
    *("operators", "volunteers"),
)
_SECTIONS: Final = {"question": "Question", "terms": "Who is asked", "timeouts": "Deadlines"}
# Field names in the texts of faults; those that are English words only where they name a field.
_FIELD_NAMES: Final = re.compile(
    r"\b(cohort_size|max_bytes|minimum(?= \d)|corrupt(?= \+)|dropout(?= is)|low(?= must)|high(?=,))"
)


@dataclass(frozen=True, slots=True)
class FormErrors:
    """Errors of single fields, by path, and errors of how the fields fit together."""

    by_field: dict[str, list[str]]
    general: list[str]

    def lines(self, question: StudyForm) -> Iterator[tuple[str, str]]:
        """Yield each error with its field's path, empty for general ones, and its label."""
        labels = {field.path: field.label for field in form_fields(question)}
        for path, errors in self.by_field.items():
            yield path, f"{labels[path]}: {'; '.join(errors)}"
        for error in self.general:
            yield "", error


def assign_to_fields(question: StudyForm, faults: Sequence[FieldError]) -> FormErrors:
    """Return the `faults` of a request as errors of the form for `question`.

    A fault of how fields fit together is at the first field that it names.
    """
    labels = {field.path: field.label for field in form_fields(question)}
    errors = FormErrors({}, [])
    for fault in faults:
        text = with_labels(question, fault["detail"])
        named = (path for path, label in labels.items() if f"“{label}”" in text)
        if path := _field_of(fault["location"], labels.keys()) or next(named, ""):
            errors.by_field.setdefault(path, []).append(text)
        else:
            section = _SECTIONS.get(fault["location"].removeprefix("body.").split(".")[0], "")
            errors.general.append(f"{section}: {text}" if section else text)
    return errors


def with_labels(question: StudyForm, text: str) -> str:
    """Return a fault's text with labels instead of names."""
    labels = {field.path.split(".")[-1]: field.label for field in form_fields(question)}
    text = "must not be empty" if text == "is missing" else text
    return _FIELD_NAMES.sub(lambda match: f"“{labels.get(match[0], match[0])}”", text)


def _field_of(location: str, paths: Collection[str]) -> str:
    """Return the path of the field at fault, or an empty string if no field matches."""
    parts = location.removeprefix("body.").split(".")
    parts = [part for part in parts if part not in QUESTION_FORMS and part not in _UNION_TAGS]
    for end in range(len(parts), 0, -1):
        if (path := ".".join(parts[:end])) in paths:
            return path
    return ""
