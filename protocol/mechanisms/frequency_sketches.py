"""Frequency sketches as mechanisms: the baselines, which score every candidate in every round.

Devices add all they hold, unsampled, to a sketch of counters (`sketches/count_sketch.py`): rows
of counts, `count-median`, or of counts with random signs, `count-sketch`. The reader asks the
sum of each round for every item of the domain, and adds the estimates up over rounds. All hash
functions are fresh each round, so errors are independent, and grow with the root of R for
every item alike, whatever its count: that is what sampled tables do better.

So a domain must be small enough to be enumerated, and every item is paid for in time.

Source: the baseline of section 7 of [Gascon23], which calls it both Count-median and
Count-sketch and does not say whether it has signs; here are both. `hashes` is its H.
"""

from abc import ABC
from collections.abc import Iterable
from random import Random
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from protocol.chance import Chance
from protocol.domain import Domain
from protocol.item_space import Keys
from protocol.mechanism import (
    WORD_BITS,
    Answer,
    Estimate,
    Histogram,
    Plan,
    Summing,
    SumQuestion,
    Terms,
    first_fields,
    ranked,
)
from protocol.mechanisms.holdings import gather
from protocol.sketches.count_sketch import MOST_ROWS, CountSketch, cell_bits, median
from protocol.tally import Tally
from secagg.ring import Ring, Vector

MOST_CANDIDATES = 2**20
SHOWN = 1000  # of a round's estimates
_MOST_COUNT = 2**31
_SCORES, _VARIANCES = "scores", "variances"  # of a tally: numbers by candidate


class FrequencySketchQuestion(SumQuestion, ABC):
    """Which items of an enumerable `domain` are heavy; a sketch has `hashes` rows."""

    mechanism: str
    hashes: int = Field(default=7, ge=1, le=MOST_ROWS)

    @model_validator(mode="after")
    def _can_be_enumerated(self) -> Self:
        if candidates(self.domain) > MOST_CANDIDATES:
            raise ValueError(
                f"{self.mechanism} scores every item: the domain has "
                f"{candidates(self.domain):,} keys, {MOST_CANDIDATES:,} are the most"
            )
        return self


class FrequencySketchPlan(Plan, ABC):
    """Add all items to a sketch of `width` cells a row."""

    question: FrequencySketchQuestion
    width: int = Field(ge=2, le=2**26)

    @model_validator(mode="after")
    def _keeps_to_the_words(self) -> Self:
        if self.width > _most_width(self.question, self.terms):
            raise ValueError(f"rows of {self.width} do not fit in {self.question.words} words")
        return self

    @property
    def sketch(self) -> CountSketch:
        """Return the round's sketch."""
        seed, question = bytes.fromhex(self.seed), self.question
        return CountSketch(
            rows=question.hashes,
            width=self.width,
            chunks=question.domain.chunks,
            most=_most_count(question, self.terms),
            places=seed,
            signs=seed if _is_signed(question) else None,
        )


class CountMedianQuestion(FrequencySketchQuestion):
    """Scored by counts without signs."""

    mechanism: Literal["count-median"] = "count-median"


class CountSketchQuestion(FrequencySketchQuestion):
    """Scored by counts with signs."""

    mechanism: Literal["count-sketch"] = "count-sketch"


class CountMedianPlan(FrequencySketchPlan):
    """Add all items to rows of counts."""

    mechanism: Literal["count-median"] = "count-median"
    question: CountMedianQuestion


class CountSketchPlan(FrequencySketchPlan):
    """Add all items, with signs, to rows of counts."""

    mechanism: Literal["count-sketch"] = "count-sketch"
    question: CountSketchQuestion


class FrequencySketch(Summing[FrequencySketchQuestion, FrequencySketchPlan]):
    """See the module's docstring."""

    def __init__(self, name: str, plan: type[FrequencySketchPlan]) -> None:
        self.name = name
        self._plan = plan

    def first_plan(
        self, question: FrequencySketchQuestion, terms: Terms, study: str, rounds: int, rng: Random
    ) -> FrequencySketchPlan:
        """Return the plan of round 1; all that changes later is the seed.

        Raises:
            ValueError: if `words` do not hold two cells a row; says how many do.
        """
        width = _most_width(question, terms)
        if width < 2:
            bits = 2 * question.hashes * cell_bits(_most_count(question, terms), True)
            needed = -(-bits // WORD_BITS)
            raise ValueError(f"{question.words} words are too few: {needed} words are needed")
        return self._plan(**first_fields(question, terms, study, rounds, rng), width=width)

    def ring(self, plan: FrequencySketchPlan) -> Ring:
        """Return the ring of the round's sketches."""
        return plan.sketch.ring

    def encode_sum(
        self, plan: FrequencySketchPlan, histograms: Iterable[Histogram], chance: Chance
    ) -> Vector:
        """Return the sum of the devices' sketches, bit for bit, adding each item once."""
        del chance  # every item is added
        held = gather(plan.question, histograms)
        return plan.sketch.insert(*held.sums(held.counts))

    def fault(self, plan: FrequencySketchPlan, total: Vector, participants: int) -> str | None:
        """Return which of the sketch's laws `total` breaks; `count_sketch.py` has the odds.

        Not seen is a device that takes from one item and gives to another, and, with signs,
        one that adds even amounts anywhere within the bound.
        """
        return plan.sketch.fault(total, participants * plan.question.contribution)

    def decode(
        self, plan: FrequencySketchPlan, total: Vector, participants: int, tally: Tally
    ) -> Answer:
        """Return the `SHOWN` highest estimates; the tally has them all, and is always decoded."""
        del participants
        sketch, keys = plan.sketch, enumerate_keys(plan.question.domain)
        counts = sketch.counts(total)
        scores = median(sketch.estimates(counts, keys))
        variances = sketch.variance(counts, scores)
        for name, column in ((_SCORES, scores), (_VARIANCES, variances)):
            tally = tally.keep(name, tally.arrays.get(name, np.zeros(len(keys))) + column)
        top = np.flatnonzero(scores > 0)
        top = top[np.argsort(-scores[top], kind="stable")[:SHOWN]]
        found = _named(plan.question.domain, top, scores, variances)
        return Answer(True, float((scores >= 0.5).sum()), tuple(found), tally)

    def conclude(self, question: FrequencySketchQuestion, tally: Tally) -> list[Estimate]:
        """Return the items whose estimates add up to the threshold, highest first."""
        scores = tally.arrays.get(_SCORES, np.zeros(0))
        variances = tally.arrays.get(_VARIANCES, scores)
        heavy = np.flatnonzero(scores >= question.threshold)
        return _named(question.domain, heavy, scores, variances)


COUNT_MEDIAN = FrequencySketch("count-median", CountMedianPlan)
COUNT_SKETCH = FrequencySketch("count-sketch", CountSketchPlan)


def candidates(domain: Domain) -> int:
    """Return how many keys there are; some may have no item."""
    return int(domain.bound**domain.chunks)


def enumerate_keys(domain: Domain) -> Keys:
    """Return all keys of `domain`, which are few enough for one chunk."""
    return np.arange(candidates(domain), dtype=np.uint64).reshape(-1, 1)


def _named(
    domain: Domain,
    rows: NDArray[np.intp],
    scores: NDArray[np.float64],
    variances: NDArray[np.float64],
) -> list[Estimate]:
    items = domain.decode(rows.astype(np.uint64).reshape(-1, 1))
    pairs = zip(items, rows.tolist(), strict=True)
    return ranked(
        Estimate(item, float(scores[row]), float(variances[row]))
        for item, row in pairs
        if item is not None
    )


def _is_signed(question: SumQuestion) -> bool:
    return question.mechanism == "count-sketch"


def _most_count(question: SumQuestion, terms: Terms) -> int:
    most = terms.devices * question.contribution
    if most >= _MOST_COUNT:
        raise ValueError(f"a cell counts to less than {_MOST_COUNT:,}; devices may hold {most:,}")
    return most


def _most_width(question: FrequencySketchQuestion, terms: Terms) -> int:
    bits = cell_bits(_most_count(question, terms), _is_signed(question))
    return question.words * WORD_BITS // (bits * question.hashes)
