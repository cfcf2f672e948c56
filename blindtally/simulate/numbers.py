"""Simulation of sums of numbers: means and deviations with intervals, and those of the data file.

The devices of each round hold one number each, drawn from the file. If each item of the file has a
segment before its number ("north:3.5"), there are results for each segment.
"""

from random import Random
from typing import Any

import numpy as np

from blindtally.console import tables
from blindtally.console.progress import with_progress
from blindtally.datasets.item_counts import ItemCounts
from blindtally.simulate.options import SimulationRequest
from blindtally.simulate.quantiles import parse_number, read_item_counts
from blindtally.simulate.result import SimulationResult
from blindtally.simulate.rounds import study_terms
from protocol.domains.base import SEGMENT_SEPARATOR
from protocol.domains.numeric import NumericInterval
from protocol.domains.product import Product
from protocol.mechanisms.number_summary import NumberSummaries, summarise_numbers
from protocol.mechanisms.number_sums import NumberSums, NumberSumsPlan, NumberSumsQuestion
from protocol.numerics.arrays import Floats
from protocol.simulation.study import run_study
from protocol.study_state import EMPTY_STATE

_DEFAULT_WORDS = 2**16
_ALPHA, _LEVELS = 10, 4  # of the interval, unless options have others


def simulate(request: SimulationRequest) -> SimulationResult:
    """Run the study and compare its means with those of the file.

    Raises:
        ValueError: if the data or the parameters do not allow a study.
    """
    dataset = read_item_counts(request)
    question = _question(request, dataset)
    inside = dataset.filter_items(question.domain.__contains__)
    if not inside.items:
        interval = f"{question.interval.low:g} and {question.interval.high:g}"
        raise ValueError(f"no number in {request.data} is between {interval}")
    terms = study_terms(request, request.devices)
    sizes = [request.devices] * request.rounds
    rounds = inside.rounds(sizes, 1, np.random.default_rng(request.seed))
    outcomes = run_study(
        NumberSums(),
        question,
        terms,
        rounds,
        Random(request.seed),
        planned=request.rounds,
        dropout=request.dropout,
        secure=request.secagg,
    )
    plan, state, devices = None, EMPTY_STATE, 0
    for outcome in with_progress(outcomes, "rounds", request.rounds):
        plan, state, devices = outcome.plan, outcome.study_state, devices + outcome.devices
    assert plan is not None  # there is at least one round
    excluded = len(dataset.items) - len(inside.items)
    return _result(request, plan, summarise_numbers(plan, state), inside, devices, excluded)


def _question(request: SimulationRequest, dataset: ItemCounts) -> NumberSumsQuestion:
    """Return the question for the numbers of `dataset`, by segment if all of them have one."""
    pairs = [item.partition(SEGMENT_SEPARATOR) for item in dataset.items]
    numbers = [parse_number(number) for _, _, number in pairs]
    is_segmented = any(number is not None for number in numbers)
    if not is_segmented:
        numbers = [parse_number(item) for item in dataset.items]
    values = [number for number in numbers if number is not None]
    if not values and (request.low is None or request.high is None):
        raise ValueError(f"there are no numbers in {request.data}: name the --column they are in")
    interval = NumericInterval(
        low=min(values) if request.low is None else request.low,
        high=max(values) if request.high is None else request.high,
        alpha=request.settings.get("alpha", _ALPHA),
        length=request.levels or _LEVELS,
    )
    segments = tuple(sorted({segment for segment, _, _ in pairs if segment}))
    fields: dict[str, Any] = {"words": request.words or _DEFAULT_WORDS}
    if request.threshold is not None:
        fields["threshold"] = request.threshold
    return NumberSumsQuestion(
        domain=Product(segments=segments, inner=interval) if is_segmented else interval, **fields
    )


def _true_moments(inside: ItemCounts) -> dict[str | None, tuple[float, float]]:
    """Return mean and standard deviation of the numbers in the file, of all and per segment."""
    pairs = [item.rpartition(SEGMENT_SEPARATOR) for item in inside.items]
    values = np.array([float(number) for _, _, number in pairs])
    moments: dict[str | None, tuple[float, float]] = {None: _moments(values, inside.counts)}
    for segment in {segment for segment, _, _ in pairs if segment}:
        rows = np.array([segment == other for other, _, _ in pairs])
        moments[segment] = _moments(values[rows], inside.counts[rows])
    return moments


def _moments(values: Floats, counts: np.ndarray[Any, np.dtype[np.int64]]) -> tuple[float, float]:
    mean = float(np.average(values, weights=counts))
    return mean, float(np.average((values - mean) ** 2, weights=counts) ** 0.5)


def _result(
    request: SimulationRequest,
    plan: NumberSumsPlan,
    summaries: NumberSummaries,
    inside: ItemCounts,
    devices: int,
    excluded: int,
) -> SimulationResult:
    truth = _true_moments(inside)
    rows = []
    for summary in summaries.results:
        mean, deviation = truth[summary.segment]
        rows.append(summary.model_dump() | {"true_mean": mean, "true_deviation": deviation})
    document = {
        "mechanism": request.mechanism,
        "numbers": rows,
        "devices": devices,
        "items_outside_domain": excluded,
        "question": plan.question.model_dump(mode="json"),
        "parameters": request.source(),
    }
    names = "mean", "mean_low", "mean_high", "true_mean", "standard_deviation", "true_deviation"
    cells = [
        [row["segment"] or "all", f"{row['devices']:,}"]
        + ["" if row[name] is None else f"{row[name]:.6g}" for name in names]
        for row in rows
    ]
    headings = ["devices", "mean", "95% from", "to", "true", "s.d.", "true"]
    facts = {
        "a device sends": f"{plan.ring.nbytes:,} bytes per round",
        "devices": f"{devices:,} counted in {request.rounds:,} rounds; {excluded:,} items are not "
        "numbers in the interval",
        "rounding": f"{summaries.results[0].rounding:.3g} per device, at most",
    }
    table = tables.result_table(["segment"], headings, cells, "Means by number-sums")
    return SimulationResult(document, [table, tables.fact_table(facts)])
