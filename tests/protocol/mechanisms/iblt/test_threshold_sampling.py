"""Sampling by devices is unbiased, with the documented variance."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.mechanisms.iblt.threshold_sampling import ThresholdSampler

CASES = [(1.0, 1), (1.0, 9), (1.5, 1), (2.0, 9), (2.5, 9), (2.5, 2), (7.9, 9), (9.0, 9), (40.3, 9)]


@pytest.mark.parametrize(("t", "most"), CASES)
def test_a_sampled_count_is_unbiased_with_the_variance_claimed(t: float, most: int) -> None:
    threshold = ThresholdSampler(t, most)
    # Not drawn but spread evenly over [0, 1), so that means are exact to 1 in 100,000.
    uniform = (np.arange(200_000) + 0.5) / 200_000
    for count in range(1, most + 1):
        sampled = threshold.sample(np.full(len(uniform), count), uniform) * threshold.unit
        claimed = count * max(0.0, threshold.mean_threshold - count)
        assert sampled.mean() == pytest.approx(count, rel=1e-3)
        assert sampled.var() == pytest.approx(claimed, rel=1e-3, abs=1e-3)
        assert claimed <= count * (threshold.mean_threshold - 1) + 1e-9


@pytest.mark.parametrize(("t", "most"), CASES)
def test_a_single_token_is_kept_with_probability_one_in_t(t: float, most: int) -> None:
    uniform = (np.arange(200_000) + 0.5) / 200_000
    kept = ThresholdSampler(t, most).sample(np.ones(len(uniform), dtype=np.int64), uniform) > 0
    assert kept.mean() == pytest.approx(1 / t, rel=1e-3)


@given(st.floats(1, 1e6), st.integers(1, 1000), st.data())
def test_a_sampled_count_is_an_integer_within_its_bound(
    t: float, most: int, data: st.DataObject
) -> None:
    threshold = ThresholdSampler(t, most)
    count = data.draw(st.integers(1, most))
    u = data.draw(st.floats(0, 1, exclude_max=True))
    sampled = int(threshold.sample(np.array([count]), np.array([u]))[0])
    assert 0 <= sampled <= threshold.max_item_units
    if count > t:
        assert sampled == count


@given(st.floats(1, 30), st.lists(st.integers(1, 9), min_size=1, max_size=9), st.data())
def test_what_a_device_adds_in_all_is_within_its_total(
    t: float, counts: list[int], data: st.DataObject
) -> None:
    uniform = [data.draw(st.floats(0, 1, exclude_max=True)) for _ in counts]
    threshold = ThresholdSampler(t, sum(counts))
    sampled = threshold.sample(np.array(counts), np.array(uniform))
    assert sampled.sum() <= threshold.max_device_units


@pytest.mark.parametrize(("t", "most"), CASES)
def test_the_total_of_a_device_is_reached(t: float, most: int) -> None:
    threshold, ones = ThresholdSampler(t, most), np.ones(most, dtype=np.int64)
    sums = [threshold.sample(ones, np.full(most, u / 1000)).sum() for u in range(1000)]
    assert max(sums) == threshold.max_device_units


@given(st.lists(st.integers(1, 9), max_size=9))
def test_nothing_is_lost_at_threshold_one(counts: list[int]) -> None:
    uniform = np.random.default_rng(0).random(len(counts))
    assert (
        ThresholdSampler(1.0, 9).sample(np.array(counts, dtype=np.int64), uniform).tolist()
        == counts
    )
