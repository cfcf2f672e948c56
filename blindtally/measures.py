"""How well a study answers: what it found beside what devices held.

An item is heavy if its count, over all devices in any sum and as each of them clipped it,
reaches the threshold; it is found if its estimate, summed over the rounds, does. Precision
is the share of the found that are heavy, recall the share of the heavy that are found, and
F1 = 2 right / (found + heavy). Where there is nothing to divide by, nothing went wrong: 1.

Source: section 7 of [Gascon23].
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from protocol.mechanisms import MECHANISMS, AnyPlan
from protocol.simulation import Outcome, add_up


@dataclass(frozen=True, slots=True)
class Found:
    """A heavy hitter as the study found it, beside how often devices really held it."""

    item: str
    estimate: float
    standard_error: float
    true_count: int


@dataclass(frozen=True, slots=True)
class Result:
    """What a study found, how that compares with the truth, and what it cost.

    `words` are the 16-bit words that a device sends in a round, the most of any round;
    `thresholds` the sampling threshold t of each round; `devices` those in any sum.
    """

    f1: float
    precision: float
    recall: float
    words: int
    rounds_decoded: int
    thresholds: list[float]
    devices: int
    heavy_hitters: list[Found]
    missed: dict[str, int]


def measure(outcomes: Sequence[Outcome[AnyPlan]], threshold: float) -> Result:
    """Return how what was found compares with what the counted devices held."""
    truth: Counter[str] = Counter()
    for outcome in outcomes:
        truth.update(outcome.truth)
    heavy = {item for item, count in truth.items() if count >= threshold}
    found = [
        Found(e.item, e.count, math.sqrt(e.variance), truth[e.item])
        for e in add_up(outcome.answer for outcome in outcomes)
        if e.count >= threshold
    ]
    right = sum(hitter.item in heavy for hitter in found)
    missed = heavy.difference(hitter.item for hitter in found)
    return Result(
        f1=2 * right / (len(found) + len(heavy)) if found or heavy else 1.0,
        precision=right / len(found) if found else 1.0,
        recall=right / len(heavy) if heavy else 1.0,
        words=max(_words(outcome.plan) for outcome in outcomes),
        rounds_decoded=sum(o.answer is not None and o.answer.decoded for o in outcomes),
        thresholds=[outcome.plan.t for outcome in outcomes],
        devices=sum(len(outcome.counted) for outcome in outcomes),
        heavy_hitters=found,
        missed={item: truth[item] for item in sorted(missed, key=lambda i: (-truth[i], i))},
    )


def _words(plan: AnyPlan) -> int:
    return -(-MECHANISMS[plan.mechanism].ring(plan).nbytes // 2)
