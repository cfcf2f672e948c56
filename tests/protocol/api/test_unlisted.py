"""An empty answer states its cause, a number that suffices, and the next step."""

import math
import re
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

from protocol.api.unlisted import (
    CountedRounds,
    count_of_unlisted,
    count_with_range,
    highest_bar,
    limits_of_list,
    option_counts,
    range_of_unlisted,
    unlisted_options,
    why_nothing_can_be_listed,
    why_nothing_is_listed,
)
from protocol.mechanisms.registry import MECHANISMS, SUM_MECHANISMS, AnyPlan, parse_question
from protocol.question_and_plan import Terms
from protocol.simulation.study import run_study

TERMS = Terms(cohort_size=1000, minimum=3, cohorts=20)
LETTERS = {"kind": "alphabet", "characters": "\0abcdefgh", "length": 2, "pad": "\0"}
OPTIONS = {"kind": "listed", "items": ["red", "green", "blue"]}
REGIONS = {
    "kind": "product",
    "segments": ["north", "south"],
    "inner": {"kind": "interval", "low": 0, "high": 10, "alpha": 10, "length": 2},
}
TRIE = {"mechanism": "triehh", "threshold": 5, "epsilon": 1, "delta": 1e-6, "domain": LETTERS}
TRACKED = {"mechanism": "tracked", "threshold": 60, "message_bytes": 190_364, "domain": OPTIONS}
SMALLEST = 8  # devices of 200 that hold the most common item


def first_plan(fields: dict[str, Any], rounds: int = 2) -> AnyPlan:
    sums = fields["mechanism"] in SUM_MECHANISMS
    words = {"message_bytes": 20_364} if sums else {}
    question = parse_question({"contribution": 1} | words | fields)
    plan: AnyPlan = MECHANISMS[question.mechanism].first_plan(
        question, TERMS, "study", rounds, Random(1)
    )
    return plan


def listed_items(plan: AnyPlan, items: Sequence[str], seed: int) -> list[str]:
    """Return the items that a study in memory lists, in which each device holds one item."""
    mechanism = SUM_MECHANISMS[plan.mechanism]
    devices = [{item: 1} for item in items]
    rounds = [[devices]] * plan.rounds if plan.question.asks_every_round else [[devices], [[{}]]]
    outcomes = run_study(mechanism, plan.question, TERMS, rounds, Random(seed), planned=plan.rounds)
    *_, last = outcomes
    return [each.item for each in mechanism.final_estimates(plan.question, last.study_state)]


@pytest.mark.parametrize(
    ("fields", "item"), [(TRIE, "ha"), (TRIE | {"mode": "noise"}, "ha"), (TRACKED, "blue")]
)
def test_the_number_of_devices_in_the_reason_lists_the_most_common_item(
    fields: dict[str, Any], item: str
) -> None:
    """An item at the bar of a trie is listed with probability 0.95; two of three seeds suffice."""
    plan = first_plan(fields)
    few = [item] * SMALLEST + [""] * (200 - SMALLEST)
    held = [{each: 1} if each else {} for each in few]
    assert listed_items(plan, [each for each in few if each], 0) == []
    rounds = CountedRounds(2, 2, 2, 400 if plan.question.asks_every_round else 200)
    reason = why_nothing_is_listed(plan, rounds, is_over=True, largest=SMALLEST)
    sentence = re.search(r"has 8: ([0-9,]+) such devices list it", reason)
    assert sentence, reason
    enough = int(sentence[1].replace(",", ""))
    copies = [item] * round(enough * SMALLEST / len(held))
    assert sum(listed_items(plan, copies, seed) == [item] for seed in range(3)) >= 2
    assert sum(listed_items(plan, copies[: len(copies) // 3], seed) == [] for seed in range(3)) >= 2


def test_a_trie_blames_the_votes_that_epsilon_needs_and_no_threshold_below_them() -> None:
    plan = first_plan(TRIE)
    reason = why_nothing_is_listed(plan, CountedRounds(2, 2, 2, 1200), is_over=True)
    bar = highest_bar(plan, CountedRounds(2, 2, 2, 1200))
    assert bar.count > 10 * plan.question.threshold
    assert f"from {plan.release.threshold} votes in a level" in reason  # type: ignore[union-attr]
    assert "because epsilon is 1" in reason
    assert "such as 5, changes nothing" in reason
    assert "use a lower threshold" not in reason
    higher = first_plan(TRIE | {"threshold": 500.0})
    assert "the threshold is 500" in why_nothing_is_listed(
        higher, CountedRounds(2, 2, 2, 1200), is_over=True
    )


def test_the_bar_of_a_trie_is_of_the_devices_of_all_levels() -> None:
    """Studies list an item at the bar with probability 0.95: 15 or fewer of 20 do with 3e-3."""
    asked, seen = first_plan(TRIE | {"epsilon": 4, "every_round": False}), 0
    last_plan = asked.model_copy(update={"level": 2})
    bar = math.ceil(highest_bar(last_plan, CountedRounds(2, 2, 2, 4000)).count)
    rng, mechanism = np.random.default_rng(1), SUM_MECHANISMS["triehh"]
    for seed in range(20):
        holders = rng.multinomial(bar, [0.5, 0.5]).tolist()
        rounds = [[[{"ha": 1}] * held + [{}] * (2000 - held)] for held in holders]
        *_, last = run_study(mechanism, asked.question, TERMS, rounds, Random(seed), planned=2)
        seen += bool(mechanism.final_estimates(asked.question, last.study_state))
    assert seen > 15


@pytest.mark.parametrize(
    ("fields", "rounds", "words"),
    [
        (TRACKED, CountedRounds(0, 0, 0, 0), "No round is over: each cohort of a round needs 3"),
        (
            TRACKED,
            CountedRounds(2, 0, 0, 0),
            "No round is in the answer: each cohort of a round needs 3",
        ),
        (TRACKED, CountedRounds(1, 1, 0, 900), "Use more message_bytes than"),
        (TRACKED, CountedRounds(2, 2, 2, 50), "Fewer than 60 devices cannot hold one item"),
        (TRACKED, CountedRounds(2, 2, 2, 900), "the threshold is 60. To list more, use a lower"),
        (TRACKED, CountedRounds(2, 2, 2, 900), "(devices accept 5 by default)"),
        (
            {"mechanism": "krr", "threshold": 5, "epsilon": 1.0, "domain": OPTIONS},
            CountedRounds(1, 1, 1, 600),
            "the noise of the reports hides smaller ones, because epsilon is 1. A threshold below",
        ),
        (
            {
                "mechanism": "prefix-extension",
                "threshold": 5,
                "epsilon": 1.0,
                "domain": {"kind": "utf8", "max_bytes": 8},
            },
            CountedRounds(1, 1, 1, 600),
            "even one that all of them hold",
        ),
        (
            {"mechanism": "number-sums", "threshold": 9, "domain": REGIONS},
            CountedRounds(1, 1, 1, 16),
            "a round counts a segment from 9 devices in it",
        ),
        (
            TRIE | {"domain": LETTERS | {"length": 6}},
            CountedRounds(2, 2, 2, 600),
            "The longest items need 6 rounds, and the study has 2.",
        ),
    ],
)
def test_each_cause_has_its_number(
    fields: dict[str, Any], rounds: CountedRounds, words: str
) -> None:
    reason = why_nothing_is_listed(first_plan(fields), rounds, is_over=False)
    assert words in reason


def test_a_trie_that_lost_a_round_states_that_the_longest_items_are_missing() -> None:
    plan, rounds = first_plan(TRIE), CountedRounds(2, 2, 1, 1200)
    reason = why_nothing_is_listed(plan, rounds, is_over=True)
    assert "No item that 1 of 2 rounds complete is listed. One is listed from" in reason
    for text in (reason, " ".join(limits_of_list(plan, rounds))):
        assert "The longest items need 2 rounds, and 1 were read." in text


def test_a_bar_below_which_noise_hides_items_promises_nothing_above_it() -> None:
    fields = {"mechanism": "jl-hh", "threshold": 5, "epsilon": 4, "domain": OPTIONS}
    plan, rounds = first_plan(fields, rounds=1), CountedRounds(1, 1, 1, 200_000)
    reason = why_nothing_is_listed(plan, rounds, is_over=True, largest=20_000)
    assert re.search("noise hides a count below about [0-9,]+, other items larger ones", reason)
    assert "such devices list it" not in reason
    assert "larger ones that other items hide" in " ".join(limits_of_list(plan, rounds))
    assert count_of_unlisted(plan, rounds) == "not known"


def test_a_bar_that_the_question_sets_is_not_blamed_on_epsilon() -> None:
    own = {"theta": 30, "probability": 0.1, "epsilon": 4}
    bar = highest_bar(first_plan(TRIE | own), CountedRounds(2, 2, 2, 1200))
    assert "epsilon" not in bar.cause + bar.step


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (TRACKED | {"threshold": 40_001}, "needs a count of 40,001, and 40,000 devices"),
        (TRIE | {"threshold": 20_001}, "needs a count of 20,001, and 20,000 devices"),
        (TRACKED | {"threshold": 40_000}, None),
        (TRIE, None),
        ({"mechanism": "krr", "threshold": 5, "epsilon": 1e-4, "domain": OPTIONS}, "20,000|40,000"),
    ],
)
def test_a_study_that_cannot_list_an_item_is_known_before(
    fields: dict[str, Any], says: str | None
) -> None:
    reason = why_nothing_can_be_listed(first_plan(fields))
    assert reason is None if says is None else re.search(says, reason or "")


def test_options_that_are_not_listed_have_one_text_for_all_counts_below_the_bar() -> None:
    exact, read = first_plan(TRACKED), CountedRounds(2, 2, 2, 900)
    assert unlisted_options(exact.question, ["green"]) == ("red", "blue")
    assert count_of_unlisted(exact, read) == "fewer than 60"
    unread = CountedRounds(2, 2, 1, 900)
    sampled = CountedRounds(2, 2, 2, 900, largest_t=3.5)
    compared = CountedRounds(2, 2, 2, 900, most_cohorts=2)  # of which one may be left out
    assert {count_of_unlisted(exact, each) for each in (unread, sampled, compared)} == {
        "not found to reach 60"
    }
    words = {"red": "fewer than 60", "blue": "fewer than 60"}
    assert option_counts(exact, read, ["green"]) == words
    assert option_counts(exact, CountedRounds(2, 2, 0, 900), ["green"]) == {}
    regions = first_plan({"mechanism": "number-sums", "threshold": 9, "domain": REGIONS})
    assert unlisted_options(regions.question, ["south"]) == ("north",)
    assert count_of_unlisted(regions, read) == "fewer than 9 in each round"
    assert unlisted_options(first_plan(TRIE).question, []) == ()


@pytest.mark.parametrize("name", ["krr", "ocms-gf"])
def test_the_range_of_an_option_that_reports_do_not_list_holds_its_count(name: str) -> None:
    """At most 1 of 40 counts is above: an item at the bar is with 0.025, and most are far below."""
    items = [f"option {n}" for n in range(10)]
    asked = {"mechanism": name, "threshold": 20, "epsilon": 2}
    plan = first_plan(asked | {"domain": {"kind": "listed", "items": items}}, rounds=1)
    held = dict(zip(items, [70, 50, 30, 25, 10, 5, 4, 3, 2, 1], strict=True))
    devices = [{item: 1} for item, count in held.items() for _ in range(count)]
    rounds, mechanism = CountedRounds(1, 1, 1, 200), MECHANISMS[name]
    low, high = range_of_unlisted(plan, rounds) or (0, 0)
    bar = highest_bar(plan, rounds).count
    assert (low, bar < high < 2 * bar) == (0, True)
    words = f"estimated below about {math.ceil(bar)} (0 to {high})"
    assert count_with_range(plan, rounds) == words
    few = CountedRounds(1, 1, 1, 15)
    assert count_with_range(plan, few) == "not known (0 to 15)"
    asked |= {"threshold": 5, "epsilon": 0.5, "domain": plan.question.domain.model_dump()}
    assert "may miss items:" in limits_of_list(first_plan(asked, rounds=1), few)[0]
    above, unlisted = 0, 0
    for seed in range(20):
        *_, last = run_study(mechanism, plan.question, TERMS, [[devices]], Random(seed), planned=1)
        rows = mechanism.final_estimates(plan.question, last.study_state)
        counts = [
            held[each] for each in unlisted_options(plan.question, [row.item for row in rows])
        ]
        unlisted += len(counts)
        above += sum(count > high for count in counts)
    assert unlisted > 100
    assert above <= unlisted / 40


def test_a_list_states_the_rounds_that_were_not_read_and_the_bar_above_its_threshold() -> None:
    partly = CountedRounds(4, 4, 3, 2400)
    assert limits_of_list(first_plan(TRACKED), CountedRounds(4, 4, 4, 2400)) == []
    assert len(limits_of_list(first_plan(TRACKED), partly)) == 1
    assert "may miss a count below about" in limits_of_list(first_plan(TRIE), partly)[1]
