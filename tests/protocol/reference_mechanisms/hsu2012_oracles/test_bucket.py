"""The Bucket mechanism: equations are solved, contradictions and impossible values are not."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.reference_mechanisms.hsu2012_oracles.bucket import BucketProjection, solve_gf2

SEED = bytes(32)


@given(st.integers(1, 6), st.integers(0, 9), st.data())
def test_solutions_are_all_there_are(length: int, equations: int, data: st.DataObject) -> None:
    below = st.integers(0, 2**length - 1)
    rows = data.draw(st.lists(below, min_size=equations, max_size=equations))
    bits = data.draw(st.lists(st.integers(0, 1), min_size=equations, max_size=equations))
    right = [
        x
        for x in range(2**length)
        if all((row & x).bit_count() % 2 == bit for row, bit in zip(rows, bits, strict=True))
    ]
    solutions = solve_gf2(rows, bits, length)
    assert sorted(solutions) == (right if len(right) <= 8 else [])


@pytest.mark.parametrize("size", [2, 3, 17, 1000])
def test_solutions_beyond_the_domain_are_infeasible(size: int) -> None:
    rng, solutions = np.random.default_rng(0), 0
    for _ in range(60):
        mechanism = BucketProjection(epsilon=1, size=size, seed=rng.bytes(32))
        values = mechanism.candidates(rng.normal(size=(mechanism.queries, 1)), 10)
        assert (values < size).all()
        solutions += len(values)
    assert solutions > 0


def test_hash_bits_are_pairwise_independent_even_of_value_0() -> None:
    # Over 6,000 hash functions each pair of bits is seen in a quarter: within 4.5 errors.
    bits = [
        BucketProjection(epsilon=1, size=8, seed=bytes([run]) * 32, beta=0.1).symbols(
            np.arange(8, dtype=np.uint64)
        )
        for run in range(48)
    ]
    table = np.concatenate(bits, axis=1)
    functions = table.shape[1]
    assert functions > 6000
    assert abs(table.mean(axis=1) - 0.5).max() < 4.5 * math.sqrt(0.25 / functions)
    for first, second in itertools.combinations(table, 2):
        # <r, x> of r that are not all 0 agree with probability 3/7, not 1/2.
        assert abs((first == second).mean() - 3 / 7) < 4.5 * math.sqrt(0.25 / functions)


def test_value_0_is_found_like_any_other() -> None:
    rng = np.random.default_rng(1)
    for heavy in (0, 1, 1023):
        mechanism = BucketProjection(epsilon=1, size=1024, seed=rng.bytes(32))
        values = np.unique(np.append(rng.integers(0, 1024, 500), heavy)).astype(np.uint64)
        counts = np.where(values == heavy, 300_000, 1_000)
        state = mechanism.simulate_state(values, counts, rng)
        assert mechanism.identify(state, int(counts.sum()))[0].value == heavy


@pytest.mark.parametrize(
    ("bits", "beta", "trials", "hashes"),
    [(10, 0.1, 19, 14), (20, 0.1, 19, 24), (20, 0.5, 6, 24), (32, 0.1, 19, 36), (64, 0.1, 19, 68)],
)
def test_trials_and_hash_functions_are_the_papers(
    bits: int, beta: float, trials: int, hashes: int
) -> None:
    mechanism = BucketProjection(epsilon=1, size=2**bits, seed=SEED, beta=beta)
    assert (mechanism.trials, mechanism.hashes) == (trials, hashes)
    assert mechanism.queries == trials * hashes
    assert mechanism.bits == (mechanism.queries - 1).bit_length() + 1


def test_many_light_values_hide_a_heavy_one_less_than_one_rival() -> None:
    # The condition is on the others' l2 norm: of 0.55 n, 5 rivals of 0.11 are no match for 0.45 n,
    # while one of 0.44 n makes the halves a toss-up. 20 runs each, of noise too low to matter.
    def make(seed: bytes) -> BucketProjection:
        return BucketProjection(epsilon=8, size=2**20, seed=seed)

    def rivals(count: int, run: int) -> bool:
        rng = np.random.default_rng(run)
        values = rng.choice(2**20, count + 101, replace=False).astype(np.uint64)
        light = np.full(100, 11_000 // 100 * 10)
        rest = np.full(count, 440_000 // count)
        counts = np.concatenate(([450_000], rest, light))
        mechanism = make(rng.bytes(32))
        state = mechanism.simulate_state(values, counts, rng)
        named = mechanism.identify(state, int(counts.sum()), 1)
        return bool(named) and named[0].value == int(values[0])

    assert sum(rivals(200, run) for run in range(20)) >= 19
    assert sum(rivals(1, run) for run in range(20)) <= 15


@pytest.mark.parametrize("beta", [0, 1, -1, math.nan, 1e-12])
def test_betas_out_of_range_are_refused(beta: float) -> None:
    with pytest.raises(ValueError, match="beta must be from"):
        BucketProjection(epsilon=1, size=1000, seed=SEED, beta=beta)
