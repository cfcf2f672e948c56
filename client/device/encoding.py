"""Encoding of a device's records: first the histogram that it contributes, then its vector.

Records outside the question's domain are removed first, so that they do not count towards the
contribution bound m [Gascon23, section 2]; of the rest, a random subset stays. Estimates are
estimates of the sum of these contributions.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from protocol.histograms import Histogram, clip
from protocol.mechanism import add_noise
from protocol.mechanisms.registry import SUM_MECHANISMS, AnyPlan, AnyQuestion
from protocol.randomness import RandomWords
from secagg.ring import Vector


@dataclass(frozen=True, slots=True)
class Contribution:
    """The histogram that a device adds to one study, and the numbers of records left out."""

    histogram: Histogram
    outside_domain: int
    over_bound: int  # beyond the contribution bound, or more copies of an item than allowed


def count_items(records: Iterable[str]) -> Histogram:
    return dict(Counter(records))


def make_contribution(
    question: AnyQuestion,
    holdings: Histogram,
    rng: np.random.Generator,
    max_copies: int | None = None,
) -> Contribution:
    """Return the contribution to `question` of a device with the items `holdings`.

    An item counts at most `max_copies` times, or any number of times if that is None.
    """
    inside = Counter[str]()
    for item, count in holdings.items():
        canonical = question.canonical(item) if count else None
        if canonical is not None:
            inside[canonical] += count
    total = sum(inside.values())
    limited = {item: min(count, max_copies or count) for item, count in inside.items()}
    histogram = clip(limited, question.contribution, rng)
    outside = sum(holdings.values()) - total
    return Contribution(histogram, outside, total - sum(histogram.values()))


def encode(
    plan: AnyPlan, contribution: Contribution, cohort_size: int, chance: RandomWords
) -> Vector:
    """Return the vector of `contribution` in a cohort of `cohort_size` devices.

    It contains the device's share of the noise, if the plan adds noise to sums.
    """
    mechanism = SUM_MECHANISMS[plan.question.mechanism]
    vector: Vector = mechanism.encode(plan, contribution.histogram, chance)
    add_noise(mechanism.ring(plan), vector, mechanism.noise_shares(plan, cohort_size), chance)
    return vector
