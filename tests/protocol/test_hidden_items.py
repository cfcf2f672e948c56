"""Answers do not depend on items that the rule of five hides, for every mechanism of sums.

Two studies differ in one device, which also holds an item below the threshold. A mechanism whose
sums are private by themselves keeps another promise: its ledger states it. Devices with default
settings refuse sums whose estimates may show one device.
"""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.api.segments import segment_totals
from protocol.device_policy.plan_check import plan_violations
from protocol.device_policy.policy import Policy
from protocol.mechanism import Answer, CohortSum
from protocol.mechanisms.registry import SUM_MECHANISMS, mechanism_of, parse_question
from protocol.privacy.events import ExactSumEvent
from protocol.question_and_plan import Terms
from protocol.study_state import EMPTY_STATE, StudyState
from tests.protocol.chance import seeded
from tests.protocol.mechanism_examples import EXAMPLES, ONE_SHOT_TERMS, Example
from tests.protocol.mechanisms.test_segments import DOMAINS

TERMS = Terms(cohort_size=100, minimum=50)
COMMON_ITEMS = ("north:aa", "north:ab", "south:aa", "south:ba", "north:bb")
RELATED = ("adaptive-iblt", "subsampled-iblt", "tracked")  # what the rule of five hides
RARE_ITEMS = ("north:cc", "west:aa")  # in a segment with common items, and in one without any


def promise(example: Example) -> str:
    """Return the promise that hides a rare item: noise or coins, a refusal, or the rule of five."""
    plan = example.plan()
    if not isinstance(example.mechanism.dp_event(plan, plan.rounds), ExactSumEvent):
        return "private"
    limits = {each.limit for each in plan_violations(Policy(), plan, plan.study, 1)}
    if limits & {"accept_exact_estimates", "min_threshold"}:
        return "refused"
    return "rule of five"


def test_every_mechanism_of_sums_hides_a_rare_item_by_one_of_three_promises() -> None:
    promises = {name: promise(example) for name, example in EXAMPLES.items()}
    assert {each.question.mechanism for each in EXAMPLES.values()} == SUM_MECHANISMS.keys()
    ruled = {name for name, kept in promises.items() if kept == "rule of five"}
    assert {EXAMPLES[name].question.mechanism for name in ruled} == set(RELATED)
    assert ruled == {
        name
        for name in EXAMPLES
        if name.split(",")[0] in ("adaptive-iblt", "tracked") or name == "subsampled-iblt, sampled"
    }
    for name, example in EXAMPLES.items():
        is_exact, plan = promises[name] == "refused", example.plan()
        assert (
            not is_exact
            or mechanism_of(plan).may_show_one_device(plan)
            or plan.question.min_reported_count < 5
        )


def question_of(fields: dict[str, Any]) -> Any:
    return parse_question(fields | {"domain": DOMAINS["letters"]})


def published(question: Any, plan: Any, answer: Answer) -> tuple[Any, ...]:
    """Return all that the service shows after a round."""
    mechanism = SUM_MECHANISMS[question.mechanism]
    shown: StudyState = mechanism.shown(question, answer.state)
    final = mechanism.final_answer(question, answer.state)
    items = [each.item for each in final.heavy_hitters]
    history = mechanism.rate_history(plan, shown, items)
    return (
        shown.items,
        final,
        mechanism.shown_distinct(plan, answer),
        segment_totals(question, shown),
        history and [history.tokens.tobytes(), history.exposure.tobytes(), history.dispersion],
    )


@pytest.mark.parametrize("t", [1.0, 2.5, 8.0])
@pytest.mark.parametrize("name", [*RELATED, "one-shot tracked"])
@given(
    st.lists(
        st.lists(st.sets(st.sampled_from(COMMON_ITEMS), max_size=2), min_size=60, max_size=60),
        min_size=2,
        max_size=3,
    ),
    st.sampled_from(RARE_ITEMS),
    st.integers(0, 2**32),
)
def test_one_device_with_a_hidden_item_changes_nothing_that_is_published(
    name: str, t: float, held: list[list[set[str]]], hidden: str, seed: int
) -> None:
    """The last device of the second round holds the item; others have the same coins.

    The plans of `tracked` list items that are counted next, so only the last round has the item.
    """
    kind, name = ["pairwise", *name.split()][-2:]
    fields = {"mechanism": name, "threshold": 10, "contribution": 3, "message_bytes": 12_384}
    question = question_of(fields)
    rounds = [[dict.fromkeys(sorted(items), 1) for items in devices] for devices in held]
    rounds[-1].append({})
    other = [list(devices) for devices in rounds]
    other[-1][-1] = {hidden: 1}
    mechanism = SUM_MECHANISMS[name]
    terms = ONE_SHOT_TERMS if kind == "one-shot" else TERMS
    plan = mechanism.first_plan(question, terms, "study", len(rounds), Random(seed))
    results = []
    for devices in (rounds, other):
        state = EMPTY_STATE
        for number, histograms in enumerate(devices, 1):
            now = plan.model_copy(update={"round": number})
            if kind == "pairwise":
                values = {"max_value": 1000} if name == "tracked" else {}
                now = now.model_copy(update={"t": t, "cells": min(now.cells, 300)} | values)
            total = mechanism.encode_sum(now, histograms, seeded(seed + number))
            answer = mechanism.decode(now, total, len(histograms), state)
            state = answer.state
        results.append((published(question, now, answer), state))
    (before, _), (after, state) = results
    assert before == after
    assert hidden not in before[0]
    assert now.t > 1 or hidden in state.items  # the server's own state has it


@pytest.mark.parametrize("lie", [4, -1])
@pytest.mark.parametrize("name", RELATED)
def test_one_device_that_lies_shows_whether_another_one_holds_an_item(name: str, lie: int) -> None:
    """The threat model states this limit of the rule of five; the liar adds `lie` samples."""
    fields = {"mechanism": name, "threshold": 5, "contribution": 1, "message_bytes": 12_384}
    question = question_of(fields)
    mechanism = SUM_MECHANISMS[name]
    plan = mechanism.first_plan(question, TERMS, "study", 1, Random(1)).model_copy(
        update={"t": 1.0}
    )
    ring, hidden, results = mechanism.ring(plan), RARE_ITEMS[0], []
    for held_by_another in ({}, {hidden: 1}):
        devices = [*({COMMON_ITEMS[0]: 1} for _ in range(60)), held_by_another]
        total = mechanism.encode_sum(plan, devices, seeded(1))
        sample = mechanism.encode_sum(plan, [{hidden: 1}], seeded(2))
        for _ in range(abs(lie)):
            (ring.add if lie > 0 else ring.subtract)(total, sample)
        answer = mechanism.decode(plan, total, len(devices) + 1, EMPTY_STATE)
        final = mechanism.final_answer(question, answer.state)
        listed = {each.item for each in final.heavy_hitters}
        results.append(hidden in listed if lie > 0 else answer.decoded)
    assert results == [False, True]


@pytest.mark.parametrize(("held", "is_shown"), [((2, 1, 1), False), ((2, 2, 1), True)])
@pytest.mark.parametrize("name", RELATED)
def test_devices_of_cohorts_that_are_left_out_do_not_count_among_the_five(
    name: str, held: tuple[int, ...], is_shown: bool
) -> None:
    """The count of four devices is scaled to 5.3, because a cohort that lies is left out."""
    terms = Terms(cohort_size=100, minimum=50, cohorts=4)
    fields = {"mechanism": name, "threshold": 10, "contribution": 1, "message_bytes": 12_384}
    question = question_of(fields)
    mechanism, sums = SUM_MECHANISMS[name], []
    plan = mechanism.first_plan(question, terms, "study", 1, Random(1))
    assert plan.t == 1
    ring = mechanism.ring(plan)
    for cohort, number in enumerate((*held, 60)):
        histograms = [{RARE_ITEMS[0]: 1}] * number + [{COMMON_ITEMS[0]: 1}] * (100 - number)
        vector = mechanism.encode_sum(plan, histograms, seeded(cohort))
        sums.append(CohortSum(ring.pack(vector), 100))
    answer = mechanism.decode_cohorts(plan, sums, EMPTY_STATE)
    (rare,) = (each for each in answer.estimates if each.item == RARE_ITEMS[0])
    assert rare.count == pytest.approx(sum(held) / 0.75)
    assert rare.counted_share == 0.75
    assert (RARE_ITEMS[0] in mechanism.firm_items(question, answer.state).items) is is_shown
    assert mechanism.shown_distinct(plan, answer) == 1 + is_shown
