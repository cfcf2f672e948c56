"""A study of numbers in memory: quantiles and ranks from released counts, beside the true ones.

By `hierarchical-histogram` in one round, or by `triehh` level by level. Devices are the leaves
they are in, counted: votes of those in one cell are as many coins, binomial, and noise is the sum
of shares.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindtally import tables
from blindtally.data import Counts, read
from blindtally.progress import steps
from protocol.distribution import Bounded, Distribution
from protocol.interval import Interval
from protocol.mechanism import Terms
from protocol.mechanisms import SUMMING, AnyPlan, parse_question
from protocol.mechanisms.hierarchical_histogram import HierarchicalHistogramPlan
from protocol.mechanisms.queries import distribution
from protocol.mechanisms.releasing import noisy
from protocol.mechanisms.triehh import TrieHhPlan
from protocol.privacy.entries import PARTIES, Entry
from protocol.privacy.ledger import Ledger
from protocol.privacy.release import Mode
from protocol.tally import NOTHING
from protocol.tree import digits_of
from secagg.ring import Vector

WORDS = 2**18
LEVELS = {"hierarchical-histogram": 8, "triehh": 10}
_COHORT = 100_000
_QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
_POINTS = np.arange(1, 1000) / 1000

Places = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command's options say; `low` and `high` are those of the data if None."""

    mechanism: str
    data: Path
    column: str | None
    clients: int
    low: float | None
    high: float | None
    levels: int
    words: int
    epsilon: float
    delta: float
    mode: Mode
    corrupt: float
    settings: dict[str, Any]
    seed: int


@dataclass(frozen=True)
class Counted:
    """What a study found: `leaves` are the true counts of the cells that devices tell."""

    plan: AnyPlan
    found: Distribution
    leaves: Places
    ledger: Ledger
    left_out: int

    @property
    def devices(self) -> int:
        """Return how many devices took part."""
        return int(self.leaves.sum())

    def true_quantiles(self, ranks: Floats) -> Floats:
        """Return the middle of the cell that each rank is in."""
        cells = np.searchsorted(np.cumsum(self.leaves), ranks * self.devices, side="left")
        domain = self.plan.question.domain
        assert isinstance(domain, Interval)  # `run` made it
        return domain.values_at((cells + 0.5) / len(self.leaves))

    def rank_errors(self) -> Floats:
        """Return what the ranks of 999 quantiles are off by; of one cell any is right."""
        domain = self.plan.question.domain
        assert isinstance(domain, Interval)  # `run` made it
        ends = np.concatenate(([0], np.cumsum(self.leaves))) / self.devices
        values = self.true_quantiles(_POINTS)
        cells = domain.cells_of(values)
        found = self.found.rank(values).values
        off = np.maximum(ends[cells] - found, found - ends[cells + 1])
        return np.asarray(np.maximum(off, 0.0), np.float64)


def asked(options: dict[str, Any], words: int | None, settings: dict[str, Any]) -> Wanted:
    """Return what the command's options say, with room enough if they say nothing of it."""
    return Wanted(**options, words=words or WORDS, settings=settings)


def run(wanted: Wanted) -> Counted:
    """Return what a study over a data file finds.

    Raises:
        ValueError: if there is none; says why, and where in the file.
    """
    population = read(wanted.data, wanted.column)
    if not isinstance(population, Counts):
        counts = population.histograms.totals()
        population = Counts(tuple(counts), np.array(list(counts.values()), np.int64))
    domain = _domain(wanted, population.items)
    inside = population.where(domain.__contains__)
    if not inside.items:
        raise ValueError(f"no number in {wanted.data} is within {domain.low:g} and {domain.high:g}")
    rng = np.random.default_rng(wanted.seed)
    cells = domain.cells_of(np.array([float(item) for item in inside.items]))
    shares = np.bincount(cells, inside.counts, domain.cells)
    leaves = rng.multinomial(wanted.clients, shares / shares.sum())
    cohorts = -(-wanted.clients // _COHORT)
    size = -(-wanted.clients // cohorts)
    terms = Terms(
        cohort_size=size,
        minimum=max(3, size // 2),
        cohorts=cohorts,
        corrupt=wanted.corrupt,
        dropout=0.1,
    )
    plan, tally = _study(wanted, domain, terms, leaves, rng)
    loss = SUMMING[wanted.mechanism].loss(plan, plan.round)
    ledger = Ledger(entries=(Entry(name="simulation", mechanism=loss),))
    left_out = len(population.items) - len(inside.items)
    return Counted(plan, distribution(plan, tally), leaves, ledger, left_out)


def _domain(wanted: Wanted, items: tuple[str, ...]) -> Interval:
    numbers = [value for value in map(_number, items) if value is not None]
    if not numbers and (wanted.low is None or wanted.high is None):
        raise ValueError(f"there are no numbers in {wanted.data}: name the --column they are in")
    low = min(numbers) if wanted.low is None else wanted.low
    high = max(numbers) if wanted.high is None else wanted.high
    alpha = wanted.settings.get("alpha", 4)
    return Interval(low=low, high=high, alpha=alpha, length=wanted.levels)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _study(
    wanted: Wanted, domain: Interval, terms: Terms, leaves: Places, rng: np.random.Generator
) -> tuple[AnyPlan, Any]:
    mechanism, chance = SUMMING[wanted.mechanism], Random(wanted.seed)
    own = {
        "mechanism": wanted.mechanism,
        "threshold": 1,
        "contribution": 1,
        "domain": domain,
        "words": wanted.words,
        "epsilon": wanted.epsilon,
        "delta": wanted.delta,
        "mode": wanted.mode,
    }
    settings = {name: value for name, value in wanted.settings.items() if name != "alpha"}
    question = parse_question(own | settings)
    rounds = wanted.levels if question.repeats else 1
    plan: AnyPlan = mechanism.first_plan(question, terms, "simulation", rounds, chance)
    tally = NOTHING
    with steps("rounds", rounds) as step:
        while True:
            total = _total(plan, leaves, rng)
            answer = mechanism.decode(plan, total, int(leaves.sum()), tally)
            tally = answer.tally
            step(1)
            if plan.round == rounds or mechanism.is_over(plan, answer, tally):
                return plan, tally
            plan = mechanism.next_plan(plan, answer, tally, chance)


def _total(plan: AnyPlan, leaves: Places, rng: np.random.Generator) -> Vector:
    """Return the sum of one round: its votes, and the noise of all cohorts."""
    assert isinstance(plan, HierarchicalHistogramPlan | TrieHhPlan)  # `LEVELS` has no other
    domain = plan.question.domain
    assert isinstance(domain, Interval)  # `_study` made it
    some = np.flatnonzero(leaves)
    held = np.zeros(plan.cells, np.int64)
    if isinstance(plan, TrieHhPlan):
        cells = plan.cells_of(digits_of(some, domain.alpha, domain.length))
        np.add.at(held, cells[cells >= 0], leaves[some][cells >= 0])
    else:
        np.add.at(held, plan.cells_of(some), leaves[some][:, None])
    release, terms = plan.release, plan.terms
    votes = rng.binomial(held, release.probability)
    return noisy(plan, votes, release.most_variance(terms.cohorts, terms.dropout, plan.honest), rng)


def as_json(wanted: Wanted, result: Counted) -> dict[str, Any]:
    """Return what scripts read: quantiles, errors of ranks, and what it told of a device."""
    errors, sights = result.rank_errors(), _sights(wanted, result)
    ranks = np.array(_QUANTILES)
    told, truth = result.found.quantile(ranks), result.true_quantiles(ranks)
    return {
        "mechanism": wanted.mechanism,
        "mode": wanted.mode,
        "quantiles": _rows(ranks, told, truth),
        "rank_error_max": float(errors.max()),
        "rank_error_mean": float(errors.mean()),
        "epsilon": sights["public"],
        "epsilon_by_party": sights,
        "delta": wanted.delta,
        "clients": result.devices,
        "items_left_out": result.left_out,
        "question": result.plan.question.model_dump(mode="json"),
        "asked": {"data": str(wanted.data), "column": wanted.column, "seed": wanted.seed},
    }


def _rows(ranks: Floats, told: Bounded, truth: Floats) -> list[dict[str, float]]:
    columns = (one.tolist() for one in (ranks, told.values, told.low, told.high, truth))
    names = "rank", "value", "low", "high", "true"
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _sights(wanted: Wanted, result: Counted) -> dict[str, float | None]:
    return {party: result.ledger.epsilon(wanted.delta, party) for party in PARTIES}


def show(wanted: Wanted, result: Counted) -> None:
    """Print quantiles beside the true ones, errors of ranks, and what that told, and whom."""
    ranks = np.array(_QUANTILES)
    found = _rows(ranks, result.found.quantile(ranks), result.true_quantiles(ranks))
    rows = [[f"{row.pop('rank'):g}", *(f"{value:.6g}" for value in row.values())] for row in found]
    errors = result.rank_errors()
    told = {"errors of ranks": f"{errors.max():.2g} at most, {errors.mean():.2g} on average"}
    for party, epsilon in _sights(wanted, result).items():
        cost = "no bound" if epsilon is None else f"epsilon {epsilon:.4g}, delta {wanted.delta:g}"
        told[f"to {party}"] = cost
    nbytes = SUMMING[wanted.mechanism].ring(result.plan).nbytes
    told["a device sends"] = f"{nbytes:,} bytes in round {result.plan.round}"
    told["devices"] = f"{result.devices:,}; {result.left_out:,} items are no such numbers"
    title = f"Quantiles by {wanted.mechanism}, {wanted.mode}"
    shown = tables.table([], ["rank", "value", "95% from", "to", "true"], rows, title)
    tables.show(shown, tables.facts(told))
