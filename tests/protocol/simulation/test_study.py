"""A study in memory: exact where it can be, honest where it cannot."""

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import count, islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindtally.datasets.device_histograms import DeviceHistograms
from blindtally.datasets.item_counts import ItemCounts
from protocol.api.phases import Phase
from protocol.committee_terms import CommitteeTerms
from protocol.domains.strings import Alphabet
from protocol.mechanisms.iblt.adaptive import AdaptiveIblt, AdaptiveIbltQuestion
from protocol.mechanisms.registry import SUM_MECHANISMS, parse_question
from protocol.question_and_plan import Terms
from protocol.simulation.rounds import (
    NO_DROPOUT,
    PHASES,
    PHASES_BEFORE_INPUT,
    DropoutModel,
    SecureCohort,
    sum_cohort,
)
from protocol.simulation.study import run_round, run_study
from secagg.ring import Lane, Ring
from tests.examples import fewer
from tests.protocol.mechanism_examples import OPERATORS

MECHANISM = AdaptiveIblt()
TERMS = Terms(cohort_size=12, minimum=6, cohorts=2, corrupt=0.1, dropout=0.25)
ONE_SHOT_TERMS = Terms(
    cohort_size=24, minimum=12, sum="one-shot", committee=CommitteeTerms(members=OPERATORS)
)
QUESTION = AdaptiveIbltQuestion(
    threshold=5,
    contribution=2,
    domain=Alphabet(characters="abcdef", length=2),
    message_bytes=13_664,
)
RING = Ring((Lane(2**20, 3), Lane(97, 5)))
RELEASE_FIELDS = {"epsilon": 40, "delta": 0.95, "theta": 1, "probability": 0.2}  # of a trie


def devices(size: int, seed: int = 1) -> list[dict[str, int]]:
    rng = random.Random(seed)
    return [{rng.choice("abc") + rng.choice("abc"): 2} for _ in range(size)]


def plan(**changes: Any) -> Any:
    first = MECHANISM.first_plan(QUESTION, TERMS, "test", 5, random.Random(1))
    return first.model_copy(update=changes)


def dropouts_by_number(vanishing: Mapping[int, Phase]) -> DropoutModel:
    """Return a model of dropouts with the phase of each device by its number."""
    numbers = count()

    def losses(devices: int) -> Any:
        phases = [vanishing.get(number) for number in islice(numbers, devices)]
        return np.array([NO_DROPOUT if p is None else PHASES.index(p) for p in phases], np.int8)

    return lambda _chunk: losses


def together(held: list[dict[str, int]]) -> Counter[str]:
    truth: Counter[str] = Counter()
    for histogram in held:
        truth.update(histogram)
    return truth


@pytest.mark.parametrize("secure", [False, True])
def test_a_round_finds_what_its_devices_hold(*, secure: bool) -> None:
    held = devices(24)
    outcome = run_round(MECHANISM, plan(), [held], random.Random(1), secure=secure)
    assert outcome.answer is not None
    assert {e.item: e.count for e in outcome.answer.estimates} == together(held) == outcome.truth
    assert outcome.devices == 24


@pytest.mark.parametrize("secure", [False, True])
def test_a_device_that_drops_out_before_its_vector_arrives_is_not_counted(*, secure: bool) -> None:
    losing = dropouts_by_number(dict(zip((0, 1, 2, 3, 20), PHASES, strict=True)))
    held = devices(24)
    outcome = run_round(MECHANISM, plan(), [held], random.Random(1), dropouts=losing, secure=secure)
    assert (outcome.devices, outcome.truth) == (21, together(held[3:]))
    assert outcome.answer is not None
    assert {e.item: e.count for e in outcome.answer.estimates} == outcome.truth


def test_a_cohort_that_loses_too_many_is_left_out_and_the_others_count() -> None:
    losing, held = dropouts_by_number(dict.fromkeys(range(6), Phase.MASKING)), devices(24)
    outcome = run_round(MECHANISM, plan(), [held], random.Random(1), dropouts=losing, secure=True)
    assert (outcome.devices, outcome.truth) == (12, together(held[12:]))


def test_a_one_shot_study_finds_the_counts_of_a_pairwise_study() -> None:
    """Over rounds that track items, in counters and tables with other moduli."""
    domain = {"kind": "alphabet", "characters": "abcdef", "length": 2}
    asked = {"mechanism": "tracked", "threshold": 12, "contribution": 2, "domain": domain}
    question, lists = parse_question(asked | {"message_bytes": 13_664}), []
    for terms in (TERMS, ONE_SHOT_TERMS):
        rounds, rng = ([devices(24, seed)] for seed in range(4)), random.Random(1)
        mechanism = SUM_MECHANISMS["tracked"]
        outcomes = [*run_study(mechanism, question, terms, rounds, rng, planned=4, secure=True)]
        assert all(outcome.is_decoded for outcome in outcomes)
        assert outcomes[-1].plan.counter_groups
        listed = mechanism.final_estimates(question, outcomes[-1].study_state)
        lists.append({each.item: each.count for each in listed})
    assert lists[0] == lists[1]
    assert len(lists[0]) > 3


def test_a_one_shot_sum_of_too_few_devices_is_left_out() -> None:
    for away, devices_in in ((12, 12), (13, 0)):
        losing, held = dropouts_by_number(dict.fromkeys(range(away), Phase.MASKING)), devices(24)
        rng, asked = random.Random(1), plan(terms=ONE_SHOT_TERMS)
        outcome = run_round(MECHANISM, asked, [held], rng, dropouts=losing, secure=True)
        assert outcome.devices == devices_in
        assert outcome.truth == (together(held[12:]) if devices_in else {})


def test_a_cohort_below_the_minimum_is_not_run() -> None:
    held = devices(17)
    outcome = run_round(MECHANISM, plan(), [held], random.Random(1), secure=True)
    assert (outcome.devices, outcome.truth) == (12, together(held[:12]))


def test_a_round_in_which_all_devices_drop_out_has_no_answer() -> None:
    for secure in (False, True):
        losing = dropouts_by_number(dict.fromkeys(range(24), Phase.ENROLLING))
        outcome = run_round(
            MECHANISM, plan(), [devices(24)], random.Random(1), dropouts=losing, secure=secure
        )
        assert (outcome.answer, outcome.devices, outcome.truth) == (None, 0, {})


def random_vectors(count: int, seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [
        tuple(rng.integers(0, lane.q, lane.length).astype(lane.dtype) for lane in RING.lanes)
        for _ in range(count)
    ]


def sum_of(vectors: list[Any], slots: list[int]) -> bytes:
    total = RING.zero()
    for slot in slots:
        RING.add(total, vectors[slot])
    return RING.pack(total)


@fewer(0.4)
@given(
    st.integers(3, 16).flatmap(
        lambda n: st.tuples(
            st.just(n), st.dictionaries(st.integers(0, n - 1), st.sampled_from(PHASES[1:]))
        )
    ),
    st.integers(0, 2**32),
)
def test_a_secure_sum_is_exact_or_there_is_none(
    cohort: tuple[int, Mapping[int, Phase]], seed: int
) -> None:
    n, vanishing = cohort
    terms = Terms(cohort_size=n, minimum=3, corrupt=0.0, dropout=0.34)
    vectors = random_vectors(n, seed)
    outcome = sum_cohort(
        SecureCohort(plan(terms=terms), 0, RING, range(n), vectors, vanishing, seed)
    )
    if n - len(vanishing) < terms.assumptions.quorum(n):
        assert outcome is None
        return
    assert outcome is not None
    total, survivors = outcome
    assert survivors == [s for s in range(n) if vanishing.get(s) not in PHASES_BEFORE_INPUT]
    assert RING.pack(total) == sum_of(vectors, survivors)


def test_a_device_that_drops_out_after_its_vector_arrived_is_in_the_sum() -> None:
    vectors, vanishing = random_vectors(12, 1), {3: Phase.CONFIRMING, 7: Phase.UNMASKING}
    outcome = sum_cohort(SecureCohort(plan(), 0, RING, range(12), vectors, vanishing, 1))
    assert outcome is not None
    assert outcome[1] == list(range(12))
    assert RING.pack(outcome[0]) == sum_of(vectors, outcome[1])


def study(seed: int, **options: Any) -> list[Any]:
    rounds = [[devices(24, number)] for number in range(4)]
    options |= {"planned": len(rounds)}
    return list(run_study(MECHANISM, QUESTION, TERMS, rounds, random.Random(seed), **options))


def test_a_study_is_the_same_for_the_same_seed_and_no_other() -> None:
    assert study(1, dropout=0.1) == study(1, dropout=0.1)
    assert [o.plan.seed for o in study(1)] != [o.plan.seed for o in study(2)]


def test_each_round_of_a_study_has_its_own_plan() -> None:
    outcomes = study(1)
    assert [outcome.plan.round for outcome in outcomes] == [1, 2, 3, 4]
    assert len({outcome.plan.seed for outcome in outcomes}) == 4
    assert {outcome.plan.study for outcome in outcomes} == {"simulation"}


def test_devices_that_hold_more_are_clipped() -> None:
    rounds = [[[{"aa": 5, "bb": 4}] * 10]]
    [outcome] = run_study(MECHANISM, QUESTION, TERMS, rounds, random.Random(1), planned=1)
    assert sum(outcome.truth.values()) == 20


def test_devices_drop_out_at_the_requested_rate() -> None:
    terms = Terms(cohort_size=4000, minimum=100)
    [outcome] = run_study(
        MECHANISM, QUESTION, terms, [[devices(4000)]], random.Random(1), planned=1, dropout=0.4
    )
    # Three in five of the dropouts are not counted: 24% of 4,000, sd 27.
    assert 2900 < outcome.devices < 3180


def test_a_failed_round_does_not_end_a_study() -> None:
    rounds, rng = [[devices(24)], [devices(3)], [devices(24)]], random.Random(1)
    study = run_study(MECHANISM, QUESTION, TERMS, rounds, rng, planned=3, secure=True)
    outcomes = list(study)
    assert [outcome.answer is None for outcome in outcomes] == [False, True, False]
    assert outcomes[2].plan.t == outcomes[1].plan.t


@pytest.mark.parametrize("contribution", [1, 3])
@pytest.mark.parametrize("how", [{}, RELEASE_FIELDS])
def test_a_study_does_not_depend_on_the_size_of_blocks(contribution: int, how: Any) -> None:
    """Compare studies whose devices clip, drop out and sample."""
    rng, domain = random.Random(1), Alphabet(characters="abcdef", length=2)
    held = tuple(
        dict(Counter(rng.choices(["ab", "cd", "ef"], k=rng.randrange(7)))) for _ in range(99)
    )
    asked = {
        "mechanism": "triehh" if how else "adaptive-iblt",
        "threshold": 5,
        "message_bytes": 13_664,
    }
    question = parse_question(asked | how | {"contribution": contribution, "domain": domain})

    def outcomes(block: int) -> Iterator[Any]:
        for people in (
            DeviceHistograms.of(held),
            ItemCounts(("ab", "cd", "ab"), np.array([5, 6, 7])),
        ):
            rounds = people.rounds([48] * 2, contribution, np.random.default_rng(1), block)
            mechanism, rng = SUM_MECHANISMS[question.mechanism], random.Random(1)
            yield from run_study(mechanism, question, TERMS, rounds, rng, planned=2, dropout=0.2)

    whole = list(outcomes(1000))
    assert {outcome.devices < 48 for outcome in whole} == {True}
    for block in (1, 7 * contribution):
        assert list(outcomes(block)) == whole
