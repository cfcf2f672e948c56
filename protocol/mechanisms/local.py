"""Frequency oracles as mechanisms: one locally private report a device (`protocol/oracles`).

The domain is a dictionary that everybody knows, each item a value; one more value stands for
"nothing of it", so that a device with nothing to say reports like any other. Which oracle it is,
and all of its parameters, are in the plan, and so in the digest that each report carries: a
report for other parameters cannot be taken for one of these.

    count(x)  =  n f^(x)           n reports, f^ the oracle's unbiased estimate
    Var       =  n^2 Var f^(x)     at the estimate, or at 0 or 1 if it is beyond; for recursive
                                   Hadamard response at its residue's estimate, too

Estimates of all items of the dictionary add up over rounds, whose devices are different ones.

Source: [Pan24]; the value for nothing is ours.
"""

from collections.abc import Iterable
from functools import cached_property
from random import Random
from typing import Literal, Self, cast, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from protocol.chance import Chance
from protocol.confidence import reaches
from protocol.domain import Domain
from protocol.mechanism import Answer, Estimate, Histogram, Terms, first_fields, ranked
from protocol.mechanisms.holdings import values_of
from protocol.oracles.counts import Counts, Frequencies, Parameters
from protocol.oracles.goals import Goal, oracle_for
from protocol.oracles.oracle import Oracle
from protocol.oracles.registry import check_as_asked, oracle_of
from protocol.reporting import SHOWN, Reporting, ReportPlan, ReportQuestion, Reports
from protocol.tally import Tally

Name = Literal[
    "krr",
    "ocms",
    "ocms-gf",
    "ocms-mixture",
    "hadamard",
    "recursive-hadamard",
    "olh",
    "apple-cms",
    "subset-selection",
    "rappor",
]
MOST_ITEMS = 2**20  # of a dictionary: as many estimates
_SCORES, _VARIANCES = "scores", "variances"  # of a tally: numbers by value


class LocalQuestion(ReportQuestion):
    """Which items of a dictionary are heavy, by reports that are each `epsilon`-private.

    `goal` is what the oracle's parameters are to make small: the largest variance of an item, or
    the sum of all (l2, and with it the mean error). No item is known to be held by more than a
    share of `most` of all devices (f* of the paper), which the largest variance may gain from.
    """

    mechanism: Name
    goal: Goal = "l2"
    # Left out where it is 1, so that plans of before have the digests that they had.
    most: float = Field(default=1.0, gt=0, le=1, strict=True, exclude_if=lambda most: most == 1)

    @model_validator(mode="after")
    def _is_a_dictionary(self) -> Self:
        if not 2 <= self.domain.values <= MOST_ITEMS:
            raise ValueError(
                f"{self.mechanism} estimates every item: the domain has {self.domain.values:,} "
                f"keys; 2 to {MOST_ITEMS:,} are possible (name them in a listed domain)"
            )
        return self


class LocalPlan(ReportPlan):
    """Report by the oracle of these `parameters`."""

    mechanism: Name
    question: LocalQuestion
    parameters: Parameters

    @model_validator(mode="after")
    def _is_the_oracle_asked_for(self) -> Self:
        asked = self.question
        check_as_asked(self.parameters, asked.mechanism, asked.epsilon, asked.domain.values + 1)
        return self

    @cached_property
    def oracle(self) -> Oracle:
        """Return the oracle: its dictionary is the domain's, with a last value for nothing."""
        return oracle_of(self.parameters)


class Local(Reporting[LocalQuestion, LocalPlan, Counts]):
    """See the module's docstring."""

    def __init__(self, name: Name) -> None:
        self.name = name

    def first_plan(
        self, question: LocalQuestion, terms: Terms, study: str, rounds: int, rng: Random
    ) -> LocalPlan:
        """Return the plan of round 1; all that changes later is the seed, which is not used.

        Raises:
            ValueError: if there is no such oracle for the domain at this epsilon; says why.
        """
        values = question.domain.values + 1
        try:
            oracle = oracle_for(self.name, question.epsilon, values, question.goal, question.most)
        except ValueError as error:
            whose = f" ({values - 1:,} items, and nothing)" if "domain" in str(error) else ""
            raise ValueError(f"{error}{whose}") from None
        return LocalPlan(
            **first_fields(question, terms, study, rounds, rng),
            parameters=oracle.parameters,
        )

    def nbytes(self, plan: LocalPlan) -> int:
        """Return the bytes of a report."""
        return plan.oracle.nbytes

    def encode(self, plan: LocalPlan, histograms: Iterable[Histogram], chance: Chance) -> Reports:
        """Return a report for each device."""
        return plan.oracle.perturb(values_of(plan.question.domain, histograms), chance)

    def check(self, plan: LocalPlan, reports: Reports) -> None:
        """Raise ValueError if a report has a wrong length, or a field out of its range."""
        plan.oracle.check(reports)

    def gather(self, plan: LocalPlan, reports: Reports) -> Counts:
        """Return the counts of `reports`."""
        return plan.oracle.gather(reports)

    def read_at_once(self, plan: LocalPlan) -> int:
        """Return how many reports are best gathered together."""
        return plan.oracle.read_at_once

    def decode(self, plan: LocalPlan, heard: Counts, tally: Tally) -> Answer:
        """Return the `SHOWN` highest estimates; the tally has them all."""
        scores, variances = _estimates(plan.oracle, heard)
        for name, column in ((_SCORES, scores), (_VARIANCES, variances)):
            tally = tally.keep(name, tally.arrays.get(name, np.zeros(len(column))) + column)
        top = np.argsort(-scores, kind="stable")[:SHOWN]
        found = _named(plan.question.domain, top[scores[top] > 0], scores, variances)
        sure = scores > 3 * np.sqrt(variances)
        return Answer(True, float(sure.sum()), tuple(found), tally)

    def conclude(self, question: LocalQuestion, tally: Tally) -> list[Estimate]:
        """Return the items whose estimates add up to the threshold, highest first."""
        scores = tally.arrays.get(_SCORES, np.zeros(0))
        variances = tally.arrays.get(_VARIANCES, scores)
        found = reaches(scores, variances, question.threshold, question.confidence)
        return _named(question.domain, np.flatnonzero(found), scores, variances)


LOCAL = tuple(Local(name) for name in cast("tuple[Name, ...]", get_args(Name)))


def _estimates(oracle: Oracle, counts: Counts) -> tuple[Frequencies, Frequencies]:
    """Return the counts (d,) and variances of all items, without the value for nothing."""
    n = counts.reports
    shares, variances = oracle.frequencies(counts), oracle.estimated_variances(counts)
    return n * shares[:-1], n**2 * variances[:-1]


def _named(
    domain: Domain, rows: NDArray[np.intp], scores: Frequencies, variances: Frequencies
) -> list[Estimate]:
    pairs = zip(domain.names_of(rows.astype(np.uint64)), rows.tolist(), strict=True)
    return ranked(
        Estimate(item, float(scores[row]), float(variances[row]))
        for item, row in pairs
        if item is not None
    )
