"""The registry: every mechanism by name, and the union of their questions and plans."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from pydantic import TypeAdapter

from protocol.mechanism import Mechanism
from protocol.mechanisms.adaptive_iblt import (
    AdaptiveIblt,
    AdaptiveIbltPlan,
    AdaptiveIbltQuestion,
)

AnyQuestion: TypeAlias = AdaptiveIbltQuestion  # a discriminated union as soon as there are two
AnyPlan: TypeAlias = AdaptiveIbltPlan

MECHANISMS: dict[str, Mechanism[Any, Any]] = {
    mechanism.name: mechanism for mechanism in (AdaptiveIblt(),)
}

_QUESTION: TypeAdapter[AnyQuestion] = TypeAdapter(AnyQuestion)
_PLAN: TypeAdapter[AnyPlan] = TypeAdapter(AnyPlan)


def parse_question(document: Mapping[str, Any]) -> AnyQuestion:
    """Return the question in a JSON `document`; ValidationError if it is none."""
    return _QUESTION.validate_python(document)


def parse_plan(document: Mapping[str, Any]) -> AnyPlan:
    """Return the plan in a JSON `document`; ValidationError if it is none."""
    return _PLAN.validate_python(document)
