"""Known items are counted exactly, new ones are heavy, and late counts inform early rounds."""

import random
from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from protocol.committee_terms import CommitteeTerms
from protocol.domains.hashed import Hashed
from protocol.domains.strings import Alphabet
from protocol.estimation.empirical_bayes import decision_threshold
from protocol.mechanism import Answer
from protocol.mechanisms.iblt.adaptive import AdaptiveIblt, AdaptiveIbltQuestion
from protocol.mechanisms.iblt.threshold_sampling import coarse_threshold
from protocol.mechanisms.registry import parse_question
from protocol.mechanisms.tracked import tuning_constants as tuning
from protocol.mechanisms.tracked.forecast import Forecast, evict_items
from protocol.mechanisms.tracked.mechanism import Tracked, round_primes
from protocol.mechanisms.tracked.observations import history_of
from protocol.mechanisms.tracked.plan import TrackedPlan, TrackedQuestion
from protocol.mechanisms.tracked.string_fetching import KnownStrings
from protocol.question_and_plan import AUTO_BYTES, Terms
from protocol.round_sizes import message_bytes, message_bytes_of, vector_bytes
from protocol.simulation.study import RoundOutcome, run_study
from protocol.study_state import EMPTY_STATE, MAX_BLOCKS
from secagg.keys import Identity
from tests.protocol.chance import seeded

MECHANISM = Tracked()
LETTERS = Alphabet(characters="abcdefghijklmnopqrstuvwxyz", length=2)
TERMS = Terms(cohort_size=1000, minimum=500)
OPERATORS = tuple(Identity.of(bytes([number]) * 32).public.hex() for number in range(7))
ONE_SHOT = Terms(
    cohort_size=1000, minimum=500, sum="one-shot", committee=CommitteeTerms(members=OPERATORS)
)
ITEMS = [a + b for a in LETTERS.characters for b in LETTERS.characters]
ZIPF = 1 / np.arange(1, len(ITEMS) + 1) ** 1.1


def question(**changes: Any) -> TrackedQuestion:
    asked = dict[str, Any](threshold=60, contribution=1, domain=LETTERS, message_bytes=10_844)
    return TrackedQuestion(**(asked | changes))


def people(rounds: int, seed: int, each: int = 1, late: str = "") -> list[list[dict[str, int]]]:
    """Return devices that hold `each` items; the item `late` comes up in the second half."""
    rng = np.random.default_rng(seed)
    studied = []
    for number in range(rounds):
        probabilities = ZIPF.copy()
        if late:
            probabilities[ITEMS.index(late)] = 0.5 * (number >= rounds // 2)
        drawn = rng.choice(len(ITEMS), (1000, each), p=probabilities / probabilities.sum())
        studied.append([dict(Counter(ITEMS[index] for index in row)) for row in drawn])
    return studied


@cache
def play(
    asked: TrackedQuestion, rounds: int = 20, seed: int = 1, **how: Any
) -> list[RoundOutcome[TrackedPlan]]:
    held = [[devices] for devices in people(rounds, 1, asked.contribution, **how)]
    return list(run_study(MECHANISM, asked, TERMS, held, random.Random(seed), planned=rounds))


def f1(reported: set[str], outcomes: list[RoundOutcome[Any]], threshold: float) -> float:
    truth: Counter[str] = Counter()
    for outcome in outcomes:
        truth.update(outcome.truth)
    heavy = {item for item, count in truth.items() if count >= threshold}
    return 2 * len(reported & heavy) / (len(reported) + len(heavy))


def test_a_vector_is_as_long_as_the_message_allows_and_no_longer() -> None:
    room = vector_bytes(TERMS, question().message_bytes)
    for outcome in play(question()):
        assert 0.9 * room < MECHANISM.ring(outcome.plan).nbytes <= room


def test_tracked_items_are_counted_exactly() -> None:
    outcomes = play(question())
    for outcome in outcomes[1:]:
        assert outcome.answer is not None
        counts = {each.item: each.count for each in outcome.answer.estimates}
        for item in outcome.plan.counters.items:
            assert counts[item] == outcome.truth.get(item, 0)
    assert len(outcomes[-1].plan.counters.items) > 40


def test_more_is_found_than_by_an_adaptive_table_with_the_same_words() -> None:
    outcomes = play(question())
    heavy = {each.item for each in MECHANISM.final_estimates(question(), outcomes[-1].study_state)}
    asked = AdaptiveIbltQuestion(threshold=60, contribution=1, domain=LETTERS, message_bytes=10_844)
    held, rng = [[devices] for devices in people(20, 1)], random.Random(1)
    others = list(run_study(AdaptiveIblt(), asked, TERMS, held, rng, planned=20))
    paper = {each.item for each in AdaptiveIblt().final_estimates(asked, others[-1].study_state)}
    assert f1(heavy, outcomes, 60) > max(0.93, f1(paper, others, 60) + 0.02)


def test_totals_cover_what_they_should() -> None:
    """Two studies, since uncounted tokens of one study depend on few samples."""
    near = []
    for seed in (1, 2):
        outcomes = play(question(threshold=30), seed=seed)
        truth: Counter[str] = Counter()
        for outcome in outcomes:
            truth.update(outcome.truth)
        heavy = MECHANISM.final_estimates(question(threshold=30), outcomes[-1].study_state)
        near += [
            abs(each.count - truth[each.item]) <= 3 * each.variance**0.5 + 0.5
            for each in heavy
            if truth[each.item] >= 60
        ]
    assert np.mean(near) >= 0.98


@pytest.mark.parametrize("field", [{"assume": "drift"}, {"table": "default"}])
def test_a_question_with_an_option_that_is_gone_is_refused(field: dict[str, str]) -> None:
    fields = question().model_dump(mode="json")
    assert parse_question(fields) == question()
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        parse_question(fields | field)


def test_an_item_that_comes_late_is_found() -> None:
    outcomes = play(question(), late="qz")
    [late] = [
        o for o in MECHANISM.final_estimates(question(), outcomes[-1].study_state) if o.item == "qz"
    ]
    truth = sum(outcome.truth.get("qz", 0) for outcome in outcomes)
    assert abs(late.count - truth) <= 4 * late.variance**0.5 + 1
    assert late.count >= 60


def test_a_table_that_cannot_be_read_still_counts_what_is_tracked() -> None:
    outcomes = play(question(), rounds=6)
    plan, state = outcomes[-1].plan, outcomes[-2].study_state
    plan = plan.model_copy(update={"t": 1.0, "max_value": 1000})
    held = people(1, 5)[0]
    total = MECHANISM.encode_sum(plan, held, seeded(1))
    answer = MECHANISM.decode(plan, total, 1000, state)
    assert not answer.decoded
    truth = Counter(item for histogram in held for item in histogram)
    counted = {each.item: each.count for each in answer.estimates}
    assert counted == {item: truth[item] for item in plan.counters.items}
    assert answer.state.arrays["sampled exposure"].sum() == state.arrays["sampled exposure"].sum()
    following = MECHANISM.next_plan(plan, answer, answer.state, random.Random(1))
    assert following.t > plan.t


def test_after_a_round_without_a_sum_the_plan_is_as_before() -> None:
    outcomes = play(question(), rounds=4)
    plan, state = outcomes[-1].plan, outcomes[-2].study_state
    following = MECHANISM.next_plan(plan, None, state, random.Random(1))
    assert following.t == plan.t
    TrackedPlan.model_validate(following.model_dump())


def test_long_studies_are_remembered_in_blocks() -> None:
    asked = question(message_bytes=11_164, threshold=30)
    state = EMPTY_STATE
    plan = MECHANISM.first_plan(asked, TERMS, "long", 200, random.Random(1))
    held = people(1, 3)[0][:100]
    for _ in range(9):
        total = MECHANISM.encode_sum(plan, held, seeded(plan.round))
        answer = MECHANISM.decode(plan, total, 100, state)
        state = answer.state
        plan = MECHANISM.next_plan(plan, answer, state, random.Random(plan.round))
    history = history_of(state)
    assert len(state.arrays["devices"]) == MAX_BLOCKS
    assert history.devices.tolist() == [400, 300, 200]
    assert (history.exposure <= history.devices + 1e-9).all()


def test_what_cannot_become_heavy_is_given_up_and_its_keys_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The result is the same with a state of slightly more items than may become heavy."""
    every = play(question())
    monkeypatch.setattr(tuning, "MAX_REMEMBERED_ITEMS", 20)
    some = play.__wrapped__(question())
    keys = some[-1].study_state.arrays["evicted keys"]
    kept = set(some[-1].study_state.items)
    gone = {item for item in LETTERS.decode(keys) if item is not None} - kept
    assert len(kept) < 0.7 * len(every[-1].study_state.items) < len(kept) + len(gone)
    totals: Counter[str] = Counter()
    for outcome in some:
        totals.update(outcome.truth)
    assert max(totals[item] for item in gone) < question().threshold
    heavy = [
        {each.item for each in MECHANISM.final_estimates(question(), o[-1].study_state)}
        for o in (every, some)
    ]
    assert len(heavy[0] ^ heavy[1]) <= 2


def test_no_more_is_given_up_than_there_is_no_room_for_and_the_rarest_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcome = play(question())[-1]
    state, forecast = outcome.study_state, Forecast.after_round(outcome.plan, outcome.study_state)
    monkeypatch.setattr(tuning, "MAX_REMEMBERED_ITEMS", len(state.items) - 30)
    kept = evict_items(outcome.plan, state).items
    gone = [row for row, item in enumerate(state.items) if item not in kept]
    assert len(gone) == 30
    rarer = np.sum(forecast.totals < forecast.totals[gone].max())
    assert rarer < 30 + np.sum(forecast.may_reach(6.0))
    monkeypatch.setattr(tuning, "MAX_REMEMBERED_ITEMS", 0)
    hopeful = np.flatnonzero(forecast.may_reach(6.0)).tolist()
    assert evict_items(outcome.plan, state).items == tuple(state.items[row] for row in hopeful)


@pytest.mark.parametrize(("threshold", "least"), [(50, 49.5), (49.2, 49.5), (50.01, 50.5)])
def test_a_total_is_likely_to_reach_a_threshold_from_half_a_token_below(
    threshold: float, least: float
) -> None:
    """Equally frequent totals reach the threshold from there with probability 1/2 or more."""
    assert decision_threshold(threshold) == least
    rng = np.random.default_rng(1)
    totals = rng.integers(0, 120, 200_000)
    estimates = totals + rng.normal(0, 1, len(totals))
    for shift, is_likely in ((-0.25, False), (0.25, True)):
        near = np.abs(estimates - least - shift) < 0.1
        assert ((totals[near] >= threshold).mean() > 0.5) == is_likely


def test_strings_too_long_for_the_message_are_refused_with_the_bytes_that_do() -> None:
    long = Hashed(max_bytes=4000)
    chance = random.Random(1)
    with pytest.raises(ValueError, match=r"bytes in 6 rounds: 17,04\d are needed") as refused:
        MECHANISM.first_plan(question(domain=long, message_bytes=12_164), TERMS, "study", 6, chance)
    size = int(str(refused.value).split(": ")[1].split()[0].replace(",", ""))
    MECHANISM.first_plan(question(domain=long, message_bytes=size), TERMS, "study", 6, chance)
    smaller = question(domain=long, message_bytes=size - 16)
    with pytest.raises(ValueError, match="too few to fetch"):
        MECHANISM.first_plan(smaller, TERMS, "study", 6, chance)


@pytest.mark.parametrize(("message_bytes", "least_f1"), [(12_164, 0.9), (10_750, 0.75)])
def test_strings_of_what_is_heavy_are_fetched_and_of_nothing_else(
    message_bytes: int, least_f1: float
) -> None:
    """Items of any length go by short keys until they are about to be heavy."""
    urls = {item: f"https://example.org/{item * 9}/ünï?{item}" for item in ITEMS}
    held = [[[{urls[x]: 1 for x in each} for each in devices]] for devices in people(20, 1)]
    asked = question(domain=Hashed(max_bytes=60), message_bytes=message_bytes)
    rng = random.Random(1)
    outcomes = list(run_study(MECHANISM, asked, TERMS, held, rng, planned=20))
    truth: Counter[str] = Counter()
    for outcome in outcomes:
        truth.update(outcome.truth)
    heavy = MECHANISM.final_estimates(asked, outcomes[-1].study_state)
    assert f1({each.item for each in heavy}, outcomes, 60) > least_f1
    assert sum(each.answer is not None and each.answer.decoded for each in outcomes) > 17
    assert all((x.count - truth.get(x.item, x.count)) ** 2 < 25 * x.variance for x in heavy)
    known = KnownStrings.from_state(Hashed(max_bytes=60), outcomes[-1].study_state)
    fetched = known.complete.values()
    assert set(fetched) <= set(truth)
    assert min(truth[item] for item in fetched) > 25


def test_strings_are_fetched_before_their_holders_leave() -> None:
    """Common items become rare, and the reverse: 1 has no name, and 7 had none at an even rate."""
    asked, unnamed = question(domain=Hashed(max_bytes=60), message_bytes=10_900), 0
    for seed in (1, 2, 3):
        rng, held = np.random.default_rng(seed), []
        for late in np.linspace(0, 1, 20):
            odds = (1 - late) * ZIPF + late * ZIPF[::-1]
            drawn = rng.choice(ITEMS, 1000, p=odds / odds.sum())
            held.append([[{f"https://example.org/{x * 9}/ünï?{x}": 1} for x in drawn.tolist()]])
        *_, last = run_study(MECHANISM, asked, TERMS, held, random.Random(seed), planned=20)
        heavy = MECHANISM.final_estimates(asked, last.study_state)
        unnamed += sum(not each.item.startswith("https") for each in heavy)
    assert unnamed <= 3


@pytest.mark.parametrize(("size", "rounds"), [(600, 5), (150, 2)])
def test_strings_that_are_all_long_are_named_in_few_rounds(size: int, rounds: int) -> None:
    texts = [f"{number:05} " * (size // 6) for number in range(20)]
    asked = question(domain=Hashed(max_bytes=1000 if rounds > 2 else 200), message_bytes=35_000)
    held = [[[{text: 1} for text in texts for _ in range(40)]]] * rounds
    *_, last = run_study(MECHANISM, asked, TERMS, held, random.Random(1), planned=rounds)
    heavy = MECHANISM.final_estimates(asked, last.study_state)
    assert {each.item for each in heavy} == set(texts)


def test_a_long_string_that_is_found_in_the_round_before_the_last_is_named() -> None:
    texts = [f"{number}: {'an item of many words; ' * 10}" for number in range(5)]
    early, late = ([{x: 1} for x in each for _ in range(200)] for each in (texts[1:], texts))
    asked = question(domain=Hashed(max_bytes=300), message_bytes=16_000)
    held = [[early]] * 6 + [[late]] * 3
    *_, last = run_study(MECHANISM, asked, TERMS, held, random.Random(1), planned=9)
    heavy = MECHANISM.final_estimates(asked, last.study_state)
    assert {each.item for each in heavy} == set(texts)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"counter_groups": ({"bits": 3, "items": ("ab",)},) * 2}, "twice"),
        ({"counter_groups": ({"bits": 0, "items": ("ab",)},)}, "greater than or equal to 1"),
        ({"counter_groups": ({"bits": 3, "items": ()},)}, "at least 1 item"),
        ({"string_pieces": ((0, 0, 9),)}, "items that are tracked"),
        ({"phrases": tuple("abcdefghijklmn")}, "phrases are for string_pieces"),
    ],
)
def test_a_plan_that_cannot_be_meant_is_refused(changes: dict[str, Any], why: str) -> None:
    plan = MECHANISM.first_plan(question(), TERMS, "study", 5, random.Random(1))
    smaller = plan.model_dump() | {"cells": 32}
    TrackedPlan.model_validate(smaller)
    with pytest.raises(ValidationError, match=why):
        TrackedPlan.model_validate(smaller | changes)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"prime": 0}, "a one-shot sum has a prime"),
        ({"prime": 509}, "509 is no prime for this sum: 521 is one"),
        ({"prime": 521, "max_value": 521}, "values up to 521 wrap"),
        ({"counter_groups": ({"bits": 3, "items": ("ab",)},)}, "another kind of sums"),
        ({"counter_groups": ({"counters": 2, "items": ("ab",)},)}, "of 2 counters expected"),
        ({"counter_classes": (1,)}, "of 0 counters expected"),
        ({"counter_groups": ({"counters": 0, "items": ("ab",)},)}, "greater than or equal to 1"),
    ],
)
def test_a_one_shot_plan_that_cannot_be_meant_is_refused(changes: dict[str, Any], why: str) -> None:
    plan = MECHANISM.first_plan(question(), ONE_SHOT, "study", 5, random.Random(1))
    smaller = plan.model_dump() | {"cells": 32, "prime": 521, "max_value": 500}
    TrackedPlan.model_validate(smaller)
    with pytest.raises(ValidationError, match=why):
        TrackedPlan.model_validate(smaller | changes)
    pairwise = MECHANISM.first_plan(question(), TERMS, "study", 5, random.Random(1))
    with pytest.raises(ValidationError, match="a pairwise sum has none"):
        TrackedPlan.model_validate(pairwise.model_dump() | {"prime": 521})


@pytest.mark.parametrize("contribution", [1, 10_000])
def test_some_prime_is_above_all_tokens_of_devices(contribution: int) -> None:
    """Also of 67 million, where no prime below 2^26 is twice as large."""
    terms = ONE_SHOT.model_copy(update={"cohort_size": 6_700})
    asked = question(contribution=contribution, threshold=60_000, message_bytes=4_000)
    primes = round_primes(asked, terms)
    assert primes[-1] > terms.max_devices * contribution
    plan = MECHANISM.first_plan(asked, terms, "study", 5, random.Random(1))
    assert not plan.residual.has_room(-100)
    MECHANISM.next_plan(plan, None, EMPTY_STATE, random.Random(1))


@pytest.mark.parametrize("late", ["", "yy"])
def test_a_one_shot_study_with_one_prime_counts_what_is_held(late: str) -> None:
    """Also an item that comes up late, held by half of the devices, is counted or unsure."""
    held = [[devices] for devices in people(20, 1, late=late)]
    asked = question(message_bytes=message_bytes_of(ONE_SHOT, 600))
    outcomes = list(run_study(MECHANISM, asked, ONE_SHOT, held, random.Random(1), planned=20))
    for outcome in outcomes:
        plan, answer = outcome.plan, outcome.answer
        assert message_bytes(ONE_SHOT, plan.ring) <= asked.message_bytes
        assert {lane.q for lane in plan.ring.lanes} == {plan.prime}
        for each in answer.estimates if answer else ():
            if each.item in plan.counters.rows and each.variance == 0:
                assert each.count == outcome.truth.get(each.item, 0)
    heavy = {each.item for each in MECHANISM.final_estimates(asked, outcomes[-1].study_state)}
    assert f1(heavy, outcomes, 60) > 0.93
    assert late in heavy or not late


def test_a_poisoned_counter_is_a_fault() -> None:
    plan = play(question(), rounds=3)[-1].plan
    total = MECHANISM.encode_sum(plan, people(1, 4)[0], seeded(1))
    assert MECHANISM.fault(plan, total, 1000) is None
    total[0][0] ^= 1
    assert "do not add up" in (MECHANISM.fault(plan, total, 1000) or "")


def test_an_answer_of_nothing_leaves_nothing_to_conclude() -> None:
    assert MECHANISM.final_estimates(question(), EMPTY_STATE) == []
    plan = MECHANISM.first_plan(question(), TERMS, "study", 5, random.Random(1))
    following = MECHANISM.next_plan(plan, Answer(True, 0.0), EMPTY_STATE, random.Random(1))
    assert following.t == coarse_threshold(max(1.0, plan.t / 3))


@pytest.mark.parametrize("lie", [1, 2, 50])
def test_a_lie_about_a_total_stops_no_study(lie: int) -> None:
    outcomes = play(question(), rounds=6)
    plan, state = outcomes[-1].plan, outcomes[-2].study_state
    total = MECHANISM.encode_sum(plan, people(1, 4)[0], seeded(1))
    for number, group in enumerate(plan.counter_groups):
        lane = MECHANISM.ring(plan).lanes[3 * number + 1]
        total[3 * number + 1][0] = (int(total[3 * number + 1][0]) - lie * 2**group.bits) % lane.q
    answer = MECHANISM.decode(plan, total, 1000, state)
    following = MECHANISM.next_plan(plan, answer, answer.state, random.Random(1))
    TrackedPlan.model_validate(following.model_dump())


@pytest.mark.parametrize("contribution", [50, 1000])
def test_devices_that_hold_much_of_one_item_can_always_encode(contribution: int) -> None:
    """The threshold falls below the contribution, and values change their unit."""
    own = contribution * 6 // 10
    devices = [{ITEMS[n]: own, "zz": contribution - own} for n in range(200)]
    asked = question(contribution=contribution, message_bytes=11_164, threshold=1000)
    terms = Terms(cohort_size=200, minimum=100)
    rounds = [[devices]] * 8
    study = run_study(MECHANISM, asked, terms, rounds, random.Random(1), planned=8)
    assert all(outcome.plan.max_value >= outcome.plan.sampler.max_item_units for outcome in study)


def test_a_tracked_item_that_jumps_far_is_counted_and_costs_the_others_nothing() -> None:
    held = people(14, 1)
    for devices in held[8:]:
        devices[:600] = [{"ah": 1}] * 600
    rounds, rng = [[devices] for devices in held], random.Random(1)
    outcomes = list(run_study(MECHANISM, question(), TERMS, rounds, rng, planned=14))
    assert "ah" in outcomes[7].plan.counters.rows
    for outcome in outcomes[8:]:
        assert outcome.answer is not None
        counts = {each.item: each.count for each in outcome.answer.estimates}
        tracked = outcome.plan.counters.items
        right = [counts[item] == outcome.truth.get(item, 0) for item in tracked]
        assert "ah" in tracked
        assert counts["ah"] == outcome.truth["ah"]
        assert np.mean(right) > 0.9


def test_the_service_refuses_words_that_nobody_has_chosen() -> None:
    asked = question(message_bytes="auto")
    assert asked.message_bytes == AUTO_BYTES
    assert asked == TrackedQuestion.model_validate(asked.model_dump())
    with pytest.raises(ValueError, match=r"no message_bytes were chosen .*: [\d,]+ are needed"):
        MECHANISM.first_plan(asked, TERMS, "s", 2, random.Random(1))
    with pytest.raises(ValidationError, match="message_bytes"):
        question(message_bytes="many")


@pytest.mark.parametrize(("devices", "each"), [(6, 2), (10, 3)])
def test_a_few_devices_are_counted_in_every_round(devices: int, each: int) -> None:
    """They hold fewer copies than the prime, so that no window can be missing."""
    terms = ONE_SHOT.model_copy(update={"cohort_size": devices, "minimum": 4})
    held = [[day[:devices]] for day in people(40, 1, each)]
    asked = question(threshold=3, contribution=each, message_bytes=1_679)
    for outcome in run_study(MECHANISM, asked, terms, held, random.Random(1), planned=40):
        assert outcome.answer is not None
        assert outcome.answer.decoded
        for estimate in outcome.answer.estimates:
            assert (estimate.count, estimate.variance) == (outcome.truth.get(estimate.item, 0), 0)
