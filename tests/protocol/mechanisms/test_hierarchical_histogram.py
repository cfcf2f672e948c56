"""One round of all prefixes: what is counted, what it costs, and what stands out."""

import random

import numpy as np
import pytest
from pydantic import ValidationError

from client.policy import Policy, PolicyError
from protocol.chance import seeded
from protocol.domain import Hashed, Utf8
from protocol.interval import Interval
from protocol.mechanism import Histogram, Terms
from protocol.mechanisms.hierarchical_histogram import (
    COUNTS,
    NOISE,
    HierarchicalHistogram,
    HierarchicalHistogramPlan,
    HierarchicalHistogramQuestion,
)
from protocol.mechanisms.releasing import devices_of
from protocol.privacy.entries import Entry, Noise
from protocol.privacy.ledger import Ledger
from protocol.simulation import run_round, run_study
from protocol.tally import NOTHING

UNIT = Interval(low=0, high=1, alpha=4, length=3)
TERMS = Terms(cohort_size=400, minimum=50, cohorts=2)
MECHANISM = HierarchicalHistogram()


def question(**own: object) -> HierarchicalHistogramQuestion:
    asked = {"threshold": 60, "domain": UNIT, "words": 400, "epsilon": 2, "delta": 1e-6}
    return HierarchicalHistogramQuestion.model_validate(asked | own)


def first(asked: HierarchicalHistogramQuestion, rounds: int = 1) -> HierarchicalHistogramPlan:
    return MECHANISM.first_plan(asked, TERMS, "hierarchy", rounds, random.Random(1))


def holding(*values: float) -> list[Histogram]:
    return [{UNIT.admit(repr(float(value))) or "": 1} for value in values]


def test_a_device_adds_one_on_every_level() -> None:
    plan = first(question())
    (vector,) = MECHANISM.encode(plan, {"0.99": 1}, seeded(np.random.default_rng(1)))
    assert np.flatnonzero(vector).tolist() == [3, 4 + 15, 4 + 16 + 63]
    assert vector.sum() == 3
    (nothing,) = MECHANISM.encode(plan, {}, seeded(np.random.default_rng(1)))
    assert not nothing.any()


def test_a_value_is_charged_as_many_releases_as_levels() -> None:
    plan = first(question(), rounds=5)
    loss = MECHANISM.loss(plan, 5)
    assert isinstance(loss, Noise)
    assert loss.releases == 3  # a device is in one of the rounds
    assert Ledger().spend(Entry(name="levels", mechanism=loss)).epsilon(1e-6) == pytest.approx(
        2, abs=0.01
    )
    again = first(question(repeat=True), rounds=5)
    repeated = MECHANISM.loss(again, 5)
    assert isinstance(repeated, Noise)
    assert repeated.releases == 15
    assert again.release.variance > 4 * plan.release.variance


def test_a_device_sees_that_its_value_is_told_on_every_level() -> None:
    plan = first(question(repeat=True), rounds=5)
    policy = Policy(max_epsilon=4, max_delta=1e-6, min_cohort=1)
    policy.check_plan(plan, "hierarchy", 1)
    thin = plan.release.model_copy(update={"variance": plan.release.variance / 6})
    with pytest.raises(PolicyError, match="max_epsilon"):
        policy.check_plan(plan.model_copy(update={"release": thin}), "hierarchy", 1)


def test_rounds_over_different_devices_add_up() -> None:
    asked = question()
    rounds = [[holding(*[0.1] * 100, *[0.9] * 50)]] * 2
    outcomes = list(run_study(MECHANISM, asked, TERMS, rounds, random.Random(3), planned=2))
    one, both = (outcome.tally for outcome in outcomes)
    assert both.arrays[NOISE] == pytest.approx(2 * one.arrays[NOISE])
    assert devices_of(both).sum() == 300
    deviation = float(both.arrays[NOISE][0]) ** 0.5
    # Five deviations: odds of 1e-6 a cell.
    assert both.arrays[COUNTS][[0, 3]] == pytest.approx([200, 100], abs=5 * deviation)


def test_leaves_that_stand_out_are_concluded() -> None:
    devices = holding(*[0.1] * 150, *[0.9] * 100, *np.linspace(0, 1, 64))
    plan = first(question())
    outcome = run_round(MECHANISM, plan, [devices], random.Random(4))
    found = MECHANISM.conclude(plan.question, outcome.tally)
    assert [one.item for one in found] == [UNIT.admit("0.1"), UNIT.admit("0.9")]
    for one, count in zip(found, (151, 101), strict=True):
        assert abs(one.count - count) < 5 * one.variance**0.5
    assert MECHANISM.conclude(plan.question, NOTHING) == []


def test_a_secure_sum_with_losses_is_read_as_a_plain_one() -> None:
    terms = Terms(cohort_size=60, minimum=10)
    asked = question(threshold=20)
    plan = MECHANISM.first_plan(asked, terms, "hierarchy", 1, random.Random(1))
    outcome = run_round(MECHANISM, plan, [holding(*[0.3] * 60)], random.Random(2), secure=True)
    assert outcome.answer is not None
    assert outcome.answer.estimates[0].item == UNIT.admit("0.3")


def test_without_noise_what_is_below_theta_is_forgotten() -> None:
    asked = question(mode="sample-threshold", epsilon=4)
    plan = first(asked)
    assert asked.withholds
    outcome = run_round(MECHANISM, plan, [holding(*[0.1] * 400, 0.9)], random.Random(5))
    counts = outcome.tally.arrays[COUNTS]
    assert np.flatnonzero(counts).tolist() == [0, 4 + 1, 20 + 6]
    assert counts[counts > 0].min() >= plan.release.threshold


@pytest.mark.parametrize(("cell", "by"), [(0, 5000), (0, -5000), (70, 5000)])
def test_a_sum_that_no_devices_make_has_a_fault(cell: int, by: int) -> None:
    plan = first(question())
    ring = MECHANISM.ring(plan)
    total = MECHANISM.encode_sum(plan, holding(*[0.5] * 99), seeded(np.random.default_rng(1)))
    assert MECHANISM.fault(plan, total, 99) is None
    total[0][cell] = (int(total[0][cell]) + by) % ring.lanes[0].q
    assert MECHANISM.fault(plan, total, 99) is not None


def test_more_on_a_level_than_devices_is_a_fault() -> None:
    plan = first(question())
    total = MECHANISM.encode_sum(plan, holding(*[0.5] * 99), seeded(np.random.default_rng(1)))
    total[0][20:] = 99  # each cell of the last level as if all were in it
    assert "a level has more votes" in (MECHANISM.fault(plan, total, 99) or "")


@pytest.mark.parametrize(
    ("own", "named"),
    [
        ({"domain": Hashed(max_bytes=9)}, "a hierarchy takes a domain of digits"),
        ({"domain": Utf8(max_bytes=3)}, "4,194,304 leaves"),
        ({"contribution": 2}, "contribution"),
    ],
)
def test_questions_that_make_no_sense_are_refused(own: dict[str, object], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        question(**own)


def test_too_few_words_are_told_how_many_would_do() -> None:
    with pytest.raises(
        ValueError, match=r"10 words are too few: 84 cells .* take (\d+) words"
    ) as e:
        first(question(words=10))
    needed = int(str(e.value).split(" words;")[0].split()[-1])
    assert first(question(words=needed)).cells == 84
    with pytest.raises(ValueError, match=f"{needed - 1} words are too few"):
        first(question(words=needed - 1))
