"""The registry: every mechanism by name, and the unions of their questions and plans."""

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import Field, TypeAdapter

from protocol.mechanism import Mechanism, Summing
from protocol.mechanisms.adaptive_iblt import (
    AdaptiveIblt,
    AdaptiveIbltPlan,
    AdaptiveIbltQuestion,
)
from protocol.mechanisms.approximate_histogram import (
    ApproximateHistogram,
    ApproximateHistogramPlan,
    ApproximateHistogramQuestion,
)
from protocol.mechanisms.frequency_sketches import (
    COUNT_MEDIAN,
    COUNT_SKETCH,
    CountMedianPlan,
    CountMedianQuestion,
    CountSketchPlan,
    CountSketchQuestion,
)
from protocol.mechanisms.hierarchical_histogram import (
    HierarchicalHistogram,
    HierarchicalHistogramPlan,
    HierarchicalHistogramQuestion,
)
from protocol.mechanisms.linear import (
    LINEAR,
    BucketQuestion,
    GlpsQuestion,
    JlQuestion,
    LinearPlan,
)
from protocol.mechanisms.local import LOCAL, LocalPlan, LocalQuestion
from protocol.mechanisms.prefix_extension import (
    PrefixExtending,
    PrefixPlan,
    PrefixQuestion,
)
from protocol.mechanisms.subsampled_iblt import (
    SubsampledIblt,
    SubsampledIbltPlan,
    SubsampledIbltQuestion,
)
from protocol.mechanisms.tracked import Tracked, TrackedPlan, TrackedQuestion
from protocol.mechanisms.triehh import TrieHh, TrieHhPlan, TrieHhQuestion
from protocol.reporting import Reporting

AnyQuestion: TypeAlias = Annotated[
    AdaptiveIbltQuestion
    | ApproximateHistogramQuestion
    | BucketQuestion
    | CountMedianQuestion
    | CountSketchQuestion
    | GlpsQuestion
    | HierarchicalHistogramQuestion
    | JlQuestion
    | LocalQuestion
    | PrefixQuestion
    | SubsampledIbltQuestion
    | TrackedQuestion
    | TrieHhQuestion,
    Field(discriminator="mechanism"),
]
AnyPlan: TypeAlias = Annotated[
    AdaptiveIbltPlan
    | ApproximateHistogramPlan
    | CountMedianPlan
    | CountSketchPlan
    | HierarchicalHistogramPlan
    | LinearPlan
    | LocalPlan
    | PrefixPlan
    | SubsampledIbltPlan
    | TrackedPlan
    | TrieHhPlan,
    Field(discriminator="mechanism"),
]

SUMMING: dict[str, Summing[Any, Any]] = {
    mechanism.name: mechanism
    for mechanism in (
        AdaptiveIblt(),
        SubsampledIblt(),
        ApproximateHistogram(),
        COUNT_MEDIAN,
        COUNT_SKETCH,
        HierarchicalHistogram(),
        Tracked(),
        TrieHh(),
    )
}
_REPORTING: tuple[Reporting[Any, Any, Any], ...] = (*LOCAL, *LINEAR, PrefixExtending())
REPORTING: dict[str, Reporting[Any, Any, Any]] = {one.name: one for one in _REPORTING}
MECHANISMS: dict[str, Mechanism[Any, Any]] = {**SUMMING, **REPORTING}

_QUESTION: TypeAdapter[AnyQuestion] = TypeAdapter(AnyQuestion)
_PLAN: TypeAdapter[AnyPlan] = TypeAdapter(AnyPlan)


def parse_question(document: Mapping[str, Any]) -> AnyQuestion:
    """Return the question in a JSON `document`; ValidationError if it is none."""
    return _QUESTION.validate_python(document)


def parse_plan(document: Mapping[str, Any]) -> AnyPlan:
    """Return the plan in a JSON `document`; ValidationError if it is none."""
    return _PLAN.validate_python(document)
