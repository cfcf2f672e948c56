"""Effects of lying devices on a round of secure sums, at worst.

A device that lies may send any vector that keeps the laws of its cohort's sum. Each liar is in
another cohort, where it can add what honest devices might have added: the largest count that one
item can have in that sum. It can also take away what its cohort has of an item, and make the sum of
its cohort unreadable. Where cohorts can be compared, an item that too many tokens are added to is
flagged, and the liars' cohorts do not count (`protocol/mechanisms/cohort_comparison.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from protocol.mechanisms.cohort_comparison import max_unflagged_tokens
from protocol.mechanisms.iblt.threshold_sampling import ThresholdSampler
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
    no_dropouts: dict[str, Any] = {"corrupt": 0, "dropout": 0, "mode": "semi-honest"}
    return Terms(cohort_size=size, minimum=size, cohorts=cohorts, **no_dropouts)


def effects_of_liars(question: SumQuestion, terms: Terms, rounds: int) -> list[LyingDevices]:
    """Return the effects on a full round of a study of `rounds`.

    Samples are taken at the threshold of the first round. `question` is of `tracked` or
    `adaptive-iblt`. Raises ValueError if the question has no plan.
    """
    mechanism = SUM_MECHANISMS[question.mechanism]
    plan = mechanism.first_plan(question, terms, "plan", rounds, Random(1))
    samplers = [ThresholdSampler(plan.t, question.contribution)]
    if question.mechanism == "tracked":  # which counts the items that it knows
        samplers.append(ThresholdSampler(1.0, question.contribution))
    return [_effects(samplers, terms, liars) for liars in LIAR_COUNTS]


def _effects(samplers: Sequence[ThresholdSampler], terms: Terms, liars: int) -> LyingDevices:
    size, cohorts = terms.cohort_size, terms.cohorts
    spoilt = min(liars, cohorts)
    lifts = []
    for sampler in samplers:
        units = min(sampler.max_units(size * sampler.max_count), size * sampler.max_item_units)
        unflagged = max_unflagged_tokens(cohorts, spoilt, sampler.max_item_units)
        lifts.append(sampler.unit * min(spoilt * units, unflagged))
    lift = min(max(lifts), float(terms.max_devices * samplers[0].max_count))
    return LyingDevices(liars, lift, spoilt / cohorts, spoilt / cohorts)
