"""The mechanism adaptive-iblt on counts by round, and the paper's rule for t compared with ours.

Every device holds one item. So the sum of the tables of n devices at threshold t is a table of a
binomial sample of the counts, made of its distinct items at once. Plans, decoding and final
estimates are the mechanism's own.

Both rules drive the same mechanism with the same tables; only t differs. A rule has *settled* in
the first of three rounds in a row whose tables are filled to between 0.7 and 1.1 of their capacity.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

import numpy as np
from numpy.typing import NDArray

from blindtally.planning.f1_by_words import StudySetting, f1
from blindtally.simulate.populations import DriftKind, ItemPopulation, RoundCounts
from blindtally.simulate.token_study import terms_for_tokens
from protocol.mechanisms.iblt.adaptive import AdaptiveIblt, AdaptiveIbltQuestion
from protocol.mechanisms.iblt.sampled_table import sampled_table
from protocol.mechanisms.iblt.threshold_control import ThresholdRule
from protocol.round_sizes import WORD_BYTES, message_bytes_of
from protocol.sketches.iblt.layout import capacity
from protocol.study_state import EMPTY_STATE

COMPARED_RULES: Final[tuple[ThresholdRule, ...]] = ("paper", "steady")
_SETTLED_LOADS: Final = (0.7, 1.1)
_SETTLED_ROUNDS: Final = 3


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
        seed = bytes.fromhex(plan.seed)
        table = sampled_table(question, plan.terms, plan.t, plan.cells, seed).iblt
        total = table.insert(keys[held], sampled[held])
        answer = mechanism.decode(plan, total, int(counts.sum()), state)
        loads.append(TableLoad(len(held) / capacity(plan.cells), answer.decoded, plan.t))
        state = answer.state
        plan = mechanism.next_plan(plan, answer, state, seeds)
    estimates = np.zeros(len(population.items))
    numbers = {item: number for number, item in enumerate(population.items)}
    estimates[[numbers[item] for item in state.items]] = state.column("count")
    return estimates, loads


def adaptive_question(
    population: ItemPopulation, tau: float, words: int, rule: ThresholdRule, tokens: int
) -> AdaptiveIbltQuestion:
    """Return the question of adaptive-iblt for rounds of `tokens` devices with one item each."""
    size = message_bytes_of(terms_for_tokens(tokens), WORD_BYTES * words)
    return AdaptiveIbltQuestion(
        threshold=tau, contribution=1, domain=population.domain, message_bytes=size, rule=rule
    )


@dataclass(frozen=True, slots=True)
class RuleOutcome:
    """Means over runs of a rule on one population, and the standard deviation of F1.

    `rounds_read` counts decoded rounds, `settled` is the round in which the rule has settled, and
    `load` is that of the tables as a share of their capacity.
    """

    rule: ThresholdRule
    f1: float
    rounds_read: float
    settled: float
    load: float
    f1_deviation: float


def compare_rules(
    setting: StudySetting, seeds: Sequence[Sequence[int]], case: tuple[ItemPopulation, DriftKind]
) -> list[RuleOutcome]:
    """Return each rule's outcome; one run for each of `seeds`, the same rounds for all rules."""
    population, drift = case
    outcomes = []
    for rule in COMPARED_RULES:
        rows = [_run_rule(population, drift, setting, rule, seed) for seed in seeds]
        spread = float(np.std([row[0] for row in rows], ddof=1)) if len(rows) > 1 else 0.0
        score, read, settled, load = np.mean(rows, axis=0).tolist()
        outcomes.append(RuleOutcome(rule, score, read, settled, load, spread))
    return outcomes


def _run_rule(
    population: ItemPopulation,
    drift: DriftKind,
    setting: StudySetting,
    rule: ThresholdRule,
    seed: Sequence[int],
) -> tuple[float, float, float, float]:
    """Return F1, the number of decoded rounds, the round of settling, and the mean load."""
    chance = np.random.default_rng([*seed, 0])
    rounds = list(population.rounds(setting.rounds, setting.tokens, chance, drift))
    question = adaptive_question(population, setting.tau, setting.words, rule, setting.tokens)
    estimates, tables = run_adaptive_iblt(
        population, rounds, question, setting.tokens, np.random.default_rng([*seed, 1])
    )
    reached, heavy = estimates >= setting.tau, np.sum(rounds, axis=0) >= setting.tau
    decoded = float(np.mean([table.is_read for table in tables])) * len(rounds)
    loads = [table.load for table in tables]
    return f1(reached, heavy), decoded, _settling_round(loads), float(np.mean(loads))


def _settling_round(loads: Sequence[float]) -> float:
    """Return the round in which the loads have settled, one more than the last if never."""
    low, high = _SETTLED_LOADS
    fine = [low <= load <= high for load in loads]
    for number in range(len(fine) - _SETTLED_ROUNDS + 1):
        if all(fine[number : number + _SETTLED_ROUNDS]):
            return number + 1.0
    return len(fine) + 1.0
