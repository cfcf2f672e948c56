"""Counters modulo one prime are read right, or say by their variance that they are not sure."""

from itertools import product
from random import Random
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.estimation.estimates import Estimate
from protocol.mechanism import Answer
from protocol.mechanisms.tracked import forecast as forecasting
from protocol.mechanisms.tracked import split_counters
from protocol.mechanisms.tracked import tuning_constants as tuning
from protocol.mechanisms.tracked.counters import CounterReading
from protocol.mechanisms.tracked.forecast import Forecast, expected_counts
from protocol.mechanisms.tracked.observations import SLIP_VARIANCE_COLUMN, record_round
from protocol.mechanisms.tracked.split_counters import (
    SplitCounters,
    SplitGroup,
    classes_of,
    counters_needed,
)
from protocol.mechanisms.tracked.thinned_counts import LEVELS, class_limit
from protocol.mechanisms.tracked.window_posterior import read_thinned
from protocol.numerics.array_types import Floats, Integers
from protocol.randomness import seeded_words
from protocol.study_state import EMPTY_STATE
from secagg.oneshot.moduli import Moduli
from tests.protocol.mechanisms.tracked.test_mechanism import ITEMS, MECHANISM, ONE_SHOT, question
from tests.protocol.mechanisms.tracked.test_window_posterior import priors

PRIMES = (241, 521, 1021)
# Expected counts of items whose frequencies fall as 1 / rank, some with several counters.
EXPECTED = 2_000 / np.arange(1, 121)


def counters_of(p: int, expected: Floats = EXPECTED) -> tuple[SplitCounters, Floats]:
    """Return counters of items with these expected counts, and the counts in their order."""
    needed = counters_needed(expected, np.sqrt(expected), np.zeros(len(expected)), p)
    order = np.argsort(needed, kind="stable")
    groups = tuple(
        SplitGroup(counters=each, items=tuple(map(str, order[needed[order] == each].tolist())))
        for each in np.unique(needed).tolist()
    )
    of_item = np.repeat(order, needed[order])
    classes = classes_of((expected / needed)[of_item], p, of_item, np.zeros(len(of_item), np.bool_))
    counters = SplitCounters(groups, classes, Moduli(13).fixed(p))
    return counters, expected[order]


def read_back(
    counters: SplitCounters, counts: Integers, expected: Floats, rng: np.random.Generator
) -> CounterReading:
    return counters.decode(counters.encode(counts, seeded_words(rng)), expected, np.sqrt(expected))


@pytest.mark.parametrize("p", PRIMES)
@pytest.mark.parametrize("factor", [0.0, 0.3, 1.0, 2.0, 3.0, 6.0])
def test_all_counts_may_fall_or_rise(p: int, factor: float) -> None:
    """Thinned counts of usual ones seldom leave a doubt: in 1 of 100 classes."""
    counters, expected = counters_of(p)
    rng, doubtful = np.random.default_rng(p), 0.0
    for _ in range(20 if factor == 1 else 1):
        counts = rng.poisson(factor * expected)
        read = read_back(counters, counts, expected, rng)
        assert (read.counts == counts)[read.variances == 0].all()
        doubtful += (read.variances > 0).mean()
    assert factor != 1 or doubtful / 20 <= 0.03


@pytest.mark.parametrize("p", PRIMES)
@pytest.mark.parametrize("windows", [1.15, 2.1, 3.1, 4.05, 8.05])
def test_a_count_that_left_its_window_is_right_or_in_doubt(p: int, windows: float) -> None:
    """With p = 521 an item that rises from 100 to 700 looks as if it had risen to 179."""
    counters, expected = counters_of(p)
    rng, exact = np.random.default_rng(p), 0
    for _ in range(12):
        counts = rng.poisson(expected)
        row = int(rng.choice(np.flatnonzero((expected > 20) & (expected < 120))))
        counts[row] += round(windows * p)
        read = read_back(counters, counts, expected, rng)
        wrong = read.counts != counts
        assert (read.variances[wrong] > 0).all()
        exact += not wrong.any()
    assert exact >= (6 if windows < 4 else 2)  # other items of the class might have changed


@pytest.mark.parametrize("windows", [1, 5, 18, 23, 26])
@pytest.mark.parametrize(
    ("p", "expected", "weighed"),
    [(521, [60], 40), (521, [60] * 40, 40), (521, [60] * 40, 10), (1021, [8] * 400 + [0.5], 401)],
)
def test_six_errors_reach_a_count_that_is_off_by_whole_windows(
    windows: int, p: int, expected: list[float], weighed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the prior tells which item rose, by M or by M - 32 windows. It trusts a rare one."""
    monkeypatch.setattr(split_counters, "_MAX_WEIGHED_COUNTERS", weighed)
    (counters, means), rng = counters_of(p, np.array(expected)), np.random.default_rng(1)
    for _ in range(6):
        counts = rng.poisson(means)
        counts[-1] += windows * p
        read = read_back(counters, counts, means, rng)
        assert (np.abs(read.counts - counts) <= 6.01 * np.sqrt(read.variances)).all()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_six_errors_reach_an_item_whose_many_counters_rise_together(seed: int) -> None:
    counters, expected = counters_of(521, 2e4 / np.arange(1, 41))
    rng, top = np.random.default_rng(seed), int(expected.argmax())
    for _ in range(12):
        counts = rng.poisson(expected)
        counts[top] = rng.poisson(expected[top] * rng.uniform(11, 16))
        read = read_back(counters, counts, expected, rng)
        assert (abs(read.counts - counts) <= 6 * np.sqrt(read.variances)).all()


def planned(
    devices: int, held: list[int], letters: int = 2, **asked: float
) -> tuple[SplitCounters, Floats, Floats]:
    """Return the counters that are planned after items were `held`, and their expected counts."""
    terms, chance = ONE_SHOT.model_copy(update={"cohort_size": devices}), Random(1)
    domain = question().domain.model_copy(update={"length": letters})
    first = MECHANISM.first_plan(question(domain=domain, **asked), terms, "study", 20, chance)
    names = (item.ljust(letters, "a") for item in ITEMS)
    seen = tuple(Estimate(next(names), each, 0.0) for each in held)
    state = record_round(first, EMPTY_STATE, devices, seen, [])
    plan = MECHANISM.next_plan(first, Answer(True, len(held), seen, state), state, chance)
    assert isinstance(plan.counters, SplitCounters)
    return plan.counters, *expected_counts(state, devices, plan.counters.items)


@pytest.mark.parametrize(("devices", "each"), [(10_000, 900), (90_000, 800)])
def test_counts_that_change_after_a_plan_are_right_or_in_doubt(devices: int, each: int) -> None:
    """One item replaces another, or rises by 32 windows. Guards: own classes, the least prime."""
    asked = {"contribution": 2, "threshold": 10 * each, "message_bytes": 2_000}
    counters, expected, _ = planned(devices, [each] * 20, **asked)
    rng, p, only = np.random.default_rng(1), counters.moduli.prime, np.eye(20, dtype=np.int64)
    for row in range(20):
        usual = rng.poisson(expected)
        replaced = usual * (1 - only[row]) + only[row - 1] * p * round(each / p)
        risen = usual + only[row] * min(32 * p, 2 * devices - usual.sum())
        for counts in (replaced, risen):
            read = read_back(counters, counts, expected, rng)
            assert (read.variances[read.counts != counts] > 0).all()


@pytest.mark.parametrize("windows", [1, 2, 3])
@pytest.mark.parametrize(
    ("devices", "held", "factor"), [(67_244, [6_800] + [3] * 9, 1), (433, [4] * 30, 5)]
)
def test_six_errors_reach_a_rise_beside_a_larger_item_or_of_all(
    windows: int, devices: int, held: list[int], factor: int
) -> None:
    """All items rise by `factor`, within their windows, and a rare one also by whole windows."""
    asked = {"contribution": 10, "threshold": 20, "message_bytes": 843}
    counters, expected, spread = planned(devices, held, 3, **asked)
    rng, most = np.random.default_rng(1), np.floor(expected + 5.9 * (spread + 1)).astype(np.int64)
    for _ in range(40):
        counts = np.minimum(rng.poisson(factor * expected), most)
        counts[expected.argmin()] += windows * counters.moduli.prime
        read = counters.decode(counters.encode(counts, seeded_words(rng)), expected, spread)
        assert (abs(read.counts - counts) <= 6.01 * np.sqrt(read.variances)).all()


def test_every_copy_is_in_one_counter_of_its_item_and_a_quarter_in_its_class() -> None:
    groups = SplitGroup(counters=1, items=("a", "b")), SplitGroup(counters=4, items=("c",))
    counters = SplitCounters(groups, (2, 1, 3), Moduli(13).fixed(10_009))
    vector = counters.encode(np.array([10, 0, 8000]), seeded_words(np.random.default_rng(1)))
    assert vector[0][:2].tolist() == [10, 0]
    assert vector[0].sum() == 8010
    # Binomial counts within six deviations: sqrt(8000 / 4 * 3 / 4) = 39, and for 6,000 copies 34.
    assert (np.abs(vector[0][2:].astype(int) - 2000) < 6 * 39).all()
    thinned = vector[1].astype(int).reshape(3, 3)
    assert (np.abs(thinned[0] - [2.5, 500, 1500]) < [10, 6 * 20, 6 * 34]).all()
    assert (np.abs(thinned[:, 2] - [1500, 375, 187.5]) < 6 * 34).all()


@given(
    counts=st.lists(st.tuples(st.floats(0, 5000), st.integers(0, 4)), max_size=60),
    p=st.sampled_from([61, 101, 521, 2017, 65521]),
)
def test_classes_cover_all_within_their_limits(counts: list[tuple[float, int]], p: int) -> None:
    """Item 0 is in doubt, and has classes of its own."""
    of_counters = np.array([count for count, _ in counts])
    items = np.array([item for _, item in counts], np.int64)
    sizes = classes_of(of_counters, p, items, items == 0)
    assert sum(sizes) == len(counts)
    for end, size in zip(np.cumsum(sizes).tolist(), sizes, strict=True):
        of_class = of_counters[end - size : end]
        assert size == 1 or of_class.sum() <= class_limit(p)
        assert of_class.max() <= 16 * max(of_class.min(), 0.5)
        assert len({*(items[end - size : end] == 0).tolist()}) == 1


@given(
    expected=st.floats(0, 1e5), deviation=st.floats(0.5, 1e4), p=st.sampled_from([61, 521, 8221])
)
def test_windows_hold_six_deviations_and_a_tenth(expected: float, deviation: float, p: int) -> None:
    arrays = np.array([expected]), np.array([deviation]), np.zeros(1)
    (needed,) = counters_needed(*arrays, p).tolist()
    if needed < 4096:
        assert needed * p >= 2 * (6 * deviation + expected / 10)
        assert expected / needed <= class_limit(p)
        assert 12 * np.sqrt(expected / needed) <= p / 2
    assert counters_needed(arrays[0], arrays[1], np.array([3.0 * p]), p)[0] >= min(4096, needed)


def test_a_class_in_doubt_is_split_and_does_not_fill_the_message() -> None:
    """Each class takes three elements, so that 480 items that are alone would take 1,440 more."""
    rows, all_of_them = np.arange(480), np.ones(480, np.bool_)
    assert classes_of(np.full(480, 2.0), 937, rows, all_of_them) == (20,) * 24
    assert classes_of(np.full(20, 2.0), 937, rows[:20], all_of_them[:20]) == (1,) * 20


def test_items_whose_next_counts_are_mixed_need_few_classes() -> None:
    """After a sudden change the most frequent items so far may be the rarest of the next round."""
    names, p = [f"{n:03}" for n in range(900)], 397
    expected = np.random.default_rng(1).permutation(900 / np.arange(1.0, 901))
    known = expected, np.sqrt(expected), np.zeros(900)
    forecast = cast("Forecast", SimpleNamespace(wanted=names, expected=known))
    counters = forecasting.split_counters(forecast, 4_000, Moduli(13).fixed(p))
    assert len(counters.items) == 900
    assert len(counters.classes) <= 20  # 99 in the order of totals so far


def test_a_class_in_doubt_adds_only_what_it_observes_to_the_variance_of_totals() -> None:
    """A count of 50 with an error of 117 observes 0.4% of its round, and is off by half a copy."""
    plan = MECHANISM.first_plan(question(), ONE_SHOT, "study", 30, Random(1))
    sure, unsure = Estimate("abc", 50.0, 0.0), Estimate("abc", 750.0, 117.0**2)
    state = record_round(plan, EMPTY_STATE, 1_000, [sure], [])
    state = record_round(plan, state, 1_000, [unsure], [])
    assert 0 < state.column(SLIP_VARIANCE_COLUMN)[0] < 1


# The posterior of a class, against all possible sets of counts.

P, MEANS = 211, np.array([9.0, 6.0, 20.0, 4.0])
DEVIATIONS = 1.2 * np.sqrt(MEANS)
SHIFTS = np.arange(-1, 3)


def _surprises(sums: Integers, thinned: Integers) -> tuple[Floats, Floats]:
    """Return chi-squared of the thinned counts given each sum, and the logarithms of variances."""
    squares, logarithms = np.zeros((2, len(sums)))
    for share, kept in zip((1 / 4, 1 / 16, 1 / 32), thinned.tolist(), strict=True):
        off = (kept - share * sums + P / 2) % P - P / 2
        variances = share * (1 - share) * sums + 0.5
        squares += off**2 / variances
        logarithms += np.log(variances)
    return squares, logarithms


def _posterior(counts: Integers, thinned: Integers) -> tuple[Floats, bool, int]:
    """Return the marginals (item, shift) by the definition of the prior and of the coins.

    The second result is whether the most probable sum agrees with the thinned counts, and the
    third the most windows that the sum may miss by the thinned counts alone.
    """
    windows = np.arange(-int((counts // P).sum()), 27)
    squares, logarithms = _surprises(counts.sum() + P * windows, thinned)
    odds = (squares + logarithms - (squares + logarithms).min()) / 2
    likelihoods = dict(zip(windows.tolist(), np.where(odds < 10, np.exp(-odds), 0), strict=True))
    possible = counts[:, np.newaxis] + P * SHIFTS
    columns = np.array(list(product(range(len(SHIFTS)), repeat=len(counts))))
    rows, best, likelihood = np.arange(len(counts)), np.zeros(len(columns)), -1.0
    moved = SHIFTS[columns].sum(axis=1)
    of_sums = np.array([likelihoods.get(each, 0.0) for each in moved.tolist()])
    for changed in (2.0**-power for power in range(1, 11)):
        weights = priors(changed, possible, MEANS, DEVIATIONS)[rows, columns].prod(axis=1) * of_sums
        if weights.sum() > likelihood:
            best, likelihood = weights, weights.sum()
    marginals = np.zeros((len(counts), len(SHIFTS)))
    for row in range(len(counts)):
        np.add.at(marginals[row], columns[:, row], best / likelihood)
    likeliest = moved[best.argmax()] - windows[0]
    return marginals, bool(squares[likeliest] <= 30), abs(windows[odds < 10]).max()


@pytest.mark.parametrize("items", [1, 20])
def test_of_several_counters_each_has_an_error_if_a_window_is_missing(items: int) -> None:
    """Rises to 2,115 and to p + 8 have the same sums as rises to p + 2,115 and to 8."""
    p, means = 21_157, np.full(items, 5.0)
    counts = np.array([2_115, 8, *[5] * 18])[:items]
    kept = (counts.sum() + p) / 2.0 ** np.array([bits for _, bits in LEVELS])
    thinned = np.round(kept).astype(np.int64) % p
    read = read_thinned(counts, p, means, np.full(items, 3.0), thinned)
    assert (read.counts - counts).sum() == p
    assert (read.squared_errors is None) == (items == 1)
    if read.squared_errors is not None:
        assert (6 * np.sqrt(read.squared_errors) >= p * 0.999).all()


def test_an_improbable_window_is_in_doubt_if_the_thinned_counts_do_not_exclude_it() -> None:
    """All six items rise, within their windows or one beyond: the thinned counts are half-way."""
    p, counts = 157, np.full(6, 35)
    kept = (counts.sum() + p / 2) / 2.0 ** np.array([bits for _, bits in LEVELS])
    read = read_thinned(counts, p, np.full(6, 20.5), np.full(6, 10.1), np.round(kept).astype(int))
    assert read.squared_errors is not None
    assert (6 * np.sqrt(read.squared_errors) >= p).all()


@pytest.mark.parametrize("seed", range(12))
def test_a_class_has_the_posterior_of_all_sets(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The squared error is the mean one, and (k / 6)^2 for each shift k more probable than 1e-4.

    k may be of the item or of the sum. If no sum agrees with the thinned counts, it is that of all
    27 windows.
    """
    monkeypatch.setattr(tuning, "MAX_WINDOWS_BELOW", 1)  # of an item, and of the class
    monkeypatch.setattr(tuning, "MAX_WINDOWS_ABOVE", 2)
    counts, rng = np.array([11, 6, 50, 3]), np.random.default_rng(seed)
    whole = counts.sum() + P * rng.integers(0, 6)
    thinned = (rng.binomial(whole, [1 / 4, 1 / 16, 1 / 32]) + rng.integers(-9, 10, 3)) % P
    read = read_thinned(counts, P, MEANS, DEVIATIONS, thinned)
    marginals, is_explained, windows = _posterior(counts, thinned)
    likely = marginals.argmax(axis=1)
    assert read.counts.tolist() == (counts + P * SHIFTS[likely]).tolist()
    if read.squared_errors is None:
        assert is_explained
        assert marginals.max(axis=1).min() >= 0.998
        return
    away = (SHIFTS - SHIFTS[likely][:, np.newaxis]) ** 2
    least = np.maximum(np.where(marginals > 1e-4, away, 0).max(axis=1), windows**2) / 36
    expected = np.maximum((marginals * away).sum(axis=1), least if is_explained else 27**2)
    assert read.squared_errors == pytest.approx(expected * P**2, rel=0.02, abs=1)
