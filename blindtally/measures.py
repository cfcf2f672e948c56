"""How well a study answers: what it found beside what devices held.

An item is heavy if its count, over all devices in any sum and as each of them clipped it,
reaches the threshold; it is found if its estimate, summed over the rounds, does. Precision
is the share of the found that are heavy, recall the share of the heavy that are found, and
F1 = 2 right / (found + heavy). Where there is nothing to divide by, nothing went wrong: 1.

Source: section 7 of [Gascon23].
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from rich.console import Group

from blindtally.tables import table
from protocol.mechanisms import SUMMING, AnyPlan, AnyQuestion
from protocol.simulation import Outcome
from protocol.tally import NOTHING

T = TypeVar("T")

SHOWN = 20  # heavy hitters of a table


@dataclass(frozen=True, slots=True)
class Found:
    """A heavy hitter as the study found it, beside how often devices really held it."""

    item: str
    estimate: float
    standard_error: float
    true_count: int

    @property
    def error(self) -> float:
        """Return by how much the estimate is too high."""
        return self.estimate - self.true_count


@dataclass(frozen=True, slots=True)
class Score:
    """How the items that were found compare with those that are heavy."""

    f1: float
    precision: float
    recall: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was found beside the truth, and what was missed of it, with true counts."""

    score: Score
    found: tuple[Found, ...]
    missed: dict[str, int]


@dataclass(frozen=True, slots=True)
class Result:
    """What a simulated study found, and what it cost.

    `words` are the 16-bit words that a device sends in a round, the most of any round;
    `thresholds` the sampling threshold t of each round; `devices` those in any sum. A result of a
    study that was `stopped` is partial: it is of the rounds that were over.
    """

    comparison: Comparison
    words: int
    rounds_decoded: int
    thresholds: list[float]
    devices: int
    stopped: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return what scripts read."""
        return {
            "partial": self.stopped,
            **asdict(self.comparison.score),
            "words": self.words,
            "rounds_decoded": self.rounds_decoded,
            "thresholds": self.thresholds,
            "devices": self.devices,
            "heavy_hitters": [asdict(one) for one in self.comparison.found],
            "missed": self.comparison.missed,
        }


def score(found: set[str], heavy: set[str]) -> Score:
    """Return precision, recall and F1 of what was `found`."""
    right = len(found & heavy)
    return Score(
        f1=2 * right / (len(found) + len(heavy)) if found or heavy else 1.0,
        precision=right / len(found) if found else 1.0,
        recall=right / len(heavy) if heavy else 1.0,
    )


def compare(
    estimates: Iterable[tuple[str, float, float]], truth: Mapping[str, int], threshold: float
) -> Comparison:
    """Compare found items, with estimates and standard errors, with true counts."""
    found = tuple(
        Found(item, estimate, error, truth.get(item, 0)) for item, estimate, error in estimates
    )
    heavy = {item: count for item, count in truth.items() if count >= threshold}
    names = {one.item for one in found}
    ranked = sorted(heavy.keys() - names, key=lambda item: (-heavy[item], item))
    return Comparison(score(names, set(heavy)), found, {item: heavy[item] for item in ranked})


def measure(outcomes: Iterable[Outcome[AnyPlan]], question: AnyQuestion) -> Result:
    """Return how what was found compares with what the counted devices held.

    Of each outcome only sums are kept: there may be many. Ctrl-C while one is awaited ends them.
    """
    truth: Counter[str] = Counter()
    words = decoded = devices = 0
    thresholds, tally = list[float](), NOTHING
    remaining = Stoppable(outcomes)
    for outcome in remaining:
        truth.update(outcome.truth)
        words = max(words, _words(outcome.plan))
        decoded += outcome.answer is not None and outcome.answer.decoded
        thresholds.append(outcome.plan.t)
        devices += outcome.devices
        tally = outcome.tally
    concluded = SUMMING[question.mechanism].conclude(question, tally)
    heavy = ((e.item, e.count, math.sqrt(e.variance)) for e in concluded)
    compared = compare(heavy, truth, question.threshold)
    return Result(compared, words, decoded, thresholds, devices, remaining.stopped)


class Stoppable(Iterator[T]):
    """Yields `things` until Ctrl-C; says whether it came, unless there was none yet to keep."""

    def __init__(self, things: Iterable[T]) -> None:
        self.stopped = False
        self._things, self._any = iter(things), False

    def __next__(self) -> T:
        try:
            thing = next(self._things)
        except KeyboardInterrupt:
            if not self._any:
                raise
            self.stopped = True
            raise StopIteration from None
        self._any = True
        return thing


def _words(plan: AnyPlan) -> int:
    return -(-SUMMING[plan.mechanism].ring(plan).nbytes // 2)


def heavy_hitters(found: Sequence[Found]) -> Group:
    """Return the first of what was `found` as a table, each item as Python writes it."""
    rows = [
        (
            repr(one.item),
            f"{one.estimate:,.0f}",
            f"{one.standard_error:,.0f}",
            f"{one.true_count:,}",
        )
        for one in found[:SHOWN]
    ]
    return table(["item"], ["estimate", "± s.e.", "true"], rows, "Heavy hitters")
