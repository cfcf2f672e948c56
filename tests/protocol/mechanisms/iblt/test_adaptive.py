"""The table is as large as the message allows, and the threshold settles where it is full."""

import random
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from protocol.domains.hashed import Hashed, HashedProduct
from protocol.domains.strings import Alphabet, Utf8
from protocol.mechanism import Answer
from protocol.mechanisms.iblt.adaptive import AdaptiveIblt, AdaptiveIbltPlan, AdaptiveIbltQuestion
from protocol.mechanisms.iblt.threshold_control import TableLoad, first_controller, log_change
from protocol.mechanisms.iblt.threshold_sampling import coarse_threshold
from protocol.mechanisms.registry import parse_question
from protocol.question_and_plan import Terms
from protocol.randomness import seeded_words
from protocol.round_sizes import message_bytes_of
from protocol.sketches.iblt.layout import MIN_LARGE_TABLE_CELLS, capacity
from protocol.sketches.iblt.table import CellFormat, Iblt
from protocol.study_state import EMPTY_STATE
from secagg.ring import Vector
from tests.protocol.chance import seeded

MECHANISM = AdaptiveIblt()
ROOT = Alphabet(characters="abcdefghijklmnopqrstuvwxyz0123456789'@#;*:./_ ", length=3)
TERMS = Terms(cohort_size=1000, minimum=500, cohorts=10)


def question(**changes: Any) -> AdaptiveIbltQuestion:
    asked = dict[str, Any](threshold=50, contribution=1, domain=ROOT, message_bytes=14_364)
    return AdaptiveIbltQuestion(**(asked | changes))


def first_plan(terms: Terms = TERMS, **changes: Any) -> AdaptiveIbltPlan:
    return MECHANISM.first_plan(question(**changes), terms, "study", 30, random.Random(1))


@pytest.mark.parametrize("nbytes", [420, 2_000, 4_000, 11_000])
@pytest.mark.parametrize("contribution", [1, 20])
@pytest.mark.parametrize("domain", [ROOT, Utf8(max_bytes=4)])
def test_the_table_is_the_largest_that_the_message_holds(
    nbytes: int, contribution: int, domain: Alphabet | Utf8
) -> None:
    plan = first_plan(
        message_bytes=message_bytes_of(TERMS, nbytes), contribution=contribution, domain=domain
    )
    wider = plan.model_copy(
        update={"cells": plan.cells + (3 if plan.cells >= MIN_LARGE_TABLE_CELLS else 4)}
    )
    assert MECHANISM.ring(plan).nbytes <= nbytes < MECHANISM.ring(wider).nbytes


def test_a_hashed_domain_is_refused_because_no_string_is_fetched() -> None:
    fields = {"threshold": 9, "contribution": 1, "message_bytes": 12_164}
    for domain in (Hashed(max_bytes=9), HashedProduct(max_bytes=9, segments=("a", "b"))):
        for mechanism in ("adaptive-iblt", "subsampled-iblt", "count-sketch"):
            asked = fields | {"mechanism": mechanism, "domain": domain.model_dump()}
            with pytest.raises(ValidationError, match="fetches no strings"):
                parse_question(asked)
        parse_question(fields | {"mechanism": "tracked", "domain": domain.model_dump()})


def test_a_plan_without_a_table_or_a_threshold_is_refused() -> None:
    plan = first_plan().model_dump()
    with pytest.raises(ValidationError, match="multiple of 3"):
        AdaptiveIbltPlan.model_validate(plan | {"cells": plan["cells"] - 1})
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        AdaptiveIbltPlan.model_validate(plan | {"t": 0.5})


def test_the_first_threshold_is_for_the_most_that_devices_could_hold() -> None:
    plan = first_plan()
    assert plan.t == pytest.approx(10_000 / capacity(plan.cells))
    assert first_plan(Terms(cohort_size=20, minimum=10)).t == 1


def test_the_lanes_are_as_narrow_as_the_bounds_allow() -> None:
    lanes = MECHANISM.ring(first_plan()).lanes
    assert [lane.bits for lane in lanes] == [14, 24]  # 10,000 devices, 97,336 keys with 7 hash bits


def test_below_m_the_counts_take_more_bits() -> None:
    plan = first_plan(contribution=20, rule="paper")
    assert plan.t > 20
    assert MECHANISM.ring(plan).lanes[0].bits == 18  # all items of all devices, 1 each
    lower = MECHANISM.next_plan(plan, Answer(True, 0.0), EMPTY_STATE, random.Random(1))
    while lower.t > 19:
        lower = MECHANISM.next_plan(lower, Answer(True, 0.0), EMPTY_STATE, random.Random(1))
    assert MECHANISM.ring(lower).lanes[0].bits == 22  # and t each
    assert lower.cells < plan.cells


def test_counts_beyond_31_bits_are_refused() -> None:
    vast = Terms(cohort_size=100_000, minimum=1000, cohorts=1_000)
    with pytest.raises(ValueError, match="counts to less than"):
        first_plan(vast, contribution=100)


@pytest.mark.parametrize(
    ("distinct", "factor"),
    [
        (0.0, 0.5),  # only halving
        (1.0, 1.0),  # just full
        (2.0, 1.5),
    ],
)
def test_the_papers_threshold_moves_half_way_to_where_the_table_is_full(
    distinct: float, factor: float
) -> None:
    plan = first_plan(rule="paper")
    answer = Answer(decoded=distinct <= 1, distinct=distinct * capacity(plan.cells))
    following = MECHANISM.next_plan(plan, answer, EMPTY_STATE, random.Random(2))
    assert following.t == coarse_threshold(factor * plan.t, 0.5 / capacity(plan.cells))


@pytest.mark.parametrize(("keys", "chance"), [(22, 0.15), (58, 0.06), (200, 0.06), (820, 0.06)])
def test_one_more_item_in_a_table_rarely_changes_the_threshold(keys: int, chance: float) -> None:
    """Powers of 1.05 for all tables changed t in 99% of the rounds with 22 keys."""
    rng, changed = np.random.default_rng(5), 0
    for _ in range(4000):
        held, t = round(keys * rng.uniform(0.6, 1.4)), rng.uniform(3, 60)
        loads = [TableLoad(t, 200, s, s - held // 2) for s in (held, held + 1)]
        ts = [first_controller(load).next_threshold(keys, 200) for load in loads]
        before, after = (coarse_threshold(t, log_change("steady", keys)) for t in ts)
        changed += before != after
    assert changed / 4000 < chance


def test_a_round_without_a_sum_leaves_the_threshold() -> None:
    plan = first_plan()
    assert MECHANISM.next_plan(plan, None, EMPTY_STATE, random.Random(2)).t == plan.t


def test_the_threshold_stays_between_one_and_twice_the_first() -> None:
    plan = start = first_plan(rule="paper")
    for _ in range(10):
        plan = MECHANISM.next_plan(plan, Answer(False, 1e9), EMPTY_STATE, random.Random(2))
    assert plan.t == 2 * start.t
    for _ in range(20):
        plan = MECHANISM.next_plan(plan, Answer(True, 1.0), EMPTY_STATE, random.Random(2))
    assert plan.t == 1


def study(rule: str, rounds: int, flat_from: int = 99) -> tuple[list[Answer], list[float]]:
    """Return answers and loads; items are geometric, and ten times flatter after some round."""
    rng, state = np.random.default_rng(4), EMPTY_STATE
    items = [a + b + c for a in "abcdefghij" for b in "abcdefghij" for c in "abcdefghij"]
    plan, answers, loads = first_plan(message_bytes=12_364, rule=rule), [], []
    for number in range(rounds):
        rate = 0.005 if number < flat_from else 0.0005
        devices = [{items[x]: 1} for x in rng.geometric(rate, 10_000) % 1000]
        total = MECHANISM.encode_sum(plan, devices, seeded_words(rng))
        answers.append(MECHANISM.decode(plan, total, 10_000, state))
        loads.append(answers[-1].distinct / capacity(plan.cells))
        state = answers[-1].state
        plan = MECHANISM.next_plan(plan, answers[-1], state, random.Random(5))
    return answers, loads


def test_the_papers_threshold_settles_where_the_items_just_fit() -> None:
    answers, loads = study("paper", 30)
    # Thresholds are rounded up by at most 5%, so the table is a little less full.
    assert np.mean(loads[10:]) == pytest.approx(0.95, abs=0.05)
    assert sum(answer.decoded for answer in answers) >= 24


def test_the_steady_threshold_settles_in_three_rounds_and_loses_almost_nothing() -> None:
    answers, loads = study("steady", 30)
    assert loads[3:] == pytest.approx([0.92] * 27, abs=0.2)
    assert sum(answer.decoded for answer in answers) >= 29


def test_the_steady_threshold_follows_a_population_that_changes_at_once() -> None:
    answers, loads = study("steady", 24, flat_from=12)
    assert loads[14:] == pytest.approx([0.9] * 10, abs=0.18)
    assert sum(answer.decoded for answer in answers[14:]) >= 9


def test_an_empty_sum_decodes_to_nothing_and_the_steady_threshold_stays() -> None:
    plan = first_plan()
    answer = MECHANISM.decode(plan, MECHANISM.ring(plan).zero(), 10, EMPTY_STATE)
    assert (answer.decoded, answer.distinct, answer.estimates) == (True, 0.0, ())
    later = MECHANISM.next_plan(plan, answer, answer.state, random.Random(2))
    assert 1 <= later.t < plan.t


def test_an_overfull_table_reports_its_number_of_keys_only() -> None:
    plan = first_plan(message_bytes=10_964).model_copy(update={"t": 1.0})
    items = {a + b + c for a in "abcde" for b in "abcde" for c in "abcdefgh"}
    total = MECHANISM.encode_sum(plan, [{item: 1} for item in items], seeded(1))
    answer = MECHANISM.decode(plan, total, len(items), EMPTY_STATE)
    assert not answer.decoded
    assert answer.estimates == ()
    assert answer.distinct == pytest.approx(200, rel=0.25)


def test_a_key_that_no_item_has_is_left_out() -> None:
    text = first_plan(domain=Utf8(max_bytes=3)).model_copy(update={"t": 1.0})
    cell = CellFormat(1, 2**24, TERMS.max_devices, TERMS.max_devices)
    table = Iblt(cell, text.cells, bytes.fromhex(text.seed))
    made_up = np.array([[0xFFFFFF], [0x616263]], dtype=np.uint64)
    total = table.insert(made_up, np.array([3, 5]))
    answer = MECHANISM.decode(text, total, 8, EMPTY_STATE)
    assert answer.decoded
    assert [(estimate.item, estimate.count) for estimate in answer.estimates] == [("abc", 5.0)]


def inserted(plan: AdaptiveIbltPlan, values: list[int]) -> Vector:
    bound, total = (
        TERMS.max_devices * most
        for most in (plan.sampler.max_item_units, plan.sampler.max_device_units)
    )
    table = Iblt(CellFormat(1, ROOT.bound, bound, total), plan.cells, bytes.fromhex(plan.seed))
    return table.insert(np.arange(len(values), dtype=np.uint64).reshape(-1, 1), np.array(values))


@pytest.mark.parametrize(
    ("t", "most"),
    [
        (1.0, [1, 1, 1]),  # three items
        (1.0, [3]),  # or one three times
        (1.5, [2, 2, 2]),  # each of three items sampled at T = 2
        (2.0, [2, 2, 2]),
        (2.1, [3, 3, 3]),
        (3.0, [1, 1, 1]),  # in units of t
        (9.5, [1, 1, 1]),
    ],
)
def test_a_device_may_insert_what_sampling_makes_of_m_items_and_no_more(
    t: float, most: list[int]
) -> None:
    plan = first_plan(contribution=3, message_bytes=16_364)
    plan = plan.model_copy(update={"t": t, "cells": 60})
    assert MECHANISM.fault(plan, inserted(plan, most), 1) is None
    fault = MECHANISM.fault(plan, inserted(plan, [*most, 1]), 1)
    assert fault == "the counts are more than the devices may insert"
    assert MECHANISM.fault(plan, inserted(plan, [*most, 1]), 2) is None


def test_vectors_made_for_another_seed_are_not_seen_but_do_not_decode() -> None:
    plan = first_plan()
    other = plan.model_copy(update={"seed": "00" * 32})
    total = MECHANISM.encode_sum(plan, [{"abc": 1}] * 900, seeded(1))
    assert MECHANISM.fault(other, total, 900) is None
    assert not MECHANISM.decode(other, total, 900, EMPTY_STATE).decoded
