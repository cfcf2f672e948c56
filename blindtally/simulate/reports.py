"""Simulation of locally private reports over a dictionary, compared with the true shares.

One round: each device sends one report, and a frequency oracle estimates the count of every item.
Errors are of shares of all devices. `worst_mse` is the largest square, `l1` the sum of absolute
errors, `l2` the sum of squares. Theory gives the variance of each share. A mean over many runs
approaches `worst_mse_theory`, the largest variance; the largest square of a single run approaches
`worst_mse_expected`.
"""

import math
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from scipy.special import erf

from blindtally.console import tables
from blindtally.console.progress import spinner
from blindtally.datasets.reader import Dataset, read_dataset
from blindtally.parallel import open_round_executor
from blindtally.simulate.accuracy import FoundItem
from blindtally.simulate.request import SimulationRequest
from blindtally.simulate.result import MAX_LISTED_ITEMS, SimulationResult, heavy_hitter_table
from protocol.arrays import Floats
from protocol.domains.strings import Alphabet, Domain, Listed, alphabet_of
from protocol.mechanisms.registry import REPORT_MECHANISMS
from protocol.mechanisms.reports.dictionary import DictionaryPlan, DictionaryQuestion
from protocol.reporting import RP, H, ReportMechanism
from protocol.simulation.chunks import CHUNK_DEVICES
from protocol.simulation.reports import ReportRoundResult, ReportRoundSpec, run_report_round
from protocol.study import Terms
from protocol.study_state import EMPTY_STATE

# Probability that any item which no device holds reaches the default threshold.
_FALSE_POSITIVE_PROBABILITY = 0.05
# A single round has to make up for the second that workers take to start.
_MIN_TASK_SECONDS = 1.0
_MAX_COHORT_SIZE = 100_000


@dataclass(frozen=True)
class _Errors:
    """Estimated and true counts of all items, and the devices of the round."""

    plan: DictionaryPlan
    devices: int
    estimates: Floats
    truth: Floats

    def measures(self) -> dict[str, float]:
        """Return the errors of shares, each with its value in theory."""
        errors = (self.estimates - self.truth) / self.devices
        without_item = self.devices - self.truth.sum()
        shares = np.append(self.truth, without_item) / self.devices
        variances = self.plan.oracle.variances(shares, self.devices)[:-1]
        return {
            "worst_mse": float((errors**2).max()),
            "worst_mse_theory": float(variances.max()),
            "worst_mse_expected": expected_max_squared_error(variances),
            "l1": float(np.abs(errors).sum()),
            "l1_theory": float(np.sqrt(2 / np.pi) * np.sqrt(variances).sum()),
            "l2": float((errors**2).sum()),
            "l2_theory": float(variances.sum()),
        }


def simulate(request: SimulationRequest) -> SimulationResult:
    """Run one round of reports.

    Raises:
        ValueError: if the data or the parameters do not allow one.
    """
    dataset = read_dataset(request.data, request.column)
    domain = dictionary_domain(request, tuple(dict.fromkeys(dataset.items)))
    fields: dict[str, Any] = {
        "mechanism": request.mechanism,
        "threshold": request.threshold or 1,
        "confidence": request.confidence,
        "domain": domain,
        "epsilon": request.epsilon,
        "goal": request.goal,
        "max_frequency": request.most,
    }
    question = DictionaryQuestion.model_validate(request.settings | fields)
    clients = dataset.clients_per_round(1, request.clients)
    mechanism, rng = REPORT_MECHANISMS[request.mechanism], Random(request.seed)
    plan = mechanism.first_plan(question, terms_for_clients(clients), "simulation", 1, rng)
    if request.threshold is None:
        tail = _FALSE_POSITIVE_PROBABILITY / domain.value_count
        share = plan.oracle.detection_threshold(clients, tail)
        question = question.model_copy(update={"threshold": max(1.0, math.ceil(clients * share))})
    reports = collect_reports(dataset, clients, mechanism, plan, request)
    state = mechanism.decode(plan, reports.aggregate, EMPTY_STATE).state
    items = domain.names_of(np.arange(domain.value_count, dtype=np.uint64))
    truth = [0 if item is None else reports.truth.get(item, 0) for item in items]
    errors = _Errors(plan, clients, state.arrays["scores"], np.array(truth, float)).measures()
    found = [
        FoundItem(e.item, e.count, math.sqrt(e.variance), reports.truth.get(e.item, 0))
        for e in mechanism.final_estimates(question, state)
    ]
    sizes = {
        "clients": clients,
        "domain": len(items),
        "bits": plan.oracle.bits,
        "threshold": question.threshold,
        "outside_domain": count_outside_domain(domain, reports.truth),
        "found": len(found),
    }
    listed = [
        {"item": one.item, "estimate": one.estimate, "standard_error": one.standard_error}
        for one in found[:MAX_LISTED_ITEMS]
    ]
    document = {
        "mechanism": plan.mechanism,
        "epsilon": request.epsilon,
        "goal": request.goal,
        **errors,
        **sizes,
        "oracle": plan.parameters,
        "heavy_hitters": listed,
        "parameters": request.source(),
    }
    return SimulationResult(
        document,
        [
            _summary(request, plan, sizes),
            heavy_hitter_table(found),
            tables.result_table(["error of shares"], ["measured", "expected"], _error_rows(errors)),
        ],
    )


def collect_reports(
    dataset: Dataset,
    clients: int,
    mechanism: ReportMechanism[Any, RP, H],
    plan: RP,
    request: SimulationRequest,
) -> ReportRoundResult[H]:
    """Return the reports of `clients` devices, added up, and the true counts.

    Raises:
        typer.Exit: if the workers cannot be used.
    """
    rng = np.random.default_rng(request.seed)
    devices = next(dataset.rounds(1, clients, 1, rng, chunk_devices=CHUNK_DEVICES))
    spec = ReportRoundSpec(mechanism, plan, request.seed)
    with (
        open_round_executor(request.workers, request.dask, _MIN_TASK_SECONDS) as executor,
        spinner("reports"),
    ):
        return run_report_round(spec, devices, rng, executor)


def count_outside_domain(domain: Domain, truth: dict[str, int]) -> int:
    """Return the number of devices whose item is outside the domain."""
    return sum(count for item, count in truth.items() if item not in domain)


def dictionary_domain(request: SimulationRequest, items: tuple[str, ...]) -> Listed | Alphabet:
    """Return all strings of an alphabet, or else the items of the file that are short enough."""
    if request.alphabet is not None:
        return alphabet_of(request.alphabet, items, request.length)
    max_bytes = request.length
    listed = tuple(i for i in items if max_bytes is None or len(i.encode()) <= max_bytes)
    if len(listed) < 2:
        count = "one item only" if listed else "no item"
        limit = "" if max_bytes is None else f" of {max_bytes} bytes at most"
        raise ValueError(f"{request.data} has {count}{limit}: a dictionary must have 2 or more")
    return Listed(items=listed)


def _summary(request: SimulationRequest, plan: DictionaryPlan, sizes: dict[str, Any]) -> str:
    parameters = {k: v for k, v in plan.parameters.items() if k not in ("oracle", "domain")}
    shown = ", ".join(f"{name} {value}" for name, value in parameters.items())
    note = ""
    if request.threshold is None:
        note = ", reached by no item that nobody holds in 19 of 20 runs"
    if sizes["outside_domain"]:
        note += f"; the items of {sizes['outside_domain']:,} devices are outside the domain"
    return (
        f"{plan.mechanism}, {shown}: {sizes['bits']} bits per device, {sizes['clients']:,} "
        f"devices, {sizes['domain']:,} items, {sizes['found']:,} of at least "
        f"{sizes['threshold']:,.0f}{note}"
    )


def _error_rows(measures: dict[str, float]) -> list[tuple[str, str, str]]:
    return [
        (label, f"{measures[name]:.3g}" if name else "", f"{measures[theory]:.3g}")
        for label, name, theory in (
            ("largest square", "worst_mse", "worst_mse_expected"),
            ("l1", "l1", "l1_theory"),
            ("l2", "l2", "l2_theory"),
            ("largest variance", "", "worst_mse_theory"),
        )
    ]


def expected_max_squared_error(variances: Floats) -> float:
    """Return the mean of the largest square of independent normal errors with `variances`."""
    distinct, times = np.unique(variances[variances > 0], return_counts=True)
    if not len(distinct):
        return 0.0
    # The mean is the integral of P(largest > t). P beyond the last t is below 1e-20.
    ends = np.linspace(0, math.sqrt(distinct[-1] * 2 * (math.log(len(variances)) + 46)), 2001)
    below = np.array([np.sum(times * np.log(erf(end / np.sqrt(2 * distinct)))) for end in ends[1:]])
    above = np.append(1.0, -np.expm1(below))
    return float(np.trapezoid(above, ends**2))


def terms_for_clients(clients: int) -> Terms:
    """Return terms for reports of `clients` devices."""
    size = min(clients, _MAX_COHORT_SIZE)
    return Terms(cohort_size=size, minimum=3, cohorts=-(-clients // size), mode="semi-honest")
