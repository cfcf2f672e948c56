"""Rates by round that mechanisms keep, and changes that are found in whole studies."""

from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest

from protocol.domains.hashed import Hashed
from protocol.domains.strings import Alphabet, Utf8
from protocol.estimation.estimates import Estimate, add_estimates
from protocol.estimation.rate_changes import RateChanges, RateHistory, compare_rates
from protocol.mechanisms import sampled_counts
from protocol.mechanisms.registry import SUM_MECHANISMS, AnyPlan, parse_question
from protocol.question_and_plan import Terms
from protocol.simulation.study import run_study
from protocol.study_state import EMPTY_STATE, StudyState
from tests.protocol.chance import seeded

LETTERS = Alphabet(characters="abcdefghijklmnopqrstuvwxyz", length=2)
ITEMS = [a + b for a in LETTERS.characters for b in LETTERS.characters]
TERMS = Terms(cohort_size=1000, minimum=500)
ROUNDS = 12
SHARES = 1 / np.arange(1, len(ITEMS) + 1)
SHARES /= SHARES.sum()
RISING, GONE = ITEMS[20], ITEMS[7]


@cache
def study(mechanism: str, is_planted: bool, seed: int) -> tuple[list[str], RateHistory]:
    """Return the heavy hitters of a study and their history; half way two items may change."""
    asked: dict[str, Any] = {"threshold": 60, "contribution": 1, "domain": LETTERS}
    question = parse_question(asked | {"message_bytes": 11_364, "mechanism": mechanism})
    rng, shares, rounds = np.random.default_rng(seed), SHARES.copy(), []
    for number in range(ROUNDS):
        if is_planted and number == ROUNDS // 2:
            shares[20], shares[7] = 4 * shares[20], 0
        counts = rng.multinomial(900, shares / shares.sum())
        tokens = np.repeat(ITEMS, counts).tolist()
        rounds.append([[{item: 1} for item in tokens]])
    which, plan, state = SUM_MECHANISMS[mechanism], None, EMPTY_STATE
    for outcome in run_study(which, question, TERMS, rounds, Random(seed), planned=ROUNDS):
        plan, state = outcome.plan, outcome.study_state
    assert plan is not None
    items = [each.item for each in which.final_estimates(question, state)]
    history = which.rate_history(plan, state, items)
    assert history is not None
    return items, history


def changes(known: RateHistory) -> RateChanges:
    return compare_rates(*(known.sample(*half) for half in known.halves()))


@pytest.mark.parametrize("mechanism", ["tracked", "adaptive-iblt", "subsampled-iblt"])
def test_a_study_that_stands_still_has_no_changes(mechanism: str) -> None:
    """Each study has a change with a probability of 0.05 at most; of 4, 3 or more with 0.0005."""
    with_changes, rates, true_rates = 0, [], []
    for seed in range(4):
        items, known = study(mechanism, False, seed)
        with_changes += any(changes(known).kinds)
        rates += known.sample(1, ROUNDS).rates()[0].tolist()
        true_rates += [SHARES[ITEMS.index(item)] for item in items]
        halves = [known.sample(*half).rates()[0].sum() for half in known.halves()]
        # An item that is counted once it was found does not seem to rise.
        assert halves[1] == pytest.approx(halves[0], rel=0.25)
    assert with_changes < 3
    assert sum(rates) == pytest.approx(sum(true_rates), rel=0.1)


def test_a_rising_item_and_one_that_is_gone_are_found() -> None:
    """One falls from 16 tokens per round to none, one rises from 6 to 24: beyond 6 deviations."""
    for seed in range(3):
        items, known = study("tracked", True, seed)
        kinds = dict(zip(items, changes(known).kinds, strict=True))
        assert kinds[RISING] in ("rising", "new")
        assert kinds[GONE] in ("gone", "falling")
        assert sum(kind is not None for kind in kinds.values()) < 5
        counted = known.is_counted[items.index(RISING)]
        assert counted[-1]
        assert not counted[0]


def test_rounds_that_were_not_read_have_no_exposure() -> None:
    """A table with far too many items between two small rounds."""
    question = parse_question(
        {"mechanism": "adaptive-iblt", "threshold": 5, "contribution": 1, "message_bytes": 8_864}
        | {"domain": Utf8(max_bytes=3)}
    )
    which, state, chance = SUM_MECHANISMS["adaptive-iblt"], EMPTY_STATE, seeded(1)
    terms = Terms(cohort_size=300, minimum=100)
    plan: AnyPlan = which.first_plan(question, terms, "s", 3, Random(1))
    assert which.rate_history(plan, state, []) is None
    few, many = [{"a": 1}] * 120, [{f"{number:03}": 1} for number in range(300)]
    for devices in (few, many, few):
        plan = plan.model_copy(update={"t": 1.0})
        answer = which.decode(plan, which.encode_sum(plan, devices, chance), len(devices), state)
        state, plan = answer.state, which.next_plan(plan, answer, answer.state, Random(1))
    known = which.rate_history(plan, state, ["a"])
    assert known is not None
    assert known.tokens.tolist() == [[120, 0, 120]]
    assert known.exposure.tolist() == [[120, 0, 120]]
    assert known.devices.tolist() == [120, 300, 120]
    assert known.is_counted.tolist() == [[True, False, True]]


def test_rounds_with_too_many_counts_are_treated_as_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sampled_counts, "_MAX_STORED_COUNTS", 3)
    plan = _plan(3)
    state: StudyState = EMPTY_STATE
    for number, items in enumerate((["a", "b"], ["a", "b"], ["b"]), start=1):
        estimates = [Estimate(item, 6.0, 12.0) for item in items]
        plan, state = plan.model_copy(update={"round": number}), add_estimates(state, estimates)
        state = sampled_counts.record_round_counts(plan, state, 90, estimates, 2.0)
    known = sampled_counts.round_count_history(plan, state, ["b", "a"])
    assert known is not None
    assert known.tokens.tolist() == [[2, 0, 2], [2, 0, 0]]
    assert known.exposure.tolist() == [[30, 0, 30]] * 2


def test_rounds_of_a_long_study_share_blocks() -> None:
    state, plan = EMPTY_STATE, _plan(128)
    for number in (1, 2, 3):
        plan, estimates = plan.model_copy(update={"round": number}), [Estimate("a", 10.0, 0.0)]
        state = add_estimates(state, estimates)
        state = sampled_counts.record_round_counts(plan, state, 90, estimates, 0.0)
    known = sampled_counts.round_count_history(plan, state, ["a"])
    assert known is not None
    assert known.tokens.tolist() == [[20, 10]]
    assert known.last_rounds.tolist() == [2, 4]
    assert known.first_rounds.tolist() == [1, 3]


def test_hashed_items_are_found_by_their_strings() -> None:
    """Two rounds of devices that all hold one string; its string is fetched in the second."""
    question = parse_question(
        {"mechanism": "tracked", "threshold": 60, "contribution": 1, "message_bytes": 14_364}
        | {"domain": Hashed(max_bytes=20, salt="s")}
    )
    which, state, chance = SUM_MECHANISMS["tracked"], EMPTY_STATE, seeded(1)
    plan: AnyPlan = which.first_plan(question, TERMS, "s", 2, Random(1))
    devices = [{"a longer string": 1}] * 600
    for _ in range(2):
        answer = which.decode(plan, which.encode_sum(plan, devices, chance), 600, state)
        last, state = plan, answer.state
        plan = which.next_plan(plan, answer, state, Random(1))
    (heavy,) = which.final_estimates(question, state)
    assert heavy.item == "a longer string"
    known = which.rate_history(last, state, [heavy.item])
    assert known is not None
    (rate,) = known.sample(1, 2).rates()[0]
    assert rate == pytest.approx(1, abs=0.2)


def _plan(rounds: int) -> AnyPlan:
    asked = {
        "mechanism": "adaptive-iblt",
        "threshold": 5,
        "contribution": 1,
        "message_bytes": 11_164,
    }
    question = parse_question(asked | {"domain": Utf8(max_bytes=3)})
    return SUM_MECHANISMS["adaptive-iblt"].first_plan(question, TERMS, "s", rounds, Random(1))
