"""Examples of questions and plans of every mechanism of sums, for laws that all of them keep."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from protocol.committee_terms import CommitteeTerms
from protocol.domains.numeric import NumericInterval
from protocol.domains.product import Product
from protocol.domains.strings import Alphabet, Utf8
from protocol.estimation.estimates import Estimate
from protocol.mechanism import Mechanism
from protocol.mechanisms.central.hierarchical_histogram import HierarchicalHistogramQuestion
from protocol.mechanisms.central.trie_plan import TrieHhQuestion
from protocol.mechanisms.iblt.adaptive import AdaptiveIbltQuestion
from protocol.mechanisms.number_sums import NumberSumsQuestion
from protocol.mechanisms.registry import SUM_MECHANISMS
from protocol.mechanisms.tracked.counters import CounterGroup
from protocol.mechanisms.tracked.observations import record_round
from protocol.mechanisms.tracked.plan import TrackedQuestion
from protocol.mechanisms.tracked.split_counters import SplitGroup
from protocol.question_and_plan import Question, Terms
from protocol.reference_mechanisms.approximate_histogram import ApproximateHistogramQuestion
from protocol.reference_mechanisms.count_sketches import (
    FrequencySketchName,
    FrequencySketchQuestion,
)
from protocol.reference_mechanisms.subsampled_iblt import SubsampledIbltQuestion
from protocol.sketches.vote_table import VoteTableShape
from protocol.study_state import EMPTY_STATE, StudyState
from secagg.keys import Identity

TERMS = Terms(cohort_size=40, minimum=5, cohorts=2)
OPERATORS = tuple(Identity.of(bytes([number]) * 32).public.hex() for number in range(7))
ONE_SHOT_TERMS = Terms(
    cohort_size=80, minimum=5, sum="one-shot", committee=CommitteeTerms(members=OPERATORS)
)
THEOREM: dict[str, Any] = {"rule": "theorem", "repetitions": 2}


def sampled_contribution(plan: Any) -> float:
    return max(plan.t + 1, plan.question.contribution)


def whole_contribution(plan: Any) -> float:
    return plan.question.contribution


def two_votes(plan: Any) -> float:
    return 2 / plan.release.probability


@dataclass(frozen=True)
class Example:
    """A question, a plan update that makes sampling bite, and what one device may change."""

    question: Question
    update: dict[str, Any] = field(default_factory=dict)
    influence: Callable[[Any], float] = sampled_contribution  # the most that one device changes
    is_sketch: bool = False  # whose estimates other items move
    is_biased: bool = False  # by less than the standard deviation
    is_private: bool = False  # so that small counts are suppressed, or none is exact
    spell: Callable[[str], str] = str  # an item of two letters as devices hold it
    state: StudyState = EMPTY_STATE
    terms: Terms = TERMS

    @property
    def mechanism(self) -> Mechanism[Any, Any]:
        return SUM_MECHANISMS[self.question.mechanism]

    def held(self, letters: Mapping[str, int]) -> dict[str, int]:
        """Return a histogram of items of two letters as a device holds it."""
        return {self.spell(item): count for item, count in letters.items()}

    def plan(self, seed: int = 0) -> Any:
        first = self.mechanism.first_plan(
            self.question, self.terms, "laws", 30, random.Random(seed)
        )
        return first.model_copy(update=self.update)


def iblt(contribution: int, t: float, domain: Alphabet | Utf8, **mode: Any) -> Example:
    question = AdaptiveIbltQuestion(
        threshold=5, contribution=contribution, domain=domain, message_bytes=8304, **mode
    )
    return Example(question, {"t": t, "cells": 204})


def sampled(kind: type[Any], contribution: int, threshold: float, **rule: Any) -> Example:
    asked = {"threshold": threshold, "contribution": contribution, "domain": LETTERS}
    return Example(kind(**asked, message_bytes=122_304, **rule))


def tracked(contribution: int, t: float, *items: str, **mode: Any) -> Example:
    question = TrackedQuestion(
        threshold=5, contribution=contribution, domain=LETTERS, message_bytes=8304, **mode
    )
    first = SUM_MECHANISMS["tracked"].first_plan(question, TERMS, "laws", 30, random.Random(1))
    seen = [Estimate(item, 60.0, 0.0) for item in items]
    state = record_round(first, EMPTY_STATE, 40, [], seen)
    groups = (CounterGroup(bits=9, items=items),) if items else ()
    update = {"t": t, "cells": 204, "counter_groups": groups, "max_value": 1000}
    return Example(question, update, state=state)


def sketch(kind: FrequencySketchName, contribution: int, hashes: int) -> Example:
    asked = dict[str, Any](mechanism=kind, threshold=5, contribution=contribution, domain=LETTERS)
    question = FrequencySketchQuestion(**asked, message_bytes=2904, rows=hashes)
    is_biased = kind == "count-median"
    return Example(question, influence=whole_contribution, is_sketch=True, is_biased=is_biased)


def noisy_sketch(kind: FrequencySketchName) -> Example:
    plain = sketch(kind, 1, 3)
    private = {"epsilon": 8, "delta": 0.5, "threshold": 50}
    question = plain.question.model_copy(update=private)
    return replace(plain, question=question, is_private=True)


def trie(mode: str, **own: Any) -> Example:
    asked = {"mode": mode, "epsilon": 8, "delta": 0.6, "stride": 2, "every_round": False} | own
    question = TrieHhQuestion.model_validate(
        {"threshold": 1, "contribution": 1, "domain": LETTERS, "message_bytes": 8304} | asked
    )
    return Example(question, influence=two_votes, is_private=True)


def tabled() -> Example:
    plain = trie("sample-threshold", theta=1, probability=0.5, vote_tables=True)
    return replace(
        plain, update={"table_shape": VoteTableShape(bound=64, votes=80, width=40, evidence=2**30)}
    )


def hierarchy(mode: str, **own: Any) -> Example:
    asked = {"mode": mode, "epsilon": 8, "delta": 0.6} | own
    question = HierarchicalHistogramQuestion.model_validate(
        {"threshold": 1, "domain": LETTERS, "message_bytes": 8304} | asked
    )
    return Example(question, influence=two_votes, is_private=True)


def numbers() -> Example:
    pairs = tuple(a + b for a in "abcdefgh" for b in "abcdefgh")
    interval = NumericInterval(low=-2, high=6, alpha=10, length=2)
    question = NumberSumsQuestion(
        threshold=1, domain=Product(segments=pairs, inner=interval), message_bytes=6304
    )
    return Example(
        question,
        influence=whole_contribution,
        spell=lambda item: f"{item}:{interval.name(str(len(item) + ord(item[-1]) % 4))}",
    )


LETTERS = Alphabet(characters="abcdefgh", length=2)
EXAMPLES = {
    "adaptive-iblt, all of it": iblt(6, 1.0, LETTERS),
    "adaptive-iblt, sampled": iblt(6, 2.5, LETTERS),
    "adaptive-iblt, sampled in units": iblt(6, 7.5, LETTERS),
    "adaptive-iblt, one item each": iblt(1, 1.7, LETTERS),
    "adaptive-iblt, text": iblt(6, 1.5, Utf8(max_bytes=9)),
    "subsampled-iblt, sampled": sampled(SubsampledIbltQuestion, 6, 5, t=4.5),
    "subsampled-iblt, two tables": sampled(
        SubsampledIbltQuestion, 6, 7, rule="theorem", repetitions=2
    ),
    "approximate-histogram, theorem": sampled(
        ApproximateHistogramQuestion, 6, 7, rule="theorem", repetitions=2
    ),
    "approximate-histogram, practical": sampled(ApproximateHistogramQuestion, 6, 5),
    "triehh, sampled": trie("sample-threshold", theta=1, probability=0.5),
    "triehh, in a table": tabled(),
    "triehh, in noise": trie("noise"),
    "triehh, both": trie("both", probability=0.5),
    "hierarchical-histogram, sampled": hierarchy("sample-threshold", theta=1, probability=0.3),
    "hierarchical-histogram, in noise": hierarchy("noise"),
    "hierarchical-histogram, both": hierarchy("both", probability=0.5),
    "count-median": sketch("count-median", 6, 3),
    "count-sketch": sketch("count-sketch", 6, 3),
    "count-sketch, one item each": sketch("count-sketch", 1, 4),
    "count-sketch, in noise": noisy_sketch("count-sketch"),
    "count-median, in noise": noisy_sketch("count-median"),
    "number-sums": numbers(),
    "tracked, nothing": tracked(6, 2.5),
    "tracked, some items": tracked(6, 2.5, "ab", "cd", "aa"),
    "tracked, some items, in units": tracked(6, 7.5, "ab", "cd", "ef"),
    "tracked, one item each": tracked(1, 1.7, "bb", "cc"),
}


def one_shot_fields(example: Example) -> dict[str, Any]:
    """Return the fields of a plan that are others in a one-shot sum: those of `tracked`."""
    if example.question.mechanism != "tracked":
        return {}
    groups = example.update["counter_groups"]
    classes = tuple(len(group.items) for group in groups)
    split = tuple(SplitGroup(counters=1, items=group.items) for group in groups)
    lanes = {"prime": 1009, "table_classes": 1, "counter_classes": classes}
    return lanes | {"counter_groups": split}


ONE_SHOT_EXAMPLES = {
    f"{name}, in a one-shot sum": replace(
        example, terms=ONE_SHOT_TERMS, update=example.update | one_shot_fields(example)
    )
    for name, example in EXAMPLES.items()
}
