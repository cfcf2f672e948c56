"""One round of all prefixes: what is counted, what it costs, and what stands out."""

import random

import numpy as np
import pytest
from pydantic import ValidationError

from protocol.device_policy.plan_check import check_plan
from protocol.device_policy.policy import PolicyError
from protocol.domains.numeric import NumericInterval
from protocol.domains.strings import Utf8
from protocol.estimation.estimates import gamma_interval
from protocol.histograms import Histogram
from protocol.mechanisms.central.hierarchical_histogram import (
    COUNTS_ARRAY,
    NOISE_ARRAY,
    HierarchicalHistogram,
    HierarchicalHistogramPlan,
    HierarchicalHistogramQuestion,
)
from protocol.mechanisms.central.release_mechanism import devices_per_level
from protocol.privacy.events import LedgerEntry, SkellamNoiseEvent
from protocol.privacy.ledger import Ledger
from protocol.question_and_plan import Terms
from protocol.simulation.study import run_round, run_study
from protocol.study_state import EMPTY_STATE
from tests.protocol.chance import seeded
from tests.support.policies import trusting_policy

UNIT = NumericInterval(low=0, high=1, alpha=4, length=3)
TERMS = Terms(cohort_size=400, minimum=50, cohorts=2)
MECHANISM = HierarchicalHistogram()


def question(**own: object) -> HierarchicalHistogramQuestion:
    asked = {"threshold": 60, "domain": UNIT, "message_bytes": 9344, "epsilon": 2, "delta": 1e-6}
    return HierarchicalHistogramQuestion.model_validate(asked | own)


def first(asked: HierarchicalHistogramQuestion, rounds: int = 1) -> HierarchicalHistogramPlan:
    return MECHANISM.first_plan(asked, TERMS, "hierarchy", rounds, random.Random(1))


def holding(*values: float) -> list[Histogram]:
    return [{UNIT.canonical(repr(float(value))) or "": 1} for value in values]


def test_a_device_adds_one_on_every_level() -> None:
    plan = first(question())
    (vector,) = MECHANISM.encode(plan, {"0.99": 1}, seeded(1))
    assert np.flatnonzero(vector).tolist() == [3, 4 + 15, 4 + 16 + 63]
    assert vector.sum() == 3
    (nothing,) = MECHANISM.encode(plan, {}, seeded(1))
    assert not nothing.any()


def test_a_value_is_charged_one_release_per_level() -> None:
    plan = first(question(), rounds=5)
    loss = MECHANISM.dp_event(plan, 5)
    assert isinstance(loss, SkellamNoiseEvent)
    assert loss.releases == 3  # a device is in one of the rounds
    assert Ledger().spend(LedgerEntry(name="levels", event=loss)).epsilon(1e-6) == pytest.approx(
        2, abs=0.01
    )
    again = first(question(every_round=True), rounds=5)
    repeated = MECHANISM.dp_event(again, 5)
    assert isinstance(repeated, SkellamNoiseEvent)
    assert repeated.releases == 15
    assert again.release.variance > 4 * plan.release.variance


def test_a_device_sees_that_its_value_is_counted_on_every_level() -> None:
    plan = first(question(every_round=True), rounds=5)
    policy = trusting_policy(max_epsilon=4, max_delta=1e-6, min_cohort=1)
    check_plan(policy, plan, "hierarchy", 1)
    thin = plan.release.model_copy(update={"variance": plan.release.variance / 6})
    with pytest.raises(PolicyError, match="max_epsilon"):
        check_plan(policy, plan.model_copy(update={"release": thin}), "hierarchy", 1)


def test_rounds_over_different_devices_add_up() -> None:
    asked = question()
    rounds = [[holding(*[0.1] * 100, *[0.9] * 50)]] * 2
    outcomes = list(run_study(MECHANISM, asked, TERMS, rounds, random.Random(3), planned=2))
    first, last = (outcome.study_state for outcome in outcomes)
    assert last.arrays[NOISE_ARRAY] == pytest.approx(2 * first.arrays[NOISE_ARRAY])
    assert devices_per_level(last).sum() == 300
    deviation = float(last.arrays[NOISE_ARRAY][0]) ** 0.5
    # Five deviations: probability 1e-6 per cell.
    assert last.arrays[COUNTS_ARRAY][[0, 3]] == pytest.approx([200, 100], abs=5 * deviation)


def test_rounds_that_hid_a_count_do_not_lower_it() -> None:
    """Intervals cover 0.93 of the time: 6 or fewer of 10 do with a probability of 4e-3."""
    asked, rng, covers = question(mode="sample-threshold"), np.random.default_rng(8), list[bool]()
    for seed in range(16):
        drawn = rng.multinomial(150, [1 / 3] * 3).tolist()
        rounds = [[holding(*[0.1] * held, *[0.9] * (400 - held))] for held in drawn]
        *_, last = run_study(MECHANISM, asked, TERMS, rounds, random.Random(seed), planned=3)
        for each in MECHANISM.final_estimates(asked, last.study_state):
            if each.item == UNIT.canonical("0.1"):
                covers.append(abs(each.count - 150) < 1.96 * each.variance**0.5)
    assert len(covers) >= 10
    assert np.mean(covers) > 6 / 10


@pytest.mark.parametrize("rounds", [1, 3])
def test_leaves_that_stand_out_are_concluded(rounds: int) -> None:
    """Devices that take part in three rounds count once."""
    devices = holding(*[0.1] * 150, *[0.9] * 100, *np.linspace(0, 1, 64))
    asked = question(every_round=rounds > 1)
    *_, last = run_study(MECHANISM, asked, TERMS, [[devices]] * rounds, random.Random(4), planned=3)
    heavy = MECHANISM.final_estimates(asked, last.study_state)
    assert [each.item for each in heavy] == [UNIT.canonical("0.1"), UNIT.canonical("0.9")]
    for each, count in zip(heavy, (151, 101), strict=True):
        assert abs(each.count - count) < 5 * each.variance**0.5
    assert MECHANISM.final_estimates(asked, EMPTY_STATE) == []


def test_listed_leaves_are_heavy_with_their_probability() -> None:
    """Two hundred ages under noise as large as most counts: 60 studies list 88 leaves.

    91% were expected to be heavy and 73% were; 13% of the intervals missed the count. By the noise
    of the leaf alone, 113 were listed, of which 59% were heavy and 45% had a wrong interval.
    """
    domain = NumericInterval(low=0, high=120, alpha=4, length=3)
    asked = question(threshold=10, domain=domain, epsilon=1)
    terms = Terms(cohort_size=200, minimum=100)
    heavy, expected, misses = list[bool](), list[float](), list[bool]()
    for seed in range(60):
        rng = np.random.default_rng(seed)
        ages = np.clip(rng.normal(40, 15, 200), 0, 119.9)
        ages[rng.random(200) < 0.4] = 30.5
        devices: list[Histogram] = [{domain.canonical(repr(age)) or "": 1} for age in ages.tolist()]
        (outcome,) = run_study(MECHANISM, asked, terms, [[devices]], random.Random(seed), planned=1)
        for leaf in MECHANISM.final_estimates(asked, outcome.study_state):
            low, high = gamma_interval(np.array([leaf.count]), np.array([leaf.variance]))
            count = outcome.truth.get(leaf.item, 0)
            heavy.append(count >= asked.threshold)
            expected.append(leaf.probability or 0.0)
            misses.append(not low[0] <= count <= high[0])
    assert len(heavy) > 50
    assert np.mean(expected) == pytest.approx(np.mean(heavy), abs=0.25)
    assert np.mean(misses) < 0.3


def test_without_noise_what_is_below_theta_is_forgotten() -> None:
    asked = question(mode="sample-threshold", theta=12, probability=0.145)
    plan = first(asked)
    assert asked.discards_sums
    outcome = run_round(MECHANISM, plan, [holding(*[0.1] * 400, 0.9)], random.Random(5))
    counts = outcome.study_state.arrays[COUNTS_ARRAY]
    assert np.flatnonzero(counts).tolist() == [0, 4 + 1, 20 + 6]
    assert counts[counts > 0].min() >= plan.release.threshold


@pytest.mark.parametrize(("cell", "by"), [(0, 5000), (0, -5000), (70, 5000)])
def test_a_sum_that_no_devices_make_has_a_fault(cell: int, by: int) -> None:
    plan = first(question())
    ring = MECHANISM.ring(plan)
    total = MECHANISM.encode_sum(plan, holding(*[0.5] * 99), seeded(1))
    assert MECHANISM.fault(plan, total, 99) is None
    total[0][cell] = (int(total[0][cell]) + by) % ring.lanes[0].q
    assert MECHANISM.fault(plan, total, 99) is not None


def test_more_on_a_level_than_devices_is_a_fault() -> None:
    plan = first(question())
    total = MECHANISM.encode_sum(plan, holding(*[0.5] * 99), seeded(1))
    total[0][20:] = 99  # each cell of the last level as if all were in it
    assert "a level has more votes" in (MECHANISM.fault(plan, total, 99) or "")


@pytest.mark.parametrize(
    ("own", "named"),
    [
        ({"domain": {"kind": "listed", "items": ("a", "b")}}, "needs a domain of digits"),
        ({"domain": Utf8(max_bytes=3)}, "4,194,304 leaves"),
        ({"contribution": 2}, "contribution"),
    ],
)
def test_questions_that_make_no_sense_are_refused(own: dict[str, object], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        question(**own)
