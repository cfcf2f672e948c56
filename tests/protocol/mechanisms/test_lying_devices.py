"""A device whose vector keeps all linear laws changes an answer by what devices may add, no more.

Vectors of liars are made with the project's own code (`liars.py`). Before these laws one device of
1,000 lifted an item nobody holds to 4,484 (row 1 below), 1,000, 1,000 (tracked) and 51,020.
"""

from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from protocol.domains.strings import Alphabet
from protocol.estimation.estimates import Estimate
from protocol.mechanism import Answer, CohortSum, add_sums
from protocol.mechanisms.central.hierarchical_histogram import (
    COUNTS_ARRAY,
    EXCESS_ARRAY,
    NOISE_ARRAY,
    SAMPLING_VARIANCE_ARRAY,
    SHOWN_ARRAY,
    HierarchicalHistogramQuestion,
)
from protocol.mechanisms.central.release_mechanism import DEVICES_ARRAY
from protocol.mechanisms.central.trie_plan import TrieHhQuestion
from protocol.mechanisms.iblt.adaptive import AdaptiveIbltQuestion
from protocol.mechanisms.iblt.sampled_table import sampled_table
from protocol.mechanisms.iblt.threshold_sampling import ThresholdSampler
from protocol.mechanisms.registry import SUM_MECHANISMS
from protocol.mechanisms.tracked import tuning_constants
from protocol.mechanisms.tracked.counters import CounterGroup
from protocol.mechanisms.tracked.observations import record_round
from protocol.mechanisms.tracked.plan import TrackedPlan, TrackedQuestion
from protocol.privacy.release import Release
from protocol.question_and_plan import Terms
from protocol.reference_mechanisms.count_sketches import FrequencySketchQuestion
from protocol.reference_mechanisms.subsampled_iblt import SubsampledIbltQuestion, TableReadings
from protocol.study_state import EMPTY_STATE, StudyState, add_devices
from secagg.ring import Vector
from tests.protocol.chance import seeded
from tests.protocol.mechanisms.liars import (
    DEVICES,
    DIGITS,
    NOBODYS_ITEM,
    AttackedRound,
    attacked_round,
)

TRACKED = SUM_MECHANISMS["tracked"]
VALUES = (1, 10, 30, 100, 150, 200, 300, 500, 700, 900, 1000, 2000, 5000)


def adaptive(contribution: int = 1) -> AdaptiveIbltQuestion:
    return AdaptiveIbltQuestion(
        threshold=50.0, contribution=contribution, message_bytes=1400, domain=DIGITS
    )


def tracked(contribution: int = 1) -> TrackedQuestion:
    return TrackedQuestion(
        threshold=50.0, contribution=contribution, message_bytes=1400, domain=DIGITS
    )


def subsampled() -> SubsampledIbltQuestion:
    return SubsampledIbltQuestion(threshold=50.0, contribution=1, message_bytes=1400, domain=DIGITS)


@pytest.mark.parametrize(
    ("question", "number", "most"),
    [
        (adaptive(), 1, 600),  # t = 4.5
        (adaptive(), 3, 0),  # nothing is sampled, and all devices hold as much as they may
        (tracked(), 4, 0),
        (adaptive(10), 1, 10 * DEVICES),  # t = 51: what nine in ten could have added and did not
        (tracked(10), 4, 10 * DEVICES),
    ],
)
def test_an_item_that_nobody_holds_is_lifted_by_no_more_than_honest_devices_could_add(
    question: Any, number: int, most: int
) -> None:
    attacked = attacked_round(question, number)
    assert attacked.fault(attacked.sums[0]) is None
    assert attacked.lift(VALUES) <= most


def test_false_items_beyond_what_devices_may_add_break_a_law() -> None:
    attacked = attacked_round(adaptive(), 3)
    fault = attacked.fault(attacked.with_keys({NOBODYS_ITEM: 1}))
    assert fault == "the sampled items are more than the devices may sample"


def test_what_counters_hold_is_not_left_for_the_table() -> None:
    attacked = attacked_round(tracked(), 4)
    fault = attacked.fault(attacked.with_keys({NOBODYS_ITEM: 1}))
    held = attacked.plan.counters.total(attacked.plan.split(attacked.sums[0])[0])
    assert held > DEVICES // 2
    assert fault == "the sampled items are more than the devices may sample"


def test_a_device_adds_to_an_item_once_if_items_are_sampled_in_units() -> None:
    """Six devices with ten items each may add 6 units to one item, though 30 to all items."""
    question = AdaptiveIbltQuestion(threshold=5, contribution=10, message_bytes=8304, domain=DIGITS)
    mechanism, terms = SUM_MECHANISMS["adaptive-iblt"], Terms(cohort_size=40, minimum=5)
    plan = mechanism.first_plan(question, terms, "liars", 3, Random(1))
    plan = plan.model_copy(update={"t": 10.0, "cells": 204})
    table = sampled_table(question, terms, plan.t, plan.cells, bytes.fromhex(plan.seed))
    for units, fault in (
        (6, None),
        (7, "an item was sampled more often than the devices may sample it"),
    ):
        total = table.iblt.insert(DIGITS.keys_of(["1"]), np.array([units]))
        assert mechanism.fault(plan, total, 6) == fault


@pytest.mark.parametrize(("t", "devices"), [(4.48, 1000), (1.5, 40), (30.0, 100), (30.0, 5)])
def test_honest_devices_sample_more_units_than_allowed_with_probability_2_to_minus_64(
    t: float, devices: int
) -> None:
    """Exactly, by the binomial distribution, for devices with one item each."""
    allowed = ThresholdSampler(t, 1).max_units(devices)
    assert binom.sf(allowed, devices, 1 / t) <= 2.0**-64
    assert allowed == devices or binom.sf(allowed, devices, 1 / t) > 2.0**-80  # it is not wasteful


def test_units_of_a_random_threshold_exceed_their_bound_as_rarely() -> None:
    """An item gives 2 or 3 units at t = 2.5, each with probability 1/5, else none.

    The sum over 400 devices is computed exactly, in integers.
    """
    devices, total = 400, np.array([1], object)
    for _ in range(devices):
        total = np.convolve(total, np.array([3, 0, 1, 1], object))
    allowed = ThresholdSampler(2.5, 6).max_units(devices)
    assert allowed < 2 * devices
    tail = Fraction(int(total[allowed + 1 :].sum()), int(total.sum()))
    assert 2.0**-90 < tail <= 2.0**-64


def test_nothing_is_sampled_at_a_threshold_of_1_so_that_the_bound_is_exact() -> None:
    assert [ThresholdSampler(1.0, most).max_units(77) for most in (1, 5)] == [77, 77]
    assert ThresholdSampler(9.0, 5).max_units(0) == 0


LETTERS = Alphabet(characters="abcdefgh", length=2)
TERMS = Terms(cohort_size=40, minimum=20, dropout=0.1)
ASKED = dict[str, Any](threshold=1, contribution=1, domain=LETTERS, message_bytes=16_364)
CENTRAL: dict[str, Any] = ASKED | {"epsilon": 8, "delta": 0.6, "every_round": False}

SAMPLED_HISTOGRAM = HierarchicalHistogramQuestion(
    **CENTRAL, mode="sample-threshold", theta=1, probability=0.3
)


@pytest.mark.parametrize(
    ("question", "update"),
    [
        (AdaptiveIbltQuestion(**ASKED), {"t": 6.5, "cells": 204}),
        (SubsampledIbltQuestion(**ASKED, t=6.5), {}),
        (TrackedQuestion(**ASKED), {"t": 6.5, "cells": 204}),
        (TrieHhQuestion(**CENTRAL, stride=2, theta=1, probability=0.4), {}),
        (SAMPLED_HISTOGRAM, {}),
    ],
    ids=["adaptive", "subsampled", "tracked", "triehh", "hierarchical-histogram"],
)
def test_no_item_has_a_larger_count_than_there_are_devices(
    question: Any, update: dict[str, Any]
) -> None:
    """All devices hold one item, so that half of all samples are above."""
    mechanism, devices = SUM_MECHANISMS[question.mechanism], 40
    plan = mechanism.first_plan(question, TERMS, "liars", 5, Random(1)).model_copy(update=update)
    for seed in range(12):
        total = mechanism.encode_sum(plan, [{"ab": 1}] * devices, seeded(seed))
        assert mechanism.fault(plan, total, devices) is None
        answer = mechanism.decode(plan, total, devices, EMPTY_STATE)
        final = mechanism.final_estimates(question, answer.state)
        assert all(0 <= each.count <= devices for each in (*answer.estimates, *final))


def test_noise_gives_no_item_a_larger_count_than_there_are_devices() -> None:
    """40 devices and noise: the leaf and its parent count 47 votes."""
    counts = np.zeros(SAMPLED_HISTOGRAM.cells)
    counts[[0, 8]] = 47.0
    state = EMPTY_STATE.with_array(COUNTS_ARRAY, counts).with_array(NOISE_ARRAY, np.array([9.0]))
    state = state.with_array(SAMPLING_VARIANCE_ARRAY, np.zeros(1))
    state = state.with_array(DEVICES_ARRAY, np.array([40.0]))
    state = state.with_array(SHOWN_ARRAY, np.full(len(counts), 40.0))
    state = state.with_array(EXCESS_ARRAY, np.zeros(len(counts)))
    final = SUM_MECHANISMS["hierarchical-histogram"].final_estimates(SAMPLED_HISTOGRAM, state)
    assert [(each.item, each.count) for each in final] == [("aa", 40.0)]


def test_counters_and_samples_of_all_rounds_add_up_to_no_more_than_their_devices() -> None:
    """A liar whose counts were believed in some rounds; the others are filled in from these."""
    question = TrackedQuestion(**ASKED)
    mechanism = SUM_MECHANISMS["tracked"]
    plan = mechanism.first_plan(question, TERMS, "liars", 5, Random(1))
    state = record_round(plan, EMPTY_STATE, 40, [], [Estimate("ab", 90.0, 1.0)])
    state = add_devices(state, 40, is_read=True)
    assert [each.count for each in mechanism.final_estimates(question, state)] == [40.0]


def test_a_counter_that_was_read_wrong_has_no_more_than_there_are_devices() -> None:
    """Three devices hold nothing, but one lies in the total and the check of the counters."""
    question, mechanism = TrackedQuestion(**ASKED), SUM_MECHANISMS["tracked"]
    plan = mechanism.first_plan(question, TERMS, "liars", 5, Random(1))
    earlier = [Estimate(item, 60.0, 0.0) for item in ("ab", "cd")]
    state = record_round(plan, EMPTY_STATE, 40, [], earlier)
    groups = (CounterGroup(bits=1, items=("ab", "cd")),)
    plan = plan.model_copy(update={"counter_groups": groups})
    total = mechanism.encode_sum(plan, [{}] * 3, seeded(1))
    total[1][0] += 16
    total[2][0] += 1
    answer = mechanism.decode(plan, total, 3, state)
    assert [each.count for each in answer.estimates] == [3, 3]


@pytest.mark.parametrize(
    "question",
    [TrieHhQuestion(**CENTRAL, stride=2, theta=1, probability=0.4), SAMPLED_HISTOGRAM],
    ids=["triehh", "hierarchical-histogram"],
)
def test_votes_by_coins_are_no_more_than_the_coins_of_devices_give(question: Any) -> None:
    """The bound is the smallest that 1,000 coins exceed with probability 2^-64."""
    terms = Terms(cohort_size=1000, minimum=500)
    mechanism = SUM_MECHANISMS[question.mechanism]
    plan = mechanism.first_plan(question, terms, "liars", 5, Random(1))
    allowed = plan.max_votes(1000)
    p = plan.release.probability
    assert 2.0**-80 < binom.sf(allowed, 1000, p) <= 2.0**-64
    (lane,) = mechanism.ring(plan).lanes
    for votes, is_fault in ((allowed, False), (allowed + 1, True)):
        total = np.zeros(lane.length, lane.dtype)
        total[-1] = votes
        assert (mechanism.fault(plan, (total,), 1000) is not None) == is_fault
        total[-2:] = votes // 2, votes - votes // 2  # of two cells, for the law of all votes
        assert (mechanism.fault(plan, (total,), 1000) is not None) == is_fault


def test_a_prefix_has_no_more_votes_than_the_coins_of_devices_with_several_items_give() -> None:
    terms = Terms(cohort_size=1000, minimum=500)
    question = TrieHhQuestion(**CENTRAL | {"contribution": 3}, stride=2, theta=2, probability=0.4)
    mechanism = SUM_MECHANISMS["triehh"]
    plan = mechanism.first_plan(question, terms, "liars", 5, Random(1))
    (lane,) = mechanism.ring(plan).lanes
    for votes, is_fault in ((plan.max_votes(1000), False), (plan.max_votes(1000) + 1, True)):
        total = np.zeros(lane.length, lane.dtype)
        total[-2:] = votes
        assert (mechanism.fault(plan, (total,), 1000) is not None) == is_fault


def decode_cohorts(attacked: AttackedRound, lies: dict[int, Vector]) -> Answer:
    """Return the answer of a round in which the sums of some cohorts are replaced by `lies`."""
    ring = attacked.mechanism.ring(attacked.plan)
    sums = [
        CohortSum(ring.pack(lies.get(number, honest)), attacked.cohort_size)
        for number, honest in enumerate(attacked.sums)
    ]
    for lie in lies.values():
        assert attacked.fault(lie) is None
    answer: Answer = attacked.mechanism.decode_cohorts(attacked.plan, sums, attacked.state)
    return answer


@pytest.mark.parametrize(
    ("question", "number"), [(adaptive(), 1), (tracked(), 4), (tracked(10), 4), (subsampled(), 1)]
)
def test_honest_cohorts_give_the_answer_of_their_sum(question: Any, number: int) -> None:
    attacked = attacked_round(question, number, cohorts=20)
    ring = attacked.mechanism.ring(attacked.plan)
    total = ring.zero()
    for each in attacked.sums:
        ring.add(total, each)
    assert decode_cohorts(attacked, {}) == attacked.decode(total)


@pytest.mark.parametrize(("cohorts", "liars"), [(20, 1), (40, 3)])
def test_an_item_in_the_cohorts_of_liars_only_is_flagged_and_not_counted(
    cohorts: int, liars: int
) -> None:
    """Without a comparison one liar lifts it to 80 of 1,000 devices, and three to 240."""
    attacked = attacked_round(adaptive(), 1, cohorts)
    lies = {cohort: attacked.with_keys({NOBODYS_ITEM: 18}, cohort) for cohort in range(liars)}
    answer = decode_cohorts(attacked, lies)
    (estimate,) = [each for each in answer.estimates if each.item == NOBODYS_ITEM]
    assert estimate.cohort_p_value is not None
    assert estimate.cohort_p_value < 1e-6
    assert estimate.count == 0
    others = [each for each in answer.estimates if each.item != NOBODYS_ITEM]
    assert {each.cohort_p_value for each in others} == {None}


def test_a_device_that_takes_the_counts_of_a_tracked_item_takes_those_of_its_cohort_only() -> None:
    attacked = attacked_round(tracked(), 4, cohorts=10)
    top, low = "1", attacked.plan.counters.items[0]
    answer = decode_cohorts(attacked, {3: attacked.with_counts({top: -28, low: 28}, 3)})
    by_item = {each.item: each for each in answer.estimates}
    assert by_item[top].count >= attacked.truth[top] - 28
    assert by_item[low].cohort_p_value is not None
    assert abs(by_item[low].count - attacked.truth[low]) < 15


def two_counters(cohorts: int, bits: int) -> tuple[TrackedPlan, StudyState]:
    """Return a plan with two counters, of which 40 devices had 10 before, and the study state."""
    terms = Terms(cohort_size=10, minimum=5, cohorts=cohorts, dropout=0.1)
    question = TrackedQuestion(**ASKED)
    plan = TRACKED.first_plan(question, terms, "liars", 5, Random(1))
    earlier = [Estimate(item, 10.0, 0.0) for item in ("ab", "cd")]
    state = record_round(plan, EMPTY_STATE, 40, [], earlier)
    groups = (CounterGroup(bits=bits, items=("ab", "cd")),)
    return plan.model_copy(update={"counter_groups": groups}), state


def counts_of(answer: Answer) -> list[float]:
    return [round(each.count, 6) for each in answer.estimates]


COHORT_ITEMS = [{"ab": 1}] * 4 + [{"cd": 1}] * 4 + [{}, {}]


def test_a_cohort_with_a_counter_below_zero_does_not_count() -> None:
    """A liar takes 12 of an item of which its cohort has 4, and adds 12 to the other item."""
    plan, state = two_counters(20, bits=6)
    part = TRACKED.encode_sum(plan, COHORT_ITEMS, seeded(1))
    lie = tuple(lane.copy() for lane in part)
    plan.ring.add(lie, (*plan.counters.encode(np.array([-12, 12])), *plan.ring.zero()[3:]))
    assert TRACKED.fault(plan, lie, 10) is None
    sums = [CohortSum(plan.ring.pack(each), 10) for each in (lie, *[part] * 19)]
    assert counts_of(TRACKED.decode_cohorts(plan, sums, state)) == [80, 80]
    total, devices = add_sums(plan.ring, sums)
    assert counts_of(TRACKED.decode(plan, total, devices, state)) == [92, 68]


def test_cohorts_that_are_read_correct_a_sum_that_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters of 44 devices are one and two windows off in the sum, and inside in cohorts."""
    for limit in ("MAX_TRIED_PAIRS", "MAX_SINGLE_MOVES", "MAX_PAIRED_MOVES"):
        monkeypatch.setattr(tuning_constants, limit, 0)
    plan, state = two_counters(5, bits=3)
    part = TRACKED.encode_sum(plan, [{"ab": 1}] * 7 + [{"cd": 1}] * 4, seeded(1))
    sums = [CohortSum(plan.ring.pack(part), 11)] * 4
    assert counts_of(TRACKED.decode_cohorts(plan, sums, state)) == [28, 16]
    total, devices = add_sums(plan.ring, sums)
    assert counts_of(TRACKED.decode(plan, total, devices, state)) != [28, 16]


def test_a_flag_in_one_of_several_tables_is_kept() -> None:
    lists = [
        [Estimate("ab", 8.0, 2.0, 1e-9), Estimate("cd", 4.0, 2.0)],
        [Estimate("ab", 6.0, 2.0, 1e-7)],
    ]
    means = TableReadings(9, lists, 2, 2.0).mean()
    assert means == [Estimate("ab", 7.0, 1.0, 1e-9), Estimate("cd", 2.0, 0.5)]


@pytest.mark.parametrize("question", [adaptive(), tracked(), subsampled()])
def test_junk_of_one_device_does_not_make_the_cohorts_of_others_unreadable(question: Any) -> None:
    """Ten cohorts of 100 devices whose tables have room for 209 and more items together."""
    attacked = attacked_round(question, 1, cohorts=10)
    honest = decode_cohorts(attacked, {})
    junk = {
        cohort: attacked.with_keys({str(900_000 - n - 99 * cohort): 1 for n in range(26)}, cohort)
        for cohort in range(10)
    }
    answer = decode_cohorts(attacked, junk)
    assert answer.decoded
    counts = {each.item: each.count for each in answer.estimates}
    assert all(counts[each.item] == each.count for each in honest.estimates)


def test_noise_gives_no_candidate_a_larger_count_than_there_are_devices() -> None:
    """Two rounds of 40 devices that all hold one item, and noise of 9 in its cells."""
    asked = ASKED | {"message_bytes": 3504, "mechanism": "count-sketch", "rows": 3, "threshold": 30}
    exact, question = (FrequencySketchQuestion(**asked, epsilon=each) for each in (None, 8.0))
    mechanism, state = SUM_MECHANISMS["count-sketch"], EMPTY_STATE
    plan = mechanism.first_plan(exact, TERMS, "liars", 2, Random(1))
    release = Release(probability=1, threshold=1, variance=9.0)
    plan = plan.model_copy(update={"question": question, "release": release})
    noisy = mechanism.encode_sum(plan, [{"ab": 1}] * 49, seeded(1))
    for number in (1, 2):
        assert mechanism.fault(plan, noisy, 40) is None
        answer = mechanism.decode(plan, noisy, 40, state)
        state = answer.state
        assert [each.count for each in answer.estimates if each.item == "ab"] == [40]
        final = mechanism.final_estimates(question, state)
        assert [each.count for each in final if each.item == "ab"] == [40 * number]
