"""The mechanism adaptive-iblt on counts by round: as the service runs it, without single devices.

Every device holds one item. So the sum of the tables of n devices at threshold t is a table of a
binomial sample of the counts, made of its distinct items at once. Plans, decoding and final
estimates are the mechanism's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from blindtally.simulate.populations import ItemPopulation, RoundCounts
from blindtally.simulate.token_rounds import terms_for_tokens
from protocol.mechanisms.iblt.adaptive import AdaptiveIblt, AdaptiveIbltPlan, AdaptiveIbltQuestion
from protocol.mechanisms.iblt.sampled_table import sampled_table
from protocol.mechanisms.iblt.threshold_control import ThresholdRule
from protocol.sketches.iblt.capacity import capacity
from protocol.sketches.iblt.table import Iblt
from protocol.study_state import EMPTY_STATE


@dataclass(frozen=True, slots=True)
class TableLoad:
    """Load of a round's table as a share of its capacity, whether it was decoded, and t."""

    load: float
    is_read: bool
    t: float


def run_adaptive_iblt(
    population: ItemPopulation,
    rounds: Sequence[RoundCounts],
    question: AdaptiveIbltQuestion,
    tokens: int,
    rng: np.random.Generator,
) -> tuple[NDArray[np.float64], list[TableLoad]]:
    """Return the estimates over all rounds, by item, and the load of each round's table."""
    mechanism, seeds = AdaptiveIblt(), Random(int(rng.integers(2**62)))
    keys = population.domain.encode(population.items)
    plan = mechanism.first_plan(question, terms_for_tokens(tokens), "figures", len(rounds), seeds)
    state, loads = EMPTY_STATE, []
    for counts in rounds:
        sampled = rng.binomial(counts, 1 / plan.t)
        held = np.flatnonzero(sampled)
        total = _table_of(plan).insert(keys[held], sampled[held])
        answer = mechanism.decode(plan, total, int(counts.sum()), state)
        loads.append(TableLoad(len(held) / capacity(plan.cells), answer.decoded, plan.t))
        state = answer.state
        plan = mechanism.next_plan(plan, answer, state, seeds)
    estimates = np.zeros(len(population.items))
    numbers = {item: number for number, item in enumerate(population.items)}
    estimates[[numbers[item] for item in state.items]] = state.column("count")
    return estimates, loads


def _table_of(plan: AdaptiveIbltPlan) -> Iblt:
    return sampled_table(
        plan.question, plan.terms, plan.t, plan.cells, bytes.fromhex(plan.seed)
    ).iblt


def adaptive_question(
    population: ItemPopulation, tau: float, words: int, rule: ThresholdRule
) -> AdaptiveIbltQuestion:
    """Return the question of adaptive-iblt for devices that hold one item each."""
    return AdaptiveIbltQuestion(
        threshold=tau, contribution=1, domain=population.domain, words=words, rule=rule
    )
