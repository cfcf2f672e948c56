"""Accuracy of a study: the items that it found compared with the items that devices held.

An item is heavy if its true count, over all devices in any sum, each clipped to the contribution
bound, reaches the threshold. It is found if its estimate does. F1 = 2 correct / (found + heavy). A
measure that would divide by zero is 1. Source: section 7 of [Gascon23].
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.special import erf

from protocol.arrays import Floats
from protocol.mechanism import Estimate
from protocol.mechanisms.registry import SUM_MECHANISMS, AnyPlan, AnyQuestion
from protocol.oracles.oracle import Oracle
from protocol.simulation.study import RoundOutcome
from protocol.study import EMPTY_STATE


@dataclass(frozen=True, slots=True)
class FoundItem:
    """A heavy hitter that a study found, with its estimate and its true count."""

    item: str
    estimate: float
    standard_error: float
    true_count: int

    @property
    def error(self) -> float:
        return self.estimate - self.true_count


@dataclass(frozen=True, slots=True)
class Score:
    """Measures of found items against heavy items."""

    f1: float
    precision: float
    recall: float

    def facts(self) -> dict[str, str]:
        return {
            "precision": f"{self.precision:.4f}",
            "recall": f"{self.recall:.4f}",
            "F1": f"{self.f1:.4f}",
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """Found items with their true counts, and the true counts of heavy items that were missed."""

    score: Score
    found_items: tuple[FoundItem, ...]
    missed: dict[str, int]


@dataclass(frozen=True, slots=True)
class StudyScore:
    """Accuracy and cost of a study of secure sums.

    `words` are the 16-bit words that a device sends in the largest round, `thresholds` the sampling
    threshold t of each round, and `devices` those in any sum. A partial score is of the rounds
    before Ctrl-C.
    """

    comparison: Comparison
    words: int
    rounds_decoded: int
    thresholds: list[float]
    devices: int
    is_partial: bool = False

    def as_json(self) -> dict[str, Any]:
        return {
            "partial": self.is_partial,
            **asdict(self.comparison.score),
            "words": self.words,
            "rounds_decoded": self.rounds_decoded,
            "thresholds": self.thresholds,
            "devices": self.devices,
            "heavy_hitters": [asdict(hitter) for hitter in self.comparison.found_items],
            "missed": self.comparison.missed,
        }


def score(found_items: set[str], heavy: set[str]) -> Score:
    correct, total = len(found_items & heavy), len(found_items) + len(heavy)
    return Score(
        f1=2 * correct / total if total else 1.0,
        precision=correct / len(found_items) if found_items else 1.0,
        recall=correct / len(heavy) if heavy else 1.0,
    )


def compare_with_truth(
    estimates: Iterable[tuple[str, float, float]], truth: Mapping[str, int], threshold: float
) -> Comparison:
    """Compare found items, each with estimate and standard error, with true counts."""
    hitters = tuple(
        FoundItem(item, estimate, error, truth.get(item, 0)) for item, estimate, error in estimates
    )
    heavy = {item: count for item, count in truth.items() if count >= threshold}
    names = {hitter.item for hitter in hitters}
    missed = sorted(heavy.keys() - names, key=lambda item: (-heavy[item], item))
    return Comparison(score(names, set(heavy)), hitters, {item: heavy[item] for item in missed})


def compare_estimates(
    estimates: Iterable[Estimate], truth: Mapping[str, int], threshold: float
) -> Comparison:
    rows = ((e.item, e.count, math.sqrt(e.variance)) for e in estimates)
    return compare_with_truth(rows, truth, threshold)


def score_study(outcomes: Iterable[RoundOutcome[AnyPlan]], question: AnyQuestion) -> StudyScore:
    """Return the score of a study whose rounds are run while they are read.

    Only sums over the outcomes are kept, because there may be many. Ctrl-C in a round ends the
    study, and the score is of the rounds before it; without such rounds Ctrl-C is raised.
    """
    truth: Counter[str] = Counter()
    words = decoded = devices = 0
    thresholds, state, is_partial = list[float](), EMPTY_STATE, False
    rounds = iter(outcomes)
    while not is_partial:
        try:
            outcome = next(rounds, None)
        except KeyboardInterrupt:
            if not thresholds:
                raise
            is_partial = True
            continue
        if outcome is None:
            break
        truth.update(outcome.truth)
        words = max(words, vector_words(outcome.plan))
        decoded += outcome.answer is not None and outcome.answer.decoded
        thresholds.append(outcome.plan.t)
        devices += outcome.devices
        state = outcome.study_state
    estimates = SUM_MECHANISMS[question.mechanism].final_estimates(question, state)
    comparison = compare_estimates(estimates, truth, question.threshold)
    return StudyScore(comparison, words, decoded, thresholds, devices, is_partial)


def vector_words(plan: AnyPlan) -> int:
    return -(-SUM_MECHANISMS[plan.mechanism].ring(plan).nbytes // 2)


def error_measures(
    oracle: Oracle, devices: int, estimates: Floats, truth: Floats
) -> dict[str, float]:
    """Return the errors of the shares of all items, each with its value in theory.

    `worst_mse` is the largest square, `l1` the sum of absolute errors and `l2` the sum of squares.
    Theory gives the variance of each share. A mean of `worst_mse` over many runs approaches
    `worst_mse_theory`, the largest variance; that of a single run approaches `worst_mse_expected`.
    """
    errors = (estimates - truth) / devices
    shares = np.append(truth, devices - truth.sum()) / devices
    variances = oracle.variances(shares, devices)[:-1]
    return {
        "worst_mse": float((errors**2).max()),
        "worst_mse_theory": float(variances.max()),
        "worst_mse_expected": expected_max_squared_error(variances),
        "l1": float(np.abs(errors).sum()),
        "l1_theory": float(np.sqrt(2 / np.pi) * np.sqrt(variances).sum()),
        "l2": float((errors**2).sum()),
        "l2_theory": float(variances.sum()),
    }


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
