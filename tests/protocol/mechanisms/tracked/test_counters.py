"""Counters modulo a few bits are read correctly, and report when they are not."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import betainc, betaincc
from scipy.stats import nbinom

from protocol.mechanisms.tracked.counters import (
    MAX_COUNTER_BITS,
    CounterGroup,
    Counters,
    counter_bits,
    first_counts,
    window_starts,
)
from protocol.mechanisms.tracked.tuning_constants import WINDOW_MISS_PROBABILITY

LETTERS = "abcdefghij"
MAX_TOTAL = 10_000


def counters_of(bits: list[int]) -> Counters:
    groups = tuple(
        CounterGroup(
            bits=width, items=tuple(i for i, b in zip(LETTERS, bits, strict=False) if b == width)
        )
        for width in sorted(set(bits))
    )
    return Counters(groups, MAX_TOTAL)


def test_each_group_has_a_lane_and_one_for_its_total() -> None:
    counters = counters_of([3, 5, 3])
    assert [(lane.q, lane.length) for lane in counters.lanes] == [
        (8, 2),
        (16384, 1),
        (16777213, 1),
        (32, 1),
        (16384, 1),
        (16777213, 1),
    ]
    assert counters.items == ("a", "c", "b")
    assert counters.windows.tolist() == [8, 8, 32]


@given(st.data())
def test_counts_within_their_windows_are_read(data: st.DataObject) -> None:
    bits = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=len(LETTERS)))
    counters = counters_of(bits)
    expected = np.array(
        data.draw(st.lists(st.floats(0, 90), min_size=len(bits), max_size=len(bits)))
    )
    lows = window_starts(expected, counters.windows)
    offsets = [data.draw(st.integers(0, m - 1)) for m in counters.windows.tolist()]
    counts = lows + np.array(offsets)
    vector = counters.encode(counts)
    assert counters.fault(vector, int(counts.sum())) is None
    assert counters.decode(vector, expected, np.sqrt(expected))[0].tolist() == counts.tolist()


@pytest.mark.parametrize("counts", [[2, 80, 41], [2, 40, 9950], [20, 40, 41], [2, 3000, 41]])
def test_a_count_that_left_its_window_is_found_however_far(counts: list[int]) -> None:
    counters, expected = counters_of([4, 6, 6]), np.array([2.0, 40.0, 41.0])
    windows = window_starts(expected, counters.windows), counters.windows
    assert any(n - low >= m for n, low, m in zip(counts, *windows, strict=True))
    read, slips = counters.decode(counters.encode(np.array(counts)), expected, np.sqrt(expected))
    assert read.tolist() == counts
    assert not slips.any()


def test_of_three_that_left_far_only_improbable_counts_are_moved() -> None:
    counters, expected = counters_of([4, 6, 6, 6]), np.array([2.0, 40.0, 41.0, 42.0])
    vector = counters.encode(np.array([2, 140, 241, 171]))
    read, slips = counters.decode(vector, expected, np.sqrt(expected))
    # 140 would be read as 12, which is improbable for 40 expected, and 241 as 49, which is not.
    assert read.tolist() == [2, 140 - 64, 241 - 192, 171 - 128]
    assert slips.tolist() == [0, 384, 384, 384]  # of the group of 6 bits: whose is not known
    variances = counters.variances(read, slips, expected, np.sqrt(expected))
    assert variances[0] == 0
    assert variances[1:].sum() == pytest.approx(3 * 64**2)  # six windows, and three items


@pytest.mark.parametrize("slips", [(1, 1), (2, 1), (1, -1), (1, -2), (1, 1, 1), (1, 1, -1)])
def test_of_several_that_left_all_are_corrected_or_all_are_in_doubt(slips: tuple[int, ...]) -> None:
    """A weight of 50 is hit by chance once in 300,000 times, and a pair of 1,000 in 16,000."""
    rng = np.random.default_rng(5)
    for _ in range(200):
        group = CounterGroup(bits=5, items=tuple(map(str, range(50))))
        counters = Counters((group,), MAX_TOTAL, rng.bytes(32))
        expected = rng.uniform(40, 90, 50)
        counts = window_starts(expected, counters.windows) + rng.integers(0, 32, 50)
        moved = rng.permutation(50)[: len(slips)]
        true = counts.copy()
        true[moved] = np.maximum(true[moved] + 32 * np.array(slips), true[moved] % 32)
        left = true != counts
        read, doubt = counters.decode(counters.encode(true), expected, np.sqrt(expected))
        if left.sum() == 1 or not doubt.any():
            assert read.tolist() == true.tolist()
            continue
        assert ((read - counts) % 32 == 0).all()
        assert (np.abs(read - counts) <= 32).all()
        assert (doubt >= 64).all()
        variances = counters.variances(read, doubt, expected, np.sqrt(expected))
        assert (variances >= 32**2 / 50).all()  # half of it is shared equally
        assert variances.sum() == pytest.approx(doubt[0] * 32)


def test_many_items_that_are_gone_at_once_are_corrected() -> None:
    """The 20 most frequent of 50 items are gone: their counts of 0 look like one window more."""
    group = CounterGroup(bits=5, items=tuple(map(str, range(50))))
    counters, rng = Counters((group,), MAX_TOTAL, bytes(32)), np.random.default_rng(6)
    expected = np.concatenate([np.full(20, 25.0), np.full(30, 12.0)])
    counts = np.concatenate([np.zeros(20, np.int64), rng.integers(5, 20, 30)])
    read, slips = counters.decode(counters.encode(counts), expected, np.sqrt(expected))
    assert read.tolist() == counts.tolist()
    assert not slips.any()


@pytest.mark.parametrize("rest", [(0, 0, 0), (0, 700, 0), (90, 0, 500), (41, 41, 3)])
def test_counts_of_items_that_left_by_many_windows_are_found(rest: tuple[int, ...]) -> None:
    """The two most frequent items are gone by 31 windows each. No other sum has this check."""
    group = CounterGroup(bits=5, items=tuple(map(str, range(40))))
    counters = Counters((group,), MAX_TOTAL)
    expected = np.array([1000.0, 990.0, 3.0, 4.0, 5.0, *np.full(35, 10.0)])
    counts = np.array([0, 1, *rest, *np.full(35, 4)])
    read, slips = counters.decode(counters.encode(counts), expected, np.sqrt(expected))
    assert read.tolist() == counts.tolist()
    assert not slips.any()


def test_errors_are_as_large_as_stated_if_all_items_changed_at_once() -> None:
    """Check 400 items with 4 bits. A sixth have other rates, so that 16 to 27 counts are wrong.

    With ten seeds the squared errors were 0.8 to 1.9 times the variances, so that another fails
    with probability below 0.01. With the missing windows alone they were 2 to 13 times as large.
    """
    group, rng = CounterGroup(bits=4, items=tuple(map(str, range(400)))), np.random.default_rng(3)
    counters = Counters((group,), MAX_TOTAL)
    expected = rng.uniform(1, 6, 400)
    changes = rng.random(400) < 1 / 6
    rates = np.where(changes, rng.uniform(0, 18, 400), expected)
    counts = rng.poisson(rates)
    read, slips = counters.decode(counters.encode(counts), expected, np.sqrt(expected))
    wrong = read != counts
    assert wrong.sum() > 10
    variances = counters.variances(read, slips, expected, np.sqrt(expected))
    ratio = ((read - counts) ** 2).sum() / variances.sum()
    assert 0.5 < ratio < 2.2
    # Wrong counts have more of the variance than others.
    assert variances[wrong].mean() > 1.3 * variances[~wrong].mean()


@pytest.mark.parametrize("lane", [0, 1, 3, 4])
def test_a_counter_or_total_that_is_off_breaks_a_law(lane: int) -> None:
    counters = counters_of([3, 5, 3])
    vector = counters.encode(np.array([5, 7, 20]))
    vector[lane][-1] += 1
    assert "do not add up" in (counters.fault(vector, MAX_TOTAL) or "")


def test_more_than_all_may_hold_breaks_a_law() -> None:
    counters = counters_of([3, 5])
    vector = counters.encode(np.array([5, 20]))
    assert counters.fault(vector, 25) is None
    assert "more than the devices may hold" in (counters.fault(vector, 24) or "")


@given(st.data())
def test_any_sum_at_all_is_read_as_something(data: st.DataObject) -> None:
    counters = counters_of([1, 3, 3, MAX_COUNTER_BITS])
    draw: Any = [
        np.array([data.draw(st.integers(0, lane.q - 1)) for _ in range(lane.length)]).astype(
            lane.dtype
        )
        for lane in counters.lanes
    ]
    counters.fault(tuple(draw), MAX_TOTAL)
    counts, slips = counters.decode(tuple(draw), np.full(4, 3.0), np.full(4, 2.0))
    assert len(counts) == len(slips) == 4
    assert (slips >= 0).all()


@pytest.mark.parametrize("rate", [0.05, 0.6, 1.7, 5.0, 30.0, 500.0, 9000.0])
@pytest.mark.parametrize("doubt", [0.0, 0.4])
def test_counts_leave_their_windows_with_their_probability(rate: float, doubt: float) -> None:
    """Allow twice the probability on each side in a million counts, since windows are rounded."""
    rng, draws = np.random.default_rng(3), 1_000_000
    deviation = np.sqrt(rate + (doubt * rate) ** 2)
    rates = rng.gamma(1 / doubt**2, rate * doubt**2, draws) if doubt else np.full(draws, rate)
    counts = rng.poisson(rates)
    [bits] = counter_bits(np.array([rate]), np.array([deviation])).tolist()
    low = int(window_starts(np.array([rate]), np.array([2**bits]))[0])
    assert ((counts < low) | (counts >= low + 2**bits)).mean() <= 3 * WINDOW_MISS_PROBABILITY
    assert 2**bits <= 4 * (10 * deviation + 4)


@pytest.mark.parametrize("lie", [1, 2, 3])
def test_a_total_that_no_counts_can_have_moves_none(lie: int) -> None:
    counters = counters_of([4, 4])
    vector = counters.encode(np.array([3, 5]))
    vector[1][0] = (8 - 16 * lie) % counters.lanes[1].q
    assert counters.fault(vector, 10**9) is None
    read, slips = counters.decode(vector, np.array([3.0, 5.0]), np.full(2, 2.0))
    assert read.tolist() == [3, 5]
    assert slips.tolist() == [8 * 16] * 2  # however much is missing: no more than eight windows


def test_a_width_is_found_however_large_or_sure_a_count_is() -> None:
    expected = np.geomspace(1e-6, 1e7, 60).repeat(40)
    deviations = np.sqrt(expected) * np.tile(np.geomspace(0.5, 1e4, 40), 60)
    bits = counter_bits(expected, deviations)
    assert ((bits >= 1) & (bits <= MAX_COUNTER_BITS)).all()
    sure = deviations <= expected
    assert (2.0 ** bits[sure] >= 4 * deviations[sure]).all()


@pytest.mark.parametrize("tail", [1e-6, 1e-3, 0.1])
def test_quantiles_of_negative_binomial_counts_are_those_of_scipy(tail: float) -> None:
    rng = np.random.default_rng(1)
    mean = np.exp(rng.uniform(-14, 12, 2000))
    variance = mean * (1 + np.exp(rng.uniform(-13.8, 8, 2000)))
    shape, share = mean**2 / (variance - mean), mean / variance
    for guess in (np.zeros(2000), np.ceil(mean + 6 * np.sqrt(variance))):
        above = first_counts(lambda k: betaincc(shape, k + 1, share) <= tail, guess)
        below = first_counts(lambda k: betainc(shape, k + 1, share) >= tail, guess)
        assert (above == nbinom.isf(tail, shape, share)).all()
        assert (below == nbinom.ppf(tail, shape, share)).all()
