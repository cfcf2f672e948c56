"""Totals of all rounds, also of those that were not read, and how far they are off."""

from random import Random

import numpy as np
import pytest

from protocol.domains.strings import Utf8
from protocol.estimation.estimates import Estimate, add_estimates, totals_of_all_rounds
from protocol.mechanisms.registry import SUM_MECHANISMS, AnyPlan, parse_question
from protocol.question_and_plan import Terms
from protocol.study_state import EMPTY_STATE, StudyState, add_devices
from tests.protocol.chance import seeded

TERMS = Terms(cohort_size=300, minimum=100)
DEVICES = [200, 100, 300, 150, 250, 100, 200, 100]
UNREAD_ROUNDS = {1, 4, 6}
RATES = np.geomspace(0.2, 3, 400)


def study(rng: np.random.Generator, t: int) -> tuple[StudyState, np.ndarray]:
    """Return the state of a study that samples tokens with probability 1 / t, and true totals."""
    state, totals = EMPTY_STATE, np.zeros(len(RATES))
    for number, devices in enumerate(DEVICES):
        counts = rng.poisson(RATES * devices)
        totals += counts
        sampled = rng.binomial(counts, 1 / t) * t
        estimates = [
            Estimate(str(item), float(count), float(count * (t - 1)))
            for item, count in enumerate(sampled.tolist())
        ]
        is_read = number not in UNREAD_ROUNDS
        state = add_estimates(state, estimates) if is_read else state
        state = add_devices(state, devices, is_read=is_read)
    return state, totals


@pytest.mark.parametrize("t", [1, 5])
def test_totals_are_off_as_far_as_their_variances_state(t: int) -> None:
    """The root of the mean square of 4,000 errors has a deviation of 0.011; five are allowed."""
    errors = []
    for seed in range(10):
        state, truth = study(np.random.default_rng(seed), t)
        counts, variances = totals_of_all_rounds(state)
        errors.append((counts - truth) / np.sqrt(variances))
    z_scores = np.concatenate(errors)
    assert abs(z_scores.mean()) < 5 / np.sqrt(z_scores.size)
    assert np.sqrt((z_scores**2).mean()) == pytest.approx(1, abs=0.056)


def test_an_item_that_was_counted_in_unread_rounds_is_not_scaled() -> None:
    state = add_estimates(EMPTY_STATE, [Estimate("counted", 30, 0), Estimate("sampled", 30, 0)])
    state = add_devices(state, 100, is_read=True)
    state = add_devices(state, 50, is_read=False, counted=["counted"])
    counts, variances = totals_of_all_rounds(state)
    assert counts.tolist() == [30, 45]
    assert variances.tolist() == [0, 30 * 0.5 * 1.5]


@pytest.mark.parametrize(
    ("mechanism", "own"), [("adaptive-iblt", {}), ("subsampled-iblt", {"t": 1.0}), ("tracked", {})]
)
def test_a_round_that_is_not_read_counts_by_the_rates_of_the_others(
    mechanism: str, own: dict[str, object]
) -> None:
    asked = {"mechanism": mechanism, "threshold": 50, "contribution": 1, "message_bytes": 8564}
    question = parse_question(asked | {"domain": Utf8(max_bytes=3)} | own)
    which, state = SUM_MECHANISMS[mechanism], EMPTY_STATE
    plan: AnyPlan = which.first_plan(question, TERMS, "s", 2, Random(1))
    few, many = [{"a": 1}] * 100, [{f"{number:03}": 1} for number in range(300)]
    chance = seeded(1)
    answer = which.decode(plan, which.encode_sum(plan, few, chance), len(few), state)
    assert answer.decoded
    before = {each.item: each.count for each in which.final_estimates(question, answer.state)}
    plan = which.next_plan(plan, answer, answer.state, Random(1))
    plan = plan.model_copy(update={"t": 1.0})  # far too low for 300 items
    if mechanism == "tracked":
        plan = plan.model_copy(update={"counter_groups": ()})
    unread = which.decode(plan, which.encode_sum(plan, many, chance), len(many), answer.state)
    assert not unread.decoded
    after = {each.item: each.count for each in which.final_estimates(question, unread.state)}
    # The prior has few items with large counts: it lowers an estimate with a standard error of 13%.
    assert after == {"a": pytest.approx(before["a"] * 400 / 100, rel=0.1)}


@pytest.mark.parametrize(("threshold", "rounds"), [(5, 5), (20, 20)])
def test_no_item_of_few_devices_is_listed_for_rounds_that_were_not_read(
    threshold: int, rounds: int
) -> None:
    """One round in many is read, so each of its tokens stands for many."""
    asked = {"mechanism": "subsampled-iblt", "threshold": threshold, "contribution": 1}
    domain = Utf8(max_bytes=8)
    question = parse_question(asked | {"message_bytes": 9564, "domain": domain, "t": 1.0})
    which = SUM_MECHANISMS["subsampled-iblt"]
    plan = which.first_plan(question, TERMS, "s", rounds, Random(1))
    devices = {f"i{number}": 1 + number % 3 for number in range(24)} | {"common": 20}
    few = [{item: 1} for item, count in devices.items() for _ in range(count)]
    many = [{f"{number:03}": 1} for number in range(300)]
    state = which.decode(plan, which.encode_sum(plan, few, seeded(1)), len(few), EMPTY_STATE).state
    for number in range(2, rounds + 1):
        plan = plan.model_copy(update={"round": number})
        answer = which.decode(plan, which.encode_sum(plan, many, seeded(2)), len(many), state)
        assert not answer.decoded
        state = answer.state
    listed = {each.item for each in which.final_estimates(question, state)}
    assert listed == {"common"}
    (weakest,) = which.final_estimates(question, state)
    assert weakest.count > threshold
