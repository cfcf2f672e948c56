"""Simulation of reports without a dictionary: the found items compared with the heavy ones."""

import math
from dataclasses import asdict
from random import Random
from typing import Any

from blindtally.console import tables
from blindtally.console.progress import spinner
from blindtally.datasets.reader import read_dataset
from blindtally.simulate.accuracy import Comparison, compare_with_truth
from blindtally.simulate.reports import (
    collect_reports,
    count_outside_domain,
    dictionary_domain,
    terms_for_clients,
)
from blindtally.simulate.request import SimulationRequest
from blindtally.simulate.result import MAX_LISTED_ITEMS, SimulationResult, heavy_hitter_table
from protocol.domains.hashed import Hashed
from protocol.domains.strings import Domain, Utf8, smallest_domain
from protocol.mechanism import VARIANCE_COLUMN
from protocol.mechanisms.registry import REPORT_MECHANISMS, parse_question
from protocol.mechanisms.reports.linear import LinearPlan
from protocol.mechanisms.reports.prefix_extension import PrefixPlan
from protocol.study_state import EMPTY_STATE, StudyState

_THRESHOLD_STANDARD_ERRORS = 4
_MAX_HASHED_BYTES = 1024
_MAX_DOMAIN_SIZE = 2**64


def simulate(request: SimulationRequest) -> SimulationResult:
    """Run one round of reports.

    Raises:
        ValueError: if the data or the parameters do not allow one.
    """
    dataset = read_dataset(request.data, request.column)
    domain = _domain_of(request, dataset.items)
    fields: dict[str, Any] = {"mechanism": request.mechanism, "domain": domain}
    fields |= {"threshold": request.threshold or 1, "confidence": request.confidence}
    if request.delta is not None:
        fields["delta"] = request.delta
    question = parse_question(request.settings | fields | {"epsilon": request.epsilon})
    clients = dataset.clients_per_round(1, request.clients)
    mechanism = REPORT_MECHANISMS[request.mechanism]
    terms, rng = terms_for_clients(clients), Random(request.seed)
    plan: LinearPlan | PrefixPlan = mechanism.first_plan(question, terms, "simulation", 1, rng)
    reports = collect_reports(dataset, clients, mechanism, plan, request)
    with spinner("decoding reports"):
        state = mechanism.decode(plan, reports.aggregate, EMPTY_STATE).state
    detectable = None
    if isinstance(plan, PrefixPlan):
        detectable = plan.extension.reliably_detected_count(clients)
    if request.threshold is None:
        default = _default_threshold(plan, clients, state)
        question = question.model_copy(update={"threshold": default})
    item_of = _items_by_key_name(domain, dataset.items)
    found = [
        (item_of.get(e.item, e.item), e.count, math.sqrt(e.variance))
        for e in mechanism.final_estimates(question, state)
    ]
    comparison = compare_with_truth(found, reports.truth, question.threshold)
    document = {
        "mechanism": request.mechanism,
        "epsilon": mechanism.epsilon(plan),
        "delta": mechanism.delta(plan),
        **asdict(comparison.score),
        "clients": clients,
        "bytes": mechanism.nbytes(plan),
        "threshold": question.threshold,
        "min_detectable_count": detectable if detectable and math.isfinite(detectable) else None,
        "outside_domain": count_outside_domain(domain, reports.truth),
        "found": len(comparison.found),
        "heavy_hitters": [asdict(hitter) for hitter in comparison.found[:MAX_LISTED_ITEMS]],
        "missed": comparison.missed,
        "question": plan.question.model_dump(mode="json", exclude={"domain": {"items"}}),
        "parameters": request.source(),
    }
    summary = (
        f"{request.mechanism}: {document['bytes']:,} bytes per device, "
        f"epsilon {document['epsilon']:.3g}, delta {document['delta']:.3g}, "
        f"{clients:,} devices, domain {domain.kind}"
    )
    facts = _facts(document, comparison, is_default=request.threshold is None)
    if detectable is not None:
        facts["predicted"] = _describe_prediction(detectable, clients, question.threshold)
    return SimulationResult(
        document, [summary, heavy_hitter_table(comparison.found), tables.fact_table(facts)]
    )


def _facts(document: dict[str, Any], comparison: Comparison, *, is_default: bool) -> dict[str, str]:
    """Return the lines of the table of facts."""
    note = ", several standard errors of an item that nobody holds" if is_default else ""
    threshold = document["threshold"]
    facts = {"found": f"{len(comparison.found):,} estimated to be at least {threshold:,.0f}{note}"}
    if document["outside_domain"]:
        facts["outside"] = f"the items of {document['outside_domain']:,} devices, not in the domain"
    first = ", ".join(f"{item!r} {count:,}" for item, count in [*comparison.missed.items()][:5])
    facts["missed"] = f"{len(comparison.missed):,} with so high a true count: {first}"
    facts |= comparison.score.facts()
    if not comparison.found:
        facts["precision"] = "n/a (nothing was found)"
    if not comparison.missed and all(hit.true_count < threshold for hit in comparison.found):
        facts["recall"] = "n/a (nothing was heavy)"
    return facts


def _describe_prediction(detectable: float, devices: int, threshold: float) -> str:
    if not math.isfinite(detectable):
        return (
            "even an item that all devices hold is not found with probability 95%: use more devices"
        )
    note = "; the threshold is below it" if threshold < detectable else ""
    share = f"{detectable / devices:.2%}"
    return f"a count of {detectable:,.0f} ({share}) is found with probability 95%{note}"


def _default_threshold(plan: LinearPlan | PrefixPlan, clients: int, state: StudyState) -> float:
    """Return a count that items which nobody holds rarely reach: 4 standard errors."""
    if isinstance(plan, PrefixPlan):
        return max(1.0, math.ceil(plan.extension.median_detected_count(clients)))
    variances = state.column(VARIANCE_COLUMN)
    largest = variances.max(initial=plan.projection.variance(clients, 0, 0))
    return max(1.0, math.ceil(_THRESHOLD_STANDARD_ERRORS * math.sqrt(largest)))


def _items_by_key_name(domain: Domain, items: tuple[str, ...]) -> dict[str, str]:
    """Return the item of each key's name, for a domain in which only keys are found."""
    return {domain.name(item): item for item in items} if isinstance(domain, Hashed) else {}


def _domain_of(request: SimulationRequest, items: tuple[str, ...]) -> Domain:
    """Return the requested domain, or else the smallest domain without a list of all items."""
    if request.mechanism == "prefix-extension":
        longest = max(2, *(len(item.encode()) for item in items))
        return Utf8(max_bytes=request.length or longest)
    distinct = tuple(dict.fromkeys(items))
    if request.alphabet is not None or request.mechanism == "jl-hh":  # which asks for all values
        return dictionary_domain(request, distinct)
    if len(distinct) < 2:
        raise ValueError("the file has one item only: 2 or more are needed")
    if request.length is not None:
        short = Utf8(max_bytes=request.length)
        return short if short.value_count < _MAX_DOMAIN_SIZE else Hashed(max_bytes=request.length)
    for domain in (smallest_domain(items), Hashed(max_bytes=_MAX_HASHED_BYTES)):
        if domain.value_count < _MAX_DOMAIN_SIZE and all(item in domain for item in items):
            return domain
    return dictionary_domain(request, distinct)
