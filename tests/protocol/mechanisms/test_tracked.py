"""Known items are counted exactly, new ones are found, and late counts speak for early rounds."""

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from protocol.chance import seeded
from protocol.domain import Alphabet
from protocol.hashed import Hashed
from protocol.mechanism import Answer, Terms
from protocol.mechanisms.adaptive_iblt import AdaptiveIblt, AdaptiveIbltQuestion
from protocol.mechanisms.counters import Group
from protocol.mechanisms.outlook import MOST_BLOCKS, Outlook, give_up, history_of, likely_from
from protocol.mechanisms.strings import Strings
from protocol.mechanisms.tracked import Tracked, TrackedPlan, TrackedQuestion
from protocol.simulation import Outcome, run_study
from protocol.tally import NOTHING

MECHANISM = Tracked()
LETTERS = Alphabet(characters="abcdefghijklmnopqrstuvwxyz", length=2)
TERMS = Terms(cohort_size=1000, minimum=500, mode="semi-honest")
ITEMS = [a + b for a in LETTERS.characters for b in LETTERS.characters]
ZIPF = 1 / np.arange(1, len(ITEMS) + 1) ** 1.1


def question(**changes: Any) -> TrackedQuestion:
    asked: dict[str, Any] = {"threshold": 60, "contribution": 1, "domain": LETTERS, "words": 240}
    return TrackedQuestion(**(asked | changes))


def people(rounds: int, seed: int, each: int = 1, late: str = "") -> list[list[dict[str, int]]]:
    """Return devices that hold `each` items; the item `late` comes up in the second half."""
    rng = np.random.default_rng(seed)
    studied = []
    for number in range(rounds):
        odds = ZIPF.copy()
        if late:
            odds[ITEMS.index(late)] = 0.5 * (number >= rounds // 2)
        drawn = rng.choice(len(ITEMS), (1000, each), p=odds / odds.sum())
        studied.append([dict(Counter(ITEMS[one] for one in row)) for row in drawn])
    return studied


def play(
    asked: TrackedQuestion, rounds: int = 20, seed: int = 1, **how: Any
) -> list[Outcome[TrackedPlan]]:
    held = [[devices] for devices in people(rounds, 1, asked.contribution, **how)]
    return list(run_study(MECHANISM, asked, TERMS, held, random.Random(seed), planned=rounds))


def f1(found: set[str], outcomes: list[Outcome[Any]], threshold: float) -> float:
    truth: Counter[str] = Counter()
    for outcome in outcomes:
        truth.update(outcome.truth)
    heavy = {item for item, count in truth.items() if count >= threshold}
    return 2 * len(found & heavy) / (len(found) + len(heavy))


@pytest.mark.parametrize("mode", ["default", "tight"])
def test_a_vector_is_as_long_as_the_words_allow_and_no_longer(mode: str) -> None:
    for outcome in play(question(table=mode)):
        nbytes = MECHANISM.ring(outcome.plan).nbytes
        assert 0.9 * question().nbytes < nbytes <= question().nbytes


def test_tight_tables_have_more_cells_and_find_as_much() -> None:
    cells, scores = [], []
    for mode in ("default", "tight"):
        outcomes = play(question(table=mode))
        cells.append(np.mean([outcome.plan.cells for outcome in outcomes]))
        found = {one.item for one in MECHANISM.conclude(question(), outcomes[-1].tally)}
        scores.append(f1(found, outcomes, 60))
    assert cells[1] > 1.1 * cells[0]
    assert scores[1] > scores[0] - 0.02


def test_tracked_items_are_counted_exactly() -> None:
    outcomes = play(question())
    for outcome in outcomes[1:]:
        assert outcome.answer is not None
        counts = {one.item: one.count for one in outcome.answer.estimates}
        for item in outcome.plan.counters.items:
            assert counts[item] == outcome.truth.get(item, 0)
    assert len(outcomes[-1].plan.counters.items) > 40


def test_more_is_found_than_by_an_adaptive_table_of_as_many_words() -> None:
    outcomes = play(question())
    found = {one.item for one in MECHANISM.conclude(question(), outcomes[-1].tally)}
    asked = AdaptiveIbltQuestion(threshold=60, contribution=1, domain=LETTERS, words=240)
    held, rng = [[devices] for devices in people(20, 1)], random.Random(1)
    others = list(run_study(AdaptiveIblt(), asked, TERMS, held, rng, planned=20))
    paper = {one.item for one in AdaptiveIblt().conclude(asked, others[-1].tally)}
    assert f1(found, outcomes, 60) > max(0.93, f1(paper, others, 60) + 0.02)


@pytest.mark.parametrize("assume", ["drift", "stationary", "nothing"])
def test_totals_cover_what_they_should(assume: Any) -> None:
    """Of three studies: what is not counted hangs on few samples, and so does one of them."""
    near = []
    for seed in (1, 2, 3):
        outcomes = play(question(assume=assume, threshold=30), seed=seed)
        truth: Counter[str] = Counter()
        for outcome in outcomes:
            truth.update(outcome.truth)
        found = MECHANISM.conclude(question(assume=assume, threshold=30), outcomes[-1].tally)
        near += [
            abs(one.count - truth[one.item]) <= 3 * one.variance**0.5 + 0.5
            for one in found
            if truth[one.item] >= 60
        ]
    assert np.mean(near) >= 0.9


def test_an_item_that_comes_late_is_found() -> None:
    outcomes = play(question(), late="qz")
    [late] = [o for o in MECHANISM.conclude(question(), outcomes[-1].tally) if o.item == "qz"]
    truth = sum(outcome.truth.get("qz", 0) for outcome in outcomes)
    [sure] = [
        one
        for one in MECHANISM.conclude(question(assume="nothing"), outcomes[-1].tally)
        if one.item == "qz"
    ]
    assert abs(sure.count - truth) <= 4 * sure.variance**0.5 + 1
    assert late.count >= 60


def test_devices_with_several_items_are_counted_as_well() -> None:
    asked = question(contribution=5, threshold=200, words=400)
    outcomes = play(asked)
    found = {one.item for one in MECHANISM.conclude(asked, outcomes[-1].tally)}
    assert f1(found, outcomes, 200) > 0.9


def test_a_table_that_cannot_be_read_still_counts_what_is_tracked() -> None:
    outcomes = play(question(), rounds=6)
    plan, tally = outcomes[-1].plan, outcomes[-2].tally
    plan = plan.model_copy(update={"t": 1.0, "most": 1000})
    held = people(1, 5)[0]
    total = MECHANISM.encode_sum(plan, held, seeded(np.random.default_rng(1)))
    answer = MECHANISM.decode(plan, total, 1000, tally)
    assert not answer.decoded
    truth = Counter(item for histogram in held for item in histogram)
    counted = {one.item: one.count for one in answer.estimates}
    assert counted == {item: truth[item] for item in plan.counters.items}
    assert answer.tally.arrays["offered"].sum() == tally.arrays["offered"].sum()
    following = MECHANISM.next_plan(plan, answer, answer.tally, random.Random(1))
    assert following.t > plan.t


def test_after_a_round_without_a_sum_the_plan_is_as_before() -> None:
    outcomes = play(question(), rounds=4)
    plan, tally = outcomes[-1].plan, outcomes[-2].tally
    following = MECHANISM.next_plan(plan, None, tally, random.Random(1))
    assert following.t == plan.t
    TrackedPlan.model_validate(following.model_dump())


def test_long_studies_are_remembered_in_blocks() -> None:
    asked = question(words=400, threshold=30)
    tally = NOTHING
    plan = MECHANISM.first_plan(asked, TERMS, "long", 200, random.Random(1))
    held = people(1, 3)[0][:100]
    for _ in range(9):
        total = MECHANISM.encode_sum(plan, held, seeded(np.random.default_rng(plan.round)))
        answer = MECHANISM.decode(plan, total, 100, tally)
        tally = answer.tally
        plan = MECHANISM.next_plan(plan, answer, tally, random.Random(plan.round))
    history = history_of(tally)
    assert len(tally.arrays["devices"]) == MOST_BLOCKS
    assert history.devices.tolist() == [400, 300, 200]
    assert (history.exposed <= history.devices + 1e-9).all()


def test_what_cannot_become_heavy_is_given_up_and_its_keys_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same is found with a tally of as many items as may yet be heavy, and some."""
    every = play(question(), rounds=20)
    monkeypatch.setattr("protocol.mechanisms.outlook._MANY", 20)
    some = play(question(), rounds=20)
    keys = some[-1].tally.arrays["given up"]
    kept = set(some[-1].tally.items)
    gone = {item for item in LETTERS.decode(keys) if item is not None} - kept
    assert len(kept) < 0.7 * len(every[-1].tally.items) < len(kept) + len(gone)
    totals: Counter[str] = Counter()
    for outcome in some:
        totals.update(outcome.truth)
    assert max(totals[item] for item in gone) < question().threshold
    found = [
        {one.item for one in MECHANISM.conclude(question(), o[-1].tally)} for o in (every, some)
    ]
    assert len(found[0] ^ found[1]) <= 2


def test_no_more_is_given_up_than_there_is_no_room_for_and_the_rarest_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcome = play(question(), rounds=20)[-1]
    tally, outlook = outcome.tally, Outlook.of(outcome.plan, outcome.tally)
    monkeypatch.setattr("protocol.mechanisms.outlook._MANY", len(tally.items) - 30)
    kept = give_up(outcome.plan, tally).items
    gone = [row for row, item in enumerate(tally.items) if item not in kept]
    assert len(gone) == 30
    rarer = np.sum(outlook.totals < outlook.totals[gone].max())
    assert rarer < 30 + np.sum(outlook.reaches(6.0))
    monkeypatch.setattr("protocol.mechanisms.outlook._MANY", 0)
    hopeful = np.flatnonzero(outlook.reaches(6.0)).tolist()
    assert give_up(outcome.plan, tally).items == tuple(tally.items[row] for row in hopeful)


@pytest.mark.parametrize(("threshold", "least"), [(50, 49.5), (49.2, 49.5), (50.01, 50.5)])
def test_a_total_is_likely_to_reach_a_threshold_from_half_a_token_below(
    threshold: float, least: float
) -> None:
    """Of totals that are all as frequent, more reach it from there on than not."""
    assert likely_from(threshold) == least
    rng = np.random.default_rng(1)
    totals = rng.integers(0, 120, 200_000)
    estimates = totals + rng.normal(0, 1, len(totals))
    for shift, is_likely in ((-0.25, False), (0.25, True)):
        near = np.abs(estimates - least - shift) < 0.1
        assert ((totals[near] >= threshold).mean() > 0.5) == is_likely


def test_strings_too_long_for_the_words_are_refused_with_the_words_that_do() -> None:
    long = Hashed(max_bytes=4000)
    chance = random.Random(1)
    with pytest.raises(ValueError, match="bytes in 6 rounds: 3340 words are needed") as refused:
        MECHANISM.first_plan(question(domain=long, words=900), TERMS, "study", 6, chance)
    words = int(str(refused.value).split(": ")[1].split()[0])
    MECHANISM.first_plan(question(domain=long, words=words), TERMS, "study", 6, chance)
    with pytest.raises(ValueError, match="too few to fetch"):
        MECHANISM.first_plan(question(domain=long, words=words - 8), TERMS, "study", 6, chance)


def test_strings_of_what_is_heavy_are_fetched_and_of_nothing_else() -> None:
    """Items of any length go by short keys until they are about to be heavy."""
    urls = {item: f"https://example.org/{item * 9}/ünï?{item}" for item in ITEMS}
    held = [
        [[{urls[item]: 1 for item in histogram} for histogram in devices]]
        for devices in people(20, 1)
    ]
    asked = question(domain=Hashed(max_bytes=60), words=900)
    rng = random.Random(1)
    outcomes = list(run_study(MECHANISM, asked, TERMS, held, rng, planned=20))
    truth: Counter[str] = Counter()
    for outcome in outcomes:
        truth.update(outcome.truth)
    found = MECHANISM.conclude(asked, outcomes[-1].tally)
    assert f1({one.item for one in found}, outcomes, 60) > 0.9
    assert all(abs(one.count - truth[one.item]) < 30 for one in found if one.item in truth)
    fetched = Strings.of(Hashed(max_bytes=60), outcomes[-1].tally).whole.values()
    assert set(fetched) <= set(truth)
    assert min(truth[item] for item in fetched) > 25


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"cells": 900}, "are more than 240 words"),
        ({"groups": (Group(bits=3, items=("ab", "cd")), Group(bits=4, items=("ab",)))}, "twice"),
        ({"groups": ({"bits": 0, "items": ("ab",)},)}, "greater than or equal to 1"),
        ({"groups": ({"bits": 3, "items": ()},)}, "at least 1 item"),
        ({"fetches": ({"name": "ab", "piece": 0},)}, "of items that are tracked"),
    ],
)
def test_a_plan_that_cannot_be_meant_is_refused(changes: dict[str, Any], why: str) -> None:
    plan = MECHANISM.first_plan(question(), TERMS, "study", 5, random.Random(1))
    smaller = plan.model_dump() | {"cells": 32}
    TrackedPlan.model_validate(smaller)
    with pytest.raises(ValidationError, match=why):
        TrackedPlan.model_validate(smaller | changes)


def test_too_few_words_say_how_many_are_needed() -> None:
    with pytest.raises(ValueError, match="words are needed"):
        MECHANISM.first_plan(question(words=20), TERMS, "study", 5, random.Random(1))


def test_a_poisoned_counter_is_a_fault() -> None:
    plan = play(question(), rounds=3)[-1].plan
    total = MECHANISM.encode_sum(plan, people(1, 4)[0], seeded(np.random.default_rng(1)))
    assert MECHANISM.fault(plan, total, 1000) is None
    total[0][0] ^= 1
    assert "do not add up" in (MECHANISM.fault(plan, total, 1000) or "")


def test_an_answer_of_nothing_leaves_nothing_to_conclude() -> None:
    assert MECHANISM.conclude(question(), NOTHING) == []
    plan = MECHANISM.first_plan(question(), TERMS, "study", 5, random.Random(1))
    following = MECHANISM.next_plan(plan, Answer(True, 0.0), NOTHING, random.Random(1))
    assert following.t == pytest.approx(max(1.0, plan.t / 3))


@pytest.mark.parametrize("lie", [1, 2, 50])
def test_a_lie_about_a_total_stops_no_study(lie: int) -> None:
    outcomes = play(question(), rounds=6)
    plan, tally = outcomes[-1].plan, outcomes[-2].tally
    total = MECHANISM.encode_sum(plan, people(1, 4)[0], seeded(np.random.default_rng(1)))
    for number, group in enumerate(plan.groups):
        lane = MECHANISM.ring(plan).lanes[3 * number + 1]
        total[3 * number + 1][0] = (int(total[3 * number + 1][0]) - lie * 2**group.bits) % lane.q
    answer = MECHANISM.decode(plan, total, 1000, tally)
    following = MECHANISM.next_plan(plan, answer, answer.tally, random.Random(1))
    TrackedPlan.model_validate(following.model_dump())


@pytest.mark.parametrize("contribution", [50, 1000])
def test_devices_that_hold_much_of_one_item_can_always_encode(contribution: int) -> None:
    """The threshold falls below the contribution, and values change their unit."""
    own = contribution * 6 // 10
    devices = [{ITEMS[n]: own, "zz": contribution - own} for n in range(200)]
    asked = question(contribution=contribution, words=400, threshold=1000)
    terms = Terms(cohort_size=200, minimum=100, mode="semi-honest")
    rounds = [[devices]] * 8
    study = run_study(MECHANISM, asked, terms, rounds, random.Random(1), planned=8)
    assert all(outcome.plan.most >= outcome.plan.threshold.bound for outcome in study)


def test_a_tracked_item_that_jumps_far_is_counted_and_costs_the_others_nothing() -> None:
    held = people(14, 1)
    for devices in held[8:]:
        devices[:600] = [{"ah": 1}] * 600
    rounds, rng = [[devices] for devices in held], random.Random(1)
    outcomes = list(run_study(MECHANISM, question(), TERMS, rounds, rng, planned=14))
    assert "ah" in outcomes[7].plan.counters.rows
    for outcome in outcomes[8:]:
        assert outcome.answer is not None
        counts = {one.item: one.count for one in outcome.answer.estimates}
        tracked = outcome.plan.counters.items
        right = [counts[item] == outcome.truth.get(item, 0) for item in tracked]
        assert "ah" in tracked
        assert counts["ah"] == outcome.truth["ah"]
        assert np.mean(right) > 0.9
