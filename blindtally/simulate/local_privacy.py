"""Simulation of one round of locally private reports, compared with the true counts.

A frequency oracle estimates the count of every item of a dictionary; its errors are compared with
theory (`scores.error_measures`). Other mechanisms find heavy hitters.
"""

import math
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any

import numpy as np

from blindtally.console.progress import spinner
from blindtally.console.tables import fact_table, result_table
from blindtally.datasets.reader import read_dataset
from blindtally.simulate.options import SimulationRequest
from blindtally.simulate.result import MAX_LISTED_ITEMS, SimulationResult, heavy_hitter_table
from blindtally.simulate.scores import Comparison, compare_estimates, error_measures
from blindtally.workers import open_round_executor
from protocol.domains import Domain
from protocol.domains.hashed import Hashed
from protocol.domains.strings import Alphabet, Listed, Utf8, alphabet_of, smallest_domain
from protocol.estimation.estimates import VARIANCE_COLUMN
from protocol.mechanisms.registry import REPORT_MECHANISMS, AnyQuestion, parse_question
from protocol.mechanisms.reports.dictionary import DictionaryPlan
from protocol.mechanisms.reports.hsu2012 import LinearPlan
from protocol.mechanisms.reports.prefix_extension import PrefixPlan
from protocol.oracles.registry import ORACLES
from protocol.question_and_plan import Terms
from protocol.report_mechanism import ReportMechanism
from protocol.simulation.reports import ReportRoundSpec, run_report_round
from protocol.simulation.rounds import CHUNK_DEVICES
from protocol.study_state import EMPTY_STATE, StudyState

# Probability that any item which no device holds reaches the default threshold of an oracle.
_FALSE_POSITIVE_PROBABILITY = 0.05
_THRESHOLD_STANDARD_ERRORS = 4  # of other mechanisms
# A single round has to make up for the second that workers take to start.
_MIN_TASK_SECONDS = 1.0
_MAX_COHORT_SIZE = 100_000
_MAX_HASHED_BYTES = 1024
_MAX_DOMAIN_SIZE = 2**64


@dataclass(frozen=True, slots=True)
class _Round:
    """A finished round of reports; the domain is the question's."""

    mechanism: ReportMechanism[Any, Any, Any]
    plan: DictionaryPlan | LinearPlan | PrefixPlan
    domain: Domain
    devices: int
    state: StudyState
    truth: dict[str, int]
    threshold: float
    comparison: Comparison

    @property
    def outside_domain(self) -> int:
        """Return the number of devices whose item is outside the domain."""
        return sum(count for item, count in self.truth.items() if item not in self.domain)


def simulate(request: SimulationRequest) -> SimulationResult:
    """Run one round of reports.

    Raises:
        ValueError: if the data or the parameters do not allow one.
    """
    dataset = read_dataset(request.data, request.column)
    domain = _domain_of(request, dataset.items)
    question = _question_of(request, domain)
    devices = dataset.devices_per_round(1, request.devices)
    size = min(devices, _MAX_COHORT_SIZE)
    terms = Terms(cohort_size=size, minimum=3, cohorts=-(-devices // size), mode="semi-honest")
    mechanism = REPORT_MECHANISMS[request.mechanism]
    plan = mechanism.first_plan(question, terms, "simulation", 1, Random(request.seed))
    rng = np.random.default_rng(request.seed)
    histograms = next(dataset.rounds([devices], 1, rng, chunk_devices=CHUNK_DEVICES))
    with (
        open_round_executor(request.workers, request.dask, _MIN_TASK_SECONDS) as executor,
        spinner("reports"),
    ):
        spec = ReportRoundSpec(mechanism, plan, request.seed)
        reports = run_report_round(spec, histograms, rng, executor)
    with spinner("decoding reports"):
        state = mechanism.decode(plan, reports.aggregate, EMPTY_STATE).state
    if request.threshold is None:
        threshold = max(1.0, math.ceil(_default_threshold(plan, devices, state)))
        question = question.model_copy(update={"threshold": threshold})
    estimates = mechanism.final_estimates(question, state)
    if isinstance(domain, Hashed):  # devices report keys
        item_of = {domain.name(item): item for item in dataset.items}
        estimates = [replace(e, item=item_of.get(e.item, e.item)) for e in estimates]
    comparison = compare_estimates(mechanism, estimates, reports.truth, question.threshold)
    finished = _Round(
        mechanism, plan, domain, devices, state, reports.truth, question.threshold, comparison
    )
    if isinstance(plan, DictionaryPlan):
        return _dictionary_result(request, finished, plan)
    return _heavy_hitter_result(request, finished)


def _question_of(request: SimulationRequest, domain: Domain) -> AnyQuestion:
    fields: dict[str, Any] = {"mechanism": request.mechanism, "domain": domain}
    fields |= {"threshold": request.threshold or 1, "confidence": request.confidence}
    fields |= {"epsilon": request.epsilon}
    if request.mechanism in ORACLES:
        fields |= {"goal": request.goal, "max_frequency": request.most}
    elif request.delta is not None:
        fields["delta"] = request.delta
    return parse_question(request.settings | fields)


def _default_threshold(
    plan: DictionaryPlan | LinearPlan | PrefixPlan, devices: int, state: StudyState
) -> float:
    """Return a count that items which no device holds rarely reach."""
    if isinstance(plan, DictionaryPlan):
        tail = _FALSE_POSITIVE_PROBABILITY / plan.question.domain.value_count
        return devices * plan.oracle.detection_threshold(devices, tail)
    if isinstance(plan, PrefixPlan):
        return plan.extension.median_detected_count(devices)
    variances = state.column(VARIANCE_COLUMN)
    largest = variances.max(initial=plan.projection.variance(devices, 0, 0))
    return _THRESHOLD_STANDARD_ERRORS * math.sqrt(largest)


def _domain_of(request: SimulationRequest, items: tuple[str, ...]) -> Domain:
    """Return the requested domain, or otherwise the smallest that the mechanism can use."""
    if request.mechanism == "prefix-extension":
        longest = max(2, *(len(item.encode()) for item in items))
        return Utf8(max_bytes=request.length or longest)
    distinct = tuple(dict.fromkeys(items))
    # `jl-hh` estimates all values of its domain.
    uses_dictionary = request.mechanism in ORACLES or request.mechanism == "jl-hh"
    if uses_dictionary or request.alphabet is not None:
        return _dictionary_domain(request, distinct)
    if len(distinct) < 2:
        raise ValueError("the file has one item only: 2 or more are needed")
    if request.length is not None:
        short = Utf8(max_bytes=request.length)
        return short if short.value_count < _MAX_DOMAIN_SIZE else Hashed(max_bytes=request.length)
    for domain in (smallest_domain(items), Hashed(max_bytes=_MAX_HASHED_BYTES)):
        if domain.value_count < _MAX_DOMAIN_SIZE and all(item in domain for item in items):
            return domain
    return _dictionary_domain(request, distinct)


def _dictionary_domain(request: SimulationRequest, items: tuple[str, ...]) -> Listed | Alphabet:
    """Return all strings of an alphabet, or the items of the file that are short enough."""
    if request.alphabet is not None:
        return alphabet_of(request.alphabet, items, request.length)
    max_bytes = request.length
    listed = tuple(i for i in items if max_bytes is None or len(i.encode()) <= max_bytes)
    if len(listed) < 2:
        count = "one item only" if listed else "no item"
        limit = "" if max_bytes is None else f" of {max_bytes} bytes at most"
        raise ValueError(f"{request.data} has {count}{limit}: a dictionary must have 2 or more")
    return Listed(items=listed)


def _dictionary_result(
    request: SimulationRequest, finished: _Round, plan: DictionaryPlan
) -> SimulationResult:
    found_items, domain = finished.comparison.found_items, plan.question.domain
    items = domain.names_of(np.arange(domain.value_count, dtype=np.uint64))
    truth = [0 if item is None else finished.truth.get(item, 0) for item in items]
    scores = finished.state.arrays["scores"]
    measures = error_measures(plan.oracle, finished.devices, scores, np.array(truth, float))
    sizes = {
        "devices": finished.devices,
        "domain": len(items),
        "bits": plan.oracle.bits,
        "threshold": finished.threshold,
        "outside_domain": finished.outside_domain,
        "found": len(found_items),
        "interval_coverage": finished.comparison.interval_coverage,
    }
    document = {
        "mechanism": plan.mechanism,
        "epsilon": request.epsilon,
        "goal": request.goal,
        **measures,
        **sizes,
        "oracle": plan.parameters,
        "heavy_hitters": [
            {"item": h.item, "estimate": h.estimate, "standard_error": h.standard_error}
            for h in found_items[:MAX_LISTED_ITEMS]
        ],
        "parameters": request.source(),
    }
    parameters = {k: v for k, v in plan.parameters.items() if k not in ("oracle", "domain")}
    note = ""
    if request.threshold is None:
        note = ", reached by no item that nobody holds in 19 of 20 runs"
    if sizes["outside_domain"]:
        note += f"; the items of {sizes['outside_domain']:,} devices are outside the domain"
    summary = (
        f"{plan.mechanism}, {', '.join(f'{name} {value}' for name, value in parameters.items())}: "
        f"{sizes['bits']} bits per device, {sizes['devices']:,} devices, {sizes['domain']:,} "
        f"items, {sizes['found']:,} of at least {sizes['threshold']:,.0f}{note}"
    )
    rows = [
        (label, f"{measures[name]:.3g}" if name else "", f"{measures[theory]:.3g}")
        for label, name, theory in (
            ("largest square", "worst_mse", "worst_mse_expected"),
            ("l1", "l1", "l1_theory"),
            ("l2", "l2", "l2_theory"),
            ("largest variance", "", "worst_mse_theory"),
        )
    ]
    table = result_table(["error of shares"], ["measured", "expected"], rows)
    coverage = fact_table(finished.comparison.interval_facts())
    return SimulationResult(document, [summary, heavy_hitter_table(found_items), coverage, table])


def _heavy_hitter_result(request: SimulationRequest, finished: _Round) -> SimulationResult:
    comparison, threshold, plan = finished.comparison, finished.threshold, finished.plan
    mechanism, devices = finished.mechanism, finished.devices
    detectable = None
    if isinstance(plan, PrefixPlan):
        detectable = plan.extension.reliably_detected_count(devices)
    document = {
        "mechanism": request.mechanism,
        "epsilon": mechanism.epsilon(plan),
        "delta": mechanism.delta(plan),
        **asdict(comparison.score),
        "devices": devices,
        "bytes": mechanism.nbytes(plan),
        "threshold": threshold,
        "min_detectable_count": detectable if detectable and math.isfinite(detectable) else None,
        "outside_domain": finished.outside_domain,
        "found": len(comparison.found_items),
        "interval_coverage": comparison.interval_coverage,
        "heavy_hitters": [asdict(hitter) for hitter in comparison.found_items[:MAX_LISTED_ITEMS]],
        "missed": comparison.missed,
        "question": plan.question.model_dump(mode="json", exclude={"domain": {"items"}}),
        "parameters": request.source(),
    }
    summary = (
        f"{request.mechanism}: {document['bytes']:,} bytes per device, "
        f"epsilon {document['epsilon']:.3g}, delta {document['delta']:.3g}, "
        f"{devices:,} devices, domain {finished.domain.kind}"
    )
    note = ", several standard errors of an item that nobody holds"
    facts = {
        "found": f"{len(comparison.found_items):,} estimated to be at least {threshold:,.0f}"
        + (note if request.threshold is None else "")
    }
    if document["outside_domain"]:
        facts["outside"] = f"the items of {document['outside_domain']:,} devices, not in the domain"
    first = ", ".join(f"{item!r} {count:,}" for item, count in [*comparison.missed.items()][:5])
    facts["missed"] = f"{len(comparison.missed):,} with a true count this high: {first}"
    facts |= comparison.interval_facts() | comparison.score.facts()
    if not comparison.found_items:
        facts["precision"] = "n/a (nothing was found)"
    if not comparison.missed and all(hit.true_count < threshold for hit in comparison.found_items):
        facts["recall"] = "n/a (nothing was heavy)"
    if detectable is not None:
        facts["predicted"] = _describe_prediction(detectable, devices, threshold)
    return SimulationResult(
        document, [summary, heavy_hitter_table(comparison.found_items), fact_table(facts)]
    )


def _describe_prediction(detectable: float, devices: int, threshold: float) -> str:
    if not math.isfinite(detectable):
        return (
            "even an item that all devices hold is not found with probability 95%: use more devices"
        )
    note = "; the threshold is below it" if threshold < detectable else ""
    share = f"{detectable / devices:.2%}"
    return f"a count of {detectable:,.0f} ({share}) is found with probability 95%{note}"
