"""Names of the mechanisms by guarantee, for lists and for errors."""

from difflib import get_close_matches

from blindtally.console.field_options import annotations_of
from protocol.mechanisms.registry import MECHANISMS


def names_by_guarantee() -> dict[str, list[str]]:
    """Return the names of all mechanisms, by their guarantee."""
    names: dict[str, list[str]] = {}
    for name, mechanism in MECHANISMS.items():
        names.setdefault(mechanism.description.guarantee, []).append(name)
    return names


def unknown_mechanism(name: str) -> str:
    """Return the error for the name of no mechanism, with the nearest one."""
    near = get_close_matches(name, MECHANISMS, 1)
    hint = f"did you mean {near[0]}?" if near else "`blindtally mechanisms` lists them"
    return f"there is no mechanism {name!r}: {hint}"


def question_field_types() -> dict[str, object]:
    """Return the types of the fields of all questions, by name."""
    questions = [mechanism.question_type for mechanism in MECHANISMS.values()]
    return {name: kind for each in questions for name, kind in annotations_of(each).items()}
