"""Theorem 1 of the paper holds, with the constants of its proof; and so does the practical rule."""

import math
import random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError

from protocol.domains.strings import Alphabet
from protocol.estimation.estimates import Estimate
from protocol.mechanisms.iblt.sampled_table import worst_case_threshold
from protocol.question_and_plan import Terms
from protocol.reference_mechanisms.subsampled_iblt import (
    SubsampledIblt,
    SubsampledIbltPlan,
    SubsampledIbltQuestion,
    theorem_parameters,
)
from protocol.round_sizes import message_bytes_of
from protocol.simulation.study import run_study
from protocol.sketches.iblt.layout import capacity
from protocol.study_state import EMPTY_STATE
from tests.protocol.chance import seeded

MECHANISM = SubsampledIblt()
LETTERS = Alphabet(characters="abcdefghijklmnopqrstuvwxyz", length=3)
TERMS = Terms(cohort_size=1000, minimum=500, cohorts=10)


def question(**changes: Any) -> SubsampledIbltQuestion:
    asked = dict[str, Any](threshold=50, contribution=1, domain=LETTERS, message_bytes=18_364)
    return SubsampledIbltQuestion(**(asked | changes))


def first_plan(terms: Terms = TERMS, rounds: int = 30, **changes: Any) -> SubsampledIbltPlan:
    return MECHANISM.first_plan(question(**changes), terms, "study", rounds, random.Random(1))


def test_the_theorems_parameters_are_those_of_its_proof() -> None:
    items_found = theorem_parameters(100, beta=0.1, tokens=2 * 5000, rounds=64)
    assert items_found.t == 50
    assert items_found.tables == math.ceil(20 * math.log(40 * 2 * 5000 * 64 / (100 * 0.1)))
    assert items_found.capacity == math.ceil(2 * 2 * 5000 / 100 * math.log(64))
    assert capacity(items_found.cells) >= items_found.capacity
    assert theorem_parameters(1, 0.1, 3, 1).t == 1  # nothing to sample away
    assert theorem_parameters(100, 0.1, 50, 1).tables == 260  # the smallest in the proof


def peeled(places: NDArray[np.int64], cells: int) -> NDArray[np.bool_]:
    """Return for each key, in three of `cells` cells, whether it can be peeled off."""
    alone = np.zeros(len(places), np.bool_)
    while True:
        rest = np.flatnonzero(~alone)
        load = np.bincount(places[rest].ravel(), minlength=cells)
        pure = rest[(load[places[rest]] == 1).any(axis=1)]
        if not len(pure):
            return alone
        alone[pure] = True


def listed(
    counts: NDArray[np.int64], items_found: Any, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Return for each item whether half of the lists have it; `counts` are by round and item."""
    lists = np.zeros((items_found.tables, counts.shape[1]), np.bool_)
    for held in counts:
        items = np.flatnonzero(held)
        sampled = rng.binomial(held[items], 1 / items_found.t, (len(lists), len(items)))
        table, column = np.nonzero(sampled)
        item, width = items[column], items_found.cells // 3
        within = rng.integers(0, width, (len(item), 3)) + np.arange(3) * width
        stuck = ~peeled(
            within + table[:, None] * items_found.cells, items_found.tables * items_found.cells
        )
        read = ~np.isin(table, table[stuck])
        lists[table[read], item[read]] = True
    halves: NDArray[np.bool_] = 2 * lists.sum(axis=0) >= items_found.tables
    return halves


def heavy_and_light(
    rounds: int, devices: int, tau: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return counts by round and item: some items held tau times, as few as that, and tau / 10."""
    heavy = devices * rounds // (2 * tau)
    light = devices * rounds // 2 // (tau // 10)
    tokens = np.repeat(np.arange(heavy + light), [tau] * heavy + [tau // 10] * light)
    rng.shuffle(tokens)
    size = -(-len(tokens) // rounds)
    counts = [
        np.bincount(tokens[start : start + size], minlength=heavy + light)
        for start in range(0, len(tokens), size)
    ]
    return np.array(counts)


def test_theorem_1() -> None:
    """Items with tau are found, those with tau / 10 are not, except with probability beta.

    None of 44 studies fails. With a probability of beta = 0.1, this would happen once in 103 times.
    Sampling and peeling only: keys and hashes are in the next test.
    """
    rounds, devices, tau = 33, 100, 20
    items_found, rng = theorem_parameters(tau, 0.1, devices, rounds), np.random.default_rng(1)
    assert items_found.tables > 200
    for _ in range(44):
        counts = heavy_and_light(rounds, devices, tau, rng)
        heavy = counts.sum(axis=0) == tau
        assert (listed(counts, items_found, rng) == heavy).all()


def test_the_mechanism_finds_the_items_of_theorem_1() -> None:
    terms = Terms(cohort_size=40, minimum=20)
    asked = question(rule="theorem", threshold=20, beta=0.1, message_bytes=2_002_304)
    rng = np.random.default_rng(2)
    counts = heavy_and_light(4, 40, 20, rng)
    items = LETTERS.decode(np.arange(counts.shape[1], dtype=np.uint64).reshape(-1, 1))
    rounds = [
        [[{str(items[x]): 1} for x in np.repeat(np.arange(len(items)), held)]] for held in counts
    ]
    outcomes = list(run_study(MECHANISM, asked, terms, rounds, random.Random(1), planned=4))
    assert all(outcome.answer and outcome.answer.decoded for outcome in outcomes)
    items_found = MECHANISM.final_estimates(asked, outcomes[-1].study_state)
    heavy = np.flatnonzero(counts.sum(axis=0) == 20)
    assert {estimate.item for estimate in items_found} == {items[x] for x in heavy}
    # Estimates are means of 260 samples: each is within 4.5 standard errors, except with 1e-5.
    assert all(abs(each.count - 20) < 4.5 * math.sqrt(each.variance) for each in items_found)
    assert max(each.variance for each in items_found) < 20 * 9 / 260 * 1.3


@pytest.mark.parametrize(
    ("nbytes", "threshold", "t"),
    [
        (8000, 50, "room"),  # the table limits
        (8000, 10, 5),  # the threshold does
        (120_000, 50, 1),  # nothing does
    ],
)
def test_the_practical_threshold_is_the_papers(nbytes: int, threshold: float, t: Any) -> None:
    size = message_bytes_of(TERMS, nbytes)
    plan = first_plan(message_bytes=size, threshold=threshold)
    room = worst_case_threshold(plan.question, TERMS)
    assert plan.t == pytest.approx(room if t == "room" else t)
    assert plan.tables == 1
    assert first_plan(message_bytes=size, threshold=threshold, t=7.5).t == 7.5


@pytest.mark.parametrize(
    "wrong",
    [{"rule": "theorem", "t": 3}, {"repetitions": 3}, {"beta": 0}, {"t": 0.5}, {"rule": "x"}],
)
def test_a_question_of_two_rules_or_none_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        question(**wrong)


def test_a_fault_names_its_table() -> None:
    terms = Terms(cohort_size=40, minimum=20)
    plan = first_plan(terms, rule="theorem", repetitions=3, message_bytes=42_304)
    total = MECHANISM.encode_sum(plan, [{"abc": 1}] * 40, seeded(1))
    assert MECHANISM.fault(plan, total, 40) is None
    lanes = len(total) // 3
    total[lanes][0] ^= 1
    fault = MECHANISM.fault(plan, total, 40)
    assert fault is not None
    assert fault.startswith("table 1: ")


def test_a_table_that_is_not_read_has_no_vote_and_no_weight() -> None:
    terms = Terms(cohort_size=40, minimum=20)
    plan = first_plan(terms, rule="theorem", repetitions=3, threshold=2, message_bytes=42_304)
    total = MECHANISM.encode_sum(plan, [{"abc": 1}] * 40, seeded(1))
    lanes = len(total) // 3
    for spoilt, (decoded, votes) in enumerate([(True, 2), (False, 1), (False, 0)]):
        total[spoilt * lanes][:] ^= 1
        answer = MECHANISM.decode(plan, total, 40, EMPTY_STATE)
        assert answer.decoded is decoded
        assert {each.item: each.count for each in answer.estimates} == (
            {"abc": 40.0} if votes else {}
        )
        heavy = MECHANISM.final_estimates(plan.question, answer.state)
        assert heavy == ([Estimate("abc", 40.0, 0.0)] if votes == 2 else [])


def test_items_of_earlier_rounds_help_to_read_a_table_that_is_too_full() -> None:
    """A table holds 45% more keys if half are known with probability 95%; these are 20% more."""
    terms = Terms(cohort_size=1000, minimum=100)
    plan, rng = first_plan(terms, 2, message_bytes=12_364, t=1.0), np.random.default_rng(1)
    limit = capacity(plan.cells)
    names = ["".join(rng.choice(list(LETTERS.characters), 3)) for _ in range(4 * limit)]
    items = list(dict.fromkeys(names))[: int(1.2 * limit)]
    early = MECHANISM.encode_sum(plan, [{item: 1} for item in items[: int(0.8 * limit)]], seeded(1))
    known = MECHANISM.decode(plan, early, len(items), EMPTY_STATE).state
    plan = MECHANISM.next_plan(plan, None, known, random.Random(2))
    total = MECHANISM.encode_sum(plan, [{item: 1} for item in items], seeded(2))
    assert not MECHANISM.decode(plan, total, len(items), EMPTY_STATE).decoded
    answer = MECHANISM.decode(plan, total, len(items), known)
    assert {each.item: each.count for each in answer.estimates} == dict.fromkeys(items, 1.0)
