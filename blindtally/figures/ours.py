"""Mechanisms of ours on counts by round: as the service runs them, but for the devices.

Where every device holds one item, the sum of what n of them insert at threshold t is a
binomial sample of the counts, so the table of a round is made of its distinct items at once.
Plans, decoding and conclusions are the mechanism's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from blindtally.figures.populations import Population, Round
from protocol.mechanism import Terms
from protocol.mechanisms.adaptive_iblt import AdaptiveIblt, AdaptiveIbltPlan, AdaptiveIbltQuestion
from protocol.mechanisms.pace import Rule
from protocol.mechanisms.tables import table
from protocol.sketches.capacity import capacity
from protocol.sketches.iblt import Iblt
from protocol.tally import NOTHING

_COHORT = 1000


@dataclass(frozen=True, slots=True)
class Load:
    """How full a round's table was, in shares of its room; whether it was read; at which t."""

    load: float
    is_read: bool
    t: float


def terms_for(tokens: int) -> Terms:
    """Return terms for rounds of `tokens` devices on average, and of a third more at most."""
    cohorts = -(-4 * tokens // (3 * _COHORT))
    return Terms(cohort_size=_COHORT, minimum=_COHORT // 2, cohorts=cohorts)


def adaptive(
    population: Population,
    rounds: Sequence[Round],
    question: AdaptiveIbltQuestion,
    tokens: int,
    rng: np.random.Generator,
) -> tuple[NDArray[np.float64], list[Load]]:
    """Return what adaptive-iblt estimates over all rounds, by item, and how full each table was."""
    mechanism, seeds = AdaptiveIblt(), Random(int(rng.integers(2**62)))
    keys = population.domain.encode(population.items)
    plan = mechanism.first_plan(question, terms_for(tokens), "figures", len(rounds), seeds)
    tally, loads = NOTHING, []
    for counts in rounds:
        sampled = rng.binomial(counts, 1 / plan.t)
        held = np.flatnonzero(sampled)
        total = _iblt(plan).insert(keys[held], sampled[held])
        answer = mechanism.decode(plan, total, int(counts.sum()), tally)
        loads.append(Load(len(held) / capacity(plan.cells), answer.decoded, plan.t))
        tally = answer.tally
        plan = mechanism.next_plan(plan, answer, tally, seeds)
    estimates = np.zeros(len(population.items))
    numbers = {item: number for number, item in enumerate(population.items)}
    estimates[[numbers[item] for item in tally.items]] = tally.column("count")
    return estimates, loads


def _iblt(plan: AdaptiveIbltPlan) -> Iblt:
    return table(plan.question, plan.terms, plan.t, plan.cells, bytes.fromhex(plan.seed)).iblt


def ask(population: Population, tau: float, words: int, rule: Rule) -> AdaptiveIbltQuestion:
    """Return the question of adaptive-iblt for devices that hold one item each."""
    return AdaptiveIbltQuestion(
        threshold=tau, contribution=1, domain=population.domain, words=words, rule=rule
    )
