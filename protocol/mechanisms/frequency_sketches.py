"""Frequency sketches as mechanisms: baselines that score every candidate in every round.

Devices add all of their items, unsampled, to a sketch of counters (`sketches/count_sketch.py`):
rows of counts (`count-median`), or of counts with random signs (`count-sketch`). The server reads
an estimate of every item of the domain from the sum of each round, and adds the estimates up over
rounds. All hash functions are fresh in each round, so errors are independent. They grow with the
square root of R for every item alike, for any count: sampled tables do better here.

So the domain must be small enough to list, and every item costs time.

Source: the baseline of section 7 of [Gascon23], which calls it both Count-median and Count-sketch
and does not specify whether it has signs; both are here. `rows` is its H.
"""

from collections.abc import Iterable
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from protocol.arrays import Keys
from protocol.domains.strings import Domain
from protocol.histograms import Histogram, keyed_histograms
from protocol.mechanism import (
    MAX_SHOWN_ESTIMATES,
    Answer,
    Estimate,
    SumMechanism,
    estimates_of_values,
)
from protocol.randomness import RandomWords
from protocol.sketches.count_sketch import MAX_ROWS, CountSketch, cell_bits, median
from protocol.study import WORD_BITS, Plan, StudyState, SumQuestion, Terms
from secagg.ring import Ring, Vector

FrequencySketchName = Literal["count-median", "count-sketch"]
MAX_CANDIDATES = 2**20
_CELL_COUNT_LIMIT = 2**31
_SCORES_ARRAY, _VARIANCES_ARRAY = "scores", "variances"  # of the study state, by candidate


class FrequencySketchQuestion(SumQuestion):
    """Question for the heavy items of a `domain` that can be listed; the sketch has `rows` rows."""

    mechanism: FrequencySketchName
    rows: int = Field(default=7, ge=1, le=MAX_ROWS)

    @property
    def is_signed(self) -> bool:
        return self.mechanism == "count-sketch"

    @model_validator(mode="after")
    def _can_be_enumerated(self) -> Self:
        if candidate_count(self.domain) > MAX_CANDIDATES:
            raise ValueError(
                f"{self.mechanism} scores every item: the domain has "
                f"{candidate_count(self.domain):,} keys, above the limit of {MAX_CANDIDATES:,}"
            )
        return self


class FrequencySketchPlan(Plan):
    """Plan of a round: add all items to a sketch of `width` cells per row."""

    mechanism: FrequencySketchName
    question: FrequencySketchQuestion
    width: int = Field(ge=2, le=2**26)

    @model_validator(mode="after")
    def _fits_the_words(self) -> Self:
        if self.width > _max_width(self.question, self.terms):
            raise ValueError(f"rows of {self.width} do not fit in {self.question.words} words")
        return self

    @property
    def sketch(self) -> CountSketch:
        seed, question = bytes.fromhex(self.seed), self.question
        return CountSketch(
            rows=question.rows,
            width=self.width,
            chunks=question.domain.chunks,
            max_count=_max_count(question, self.terms),
            location_seed=seed,
            sign_seed=seed if question.is_signed else None,
        )


class FrequencySketchMechanism(SumMechanism[FrequencySketchQuestion, FrequencySketchPlan]):
    """Mechanism of a sketch that scores every candidate."""

    plan_type = FrequencySketchPlan

    def __init__(self, name: FrequencySketchName) -> None:
        self.name = name

    def _first_fields(
        self, question: FrequencySketchQuestion, terms: Terms, rounds: int
    ) -> dict[str, Any]:
        del rounds
        width = _max_width(question, terms)
        if width < 2:
            bits = 2 * question.rows * cell_bits(_max_count(question, terms), True)
            needed = -(-bits // WORD_BITS)
            raise ValueError(f"{question.words} words are too few: {needed} words are needed")
        return {"width": width}

    def ring(self, plan: FrequencySketchPlan) -> Ring:
        return plan.sketch.ring

    def encode_sum(
        self, plan: FrequencySketchPlan, histograms: Iterable[Histogram], chance: RandomWords
    ) -> Vector:
        del chance  # every item is added
        held = keyed_histograms(plan.question.domain, plan.question.contribution, histograms)
        return plan.sketch.insert(*held.item_totals(held.counts))

    def fault(self, plan: FrequencySketchPlan, total: Vector, participants: int) -> str | None:
        """Return the law of the sketch that `total` breaks; `count_sketch.py` has probabilities.

        A device that moves counts from one item to another is not detected, nor is, with signs, one
        that adds even amounts anywhere within the bound.
        """
        return plan.sketch.fault(total, participants * plan.question.contribution)

    def decode(
        self, plan: FrequencySketchPlan, total: Vector, participants: int, state: StudyState
    ) -> Answer:
        del participants
        sketch, keys = plan.sketch, enumerate_keys(plan.question.domain)
        counts = sketch.counts(total)
        scores = median(sketch.estimates(counts, keys))
        variances = sketch.variance(counts, scores)
        for name, column in ((_SCORES_ARRAY, scores), (_VARIANCES_ARRAY, variances)):
            state = state.with_array(name, state.arrays.get(name, np.zeros(len(keys))) + column)
        top = np.flatnonzero(scores > 0)
        top = top[np.argsort(-scores[top], kind="stable")[:MAX_SHOWN_ESTIMATES]]
        shown = estimates_of_values(plan.question.domain, top, scores, variances)
        return Answer(True, float((scores >= 0.5).sum()), tuple(shown), state)

    def final_estimates(
        self, question: FrequencySketchQuestion, state: StudyState
    ) -> list[Estimate]:
        scores = state.arrays.get(_SCORES_ARRAY, np.zeros(0))
        variances = state.arrays.get(_VARIANCES_ARRAY, scores)
        heavy = np.flatnonzero(scores >= question.threshold)
        return estimates_of_values(question.domain, heavy, scores, variances)


COUNT_MEDIAN = FrequencySketchMechanism("count-median")
COUNT_SKETCH = FrequencySketchMechanism("count-sketch")


def candidate_count(domain: Domain) -> int:
    """Return the number of keys; some may have no item."""
    return int(domain.bound**domain.chunks)


def enumerate_keys(domain: Domain) -> Keys:
    """Return all keys of `domain`, which fit in one chunk."""
    return np.arange(candidate_count(domain), dtype=np.uint64).reshape(-1, 1)


def _max_count(question: SumQuestion, terms: Terms) -> int:
    max_count = terms.max_devices * question.contribution
    if max_count >= _CELL_COUNT_LIMIT:
        raise ValueError(
            f"a cell counts to less than {_CELL_COUNT_LIMIT:,}; devices may hold {max_count:,}"
        )
    return max_count


def _max_width(question: FrequencySketchQuestion, terms: Terms) -> int:
    bits = cell_bits(_max_count(question, terms), question.is_signed)
    return question.words * WORD_BITS // (bits * question.rows)
