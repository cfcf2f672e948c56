"""Errors of a filled form, with the labels of the form instead of the names of the API.

Each fault is shown at its field, or otherwise after the name of its section.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from server.errors import FieldError
from server.pages.forms.fields import QUESTION_FORMS, StudyForm, form_fields

# Tags of unions of domains and committees, and the place of a domain in one with segments.
_UNION_TAGS: Final = (
    *("hashed", "hashed-product", "utf8", "alphabet", "interval", "listed", "product", "inner"),
    *("operators", "volunteers"),
)
_SECTIONS: Final = {"question": "Question", "terms": "Rounds and devices", "timeouts": "More"}
# Field names in the texts of faults; those that are English words only where they name a field.
_FIELD_NAMES: Final = re.compile(
    r"\b(cohort_size|max_bytes|minimum(?= \d)|corrupt(?= \+)|dropout(?= is)|low(?= must)|high(?=,))"
)


@dataclass(frozen=True, slots=True)
class FormErrors:
    """Errors of single fields, by path, and errors of how the fields fit together."""

    by_field: dict[str, list[str]]
    general: list[str]

    def summary(self, question: StudyForm) -> str:
        """Return all errors in one line, each with the label of its field."""
        labels = {field.path: field.label for field in form_fields(question)}
        of_fields = [
            f"{labels[path]}: {error}" for path, errors in self.by_field.items() for error in errors
        ]
        return "; ".join([*of_fields, *self.general])


def assign_to_fields(question: StudyForm, faults: Sequence[FieldError]) -> FormErrors:
    """Return the `faults` of a request as errors of the form for `question`."""
    paths = {field.path for field in form_fields(question)}
    errors = FormErrors({}, [])
    for fault in faults:
        text, path = with_labels(question, fault["detail"]), _field_of(fault["location"], paths)
        if path:
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


def _field_of(location: str, paths: set[str]) -> str:
    """Return the path of the field at fault, or an empty string if no field matches."""
    parts = location.removeprefix("body.").split(".")
    parts = [part for part in parts if part not in QUESTION_FORMS and part not in _UNION_TAGS]
    for end in range(len(parts), 0, -1):
        if (path := ".".join(parts[:end])) in paths:
            return path
    return ""
