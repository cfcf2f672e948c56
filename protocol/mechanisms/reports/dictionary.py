"""Frequency oracles as mechanisms: each device sends one locally private report.

The domain is a public dictionary. Each of its items is a value, and one more value stands for "no
item", so that a device without an item reports like any other. The oracle with all of its
parameters (`protocol/oracles`) is in the plan, and so in the digest that each report carries: a
report for other parameters cannot be read by mistake.

    count(x)  =  n f^(x)           n reports, f^ the unbiased estimate of the oracle
    Var       =  n^2 Var f^(x)     at the estimate, cut to [0, 1]; for recursive Hadamard response
                                   also at the estimate of its residue

The estimates of all items add up over rounds, since rounds have different devices.

Source: [Pan24]; the value for "no item" is ours.
"""

from collections.abc import Iterable
from functools import cached_property
from typing import Any, Literal, Self, cast, get_args

import numpy as np
from pydantic import Field, model_validator

from protocol.estimation.empirical_bayes import decision_threshold, normal_posterior
from protocol.estimation.estimates import MAX_SHOWN_ESTIMATES, Estimate, estimates_of_values
from protocol.histograms import Histogram, device_values
from protocol.mechanism import Answer
from protocol.numerics.arrays import PackedReports
from protocol.oracles.oracle import Oracle, OracleParameters, ReportCounts
from protocol.oracles.registry import (
    ParameterGoal,
    check_parameters,
    oracle_for,
    oracle_from_parameters,
)
from protocol.question_and_plan import Terms
from protocol.randomness import RandomWords
from protocol.report_mechanism import ReportMechanism, ReportPlan, ReportQuestion
from protocol.study_state import StudyState

DictionaryMechanismName = Literal[
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
MAX_DICTIONARY_ITEMS = 2**20
# Arrays of the study state: the first two by value, and the number of reports.
_SCORES_ARRAY, _VARIANCES_ARRAY, _REPORTS_ARRAY = "scores", "variances", "reports"


class DictionaryQuestion(ReportQuestion):
    """Question for the heavy items of a dictionary, from reports that are each `epsilon`-private.

    `goal` selects the oracle's parameters: they minimise the largest variance of an item, or the
    sum of all variances (l2, and so the mean error). `max_frequency` (f* of the paper) is a known
    bound on the share of devices that hold any one item; it can reduce the largest variance.
    """

    mechanism: DictionaryMechanismName
    goal: ParameterGoal = "l2"
    max_frequency: float = Field(default=1.0, gt=0, le=1, strict=True)

    @model_validator(mode="after")
    def _is_a_dictionary(self) -> Self:
        if not 2 <= self.domain.value_count <= MAX_DICTIONARY_ITEMS:
            raise ValueError(
                f"{self.mechanism} estimates every item: the domain has "
                f"{self.domain.value_count:,} "
                f"keys; 2 to {MAX_DICTIONARY_ITEMS:,} are possible (use a listed domain)"
            )
        return self


class DictionaryPlan(ReportPlan):
    """Plan of a round: report by the oracle of these `parameters`."""

    mechanism: DictionaryMechanismName
    question: DictionaryQuestion
    parameters: OracleParameters

    @model_validator(mode="after")
    def _is_the_oracle_asked_for(self) -> Self:
        question = self.question
        values = question.domain.value_count + 1
        check_parameters(self.parameters, question.mechanism, question.epsilon, values)
        return self

    @cached_property
    def oracle(self) -> Oracle:
        """Return the oracle; its last value is for "no item"."""
        return oracle_from_parameters(self.parameters)


class DictionaryMechanism(ReportMechanism[DictionaryQuestion, DictionaryPlan, ReportCounts]):
    """Mechanism of a frequency oracle over a dictionary."""

    plan_type = DictionaryPlan

    def __init__(self, name: DictionaryMechanismName) -> None:
        self.name = name

    def _first_fields(
        self, question: DictionaryQuestion, terms: Terms, rounds: int
    ) -> dict[str, Any]:
        del terms, rounds
        values = question.domain.value_count + 1
        try:
            oracle = oracle_for(
                self.name, question.epsilon, values, question.goal, question.max_frequency
            )
        except ValueError as error:
            size = f" ({values - 1:,} items, and no item)" if "domain" in str(error) else ""
            raise ValueError(f"{error}{size}") from None
        return {"parameters": oracle.parameters}

    def nbytes(self, plan: DictionaryPlan) -> int:
        return plan.oracle.nbytes

    def encode(
        self, plan: DictionaryPlan, histograms: Iterable[Histogram], chance: RandomWords
    ) -> PackedReports:
        return plan.oracle.perturb(device_values(plan.question.domain, histograms), chance)

    def check(self, plan: DictionaryPlan, reports: PackedReports) -> None:
        plan.oracle.check(reports)

    def aggregate(self, plan: DictionaryPlan, reports: PackedReports) -> ReportCounts:
        return plan.oracle.aggregate(reports)

    def reports_per_batch(self, plan: DictionaryPlan) -> int:
        return plan.oracle.reports_per_batch

    def decode(self, plan: DictionaryPlan, aggregate: ReportCounts, state: StudyState) -> Answer:
        n, oracle = aggregate.reports, plan.oracle
        scores = n * oracle.frequencies(aggregate)[:-1]  # without the value for "no item"
        variances = n**2 * oracle.estimated_variances(aggregate)[:-1]
        added = (
            (_SCORES_ARRAY, scores),
            (_VARIANCES_ARRAY, variances),
            (_REPORTS_ARRAY, np.array([n])),
        )
        for name, column in added:
            state = state.with_array(name, state.arrays.get(name, np.zeros(len(column))) + column)
        top = np.argsort(-scores, kind="stable")[:MAX_SHOWN_ESTIMATES]
        top = top[scores[top] > 0]
        shown = estimates_of_values(plan.question.domain, top, scores, variances)
        significant = scores > 3 * np.sqrt(variances)
        return Answer(True, float(significant.sum()), tuple(shown), state)

    def final_estimates(self, question: DictionaryQuestion, state: StudyState) -> list[Estimate]:
        scores = state.arrays.get(_SCORES_ARRAY, np.zeros(0))
        variances = state.arrays.get(_VARIANCES_ARRAY, scores)
        result = normal_posterior(scores, variances, decision_threshold(question.threshold))
        listed = np.flatnonzero(result.heavy >= question.confidence)
        means = np.minimum(result.means, state.arrays.get(_REPORTS_ARRAY, np.zeros(1)))
        return estimates_of_values(question.domain, listed, means, result.variances, result.heavy)


DICTIONARY_MECHANISMS = tuple(
    DictionaryMechanism(name)
    for name in cast("tuple[DictionaryMechanismName, ...]", get_args(DictionaryMechanismName))
)
