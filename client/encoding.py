"""From what a device holds to what it gives: first its own items, then its vector.

A device holds records, any number of them, of any text. What it gives is a histogram of at
most `contribution` records, all inside the question's domain. Records outside the domain
leave first, so that they take no room under the bound; of the rest a random part stays. The
histogram that is left is a device's contribution: estimates are of the sum of these, and so
is the truth that they are measured against.

Source: the contribution bound m of [Gascon23, section 2].
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from protocol.chance import Chance
from protocol.mechanism import Histogram, hide
from protocol.mechanisms import SUMMING, AnyPlan, AnyQuestion
from protocol.sampling import clip
from secagg.ring import Vector


@dataclass(frozen=True, slots=True)
class Contribution:
    """What a device gives to one study, and how many records it could not give."""

    histogram: Histogram
    outside: int  # records outside the domain
    beyond: int  # records beyond the contribution bound


def tally(records: Iterable[str]) -> Histogram:
    """Return how often each item occurs in `records`."""
    return dict(Counter(records))


def contribute(question: AnyQuestion, held: Histogram, rng: np.random.Generator) -> Contribution:
    """Return what a device that holds `held` gives to `question`."""
    inside = Counter[str]()
    for item, count in held.items():
        admitted = question.admit(item) if count else None
        if admitted is not None:
            inside[admitted] += count
    given = clip(inside, question.contribution, rng)
    total, kept = sum(inside.values()), sum(given.values())
    return Contribution(given, sum(held.values()) - total, total - kept)


def encode(plan: AnyPlan, contribution: Contribution, contacted: int, chance: Chance) -> Vector:
    """Return the vector of `plan` that carries `contribution`, in a cohort of `contacted` devices.

    If the plan hides sums in noise, it has this device's share of it.
    """
    mechanism = SUMMING[plan.question.mechanism]
    vector: Vector = mechanism.encode(plan, contribution.histogram, chance)
    hide(mechanism.ring(plan), vector, mechanism.shares(plan, contacted), chance)
    return vector
