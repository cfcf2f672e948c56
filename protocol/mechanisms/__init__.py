"""The registry: every mechanism by name, and the union of their questions and plans."""

from typing import Any

from protocol.mechanism import Mechanism
from protocol.mechanisms.adaptive_iblt import (
    AdaptiveIblt,
    AdaptiveIbltPlan,
    AdaptiveIbltQuestion,
)

AnyQuestion = AdaptiveIbltQuestion  # a discriminated union as soon as there are two
AnyPlan = AdaptiveIbltPlan

MECHANISMS: dict[str, Mechanism[Any, Any]] = {
    mechanism.name: mechanism for mechanism in (AdaptiveIblt(),)
}
