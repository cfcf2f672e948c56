"""Accuracy of a study: the items that it found compared with the items that devices held.

An item is heavy if its true count, over all devices in any sum, each clipped to the contribution
bound, reaches the threshold. It is found if its estimate does. F1 = 2 correct / (found + heavy). A
measure that would divide by zero is 1. Source: section 7 of [Gascon23].
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from protocol.domains import Domain
from protocol.estimation.estimates import CONFIDENCE_LEVEL, Estimate
from protocol.mechanism import Mechanism

CHANCE_OF_MISS = f"about 1 of {1 / (1 - CONFIDENCE_LEVEL):.0f} intervals misses the truth"
_RANKS = (50, 100, 300, 1000)  # of the most frequent items, for recall and F1


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
        text = f"{self.interval_coverage:.1%} of {len(self.found_items):,} hold the true count"
        return {"intervals": text if self.interval_coverage == 1 else f"{text}; {CHANCE_OF_MISS}"}


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


def scores_at_ranks(
    comparison: Comparison, truth: Mapping[str, int]
) -> dict[int, tuple[float, float]]:
    """Return recall and F1 by rank: of the most frequent items, against the first found ones."""
    ordered = sorted(truth, key=lambda item: (-truth[item], item))
    listed = [hitter.item for hitter in comparison.found_items]
    scores = {}
    for rank in (rank for rank in _RANKS if rank <= len(ordered)):
        heavy = set(ordered[:rank])
        recall = len(heavy & set(listed)) / rank
        precision = len(heavy & set(listed[:rank])) / len(listed[:rank]) if listed else 0.0
        total = recall + precision
        scores[rank] = recall, 2 * recall * precision / total if total else 0.0
    return scores
