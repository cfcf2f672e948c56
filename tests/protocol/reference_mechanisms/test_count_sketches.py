"""The baselines score every candidate, over all rounds, and refuse domains without end."""

import random
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from scipy.optimize import linprog

from protocol.device_policy.sizes_and_losses import noisy_counts
from protocol.domains.strings import Alphabet, Utf8
from protocol.estimation.estimates import MAX_SHOWN_ESTIMATES
from protocol.mechanism import add_noise
from protocol.mechanisms.central.release_design import min_honest_share
from protocol.mechanisms.registry import MECHANISMS, SUM_MECHANISMS, parse_plan, parse_question
from protocol.privacy.events import PARTIES, LedgerEntry
from protocol.privacy.ledger import Ledger
from protocol.privacy.noise_loss import noise_epsilon
from protocol.privacy.noise_shares import NoiseShares
from protocol.question_and_plan import Terms
from protocol.reference_mechanisms.count_sketches import candidate_count, enumerate_keys
from protocol.round_sizes import vector_bytes
from protocol.simulation.study import run_study
from protocol.study_state import EMPTY_STATE
from tests.protocol.chance import seeded

TERMS = Terms(cohort_size=100, minimum=50, cohorts=4)
LETTERS = Alphabet(characters="abcdefghijklmnop", length=3)
NAMES = pytest.mark.parametrize("name", ["count-median", "count-sketch"])


def question(name: str, **changes: Any) -> Any:
    asked = {"threshold": 50, "contribution": 1, "domain": LETTERS, "message_bytes": 8384}
    return parse_question({"mechanism": name} | asked | changes)


@NAMES
def test_what_is_heavy_is_found_over_rounds(name: str) -> None:
    """Ten items of 80 and 100 of 12, in seven rows of some 400 cells."""
    rng = np.random.default_rng(5)
    items = LETTERS.decode(np.arange(110, dtype=np.uint64).reshape(-1, 1))
    tokens = [str(items[x]) for x in [*np.repeat(range(10), 80), *np.repeat(range(10, 110), 12)]]
    rng.shuffle(tokens)
    rounds = [[[{item: 1} for item in tokens[start:][:400]]] for start in range(0, 2000, 400)]
    asked = question(name)
    outcomes = list(run_study(MECHANISMS[name], asked, TERMS, rounds, random.Random(1), planned=5))
    by_item = {
        estimate.item: estimate
        for estimate in MECHANISMS[name].final_estimates(asked, outcomes[-1].study_state)
    }
    assert set(by_item) == set(items[:10])
    assert all(abs(each.count - 80) < 4.5 * each.variance**0.5 for each in by_item.values())


@NAMES
def test_confidence_decides_what_is_reported_and_changes_no_estimate(name: str) -> None:
    asked, mechanism = question(name, domain=Alphabet(characters="ab", length=2)), MECHANISMS[name]
    state = EMPTY_STATE.with_array("scores", np.array([100.0, 64.0, 47.0, 30.0]))
    state = state.with_array("variances", np.full(4, 100.0)).with_array("devices", np.ones(1) * 200)

    def reported(confidence: float) -> dict[str, float]:
        sure = asked.model_copy(update={"confidence": confidence})
        return {each.item: each.count for each in mechanism.final_estimates(sure, state)}

    everything = reported(1e-6)
    assert set(everything) == {"aa", "ab", "ba", "bb"}
    assert everything["aa"] == pytest.approx(95, abs=4)  # the other three are less frequent
    for confidence, items in ((0.5, {"aa", "ab"}), (0.97, {"aa"}), (1 - 1e-9, set())):
        assert reported(confidence) == {item: everything[item] for item in items}


@NAMES
def test_of_items_that_only_noise_shows_almost_none_is_listed(name: str) -> None:
    """60 of 100,000 items are heavy, and the scores of 10,000 others reach the threshold.

    The number of listed heavy items is the sum of their probabilities, within 4 standard errors.
    """
    domain = Alphabet(characters="abcdefghij", length=5)
    rng = np.random.default_rng(2)
    truth = np.zeros(10**5)
    truth[:60] = rng.uniform(50, 200, 60)
    scores = truth + rng.normal(0, 40, len(truth))
    assert (scores >= 50).sum() > 10_000
    state = EMPTY_STATE.with_array("scores", scores).with_array("devices", np.full(1, 1e6))
    state = state.with_array("variances", np.full(len(scores), 1600.0))
    noise = rng.normal(0, 40, 2**14)
    state = state.with_array("scores of nobody", noise)
    state = state.with_array("variances of nobody", np.full(len(noise), 1600.0))
    asked = question(name, domain=domain, threshold=50)
    listed = MECHANISMS[name].final_estimates(asked, state)
    heavy = set(domain.names_of(np.arange(60, dtype=np.uint64)))
    right = sum(each.item in heavy for each in listed)
    probabilities = np.array([each.probability for each in listed])
    assert 5 < len(listed) < 30
    spread = float((probabilities * (1 - probabilities)).sum()) ** 0.5
    assert right == pytest.approx(float(probabilities.sum()), abs=4 * spread)


@NAMES
def test_intervals_are_of_counts_and_as_wide_on_both_sides(name: str) -> None:
    low, high = MECHANISMS[name].confidence_interval(np.array([100.0, 9.0]), np.full(2, 100.0))
    assert low == pytest.approx([100 - 19.6, 0], abs=0.01)
    assert high == pytest.approx([100 + 19.6, 9 + 19.6], abs=0.01)


@NAMES
def test_the_whole_vector_is_used(name: str) -> None:
    for hashes in (5, 11):
        asked = question(name, rows=hashes)
        plan = MECHANISMS[name].first_plan(asked, TERMS, "study", 3, random.Random(1))
        room = vector_bytes(TERMS, asked.message_bytes)
        assert 0.98 * room < MECHANISMS[name].ring(plan).nbytes <= room


@NAMES
@pytest.mark.parametrize(
    "domain", [Utf8(max_bytes=3), Alphabet(characters="abcdefgh", length=7), Utf8(max_bytes=99)]
)
def test_a_domain_that_cannot_be_enumerated_is_refused(name: str, domain: Any) -> None:
    with pytest.raises(ValidationError, match="scores every item: the domain has"):
        question(name, domain=domain)
    assert candidate_count(Alphabet(characters="abcdefgh", length=6)) == 8**6


@NAMES
def test_an_answer_shows_the_highest_and_the_study_state_has_all(name: str) -> None:
    asked = question(name, domain=LETTERS, message_bytes=84_384)
    mechanism = MECHANISMS[name]
    plan = mechanism.first_plan(asked, TERMS, "study", 1, random.Random(1))
    items = LETTERS.decode(np.arange(1300, dtype=np.uint64).reshape(-1, 1))
    total = mechanism.encode_sum(plan, [{str(x): 1} for x in items], seeded(1))
    answer = mechanism.decode(plan, total, 400, EMPTY_STATE)
    assert len(answer.estimates) == MAX_SHOWN_ESTIMATES
    assert len(answer.state.arrays["scores"]) == 16**3
    counts = [each.count for each in answer.estimates]
    assert counts == sorted(counts, reverse=True)


def test_keys_that_no_item_has_are_left_out() -> None:
    padded = Alphabet(characters=".ab", length=2, pad=".")
    asked = question("count-median", domain=padded, threshold=1)
    mechanism = MECHANISMS["count-median"]
    plan = mechanism.first_plan(asked, TERMS, "study", 1, random.Random(1))
    held = [{"a": 1}, {"ab": 1}, {"b": 1}]
    total = mechanism.encode_sum(plan, held, seeded(1))
    answer = mechanism.decode(plan, total, 3, EMPTY_STATE)
    counts = Counter({each.item: round(each.count) for each in answer.estimates})
    assert counts == {"a": 1, "ab": 1, "b": 1}


# Noise.


def noisy_plan(name: str, rounds: int = 1, **changes: Any) -> Any:
    asked = question(name, **{"epsilon": 2, "delta": 1e-5, "threshold": 200} | changes)
    return MECHANISMS[name].first_plan(asked, TERMS, "study", rounds, random.Random(1))


def noisy_sum(plan: Any, histograms: list[dict[str, int]], seed: int) -> Any:
    """Return the sum of a cohort's vectors, with the shares of all of its devices."""
    mechanism, chance = SUM_MECHANISMS[plan.mechanism], seeded(seed)
    total = mechanism.encode_sum(plan, histograms, chance)
    shares = mechanism.noise_shares(plan, len(histograms))
    assert shares is not None
    merged = NoiseShares(float(shares.share * len(histograms)), 1)
    add_noise(mechanism.ring(plan), total, merged, chance)
    return total


@NAMES
def test_noise_keeps_the_epsilon_against_every_party(name: str) -> None:
    plan = noisy_plan(name)
    entry = LedgerEntry(name="study", event=MECHANISMS[name].dp_event(plan, 1))
    ledger = Ledger(entries=(entry,))
    for party in PARTIES:
        assert ledger.epsilon(1e-5, party) == pytest.approx(2, rel=1e-4)
    assert noise_epsilon(noisy_counts(plan), 1e-5) <= 2  # so a device of this limit accepts it
    assert noise_epsilon(noisy_counts(plan), 1e-5) == pytest.approx(2, rel=1e-4)


@NAMES
def test_sums_with_noise_have_no_fault_and_garbage_has(name: str) -> None:
    plan, mechanism = noisy_plan(name), SUM_MECHANISMS[name]
    held = [{"abc": 1}] * 60 + [{"def": 1}] * 40
    lane = mechanism.ring(plan).lanes[0]
    for seed in range(10):
        total = noisy_sum(plan, held, seed)
        assert mechanism.fault(plan, total, len(held)) is None
        garbage = np.random.default_rng(seed).integers(0, lane.q, lane.length)
        fault = mechanism.fault(plan, (garbage.astype(lane.dtype),), len(held))
        assert fault is not None
    total[0][: plan.width] = (total[0][: plan.width] + 20) % lane.q  # one row, and no other
    fault = mechanism.fault(plan, total, len(held))
    assert (fault or "").startswith("the rows" if name == "count-median" else "the counts")


@NAMES
def test_estimates_under_noise_have_the_reported_variance(name: str) -> None:
    """Over 50 sums, means stay within 4.5 standard errors, and variances within three."""
    plan, mechanism = noisy_plan(name, message_bytes=5184), SUM_MECHANISMS[name]
    held, counts, variances = [{"abc": 1}] * 90 + [{"def": 1}] * 10, [], []
    chosen = LETTERS.encode(["abc"])[0, 0]
    for seed in range(50):
        fresh = plan.model_copy(update={"seed": seed.to_bytes(32).hex()})
        answer = mechanism.decode(fresh, noisy_sum(fresh, held, seed), len(held), EMPTY_STATE)
        counts.append(answer.state.arrays["scores"][int(chosen)])
        variances.append(answer.state.arrays["variances"][int(chosen)])
    assert abs(np.mean(counts) - 90) < 4.5 * np.std(counts) / 50**0.5
    assert np.var(counts) == pytest.approx(np.mean(variances), rel=0.6)


@NAMES
def test_items_are_found_under_noise(name: str) -> None:
    rounds = [[[{"abc": 1}] * 280 + [{"def": 1}] * 120] for _ in range(3)]
    asked = question(name, epsilon=2, delta=1e-5, threshold=250)
    outcomes = list(run_study(MECHANISMS[name], asked, TERMS, rounds, random.Random(1), planned=3))
    estimates = MECHANISMS[name].final_estimates(asked, outcomes[-1].study_state)
    assert [each.item for each in estimates] == ["abc", "def"]
    assert all(outcome.answer and outcome.answer.distinct < 40 for outcome in outcomes)


@pytest.mark.parametrize("epsilon", [None, 2.0])
@NAMES
def test_the_only_item_is_found_in_a_sketch_of_one_row(name: str, epsilon: float | None) -> None:
    """The keys of nobody in its cell have its own count, which is not noise.

    Another of the 64 items is in its cell with probability 0.1, and then both are listed.
    """
    few = Alphabet(characters=".abc", length=3, pad=".")
    changes = {"domain": few, "rows": 1, "message_bytes": 5184, "threshold": 30, "epsilon": epsilon}
    asked, mechanism = question(name, **changes), MECHANISMS[name]
    for seed in range(8):
        rounds, rng = [[[{"cab": 1}] * 60]], random.Random(seed)
        outcomes = list(run_study(mechanism, asked, TERMS, rounds, rng, planned=1))
        listed = mechanism.final_estimates(asked, outcomes[-1].study_state)
        count = {each.item: each.count for each in listed}.get("cab", 0.0)
        assert count == pytest.approx(60, abs=4.5 * 3)  # noise has a deviation below 3


@NAMES
def test_full_cohorts_and_the_largest_noise_do_not_wrap(name: str) -> None:
    plan = noisy_plan(name)
    devices, lane = TERMS.max_devices, plan.sketch.ring.lanes[0]
    noise = plan.release.max_noise(TERMS.cohorts, TERMS.dropout, min_honest_share(TERMS))
    for extreme in (devices + noise, -devices - noise):
        cells = np.full(lane.length, extreme % lane.q).astype(lane.dtype)
        assert (plan.sketch.counts((cells,)) == extreme).all()
    room = vector_bytes(TERMS, plan.question.message_bytes)
    assert 0.98 * room < plan.sketch.ring.nbytes <= room
    of_one, of_four = (plan.max_noise_variance(devices) for devices in (79, TERMS.max_devices))
    assert of_four == pytest.approx(4 * of_one)
    assert of_one > plan.release.variance  # if no device drops out


@NAMES
def test_noise_that_does_not_fit_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="epsilon needs a contribution of 1"):
        question(name, epsilon=1, contribution=2)
    with pytest.raises(ValueError, match=r"use (\d+) or more, or a larger epsilon") as refused:
        noisy_plan(name, threshold=20)
    enough = int(re.findall(r"use (\d+)", str(refused.value))[0])
    noisy_plan(name, threshold=enough)
    with pytest.raises(ValueError, match=f"use {2 * enough - 1} or more"):  # or one less, rounded
        noisy_plan(name, rounds=4, threshold=enough)
    with pytest.raises(ValueError, match="use a larger epsilon, a smaller message or more devices"):
        noisy_plan(name, epsilon=0.01, message_bytes=33_558_816, threshold=1e6)


@NAMES
def test_a_plan_has_the_noise_of_its_question(name: str) -> None:
    plan = noisy_plan(name).model_dump()
    coins = plan["release"] | {"probability": 0.5}
    for changes in ({"release": None}, {"release": coins}):
        with pytest.raises(ValidationError, match=r"if its question has an epsilon|no coins"):
            parse_plan(plan | changes)
    exact = MECHANISMS[name].first_plan(question(name), TERMS, "study", 1, random.Random(1))
    with pytest.raises(ValidationError, match="if its question has an epsilon"):
        parse_plan(exact.model_dump() | {"release": plan["release"], "width": 9})


def test_exact_estimates_of_common_items_can_show_a_rare_one() -> None:
    """The documented limit of the threshold: estimates are linear equations for all items."""
    domain = Alphabet(characters="abcd", length=2)
    asked = question("count-median", domain=domain, threshold=5, message_bytes=4402, rows=2)
    mechanism = SUM_MECHANISMS["count-median"]
    plan = mechanism.first_plan(asked, TERMS, "s", 1, random.Random(0))
    held = [*["aa"] * 40, *["bb"] * 30, *["cc"] * 29, "dd"]
    total = mechanism.encode_sum(plan, [{item: 1} for item in held], seeded(1))
    state = mechanism.decode(plan, total, len(held), EMPTY_STATE).state
    # Published estimates are computed from scores, so what scores show may be computed back.
    scores = dict(zip(domain.decode(enumerate_keys(domain)), state.arrays["scores"], strict=True))
    shown = {item: score for item, score in scores.items() if score >= 5}
    assert "dd" not in shown
    # A score is the mean of two cells less the bias, which is the last unknown.
    keys = enumerate_keys(domain)
    items, ones = domain.decode(keys), np.ones(1, np.int64)
    alone = [plan.sketch.insert(key[np.newaxis], ones)[0] for key in keys]
    cells = np.stack([np.flatnonzero(vector) for vector in alone], axis=1)
    means = [(cells == cells[:, [items.index(item)]]).mean(axis=0) for item in shown]
    equations = [np.append(mean, -1) for mean in means] + [np.append(np.ones(len(items)), 0)]
    counts = [(0, None)] * len(items) + [(None, None)]
    rare = np.zeros(len(items) + 1)
    rare[items.index("dd")] = 1
    fewest, most = (
        sign * linprog(sign * rare, A_eq=equations, b_eq=[*shown.values(), 100], bounds=counts).fun
        for sign in (1, -1)
    )
    assert (fewest, most) == pytest.approx((1, 1))
