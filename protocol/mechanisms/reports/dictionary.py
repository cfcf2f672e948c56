"""Frequency oracles as mechanisms: each device sends one locally private report.

The domain is a public dictionary. Each of its items is a value, and one more value stands for "no
item", so that a device without an item reports like any other. The oracle with all of its
parameters (`protocol/oracles`) is in the plan, and so in the digest that each report carries: a
report for other parameters cannot be read by mistake.

    count(x)  =  n f^(x)           n reports, f^ the unbiased estimate of the oracle
    Var       =  n^2 Var f^(x)     at the estimate, cut to [0, 1]

The estimates of all items add up over rounds, since rounds have different devices.

Source: [Pan24]; the value for "no item" is ours.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from math import sqrt
from typing import Any, ClassVar, Final, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from protocol.description import (
    HIGHEST_VALUE,
    LOWEST_VALUE,
    OPTIONS,
    PURE_REPORT_GUARANTEE,
    REPORT_EPSILON,
    THRESHOLD,
    Bar,
    Description,
    FormField,
    PlanFact,
    QuestionForm,
)
from protocol.domains import Domain
from protocol.domains.known_items import KnownItems
from protocol.estimation.empirical_bayes import decision_threshold, normal_posterior
from protocol.estimation.estimates import MAX_SHOWN_ESTIMATES, Estimate, estimates_of_values
from protocol.histograms import Histogram, device_values
from protocol.mechanism import Answer
from protocol.mechanisms.reports.oracle_errors import error_measures, predicted_error
from protocol.numerics.array_types import PackedReports
from protocol.oracles.limits import check_epsilon
from protocol.oracles.oracle import Oracle, OracleParameters, ReportCounts
from protocol.oracles.registry import (
    ORACLES,
    OracleKinds,
    ParameterGoal,
    check_parameters,
    oracle_for,
    oracle_from_parameters,
)
from protocol.question_and_plan import Terms
from protocol.randomness import RandomWords
from protocol.report_advice import ReportCandidate, ReportWish
from protocol.report_mechanism import ReportMechanism, ReportPlan, ReportQuestion, noise_bar
from protocol.study_state import StudyState

DictionaryMechanismName = Literal[
    "krr", "ocms", "ocms-gf", "ocms-mixture", "hadamard", "subset-selection", "rappor"
]
MAX_DICTIONARY_ITEMS = 2**20
_FALSE_ITEM_PROBABILITY = 0.05  # that noise alone reaches the bar for any item of a dictionary
# Arrays of the study state: the first two by value, and the number of reports.
_SCORES_ARRAY, _VARIANCES_ARRAY, _REPORTS_ARRAY = "scores", "variances", "reports"


class OracleQuestion(ReportQuestion):
    """Question for the heavy items of a dictionary, from reports that are each `epsilon`-private.

    `goal` selects the oracle's parameters: they minimise the largest variance of an item, or the
    sum of all variances (l2, and so the mean error). `max_frequency` (f* of the paper) is a known
    bound on the share of devices that hold any one item; it can reduce the largest variance.
    """

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


class OraclePlan(ReportPlan):
    """Plan of a round: report by the oracle of these `parameters`, one of the `kinds`."""

    kinds: ClassVar[OracleKinds] = ORACLES
    question: OracleQuestion
    parameters: OracleParameters

    @model_validator(mode="after")
    def _is_the_oracle_asked_for(self) -> Self:
        question = self.question
        values = question.domain.value_count + 1
        check_parameters(self.parameters, question.mechanism, question.epsilon, values, self.kinds)
        return self

    @cached_property
    def oracle(self) -> Oracle:
        """Return the oracle; its last value is for "no item"."""
        return oracle_from_parameters(self.parameters, self.kinds)


_FORM: Final = QuestionForm(
    "Counts of a list, from private reports",
    "The count of each item of a list. Each device sends one report that is private by itself, so "
    "that no sum must be trusted.",
    {"contribution": 1, "domain.kind": "listed"},
    (OPTIONS, THRESHOLD, REPORT_EPSILON),
)
_NUMBERS_FORM: Final = QuestionForm(
    "Histogram of numbers, from private reports",
    "How many devices hold a number in each bin. Each device sends one report that is private by "
    "itself.",
    {"contribution": 1, "domain.kind": "interval", "domain.length": 1},
    (
        *(LOWEST_VALUE, HIGHEST_VALUE),
        FormField("question.domain.alpha", "Bins", "10", hint="Of equal width."),
        *(THRESHOLD, REPORT_EPSILON),
    ),
)


class OracleMechanism(ReportMechanism[OracleQuestion, OraclePlan, ReportCounts]):
    """Mechanism of a frequency oracle over a dictionary; `is_recommended` if it can be the best."""

    question_type: type[OracleQuestion]
    plan_type: type[OraclePlan]
    is_recommended: bool

    def __init__(self, name: str, purpose: str, cost: str) -> None:
        self.name = name
        self.description = Description(purpose, cost, PURE_REPORT_GUARANTEE)
        if name == "ocms-gf":
            more = (_NUMBERS_FORM,)
            self.description = replace(self.description, form=_FORM, more_forms=more)

    def domain_about(self, known: KnownItems, fields: Mapping[str, Any]) -> Domain:
        del fields
        return known.dictionary()

    def candidates(self, wish: ReportWish) -> Iterator[ReportCandidate]:
        """Yield an oracle for each goal of its parameters."""
        if wish.values is None or not self.is_recommended:
            return
        check_epsilon(wish.epsilon)
        if not 2 <= wish.values <= MAX_DICTIONARY_ITEMS:
            raise ValueError(
                f"a dictionary has 2 to {MAX_DICTIONARY_ITEMS:,} values, not {wish.values:,}"
            )
        bounds = (1.0, wish.max_frequency) if wish.goal == "worst-mse" else (1.0,)
        settings: list[tuple[ParameterGoal, float]] = [
            ("l2", 1.0),
            *(("worst-mse", bound) for bound in bounds),
        ]
        known = set[Oracle]()
        for goal, bound in sorted(settings, key=lambda setting: setting[0] != wish.goal):
            try:
                oracle = oracle_for(self.name, wish.epsilon, wish.values + 1, goal, bound)
            except ValueError:
                continue  # the oracle is for larger or smaller dictionaries
            if oracle in known:
                continue
            known.add(oracle)
            question = {"mechanism": self.name, "epsilon": wish.epsilon, "goal": goal}
            yield ReportCandidate(
                question | ({"max_frequency": bound} if bound < 1 else {}),
                oracle.parameters,
                oracle.nbytes,
                partial(predicted_error, oracle, goal=wish.goal, max_frequency=wish.max_frequency),
                partial(_decode_seconds, oracle),
            )

    def measures(
        self, plan: OraclePlan, state: StudyState, truth: Mapping[str, int], devices: int
    ) -> dict[str, Any]:
        """Return the errors of all shares, with what theory expects, and the oracle."""
        domain, scores = plan.question.domain, state.arrays.get(_SCORES_ARRAY)
        if scores is None:
            return super().measures(plan, state, truth, devices)
        items = domain.names_of(np.arange(domain.value_count, dtype=np.uint64))
        true = np.array([0 if item is None else truth.get(item, 0) for item in items], float)
        return {
            **super().measures(plan, state, truth, devices),
            **error_measures(plan.oracle, int(state.arrays[_REPORTS_ARRAY][0]), scores, true),
            "domain": domain.value_count,
            "bits": plan.oracle.bits,
            "oracle": plan.parameters,
        }

    def bars(self, plan: OraclePlan, devices: int | None) -> Iterator[Bar]:
        if devices:
            tail = _FALSE_ITEM_PROBABILITY / plan.question.domain.value_count
            yield noise_bar(plan, devices * plan.oracle.detection_threshold(devices, tail))

    def count_variance(self, plan: OraclePlan, count: float, devices: int) -> float:
        share = np.clip(np.array([count / devices]), 0, 1)
        return devices**2 * float(plan.oracle.variance(share, devices)[0])

    def plan_facts(self, plan: OraclePlan) -> Iterator[PlanFact]:
        error = sqrt(plan.oracle.scaled_variances[0] * plan.terms.max_devices)
        yield PlanFact("Expected error", error, "standard error of an item's count", is_error=True)

    def _first_fields(self, question: OracleQuestion, terms: Terms, rounds: int) -> dict[str, Any]:
        del terms, rounds
        values = question.domain.value_count + 1
        try:
            oracle = oracle_for(
                self.name,
                question.epsilon,
                values,
                question.goal,
                question.max_frequency,
                self.plan_type.kinds,
            )
        except ValueError as error:
            size = f" ({values - 1:,} items, and no item)" if "domain" in str(error) else ""
            raise ValueError(f"{error}{size}") from None
        return {"parameters": oracle.parameters}

    def nbytes(self, plan: OraclePlan) -> int:
        return plan.oracle.nbytes

    def encode(
        self, plan: OraclePlan, histograms: Iterable[Histogram], chance: RandomWords
    ) -> PackedReports:
        return plan.oracle.perturb(device_values(plan.question.domain, histograms), chance)

    def check(self, plan: OraclePlan, reports: PackedReports) -> None:
        plan.oracle.check(reports)

    def aggregate(self, plan: OraclePlan, reports: PackedReports) -> ReportCounts:
        return plan.oracle.aggregate(reports)

    def reports_per_batch(self, plan: OraclePlan) -> int:
        return plan.oracle.reports_per_batch

    def decode(self, plan: OraclePlan, aggregate: ReportCounts, state: StudyState) -> Answer:
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

    def final_estimates(self, question: OracleQuestion, state: StudyState) -> list[Estimate]:
        scores = state.arrays.get(_SCORES_ARRAY, np.zeros(0))
        variances = state.arrays.get(_VARIANCES_ARRAY, scores)
        result = normal_posterior(scores, variances, decision_threshold(question.threshold))
        listed = np.flatnonzero(result.heavy >= question.confidence)
        means = np.minimum(result.means, state.arrays.get(_REPORTS_ARRAY, np.zeros(1)))
        return estimates_of_values(question.domain, listed, means, result.variances, result.heavy)


class DictionaryQuestion(OracleQuestion):
    """Question for an oracle that may be the best for some number of devices and items."""

    public_name: ClassVar[str] = "FrequencyOracle"
    mechanism: DictionaryMechanismName


class DictionaryPlan(OraclePlan):
    """Plan of a round for such an oracle."""

    mechanism: DictionaryMechanismName
    question: DictionaryQuestion


class DictionaryMechanism(OracleMechanism):
    """Mechanism of such an oracle."""

    question_type = DictionaryQuestion
    plan_type = DictionaryPlan
    is_recommended = True


def _decode_seconds(oracle: Oracle, users: int) -> float:
    return oracle.batched_decode_ns(users) / 1e9


_PURPOSES_AND_COSTS: Final[dict[DictionaryMechanismName, tuple[str, str]]] = {
    "krr": ("counts of a few values, which are reported themselves", "log2 d bits"),
    "ocms": ("all counts by the paper's hashed sketch", "about 2 log2 d + log2 m bits"),
    "ocms-gf": ("all counts by inner products; recommended", "about log2 d + log2 m bits"),
    "ocms-mixture": (
        "all counts, the lowest maximum error in few bits",
        "about log2 d + log2 m bits",
    ),
    "hadamard": ("all counts in milliseconds; low epsilon", "log2 d + 1 bits"),
    "subset-selection": ("all counts, the lowest possible error", "d bits"),
    "rappor": ("all counts by a noisy unary code", "d bits"),
}
DICTIONARY_MECHANISMS: Final = tuple(
    DictionaryMechanism(name, *texts) for name, texts in _PURPOSES_AND_COSTS.items()
)
