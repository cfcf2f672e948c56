"""Accuracy of a study: the items that it found compared with the items that devices held.

An item is heavy if its true count, over all devices in any sum, each clipped to the contribution
bound, reaches the threshold. It is found if its estimate does. F1 = 2 correct / (found + heavy). A
measure that would divide by zero is 1. Source: section 7 of [Gascon23].
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from protocol.domains import Domain
from protocol.estimation.estimates import CONFIDENCE_LEVEL, Estimate, ListQuality
from protocol.mechanism import Mechanism
from protocol.mechanisms.quality_goal import QualityGoal
from protocol.mechanisms.registry import SUM_MECHANISMS, AnyPlan, AnyQuestion
from protocol.numerics import special
from protocol.numerics.arrays import Floats
from protocol.oracles.oracle import Oracle
from protocol.simulation.study import RoundOutcome
from protocol.study_state import EMPTY_STATE


@dataclass(frozen=True, slots=True)
class FoundItem:
    """A heavy hitter that a study found, with its estimate, 95% interval and true count."""

    item: str
    estimate: float
    standard_error: float
    true_count: int
    low: float
    high: float

    @property
    def error(self) -> float:
        return self.estimate - self.true_count

    @property
    def is_covered(self) -> bool:
        """Return whether the interval from `low` to `high`, known to a half, holds the count."""
        return self.low - 0.5 <= self.true_count <= self.high + 0.5


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

    @property
    def interval_coverage(self) -> float | None:
        """Return the share of the found items whose interval holds the true count."""
        covered = [hitter.is_covered for hitter in self.found_items]
        return sum(covered) / len(covered) if covered else None

    def interval_facts(self) -> dict[str, str]:
        """Return the line that compares intervals with true counts, if there are intervals."""
        if self.interval_coverage is None:
            return {}
        count, level = f"{len(self.found_items):,}", f"{CONFIDENCE_LEVEL:.0%}"
        text = f"{self.interval_coverage:.1%} of {count} hold the true count; {level} should"
        return {"intervals": text}


@dataclass(frozen=True, slots=True)
class StudyScore:
    """Accuracy and cost of a study of secure sums.

    `words` are the 16-bit words that a device sends in the largest round, `thresholds` the sampling
    threshold t of each round, and `devices` those in any sum. A lost round has no sum. A partial
    score is of the rounds before Ctrl-C. `quality` has the expected errors of the list, if the
    mechanism estimates them. The list reached the goal of the study in round `goal_round`.
    """

    comparison: Comparison
    words: int
    rounds_decoded: int
    thresholds: list[float]
    devices: int
    rounds_lost: int = 0
    is_partial: bool = False
    quality: ListQuality | None = None
    goal_round: int | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "partial": self.is_partial,
            **asdict(self.comparison.score),
            "words": self.words,
            "expected_precision": self.quality and self.quality.expected_precision,
            "expected_recall": self.quality and self.quality.expected_recall,
            "goal_round": self.goal_round,
            "rounds_decoded": self.rounds_decoded,
            "rounds_lost": self.rounds_lost,
            "interval_coverage": self.comparison.interval_coverage,
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
    estimates: Iterable[tuple[str, float, float, float, float]],
    truth: Mapping[str, int],
    threshold: float,
    domain: Domain | None = None,
) -> Comparison:
    """Compare found items, each with estimate, standard error and interval, with true counts.

    An item that is known only by its name in `domain`, as by a hashed key, is not found, but its
    true count is that of its key.
    """
    rows = list(estimates)
    names = {item for item, *_ in rows}
    counts = dict(truth) if names <= truth.keys() else _counts_by_name(truth, domain) | dict(truth)
    hitters = tuple(
        FoundItem(item, estimate, error, counts.get(item, 0), low, high)
        for item, estimate, error, low, high in rows
    )
    heavy = {item: count for item, count in truth.items() if count >= threshold}
    missed = sorted(heavy.keys() - names, key=lambda item: (-heavy[item], item))
    return Comparison(score(names, set(heavy)), hitters, {item: heavy[item] for item in missed})


def _counts_by_name(truth: Mapping[str, int], domain: Domain | None) -> dict[str, int]:
    counts = Counter[str]()
    if domain is not None:
        for item, count in truth.items():
            counts[domain.name(item)] += count
    return dict(counts)


def compare_estimates(
    mechanism: Mechanism[Any, Any],
    estimates: Sequence[Estimate],
    truth: Mapping[str, int],
    threshold: float,
    domain: Domain | None = None,
) -> Comparison:
    counts = np.array([each.count for each in estimates], np.float64)
    variances = np.array([each.variance for each in estimates], np.float64)
    ends = (end.tolist() for end in mechanism.confidence_interval(counts, variances))
    rows = (
        (each.item, each.count, math.sqrt(each.variance), low, high)
        for each, low, high in zip(estimates, *ends, strict=True)
    )
    return compare_with_truth(rows, truth, threshold, domain)


def score_study(
    outcomes: Iterable[RoundOutcome[AnyPlan]],
    question: AnyQuestion,
    stop_at: QualityGoal | None = None,
) -> StudyScore:
    """Return the score of a study whose rounds are run while they are read.

    Only sums over the outcomes are kept, because there may be many. Ctrl-C in a round ends the
    study, and the score is of the rounds before it; without such rounds Ctrl-C is raised. The
    last outcome may have reached the goal `stop_at`.
    """
    truth: Counter[str] = Counter()
    words = decoded = lost = devices = 0
    thresholds, state, is_partial = list[float](), EMPTY_STATE, False
    is_decoded = False  # the last round
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
        is_decoded = outcome.is_decoded
        decoded += is_decoded
        lost += outcome.answer is None
        thresholds.append(outcome.plan.t)
        devices += outcome.devices
        state = outcome.study_state
    mechanism = SUM_MECHANISMS[question.mechanism]
    final = mechanism.final_answer(question, state)
    comparison = compare_estimates(
        mechanism, final.heavy_hitters, truth, question.threshold, question.domain
    )
    has_reached = stop_at is not None and stop_at.is_reached(is_decoded, final.quality)
    return StudyScore(
        comparison,
        words,
        decoded,
        thresholds,
        devices,
        lost,
        is_partial,
        final.quality,
        len(thresholds) if has_reached else None,
    )


def vector_words(plan: AnyPlan) -> int:
    return -(-SUM_MECHANISMS[plan.mechanism].vector_bytes(plan) // 2)


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
    below = np.array(
        [np.sum(times * np.log(special.erf(end / np.sqrt(2 * distinct)))) for end in ends[1:]]
    )
    above = np.append(1.0, -np.expm1(below))
    return float(np.trapezoid(above, ends**2))
