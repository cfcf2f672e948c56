"""The second transport: each device sends one report, private before it leaves, and no sum.

    study -> plan(r) -> encode (each device) -> reports -> gather, + -> decode -> answer(r)

What a server keeps of reports is *heard*, which adds up: reports may be gathered in batches, in
any order, and a batch be forgotten once it is gathered. Whoever reads a report may read no more
from it than (epsilon, delta) allows, so there is nothing to hide among others.

A device keeps one identity for all studies that ask for reports, unlike for sums: what it spends
is added up by that identity, over rounds and studies, by the server and by the device.
"""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Generic, Literal, Protocol, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from protocol.chance import Chance
from protocol.confidence import LEVEL, normal_interval
from protocol.local_level import Floats
from protocol.mechanism import Answer, Histogram, Mechanism, Plan, Question, enrolment_scope
from protocol.privacy.entries import LocalReports
from protocol.privacy.entries import Mechanism as Loss
from protocol.tally import Tally
from secagg.cohort import Registry

Reports: TypeAlias = NDArray[np.uint8]  # (n, nbytes): as they travel
EVERY_STUDY = "every study that asks for reports"  # what registrars enrol reporters for
SHOWN = 1000  # of a round's estimates


class Heard(Protocol):
    """What is kept of reports; that of two batches adds up to that of both."""

    @property
    def reports(self) -> int:
        """Return of how many reports it is."""

    def __add__(self, other: Self, /) -> Self:
        """Return what is kept of both."""


class ReportQuestion(Question):
    """Which items are heavy, by reports that are each `epsilon`-locally private."""

    contribution: Literal[1] = 1
    epsilon: float = Field(ge=1e-6, le=32, strict=True)


class ReportPlan(Plan):
    """What a report is to say, and how it is kept private."""

    question: ReportQuestion

    @model_validator(mode="after")
    def _is_of_what_is_asked(self) -> Self:
        if self.mechanism != self.question.mechanism:
            raise ValueError(f"a plan of {self.mechanism} for {self.question.mechanism}")
        return self

    @property
    def registry(self) -> Registry | None:
        """Return who may report: reporters have one identity for all studies, to be counted by."""
        if self.terms.registrar is None:
            return None
        return Registry(bytes.fromhex(self.terms.registrar), enrolment_scope(EVERY_STUDY))


READ_AT_ONCE = 2**13  # reports: of a million values, what is gathered in seconds

RQ = TypeVar("RQ", bound=ReportQuestion)
RP = TypeVar("RP", bound=ReportPlan)
H = TypeVar("H", bound=Heard)


class Reporting(Mechanism[RQ, RP], Generic[RQ, RP, H]):
    """A mechanism whose devices send one locally private report each, which anybody may read."""

    @abstractmethod
    def nbytes(self, plan: RP) -> int:
        """Return the bytes of a report."""

    def epsilon(self, plan: RP) -> float:
        """Return what a report costs, whichever item is replaced by whichever other, or none."""
        return plan.question.epsilon

    def delta(self, plan: RP) -> float:
        """Return the odds that a report may tell more than `epsilon` allows: 0 if it never does."""
        del plan
        return 0.0

    def loss(self, plan: RP, rounds: int) -> Loss:
        """Return what a device's one report tells of it."""
        del rounds  # it is in one of them
        return LocalReports(epsilon=self.epsilon(plan), delta=self.delta(plan))

    def interval(
        self, counts: Floats, variances: Floats, level: float = LEVEL
    ) -> tuple[Floats, Floats]:
        """Return normal intervals, uncut: noise is nearly normal, and estimates may be below 0."""
        return normal_interval(counts, variances, level)

    @abstractmethod
    def encode(self, plan: RP, histograms: Iterable[Histogram], chance: Chance) -> Reports:
        """Return a report for each device, shape `(n, nbytes)`; an empty histogram makes one too.

        Raises:
            ValueError: if a device holds more than one item, or one outside the plan's domain.
        """

    @abstractmethod
    def check(self, plan: RP, reports: Reports) -> None:
        """Raise ValueError if one of `reports` cannot be one of this plan."""

    @abstractmethod
    def gather(self, plan: RP, reports: Reports) -> H:
        """Return what is kept of one or more `reports`; raises as `check`."""

    def read_at_once(self, plan: RP) -> int:
        """Return how many reports are best gathered together."""
        del plan
        return READ_AT_ONCE

    @abstractmethod
    def decode(self, plan: RP, heard: H, tally: Tally) -> Answer:
        """Return what a round's reports say together, after earlier rounds."""
