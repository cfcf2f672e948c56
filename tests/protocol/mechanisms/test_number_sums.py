"""Sums of numbers are exact, their laws refuse what no devices have, and intervals cover."""

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from protocol.domains.numeric import NumericInterval
from protocol.domains.product import Product
from protocol.domains.strings import Alphabet
from protocol.estimation.number_summary import NoNumbersError, NumberSummary
from protocol.mechanisms.number_sums import NumberSums, NumberSumsPlan, NumberSumsQuestion
from protocol.numerics.array_types import Integers
from protocol.question_and_plan import Terms
from protocol.study_state import EMPTY_STATE, StudyState
from secagg.ring import Vector
from tests.protocol.chance import seeded
from tests.protocol.mechanism_examples import ONE_SHOT_TERMS

MECHANISM = NumberSums()
# Whole numbers from 0 to 99 are the middles of their cells.
PERCENTS = NumericInterval(low=-0.5, high=99.5, alpha=10, length=2)
SEGMENTED = Product(segments=("north", "south", "west"), inner=PERCENTS)


each_kind = pytest.mark.parametrize("kind", ["pairwise", "one-shot"])


def question(**own: object) -> NumberSumsQuestion:
    return NumberSumsQuestion.model_validate(
        {"domain": PERCENTS, "message_bytes": 11_084, "threshold": 1} | own
    )


def first(
    asked: NumberSumsQuestion, devices: int = 1000, rounds: int = 3, kind: str = "pairwise"
) -> NumberSumsPlan:
    committee = None if kind == "pairwise" else ONE_SHOT_TERMS.committee
    terms = Terms(cohort_size=devices, minimum=5, sum=kind, committee=committee)
    return MECHANISM.first_plan(asked, terms, "numbers", rounds, random.Random(1))


def add_round(
    plan: NumberSumsPlan, items: Sequence[str], state: StudyState = EMPTY_STATE
) -> StudyState:
    total = MECHANISM.encode_sum(plan, [{item: 1} for item in items], seeded(1))
    assert MECHANISM.fault(plan, total, len(items)) is None
    return MECHANISM.decode(plan, total, len(items), state).state


def summaries(plan: NumberSumsPlan, state: StudyState) -> dict[str | None, NumberSummary]:
    return {row.segment: row for row in NumberSums().number_summaries(plan, state).results}


@each_kind
@given(
    rounds=st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=9), min_size=1, max_size=3)
)
def test_whole_numbers_have_their_exact_mean_and_variance_over_all_rounds(
    kind: str, rounds: list[list[int]]
) -> None:
    plan, state = first(question(), kind=kind), EMPTY_STATE
    for held in rounds:
        state = add_round(plan, [str(number) for number in held], state)
    numbers = [number for held in rounds for number in held]
    (result,) = NumberSums().number_summaries(plan, state).results
    assert result.devices == len(numbers)
    assert result.sum == pytest.approx(sum(numbers))
    assert result.mean == pytest.approx(np.mean(numbers))
    if len(numbers) == 1:
        assert result.variance is result.standard_deviation is None
    else:
        assert result.variance == pytest.approx(np.var(numbers, ddof=1), abs=1e-9)
        deviation = result.standard_deviation
        assert deviation == pytest.approx(np.std(numbers, ddof=1), abs=1e-6)
        assert deviation is not None
        assert result.standard_deviation_low <= deviation <= result.standard_deviation_high
    assert -0.5 <= result.mean_low <= result.mean <= result.mean_high <= 99.5


@each_kind
def test_segments_are_summed_apart_and_add_up_to_the_total(kind: str) -> None:
    plan = first(question(domain=SEGMENTED), kind=kind)
    state = add_round(plan, ["north:3", "north:5", "south:90"])
    state = add_round(plan, ["south:92", "west:0"], state)
    results = summaries(plan, state)
    assert list(results) == [None, "north", "south", "west"]
    assert [results[name].devices for name in results] == [5, 2, 2, 1]
    assert [results[name].mean for name in results] == pytest.approx([38, 4, 91, 0])
    assert results[None].sum == pytest.approx(190)


@pytest.mark.parametrize("held", [[99] * 10, [0, 99], [50, *[0] * 8]])
@pytest.mark.parametrize("beta", [5e-324, 1e-300, 1e-17, 1 - 1e-16])
def test_intervals_of_any_probability_are_finite_and_hold_the_estimate(
    held: list[int], beta: float
) -> None:
    plan = first(question())
    (row,) = (
        NumberSums()
        .number_summaries(plan, add_round(plan, [str(each) for each in held]), beta)
        .results
    )
    assert row.variance is not None
    assert row.standard_deviation is not None
    assert -0.5 <= row.mean_low <= row.mean <= row.mean_high <= 99.5
    assert row.variance_low <= row.variance <= row.variance_high * (1 + 1e-12)
    assert row.standard_deviation_low <= row.standard_deviation <= row.standard_deviation_high


def test_other_numbers_are_off_by_half_a_cell_at_most() -> None:
    interval = NumericInterval(low=0, high=1, alpha=10, length=1)
    plan = first(question(domain=interval))
    numbers = np.random.default_rng(1).random(200)
    (result,) = (
        NumberSums().number_summaries(plan, add_round(plan, list(map(str, numbers)))).results
    )
    assert result.rounding == pytest.approx(0.05)
    assert abs(result.mean - numbers.mean()) <= 0.05
    assert result.standard_deviation is not None
    assert abs(result.standard_deviation - numbers.std(ddof=1)) <= 0.0502


def test_a_round_counts_for_the_segments_with_enough_devices_only() -> None:
    """Otherwise the difference of two answers would show the number of a single device."""
    plan = first(question(domain=SEGMENTED, threshold=3))
    with pytest.raises(NoNumbersError, match="3 devices with a number"):
        NumberSums().number_summaries(plan, EMPTY_STATE)
    few = add_round(plan, ["north:1", "north:2", "south:7"])
    with pytest.raises(NoNumbersError):
        NumberSums().number_summaries(plan, few)
    state = add_round(plan, ["north:1", "north:2", "north:6", "south:7", "south:8"], few)
    again = add_round(plan, ["north:99", "south:1", "south:1", "south:1"], state)
    assert summaries(plan, state)["north"] == summaries(plan, again)["north"]
    results = summaries(plan, again)
    assert [(name, row.devices) for name, row in results.items()] == [
        (None, 6), ("north", 3), ("south", 3)
    ]  # fmt: skip
    final = MECHANISM.final_estimates(plan.question, again)
    assert [(row.item, row.count) for row in final] == [("north", 3), ("south", 3)]


def test_the_server_deletes_sums_and_the_policys_threshold_is_the_default() -> None:
    asked = NumberSumsQuestion(domain=PERCENTS, message_bytes=11_084)
    assert asked.discards_sums
    assert asked.min_reported_count == 5


@pytest.mark.parametrize(
    ("alpha", "length", "devices", "sums"),
    [
        (2, 1, 10, (2, (1, 1, 1), 13, 17)),
        (10, 1, 1_000, (82, (1, 1, 1), 81_001, 4)),
        (10, 3, 10**5, (100, (1, 2, 3), 9_900_101, 3)),
        (10, 4, 10**4, (465, (1, 2, 3), 4_640_017, 3)),
        (10, 6, 10**5, (252, (1, 3, 5), 25_100_017, 3)),
    ],
)
def test_no_digit_of_all_devices_reaches_the_prime_of_a_one_shot_sum(
    alpha: int, length: int, devices: int, sums: tuple[int, tuple[int, ...], int, int]
) -> None:
    domain = NumericInterval(low=0, high=1, alpha=alpha, length=length)
    plan = first(question(domain=domain), devices, kind="one-shot")
    (p,) = {lane.q for lane in plan.ring.lanes}
    (ring, base, digits), checks = plan.format, plan.ring.lanes[-1].length
    assert (base, digits, p, checks) == sums
    assert ring == plan.ring
    assert devices * (base - 1) < p < 2**26
    assert base ** digits[2] > (alpha**length - 1) ** 2
    assert p**checks >= 2**60
    largest = MECHANISM.encode_sum(plan, [{"1": 1}] * min(devices, 50), seeded(1))
    assert MECHANISM.fault(plan, largest, 50) is None


def forged(plan: NumberSumsPlan, *columns: tuple[int, int, int]) -> Vector:
    """Return a sum of these (n, S, Q) with true checks, as of a device that knows the seed."""
    _, base, counts = plan.format
    rows = np.array(columns, np.int64).T
    digits = [
        row // base**place % (base if place + 1 < count else 2**62)
        for row, count in zip(rows, counts, strict=True)
        for place in range(count)
    ]
    return plan.vector_of(np.array(digits))


@pytest.mark.parametrize(
    ("columns", "law"),
    [
        ([(0, 0, 0)] * 3, None),
        ([(3, 6, 14), (2, 198, 2 * 99**2), (0, 0, 0)], None),  # 1, 2, 3 and 99, 99
        ([(6, 0, 0), (5, 0, 0), (0, 0, 0)], "more numbers than devices"),  # 11 of 10
        ([(2, 199, 2 * 99**2), (0, 0, 0), (0, 0, 0)], "larger than its devices can have"),
        ([(0, 1, 1), (0, 0, 0), (0, 0, 0)], "larger than its devices can have"),
        ([(0, 0, 2), (0, 0, 0), (0, 0, 0)], "not that of any numbers"),
        ([(2, 8, 30), (0, 0, 0), (0, 0, 0)], "not that of any numbers"),  # below 4^2 + 4^2
        ([(2, 7, 24), (0, 0, 0), (0, 0, 0)], "not that of any numbers"),  # below 3^2 + 4^2
        ([(2, 100, 9902), (0, 0, 0), (0, 0, 0)], "not that of any numbers"),  # above 99^2 + 1
        ([(2, 8, 33), (0, 0, 0), (0, 0, 0)], "not that of any numbers"),  # odd
    ],
)
@each_kind
def test_sums_that_no_numbers_have_are_refused(
    kind: str, columns: list[tuple[int, int, int]], law: str | None
) -> None:
    plan = first(question(domain=SEGMENTED), kind=kind)
    fault = MECHANISM.fault(plan, forged(plan, *columns), 10)
    assert fault is None if law is None else law in str(fault)


@each_kind
def test_garbage_and_single_changes_fail_the_check(kind: str) -> None:
    """A random vector passes with probability 2^-60; a changed element never."""
    plan, chance = first(question(), kind=kind), np.random.default_rng(3)
    honest = MECHANISM.encode_sum(plan, [{str(n): 1} for n in range(50)], seeded(1))
    for lane in range(4):
        changed = [row.copy() for row in honest]
        changed[lane][0] += 1
        assert "check" in str(MECHANISM.fault(plan, tuple(changed), 1000))
    for _ in range(200):
        garbage = tuple(
            chance.integers(0, lane.q, lane.length, np.uint64).astype(lane.dtype)
            for lane in plan.ring.lanes
        )
        assert "check" in str(MECHANISM.fault(plan, garbage, 1000))


def test_one_liar_moves_the_mean_within_the_interval_and_counts_as_all_devices() -> None:
    """The documented bound of a lying device: it is not detected, nor can it do more."""
    plan, honest = first(question()), [{"10": 1}] * 10 + [{}] * 90
    total = MECHANISM.encode_sum(plan, honest, seeded(1))
    lie = forged(plan, (89, 89 * 99, 89 * 99**2))
    plan.ring.add(total, lie)
    assert MECHANISM.fault(plan, total, 100) is None
    state = MECHANISM.decode(plan, total, 100, EMPTY_STATE).state
    (result,) = NumberSums().number_summaries(plan, state).results
    assert result.devices == 99
    assert result.mean == pytest.approx((100 + 89 * 99) / 99)
    plan.ring.add(total, forged(plan, (2, 2 * 99, 2 * 99**2)))
    assert "more numbers than devices" in str(MECHANISM.fault(plan, total, 100))


def test_one_liar_shows_the_number_of_a_device_that_is_alone_in_its_segment() -> None:
    """The documented limit of the threshold: it counts devices, also those that do not exist."""
    plan = first(question(domain=SEGMENTED, threshold=5))
    honest = [{"north:10": 1}] * 95 + [{"south:42": 1}] + [{}] * 4
    total = MECHANISM.encode_sum(plan, honest, seeded(1))
    assert "south" not in summaries(plan, MECHANISM.decode(plan, total, 100, EMPTY_STATE).state)
    plan.ring.add(total, forged(plan, (0, 0, 0), (4, 0, 0), (0, 0, 0)))
    assert MECHANISM.fault(plan, total, 100) is None
    state = MECHANISM.decode(plan, total, 100, EMPTY_STATE).state
    shown = summaries(plan, state)["south"]
    assert (shown.devices, shown.sum) == (5, pytest.approx(42))


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        ({"domain": Alphabet(characters="ab", length=2)}, "need an interval"),
        (
            {"domain": Product(segments=("a", "b"), inner=Alphabet(characters="ab", length=2))},
            "need an interval",
        ),
        ({"contribution": 2}, "less than or equal to 1"),
        ({"domain": NumericInterval(low=0, high=1e200, length=1)}, "variances are finite"),
        ({"confidence": 0.9}, "less than or equal to 0.5"),
    ],
)
def test_questions_without_an_answer_are_refused(own: dict[str, object], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        question(**own)


@each_kind
def test_squares_that_could_wrap_are_refused_with_advice(kind: str) -> None:
    fine = NumericInterval(low=0, high=1, alpha=4, length=24)
    with pytest.raises(ValueError, match="use fewer digits, or fewer rounds"):
        first(question(domain=fine), kind=kind)
    coarse = NumericInterval(low=0, high=1, alpha=4, length=13)
    most = first(question(domain=coarse), devices=1500, rounds=1, kind=kind)
    total = MECHANISM.encode_sum(most, [{"1": 1}] * 1500, seeded(1))
    assert MECHANISM.fault(most, total, 1500) is None
    (result,) = (
        NumberSums()
        .number_summaries(most, MECHANISM.decode(most, total, 1500, EMPTY_STATE).state)
        .results
    )
    assert result.variance == pytest.approx(0, abs=1e-12)
    assert result.mean == pytest.approx(1)


def normal(rng: np.random.Generator, shape: tuple[int, int]) -> Integers:
    return np.clip(np.round(rng.normal(50, 12, shape)), 0, 99).astype(np.int64)


def skewed(rng: np.random.Generator, shape: tuple[int, int]) -> Integers:
    return np.minimum(rng.exponential(12, shape), 99).astype(np.int64)


def rare(rng: np.random.Generator, shape: tuple[int, int]) -> Integers:
    return np.where(rng.random(shape) < 0.1, 90, 0).astype(np.int64)


def at_the_ends(rng: np.random.Generator, shape: tuple[int, int]) -> Integers:
    return np.where(rng.random(shape) < 0.5, 99, 0).astype(np.int64)


@pytest.mark.parametrize(
    ("draw", "devices", "covered"),
    [(normal, 10, 0.95), (skewed, 200, 0.94), (rare, 200, 0.94), (at_the_ends, 10, 0.95)],
)
def test_intervals_hold_the_populations_mean_and_deviation(
    draw: Callable[[np.random.Generator, tuple[int, int]], Integers], devices: int, covered: float
) -> None:
    """Fewer than `covered` less four standard errors cover with probability 3e-5."""
    rng, studies = np.random.default_rng(5), 1000
    population = draw(rng, (1, 10**6))
    mean, deviation = population.mean(), population.std()
    plan = first(question(), devices=devices)
    hits = np.zeros(2)
    for numbers in draw(rng, (studies, devices)):
        sums = (devices, int(numbers.sum()), int((numbers**2).sum()))
        state = MECHANISM.decode(plan, forged(plan, sums), devices, EMPTY_STATE).state
        (row,) = NumberSums().number_summaries(plan, state).results
        hits += (
            row.mean_low <= mean <= row.mean_high,
            row.standard_deviation_low <= deviation <= row.standard_deviation_high,
        )
    assert (hits / studies >= covered - 4 * (covered * (1 - covered) / studies) ** 0.5).all()
