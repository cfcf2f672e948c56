"""A fault is reported with both limits of the range, for any place in a document."""

import ast
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from protocol.validation_errors import PATTERN_WORDS, validation_faults

ROOT = Path(__file__).parents[2]


class Round(BaseModel):
    """One of two."""

    kind: Literal["round"]
    size: int = Field(ge=1, le=1_000_000)


class Square(BaseModel):
    """The other."""

    kind: Literal["square"]
    model_config = ConfigDict(extra="forbid")
    size: float = Field(gt=0, le=0.5, strict=True, allow_inf_nan=False)
    edges: tuple[Annotated[int, Field(ge=0, lt=4)], ...] = ()


class Form(BaseModel):
    """Fields of all kinds: unions, optional fields, lists, names."""

    shape: Annotated[Round | Square, Field(discriminator="kind")] | None = None
    name: str = Field(default="x", min_length=2, max_length=64)
    pair: list[int] = Field(default=[1, 2], min_length=2, max_length=2)
    weights: dict[str, Annotated[int, Field(le=9)]] = Field(default_factory=dict)
    either: Annotated[int, Field(le=9)] | Annotated[str, Field(max_length=1)] = 1
    share: float = Field(default=0.5, gt=0, lt=1)
    least: int = Field(default=7, ge=7)
    colour: Literal["red", "green"] = "red"
    code: str = Field(default="x", pattern="^[0-9A-Za-z]{1,64}$")
    is_round: bool = False


def shape(kind: str, size: object, **more: object) -> dict[str, object]:
    return {"shape": {"kind": kind, "size": size} | more}


@pytest.mark.parametrize(
    ("document", "place", "words"),
    [
        (shape("round", 0), "size", "must be from 1 to 1,000,000, not 0"),
        (shape("round", "a"), "size", "must be a whole number, from 1 to 1,000,000"),
        (shape("round", 10**40), "size", "must be from 1 to 1,000,000"),
        (shape("square", 2), "size", "must be above 0 and at most 0.5, not 2"),
        (shape("round", 1.5), "size", "must be a whole number, from 1 to 1,000,000"),
        (shape("square", 0.1, more=1), "more", "is not a known field"),
        ({"shape": {"kind": "round"}}, "size", "is missing"),
        (shape("heptagon", 1), "shape", "must have one of 'round', 'square' as its 'kind'"),
        ({"name": 5}, "name", "must be text"),
        ({"pair": 5}, "pair", "must be a list"),
        ({"weights": 5}, "weights", "must be an object with named fields"),
        ({"colour": "blue"}, "colour", "must be 'red' or 'green'"),
        ({"code": "?"}, "code", "must be 1 to 64 letters and digits"),
        ({"is_round": "x"}, "is_round", "must be true or false"),
        (shape("square", True), "size", "must be a number, above 0 and at most 0.5"),
        (shape("square", "1"), "size", "number, above 0 and at most 0.5"),
        (shape("square", float("nan")), "size", "number, above 0 and at most"),
        (shape("square", 0.1, edges=[1, 4]), "1", "must be at least 0 and below 4, not 4"),
        ({"name": ""}, "name", "must have 2 to 64 characters"),
        ({"name": "x" * 65}, "name", "must have 2 to 64 characters"),
        ({"pair": [1]}, "pair", "must have 2 items"),
        ({"weights": {"a": 10}}, "a", "must be at most 9, not 10"),
        ({"share": 1}, "share", "must be above 0 and below 1, not 1"),
        ({"least": 6}, "least", "must be 7 or more, not 6"),
        # Each of two members of the union reports its own range.
        ({"either": 10}, "constrained-int", "must be at most 9, not 10"),
    ],
)
def test_a_fault_names_both_ends(document: dict[str, object], place: str, words: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Form.model_validate(document)
    faults = {str(where[-1]): what for where, what in validation_faults(refused.value, Form)}
    assert words in faults[place]


def test_a_part_that_was_made_by_itself_is_found_in_the_form_that_has_it() -> None:
    with pytest.raises(ValidationError) as refused:
        Round(kind="round", size=0)
    assert list(validation_faults(refused.value, int, Form)) == [
        (("size",), "must be from 1 to 1,000,000, not 0")
    ]


def test_what_each_pattern_allows_is_known_in_words() -> None:
    """A reader of an error is not shown a regular expression."""
    patterns = {
        keyword.value.value
        for folder in ("protocol", "server")
        for path in (ROOT / folder).rglob("*.py")
        if "pattern=" in (text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "pattern" and isinstance(keyword.value, ast.Constant)
    }
    assert len(patterns) > 5
    assert patterns == PATTERN_WORDS.keys()


def test_a_fault_outside_all_forms_states_the_limit_that_was_crossed() -> None:
    class Other(BaseModel):
        size: int = Field(ge=1, le=3)

    with pytest.raises(ValidationError) as refused:
        Other(size=4)
    assert list(validation_faults(refused.value, Form)) == [(("size",), "must be at most 3")]
