"""Mechanisms of reports: each device sends one locally private message, without a secure sum.

    study -> plan(r) -> encode (each device) -> reports -> aggregate, + -> decode -> answer(r)

The server keeps an *aggregate* of reports. Aggregates add up, so reports may arrive in batches, in
any order, and a batch may be deleted once it is aggregated. A party that reads a report learns at
most what (epsilon, delta) allows, so a device needs no others to hide among.

A device keeps one identity for all studies of reports, unlike for sums. The server and the device
add up its privacy loss by that identity, over rounds and studies.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Generic, Literal, Protocol, Self, TypeVar

from pydantic import Field

from protocol.description import Bar
from protocol.estimation.estimates import CONFIDENCE_LEVEL, normal_interval
from protocol.histograms import Histogram
from protocol.mechanism import Answer, Mechanism
from protocol.numerics.array_types import Floats, PackedReports
from protocol.oracles.oracle import REPORTS_PER_BATCH
from protocol.privacy.events import DpEvent, LocalReportsEvent
from protocol.question_and_plan import Plan, Question, Terms
from protocol.randomness import RandomWords
from protocol.report_advice import ReportCandidate, ReportWish
from protocol.study_state import StudyState

# The 32 bytes that a registrar signs identities for: all studies of reports. No study of sums has
# this scope, because the labels of `Question.enrolment_scope` differ.
REPORTS_SCOPE: Final = hashlib.sha256(b"blindtally reports v1\0").digest()


class ReportAggregate(Protocol):
    """Aggregate of reports; the aggregates of two batches add up to the one of both."""

    @property
    def reports(self) -> int:
        """Return the number of reports."""

    def __add__(self, other: Self, /) -> Self:
        """Return the aggregate of both."""


class ReportQuestion(Question):
    """Question for heavy items, from reports that are each `epsilon`-locally private."""

    contribution: Literal[1] = 1
    epsilon: float = Field(ge=1e-6, le=32, strict=True)

    def enrolment_scope(self, study: str, terms: Terms, rounds: int) -> bytes:  # noqa: ARG002
        """Return `REPORTS_SCOPE`: each report is private by itself, in any study."""
        return REPORTS_SCOPE


class ReportPlan(Plan):
    """Plan of a round of reports."""

    question: ReportQuestion


RQ = TypeVar("RQ", bound=ReportQuestion)
RP = TypeVar("RP", bound=ReportPlan)
H = TypeVar("H", bound=ReportAggregate)


def noise_bar(plan: ReportPlan, count: float, *, is_lower_bound: bool = False) -> Bar:
    """Return the bar of a `count` that the noise in the reports rarely reaches by itself."""
    more = "more devices" if plan.question.asks_every_round else "more devices or rounds"
    return Bar(
        count,
        "the noise of the reports hides smaller ones, because epsilon is "
        f"{plan.question.epsilon:g}",
        f"use a larger epsilon, or {more}",
        is_lower_bound,
    )


class ReportMechanism(Mechanism[RQ, RP], Generic[RQ, RP, H]):
    """Base of mechanisms whose devices send one locally private report each."""

    simulated_rounds = 1

    def candidates(self, wish: ReportWish) -> Iterator[ReportCandidate]:
        """Yield the ways in which this mechanism can be asked for `wish`; by default none.

        Raises:
            ValueError: if no mechanism allows a number of `wish`.
        """
        del wish
        yield from ()

    def measures(
        self, plan: RP, state: StudyState, truth: Mapping[str, int], devices: int
    ) -> dict[str, Any]:
        del state, truth, devices
        return {
            "epsilon": self.epsilon(plan),
            "delta": self.delta(plan),
            "bytes": self.nbytes(plan),
        }

    @abstractmethod
    def nbytes(self, plan: RP) -> int:
        """Return the bytes of a report."""

    def epsilon(self, plan: RP) -> float:
        """Return the epsilon of a report, for replacing any item by any other or by none."""
        return plan.question.epsilon

    def delta(self, plan: RP) -> float:
        """Return the delta of a report: 0 if it never reveals more than `epsilon` allows."""
        del plan
        return 0.0

    def dp_event(self, plan: RP, rounds: int) -> DpEvent:
        del rounds  # a device reports in one round
        return LocalReportsEvent(epsilon=self.epsilon(plan), delta=self.delta(plan))

    def confidence_interval(
        self, counts: Floats, variances: Floats, level: float = CONFIDENCE_LEVEL
    ) -> tuple[Floats, Floats]:
        return normal_interval(counts, variances, level)

    def count_variance(self, plan: RP, count: float, devices: int) -> float | None:
        """Return the variance of a count's estimate from `devices`, None if it has no formula."""
        del plan, count, devices
        return None

    @abstractmethod
    def encode(
        self, plan: RP, histograms: Iterable[Histogram], chance: RandomWords
    ) -> PackedReports:
        """Return a report for each device, shape `(n, nbytes)`, also for an empty histogram.

        Raises ValueError if a device holds more than one item, or one outside the domain.
        """

    @abstractmethod
    def check(self, plan: RP, reports: PackedReports) -> None:
        """Raise ValueError if one of `reports` cannot be one of this plan."""

    @abstractmethod
    def aggregate(self, plan: RP, reports: PackedReports) -> H:
        """Return the aggregate of one or more `reports`; raises as `check`."""

    def reports_per_batch(self, plan: RP) -> int:
        """Return the number of reports that are aggregated together."""
        del plan
        return REPORTS_PER_BATCH

    @abstractmethod
    def decode(self, plan: RP, aggregate: H, state: StudyState) -> Answer:
        """Return the answer of a round from the aggregate of its reports and the study state."""
