"""Effects of lying devices on a round of secure sums, at worst.

A device that lies may send any vector that keeps the laws of its cohort's sum. Each liar is in
another cohort, where it can add what honest devices might have added: the largest count that one
item can have in that sum. It can also take away what its cohort has of an item, and make the sum of
its cohort unreadable. Where cohorts can be compared, an item that too many tokens are added to is
flagged, and the liars' cohorts do not count (`protocol/mechanisms/cohort_comparison.py`).
"""

from dataclasses import dataclass
from random import Random
from typing import Final

from protocol.mechanisms.registry import SUM_MECHANISMS
from protocol.question_and_plan import SumQuestion, Terms

LIAR_COUNTS: Final = (1, 10)
MIN_COHORT_SIZE: Final = 3
MAX_COHORT_SIZE: Final = 100_000


@dataclass(frozen=True, slots=True)
class LyingDevices:
    """Effects of `liars` devices on a round, at worst.

    `lift` is the largest count that they give to an item nobody holds. `lost_share` is the part
    that they can take from the count of an item, and `unreadable_share` the part of the round that
    they can make unreadable.
    """

    liars: int
    lift: float
    lost_share: float
    unreadable_share: float


def equal_cohorts(devices: int, cohorts: int | None = None) -> Terms:
    """Return terms of a round of `devices` in `cohorts` of equal size, by default the fewest.

    Raises:
        ValueError: if a cohort would have less than 3 devices, or too many.
    """
    cohorts = cohorts or -(-devices // MAX_COHORT_SIZE)
    size = devices // cohorts
    if not MIN_COHORT_SIZE <= size <= MAX_COHORT_SIZE:
        raise ValueError(
            f"{cohorts:,} cohorts of {devices:,} devices have {size:,} each: they need "
            f"{MIN_COHORT_SIZE} to {MAX_COHORT_SIZE:,}"
        )
    return Terms(cohort_size=size, minimum=size, cohorts=cohorts)


def effects_of_liars(question: SumQuestion, terms: Terms, rounds: int) -> list[LyingDevices]:
    """Return the effects on a full round of a study of `rounds`, sampled as in the first round.

    Raises:
        ValueError: if the question has no plan.
    """
    mechanism = SUM_MECHANISMS[question.mechanism]
    plan = mechanism.first_plan(question, terms, "plan", rounds, Random(1))
    effects = []
    for liars in LIAR_COUNTS:
        share = min(liars, terms.cohorts) / terms.cohorts
        effects.append(LyingDevices(liars, mechanism.lift_by_liars(plan, liars), share, share))
    return effects
