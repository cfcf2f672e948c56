"""The whole sum: exact or declared failed, whoever is lost and whenever."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.graph import Assumptions
from secagg.ring import Lane, Ring, Vector

RING = Ring((Lane(2**13, 9), Lane(131071, 5)))


def same(one: Vector, other: Vector) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@st.composite
def losses(draw: st.DrawFn) -> tuple[int, list[int], float]:
    """Draw n, for each participant the phase it is lost in (3: never), and dropout."""
    n = draw(st.integers(3, 40))
    phases = st.one_of(st.just(3), st.integers(0, 3))  # mostly staying, so that sums happen
    lost_in = draw(st.lists(phases, min_size=n, max_size=n))
    return n, lost_in, draw(st.sampled_from([0.0, 0.2, 0.4, 0.6]))


@settings(max_examples=60, deadline=None)
@given(pattern=losses())
def test_the_sum_is_exact_or_the_round_failed(
    gather: Callable[..., Any], pattern: tuple[int, list[int], float]
) -> None:
    n, lost_in, dropout = pattern
    group = gather(n, Assumptions(corrupt=0.05, dropout=dropout))
    still = [{slot for slot in range(n) if lost_in[slot] > phase} for phase in range(3)]
    total = group.total(*still)
    quorum = group.cohort.quorum
    if total is None:
        # Only losses fail a cohort. With n <= 40 the graphs are dense, and within the
        # assumed dropout all have enough neighbours left (odds against: 2^-30 each).
        assert len(still[2]) < max(quorum, 2)
    else:
        assert same(total, group.plain_sum(still[1]))


@pytest.mark.parametrize("phase", [0, 1, 2])
def test_a_crowd_lost_in_one_phase_leaves_the_sum_of_the_rest_exact(
    gather: Callable[..., Any], phase: int
) -> None:
    group = gather(40, Assumptions(corrupt=0.1, dropout=0.25))
    everybody, rest = set(range(40)), set(range(10, 40))
    still = [everybody if when < phase else rest for when in range(3)]
    assert same(group.total(*still), group.plain_sum(still[1]))


def test_one_more_lost_than_the_quorum_allows_fails_the_cohort(gather: Callable[..., Any]) -> None:
    group = gather(40, Assumptions(corrupt=0.1, dropout=0.25))
    assert group.total(set(range(40)), set(range(11, 40)), set(range(11, 40))) is None


def test_below_the_threshold_of_reveals_nothing_is_shown(gather: Callable[..., Any]) -> None:
    group = gather(12, Assumptions(corrupt=0.3, dropout=0.3))
    givers = set(range(group.cohort.parameters.threshold - 1))
    assert group.total(set(range(12)), set(range(12)), givers) is None


def test_a_masked_vector_of_a_fixed_input_is_uniform_in_each_lane(
    gather: Callable[..., Any],
) -> None:
    # 400 masked zeros of 9 elements modulo 2^13, and of 5 modulo 131,071: the lowest bit
    # and 16 bins of each, chi-squared against uniform with 15 degrees of freedom. A sound
    # mask exceeds 50.5 (binned) or 4.9 sd (bit) with odds of 1e-5; the seeds are fixed.
    low, binned = [], []
    for seed in range(20):
        group = gather(20, seed=seed)
        shared, inbox = group.share(range(20))
        for slot, state in shared.items():
            _, masked = state.mask(inbox[slot], RING, RING.zero())
            low.append(masked[0] & 1)
            binned.append((masked[1].astype(np.int64) * 16) // 131071)
    bits, bins = np.concatenate(low), np.bincount(np.concatenate(binned), minlength=16)
    assert abs(bits.mean() - 0.5) < 4.9 * 0.5 / np.sqrt(bits.size)
    expected = bins.sum() / 16
    assert ((bins - expected) ** 2 / expected).sum() < 50.5
