"""The paper's update rule for t beside ours, on several data sets and drifts.

Both drive the same mechanism, adaptive-iblt, with the same tables; only t differs. A rule has
*settled* in the first round from which on three tables in a row are filled to between 0.7 and
1.1 of their room.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from blindtally.planning.f1_curves import StudySetting, f1
from blindtally.simulate.populations import DriftKind, ItemPopulation
from paper.adaptive_iblt import adaptive_question, run_adaptive_iblt
from protocol.mechanisms.iblt.threshold_control import ThresholdRule

COMPARED_RULES: Final[tuple[ThresholdRule, ...]] = ("paper", "steady")
_SETTLED_LOADS: Final = (0.7, 1.1)
_SETTLED_ROUNDS: Final = 3


@dataclass(frozen=True, slots=True)
class RuleOutcome:
    """Means over runs of a rule on one population: F1, rounds read, when it settled, mean load.

    And the standard deviation of F1 over the runs.
    """

    rule: ThresholdRule
    f1: float
    rounds_read: float
    settled: float
    load: float
    f1_deviation: float

    def as_json(self) -> dict[str, Any]:
        """Return what scripts read."""
        return asdict(self)


def compare_rules(
    population: ItemPopulation,
    drift: DriftKind,
    setting: StudySetting,
    seeds: Sequence[Sequence[int]],
) -> list[RuleOutcome]:
    """Return each rule's outcome; one run for each of `seeds`, the same rounds for all rules."""
    outcomes = []
    for rule in COMPARED_RULES:
        rows = [_run(population, drift, setting, rule, seed) for seed in seeds]
        spread = float(np.std([row[0] for row in rows], ddof=1)) if len(rows) > 1 else 0.0
        score, read, settled, load = np.mean(rows, axis=0).tolist()
        outcomes.append(RuleOutcome(rule, score, read, settled, load, spread))
    return outcomes


def _run(
    population: ItemPopulation,
    drift: DriftKind,
    setting: StudySetting,
    rule: ThresholdRule,
    seed: Sequence[int],
) -> tuple[float, float, float, float]:
    chance = np.random.default_rng([*seed, 0])
    rounds = list(population.rounds(setting.rounds, setting.tokens, chance, drift))
    question = adaptive_question(population, setting.tau, setting.words, rule)
    estimates, loads = run_adaptive_iblt(
        population, rounds, question, setting.tokens, np.random.default_rng([*seed, 1])
    )
    found, heavy = estimates >= setting.tau, np.sum(rounds, axis=0) >= setting.tau
    read = float(np.mean([one.is_read for one in loads])) * len(rounds)
    settled = _settling_round([one.load for one in loads])
    return f1(found, heavy), read, settled, float(np.mean([one.load for one in loads]))


def _settling_round(loads: Sequence[float]) -> float:
    """Return the round in which the loads have settled, one more than there are if never."""
    low, high = _SETTLED_LOADS
    fine = [low <= load <= high for load in loads]
    for number in range(len(fine) - _SETTLED_ROUNDS + 1):
        if all(fine[number : number + _SETTLED_ROUNDS]):
            return number + 1.0
    return len(fine) + 1.0
