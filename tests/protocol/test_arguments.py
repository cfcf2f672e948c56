"""Wrong arguments of public classes: errors in plain words, which callers may catch as before."""

import inspect
import pickle

import pytest
from pydantic import TypeAdapter, ValidationError

import blindtally
from blindtally import Policy, Terms, Tracked, Utf8
from blindtally.errors import ArgumentsError
from protocol.arguments import NamedFields
from protocol.mechanisms.registry import MECHANISMS, parse_question

PUBLIC = [name for name in blindtally.__all__ if isinstance(getattr(blindtally, name), NamedFields)]
WELL_FORMED = {
    "threshold": 20,
    "contribution": 2,
    "domain": Utf8(max_bytes=8),
    "message_bytes": 1574,
}


def error_of(cls: type, *args: object, **fields: object) -> ArgumentsError:
    """Return the error of a call, which another process receives as it is."""
    with pytest.raises(ArgumentsError) as raised:
        cls(*args, **fields)
    error = raised.value
    assert isinstance(error, ValidationError)
    assert isinstance(error, ValueError)
    assert isinstance(error, TypeError)
    error.add_note("in a study")
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert (type(copy), str(copy), copy.__notes__) == (type(error), str(error), ["in a study"])
    assert [each["type"] for each in copy.errors()] == [each["type"] for each in error.errors()]
    assert "pydantic" not in f"{error} {error!r}"
    return error


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"threshold": 20}, "Tracked: missing: contribution, domain, message_bytes"),
        (
            {"threshhold": 20},
            (
                "Tracked: threshhold is not a field (did you mean threshold?); missing: "
                "contribution, domain, message_bytes"
            ),
        ),
        (
            WELL_FORMED | {"threshold": "a secret"},
            "Tracked: threshold: must be a number, from 1 to 1,000,000,000,000, not of type str",
        ),
        (
            WELL_FORMED | {"domain": "utf8"},
            (
                "Tracked: domain: must be one of Alphabet, Utf8, Hashed, HashedProduct, Listed, "
                "NumericInterval, Product, not of type str"
            ),
        ),
        (
            WELL_FORMED | {"domain": {"kind": "utf8", "max_bytes": 2000}},
            "Tracked: domain: utf8: max_bytes: must be from 1 to 1,024, not 2,000",
        ),
    ],
)
def test_the_error_names_the_field_and_the_one_that_was_meant(
    fields: dict[str, object], text: str
) -> None:
    assert str(error_of(Tracked, **fields)) == text


@pytest.mark.parametrize("name", PUBLIC)
def test_each_public_class_explains_unnamed_and_misspelt_arguments(name: str) -> None:
    cls = getattr(blindtally, name)
    first = next(iter(inspect.signature(cls).parameters))
    assert str(error_of(cls, 20)).startswith(f"{name} takes its arguments by name: {name}(")
    fault = f"{first}x is not a field (did you mean {first}"
    assert str(error_of(cls, **{f"{first}x": 20})).startswith(f"{name}: {fault}")


def test_public_classes_and_plans_of_all_mechanisms_explain_their_errors() -> None:
    assert {"Policy", "Terms", "Timeouts", "QualityGoal", "Utf8", "Bucket"} <= set(PUBLIC)
    for mechanism in MECHANISMS.values():
        assert "missing: " in str(error_of(mechanism.plan_type))
        assert "(fields: " in str(error_of(mechanism.question_type, xyz=1))


def test_a_fault_of_several_fields_names_one_of_them() -> None:
    faults = str(error_of(Terms, cohort_size=10, minimum=300))
    assert faults == "Terms: minimum: minimum 300 is above cohort_size 10"


def test_a_policy_explains_a_wrong_type() -> None:
    with pytest.raises(ValueError, match="trust_server_identities is True or False, got 'no'"):
        Policy(trust_server_identities="no")  # type: ignore[arg-type]


def test_a_document_of_json_has_the_errors_of_pydantic() -> None:
    """The answers of the service with the code 422 follow from them."""
    for parse in (parse_question, Tracked.model_validate, TypeAdapter(Tracked).validate_python):
        with pytest.raises(ValidationError) as raised:
            parse({"mechanism": "tracked", "threshhold": 20})
        assert type(raised.value) is ValidationError
