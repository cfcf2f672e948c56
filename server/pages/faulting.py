"""What is wrong with a filled form, in the words of the form.

The API names a fault's place as programs do (`body.terms.minimum`), and speaks of fields by their
names. Who fills a form sees labels: a fault is put to its field, or told beside its section's
name, and what it says of other fields says their labels.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from server.pages.kinds import KINDS, Kind, fields_of
from server.refusals import Fault

_DOMAINS: Final = ("hashed", "utf8", "alphabet", "interval", "listed")  # tags of a union
_SECTIONS: Final = {"question": "Question", "terms": "Rounds and cohorts", "timeouts": "More"}
# Names of fields as faults have them; those that are common words where they stand for a field.
_NAMES: Final = re.compile(
    r"\b(cohort_size|max_bytes|minimum(?= \d)|corrupt(?= \+)|dropout(?= is)|low(?= must)|high(?=,))"
)
_PLAIN: Final = (
    (re.compile(r"^Input should be a valid integer(, unable to parse[a-z ]*)?"), "a whole number"),
    (re.compile(r"^Input should be a valid number(, unable to parse[a-z ]*)?"), "a number"),
    (re.compile(r"^Field required$"), "not empty"),
    (re.compile(r"^String should match pattern "), "of the form "),
)


@dataclass(frozen=True, slots=True)
class Faults:
    """What is wrong: at fields, by where in a request they belong, and with how they fit."""

    at: dict[str, list[str]]
    others: list[str]

    def said(self, kind: Kind) -> str:
        """Return all of it in a line, each with the label of its field."""
        labels = {field.at: field.label for field in fields_of(kind)}
        here = [f"{labels[at]}: {fault}" for at, faults in self.at.items() for fault in faults]
        return "; ".join([*here, *self.others])


def sorted_out(kind: Kind, faults: Sequence[Fault]) -> Faults:
    """Return `faults` of what a form for `kind` asks for, in its words."""
    known = {field.at for field in fields_of(kind)}
    found = Faults({}, [])
    for fault in faults:
        said, place = in_words(kind, fault["fault"]), _place(fault["at"], known)
        if place:
            found.at.setdefault(place, []).append(said)
        else:
            section = _SECTIONS.get(fault["at"].removeprefix("body.").split(".")[0], "")
            found.others.append(f"{section}: {said}" if section else said)
    return found


def in_words(kind: Kind, fault: str) -> str:
    """Return a fault with labels in the place of names, and without a parser's words."""
    labels = {field.at.split(".")[-1]: field.label for field in fields_of(kind)}
    for pattern, plain in _PLAIN:
        fault = pattern.sub(f"must be {plain}", fault)
    return _NAMES.sub(lambda found: f"“{labels.get(found[0], found[0])}”", fault)


def _place(at: str, known: set[str]) -> str:
    """Return the field that a fault is about, nothing if it is about none."""
    parts = at.removeprefix("body.").split(".")
    kept = [part for part in parts if part not in KINDS and part not in _DOMAINS]
    for end in range(len(kept), 0, -1):
        if (name := ".".join(kept[:end])) in known:
            return name
    return ""
