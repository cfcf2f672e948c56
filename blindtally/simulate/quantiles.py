"""Simulation of a study of numbers: quantiles and ranks from released counts, with the true ones.

The devices are the true counts of the cells: the votes of the devices in one cell are binomial, and
the noise is the sum of all noise shares.
"""

import math
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from blindtally.console import tables
from blindtally.datasets.item_counts import ItemCounts
from blindtally.datasets.reader import read_dataset
from blindtally.simulate.options import SimulationRequest
from blindtally.simulate.result import SimulationResult, epsilon_by_party, privacy_facts
from blindtally.simulate.rounds import run_rounds, terms_for
from protocol.domains.numeric import NumericInterval
from protocol.mechanisms.central.hierarchical_histogram import HierarchicalHistogramPlan
from protocol.mechanisms.central.release_design import max_noise_variance
from protocol.mechanisms.central.trie_plan import TrieHhPlan
from protocol.mechanisms.central.value_distribution import distribution
from protocol.mechanisms.registry import SUM_MECHANISMS, AnyPlan, parse_question
from protocol.numerics.arrays import Floats, Integers
from protocol.quantiles.distribution import Distribution
from protocol.quantiles.prefix_tree import integers_to_digits
from protocol.question_and_plan import Terms
from protocol.study_state import StudyState
from secagg.ring import Vector

_DEFAULT_WORDS = 2**18
_MAX_COHORT_SIZE = 100_000
_SHOWN_RANKS = np.array((0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99))
_EVALUATED_RANKS = np.arange(1, 1000) / 1000


@dataclass(frozen=True)
class NumberStudy:
    """Outcome of a study; `cell_counts` are the true counts of the cells that devices report."""

    plan: AnyPlan
    domain: NumericInterval
    distribution: Distribution
    cell_counts: Integers
    excluded_items: int

    @property
    def devices(self) -> int:
        return int(self.cell_counts.sum())

    def true_quantiles(self, ranks: Floats) -> Floats:
        """Return the middle of the cell that contains each rank."""
        cells = np.searchsorted(np.cumsum(self.cell_counts), ranks * self.devices, side="left")
        return self.domain.values_at((cells + 0.5) / len(self.cell_counts))

    def rank_errors(self) -> Floats:
        """Return the errors of the ranks of 999 quantiles; any rank within a cell is correct."""
        ends = np.concatenate(([0], np.cumsum(self.cell_counts))) / self.devices
        values = self.true_quantiles(_EVALUATED_RANKS)
        cells = self.domain.cells_of(values)
        ranks = self.distribution.rank(values).values
        errors = np.maximum(ends[cells] - ranks, ranks - ends[cells + 1])
        return np.asarray(np.maximum(errors, 0.0), np.float64)

    def quantile_rows(self) -> list[dict[str, float]]:
        """Return some quantiles with their intervals and the true values."""
        quantiles = self.distribution.quantile(_SHOWN_RANKS)
        arrays = _SHOWN_RANKS, quantiles.values, quantiles.low, quantiles.high
        columns = (column.tolist() for column in (*arrays, self.true_quantiles(_SHOWN_RANKS)))
        names = "rank", "value", "low", "high", "true"
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def simulate(request: SimulationRequest) -> SimulationResult:
    """Run the study and compare it with the truth.

    Raises:
        ValueError: if the data or the parameters do not allow a study.
    """
    study = run_numbers(request)
    mechanism, delta = SUM_MECHANISMS[request.mechanism], request.central_delta
    epsilons = epsilon_by_party(mechanism.dp_event(study.plan, study.plan.round), delta)
    errors, rows = study.rank_errors(), study.quantile_rows()
    document = {
        "mechanism": request.mechanism,
        "mode": request.release_mode,
        "quantiles": rows,
        "rank_error_max": float(errors.max()),
        "rank_error_mean": float(errors.mean()),
        "epsilon": epsilons["public"],
        "epsilon_by_party": epsilons,
        "delta": delta,
        "devices": study.devices,
        "items_outside_domain": study.excluded_items,
        "question": study.plan.question.model_dump(mode="json"),
        "parameters": request.source(),
    }
    facts = {
        "errors of ranks": f"{errors.max():.2g} at most, {errors.mean():.2g} on average",
        **privacy_facts(epsilons, delta),
        "a device sends": f"{mechanism.ring(study.plan).nbytes:,} bytes in round "
        f"{study.plan.round}",
        "devices": f"{study.devices:,}; {study.excluded_items:,} items are not numbers in the "
        "interval",
    }
    cells = [
        [f"{row['rank']:g}", *(f"{row[name]:.6g}" for name in ("value", "low", "high", "true"))]
        for row in rows
    ]
    title = f"Quantiles by {request.mechanism}, {request.release_mode}"
    table = tables.result_table([], ["rank", "value", "95% from", "to", "true"], cells, title)
    return SimulationResult(document, [table, tables.fact_table(facts)])


def run_numbers(request: SimulationRequest) -> NumberStudy:
    """Return the outcome of a study over a data file.

    Raises:
        ValueError: if the data or the parameters do not allow a study.
    """
    dataset = read_item_counts(request)
    domain = _interval_of(request, dataset.items)
    inside = dataset.filter_items(domain.__contains__)
    if not inside.items:
        interval = f"{domain.low:g} and {domain.high:g}"
        raise ValueError(f"no number in {request.data} is between {interval}")
    rng = np.random.default_rng(request.seed)
    cells = domain.cells_of(np.array([float(item) for item in inside.items]))
    shares = np.bincount(cells, inside.counts, domain.cells)
    cell_counts = rng.multinomial(request.devices, shares / shares.sum())
    terms = terms_for(request.devices, _MAX_COHORT_SIZE, corrupt=request.corrupt, dropout=0.1)
    plan, state = _run_rounds(request, domain, terms, cell_counts, rng)
    excluded = len(dataset.items) - len(inside.items)
    return NumberStudy(plan, domain, distribution(plan, state), cell_counts, excluded)


def read_item_counts(request: SimulationRequest) -> ItemCounts:
    """Return the items of the request's data file with their counts, over all devices."""
    dataset = read_dataset(request.data, request.column)
    if isinstance(dataset, ItemCounts):
        return dataset
    totals = dataset.item_totals()
    return ItemCounts(tuple(totals), np.array(list(totals.values()), np.int64))


def _interval_of(request: SimulationRequest, items: tuple[str, ...]) -> NumericInterval:
    numbers = [value for value in map(parse_number, items) if value is not None]
    if not numbers and (request.low is None or request.high is None):
        raise ValueError(f"there are no numbers in {request.data}: name the --column they are in")
    return NumericInterval(
        low=min(numbers) if request.low is None else request.low,
        high=max(numbers) if request.high is None else request.high,
        alpha=request.settings.get("alpha", 4),
        length=request.release_levels,
    )


def parse_number(text: str) -> float | None:
    """Return the finite number that `text` is, None if it is not."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _run_rounds(
    request: SimulationRequest,
    domain: NumericInterval,
    terms: Terms,
    cell_counts: Integers,
    rng: np.random.Generator,
) -> tuple[AnyPlan, StudyState]:
    """Return the plan of the last round, and the study state after it."""
    mechanism, plan_rng = SUM_MECHANISMS[request.mechanism], Random(request.seed)
    fields: dict[str, Any] = {
        "mechanism": request.mechanism,
        "threshold": 1,
        "contribution": 1,
        "domain": domain,
        "words": request.words or _DEFAULT_WORDS,
        "epsilon": request.epsilon,
        "delta": request.central_delta,
        "mode": request.release_mode,
    }
    settings = {name: value for name, value in request.settings.items() if name != "alpha"}
    question = parse_question(fields | settings)
    rounds = request.release_levels if question.asks_every_round else 1
    first_plan: AnyPlan = mechanism.first_plan(question, terms, "simulation", rounds, plan_rng)

    def sum_round(plan: AnyPlan) -> tuple[Vector, int]:
        return _round_sum(plan, domain, cell_counts, rng), int(cell_counts.sum())

    return run_rounds(mechanism, first_plan, rounds, plan_rng, sum_round)


def _round_sum(
    plan: AnyPlan, domain: NumericInterval, cell_counts: Integers, rng: np.random.Generator
) -> Vector:
    """Return the sum of one round: the votes and the noise of all cohorts."""
    assert isinstance(plan, HierarchicalHistogramPlan | TrieHhPlan)  # mechanisms of releases
    occupied = np.flatnonzero(cell_counts)
    held = np.zeros(plan.cells, np.int64)
    if isinstance(plan, TrieHhPlan):
        cells = plan.cells_of(integers_to_digits(occupied, domain.alpha, domain.length))
        np.add.at(held, cells[cells >= 0], cell_counts[occupied][cells >= 0])
    else:
        np.add.at(held, plan.cells_of(occupied), cell_counts[occupied][:, None])
    release, terms = plan.release, plan.terms
    votes = rng.binomial(held, release.probability)
    variance = max_noise_variance(release, terms, terms.cohorts)
    return plan.simulate_noise(votes, variance, rng)
