"""A study may end when its list is good enough, by expectations that are calibrated at the end."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from protocol.domains.hashed import Hashed
from protocol.domains.strings import Utf8
from protocol.estimation.estimates import ListQuality
from protocol.mechanisms.iblt.adaptive import AdaptiveIbltQuestion
from protocol.mechanisms.quality_goal import QualityGoal, goal_fault, parse_goal
from protocol.mechanisms.registry import SUM_MECHANISMS, parse_question
from protocol.mechanisms.tracked.plan import TrackedQuestion
from protocol.question_and_plan import SumQuestion, Terms
from protocol.reference_mechanisms.subsampled_iblt import SubsampledIbltQuestion
from protocol.simulation.study import RoundOutcome, run_study
from protocol.study_state import EMPTY_STATE
from tests.protocol.mechanism_examples import EXAMPLES

QUESTION = AdaptiveIbltQuestion(
    threshold=30, contribution=1, message_bytes=13_364, domain=Utf8(max_bytes=4)
)
GOAL = QualityGoal(precision=0.9, recall=0.9)
ITEMS = [f"{number:04}" for number in range(2000)]
DEVICES, ROUNDS = 1500, 20
shares = st.floats(0.001, 0.999)


def quality(precision: float, recall: float) -> ListQuality:
    return ListQuality(expected_precision=precision, expected_recall=recall, expected_missed=1)


@given(shares, shares, shares, shares)
def test_a_goal_is_reached_by_both_expectations_after_a_decoded_round_only(
    precision: float, recall: float, expected_precision: float, expected_recall: float
) -> None:
    goal = QualityGoal(precision=precision, recall=recall)
    of_list = quality(expected_precision, expected_recall)
    both = expected_precision >= precision and expected_recall >= recall
    assert goal.is_reached(True, of_list) is both
    assert not goal.is_reached(False, of_list)
    assert not goal.is_reached(True, None)


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5, float("nan"), "much"])
def test_a_goal_is_two_shares_between_0_and_1(share: Any) -> None:
    with pytest.raises(ValidationError):
        QualityGoal(precision=share, recall=0.5)
    with pytest.raises(ValidationError):
        QualityGoal(precision=0.5, recall=share)


def test_a_goal_is_read_from_text() -> None:
    assert parse_goal(None) is None
    assert parse_goal("0.95, 0.9") == QualityGoal(precision=0.95, recall=0.9)
    for text in ("", "0.9", "0.9,", "0.9,0.8,0.7", "0.9,1", "high,low"):
        with pytest.raises(ValueError, match=r"such as 0\.95,0\.9: got"):
            parse_goal(text)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_question_can_have_a_goal_if_its_answers_state_their_quality(name: str) -> None:
    """And a refusal names the mechanisms that can."""
    example = EXAMPLES[name]
    fault = goal_fault(example.question)
    can = example.mechanism.estimates_quality(example.question)
    assert (fault is None) is can
    if fault:
        assert "use one of tracked, adaptive-iblt, subsampled-iblt" in fault


def test_the_rule_of_the_theorem_cannot_have_a_goal() -> None:
    fields: dict[str, Any] = {"threshold": 30, "contribution": 1, "message_bytes": 2_010_364}
    question = SubsampledIbltQuestion(domain=QUESTION.domain, rule="theorem", **fields)
    assert "subsampled-iblt does not estimate" in (goal_fault(question) or "")
    assert goal_fault(question.model_copy(update={"rule": "practical"})) is None


def run_to_goal(
    seed: int, goal: QualityGoal | None = GOAL, question: SumQuestion = QUESTION
) -> Iterator[RoundOutcome[Any]]:
    """Return the rounds of a study of 2,000 items whose shares fall as 1 / rank."""
    rng, weights = np.random.default_rng(seed), 1 / np.arange(1, len(ITEMS) + 1)

    def rounds() -> Iterator[list[list[dict[str, int]]]]:
        for _ in range(ROUNDS):
            held = rng.choice(len(ITEMS), size=DEVICES, p=weights / weights.sum())
            yield [[{ITEMS[item]: 1} for item in held]]

    mechanism = SUM_MECHANISMS[question.mechanism]
    terms = Terms(cohort_size=1000, minimum=500, cohorts=2)
    return run_study(
        mechanism, question, terms, rounds(), Random(seed), planned=ROUNDS, stop_at=goal
    )


def test_a_study_ends_after_the_first_round_that_reaches_its_goal() -> None:
    """Compare with the same study without a goal."""
    ended = list(run_to_goal(1))
    whole = list(islice(run_to_goal(1, None), len(ended) + 1))
    mechanism = SUM_MECHANISMS[QUESTION.mechanism]
    qualities = [mechanism.final_answer(QUESTION, each.study_state).quality for each in whole]
    reached = [GOAL.is_reached(True, quality) for quality in qualities]
    assert all(outcome.is_decoded for outcome in whole)
    assert reached.index(True) == len(ended) - 1 < ROUNDS - 1
    assert [outcome.plan for outcome in ended] == [outcome.plan for outcome in whole[:-1]]


def test_the_expectations_hold_in_the_round_in_which_they_end_a_study() -> None:
    """Over 10 studies: correct items are a sum of coins, and missed items about Poisson.

    Each is within 4 standard deviations of its mean but with probability 1.3e-4, if the model
    holds.
    """
    correct = expected_correct = variance = missed = expected_missed = 0.0
    mechanism = SUM_MECHANISMS[QUESTION.mechanism]
    for seed in range(10):
        truth: Counter[str] = Counter()
        outcomes = list(run_to_goal(seed))
        assert len(outcomes) < ROUNDS
        for outcome in outcomes:
            truth.update(outcome.truth)
        answer = mechanism.final_answer(QUESTION, outcomes[-1].study_state)
        assert answer.quality is not None
        heavy = {item for item, count in truth.items() if count >= QUESTION.threshold}
        listed = {each.item: each.probability or 0.0 for each in answer.heavy_hitters}
        correct += len(heavy & listed.keys())
        expected_correct += sum(listed.values())
        variance += sum(each * (1 - each) for each in listed.values())
        missed += len(heavy - listed.keys())
        expected_missed += answer.quality.expected_missed
    assert abs(correct - expected_correct) < 4 * variance**0.5
    assert abs(missed - expected_missed) < 4 * expected_missed**0.5


@pytest.mark.parametrize("rounds", [1, 5])
@pytest.mark.parametrize("name", ["adaptive-iblt", "tracked"])
def test_the_expected_recall_is_true_where_two_samples_make_an_item_heavy(
    name: str, rounds: int
) -> None:
    """Many listed items were counted with fewer than five devices, so that the fit lacks them.

    The means of 20 studies differed by 0.03 at most. Without the listed ones, the expected recall
    of one round was 0.27 too high.
    """
    question = parse_question(
        {
            "mechanism": name,
            "threshold": 2 * rounds + 8,
            "contribution": 1,
            "message_bytes": 9864 if rounds == 1 else 10_264,
            "domain": {"kind": "utf8", "max_bytes": 8},
        }
    )
    mechanism, terms = SUM_MECHANISMS[name], Terms(cohort_size=500, minimum=250)
    shares = 1 / np.arange(1, 2001)
    expected, recalls = list[float](), list[float]()
    for seed in range(7):
        rng = np.random.default_rng(seed)
        held = rng.choice(2000, size=(rounds, 500), p=shares / shares.sum())
        parts = [[[{f"{item:x}": 1} for item in row]] for row in held.tolist()]
        *_, last = run_study(mechanism, question, terms, parts, Random(seed), planned=rounds)
        answer = mechanism.final_answer(question, last.study_state)
        listed = {each.item for each in answer.heavy_hitters}
        items, counts = np.unique(held, return_counts=True)
        heavy = {f"{item:x}" for item in items[counts >= question.threshold].tolist()}
        assert answer.quality is not None
        expected.append(answer.quality.expected_recall or 0.0)
        recalls.append(len(heavy & listed) / len(heavy))
    assert np.mean(expected) == pytest.approx(np.mean(recalls), abs=0.1)


def test_an_item_whose_string_is_not_known_yet_counts_as_wrong() -> None:
    domain = Hashed(max_bytes=4, key_bits=24)
    question = TrackedQuestion(threshold=30, contribution=1, message_bytes=13_364, domain=domain)
    mechanism = SUM_MECHANISMS[question.mechanism]
    _, _, outcome = islice(run_to_goal(1, None, question), 3)
    answer = mechanism.final_answer(question, outcome.study_state)
    names = [each for each in answer.heavy_hitters if not each.item.startswith("#")]
    known = sum(each.probability or 0 for each in names)
    heavy = sum(each.probability or 0 for each in answer.heavy_hitters)
    assert 0 < len(names) < len(answer.heavy_hitters)
    assert answer.quality is not None
    assert answer.quality.expected_precision == pytest.approx(
        known / len(answer.heavy_hitters), rel=1e-3
    )  # published numbers are rounded
    everything = heavy + answer.quality.expected_missed
    assert answer.quality.expected_recall == pytest.approx(known / everything, rel=1e-3)


def test_an_empty_list_is_not_good_enough() -> None:
    """No item reaches the threshold, so that nothing is missed either."""
    mechanism = SUM_MECHANISMS[QUESTION.mechanism]
    state = next(run_to_goal(1)).study_state
    rare = QUESTION.model_copy(update={"threshold": 1e6})
    answer = mechanism.final_answer(rare, state)
    assert answer.quality is not None
    assert (answer.heavy_hitters, answer.quality.expected_recall) == ((), None)
    assert answer.quality.expected_missed < 1e-3
    lenient = QualityGoal(precision=0.001, recall=0.001)
    assert not lenient.is_reached(True, answer.quality)
    assert not lenient.is_reached(True, mechanism.final_answer(rare, EMPTY_STATE).quality)
