"""Registry of all mechanisms by name, and the unions of their questions and plans."""

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import ConfigDict, Field, TypeAdapter

from protocol.mechanism import Mechanism, SumMechanism
from protocol.mechanisms.central.hierarchical_histogram import (
    HierarchicalHistogram,
    HierarchicalHistogramPlan,
    HierarchicalHistogramQuestion,
)
from protocol.mechanisms.central.trie_plan import TrieHhPlan, TrieHhQuestion
from protocol.mechanisms.central.triehh import TrieHh
from protocol.mechanisms.frequency_sketches import (
    COUNT_MEDIAN,
    COUNT_SKETCH,
    FrequencySketchPlan,
    FrequencySketchQuestion,
)
from protocol.mechanisms.iblt.adaptive import AdaptiveIblt, AdaptiveIbltPlan, AdaptiveIbltQuestion
from protocol.mechanisms.iblt.approximate_histogram import (
    ApproximateHistogram,
    ApproximateHistogramPlan,
    ApproximateHistogramQuestion,
)
from protocol.mechanisms.iblt.subsampled import (
    SubsampledIblt,
    SubsampledIbltPlan,
    SubsampledIbltQuestion,
)
from protocol.mechanisms.number_sums import NumberSums, NumberSumsPlan, NumberSumsQuestion
from protocol.mechanisms.reports.dictionary import (
    DICTIONARY_MECHANISMS,
    DictionaryPlan,
    DictionaryQuestion,
)
from protocol.mechanisms.reports.hsu2012 import (
    LINEAR_MECHANISMS,
    BucketQuestion,
    GlpsQuestion,
    JlQuestion,
    LinearPlan,
)
from protocol.mechanisms.reports.prefix_extension import (
    PrefixExtensionMechanism,
    PrefixPlan,
    PrefixQuestion,
)
from protocol.mechanisms.sampled_counts import SampledCounts
from protocol.mechanisms.tracked.mechanism import Tracked
from protocol.mechanisms.tracked.plan import TrackedPlan, TrackedQuestion
from protocol.report_mechanism import ReportMechanism

AnyQuestion: TypeAlias = Annotated[
    AdaptiveIbltQuestion
    | ApproximateHistogramQuestion
    | BucketQuestion
    | FrequencySketchQuestion
    | GlpsQuestion
    | HierarchicalHistogramQuestion
    | JlQuestion
    | NumberSumsQuestion
    | DictionaryQuestion
    | PrefixQuestion
    | SubsampledIbltQuestion
    | TrackedQuestion
    | TrieHhQuestion,
    Field(discriminator="mechanism"),
]
AnyPlan: TypeAlias = Annotated[
    AdaptiveIbltPlan
    | ApproximateHistogramPlan
    | FrequencySketchPlan
    | HierarchicalHistogramPlan
    | LinearPlan
    | NumberSumsPlan
    | DictionaryPlan
    | PrefixPlan
    | SubsampledIbltPlan
    | TrackedPlan
    | TrieHhPlan,
    Field(discriminator="mechanism"),
]

SUM_MECHANISMS: dict[str, SumMechanism[Any, Any]] = {
    mechanism.name: mechanism
    for mechanism in (
        AdaptiveIblt(),
        SubsampledIblt(),
        ApproximateHistogram(),
        COUNT_MEDIAN,
        COUNT_SKETCH,
        HierarchicalHistogram(),
        NumberSums(),
        Tracked(),
        TrieHh(),
    )
}
_ALL_REPORT_MECHANISMS: tuple[ReportMechanism[Any, Any, Any], ...] = (
    *DICTIONARY_MECHANISMS,
    *LINEAR_MECHANISMS,
    PrefixExtensionMechanism(),
)
_EXACT_ESTIMATES = frozenset({NumberSums.name, COUNT_MEDIAN.name, COUNT_SKETCH.name})
# Mechanisms that estimate the expected precision and recall of their lists.
QUALITY_MECHANISMS = tuple(
    name for name, mechanism in SUM_MECHANISMS.items() if isinstance(mechanism, SampledCounts)
)
REPORT_MECHANISMS: dict[str, ReportMechanism[Any, Any, Any]] = {
    mechanism.name: mechanism for mechanism in _ALL_REPORT_MECHANISMS
}
MECHANISMS: dict[str, Mechanism[Any, Any]] = {**SUM_MECHANISMS, **REPORT_MECHANISMS}

_DEFERRED = ConfigDict(
    defer_build=True
)  # a device has one plan at a time, and a command often none
_QUESTION_ADAPTER: TypeAdapter[AnyQuestion] = TypeAdapter(AnyQuestion, config=_DEFERRED)
_PLAN_ADAPTER: TypeAdapter[AnyPlan] = TypeAdapter(AnyPlan, config=_DEFERRED)


def parse_question(document: Mapping[str, Any]) -> AnyQuestion:
    """Return the question in a JSON `document`; ValidationError if it is invalid."""
    return _QUESTION_ADAPTER.validate_python(document)


def parse_plan(document: Mapping[str, Any]) -> AnyPlan:
    """Return the plan in a JSON `document`; ValidationError if it is invalid."""
    return _PLAN_ADAPTER.validate_python(document)


def may_show_one_device(plan: AnyPlan) -> bool:
    """Return whether estimates of sums without noise may show what a single device holds.

    The cells of a sketch have common items together with rare ones, exactly.
    """
    if isinstance(plan, ApproximateHistogramPlan):
        return plan.sketch is not None
    return plan.mechanism in _EXACT_ESTIMATES
