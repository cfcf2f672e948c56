"""Medians of rows: no bias, true variances on skewed data, and exact values without noise."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from protocol.numerics.array_types import Floats
from protocol.reference_mechanisms.count_sketch import CountSketch
from protocol.reference_mechanisms.median_estimates import (
    MedianEstimates,
    RowEstimates,
    estimate_medians,
    estimate_sums_of_rounds,
    keys_of_nobody,
    median,
)

KEYS = np.arange(1000, dtype=np.uint64).reshape(-1, 1)
SHARES = {"skewed": np.arange(1, 1001) ** -1.2, "even": np.ones(1000)}


def read_once(counts: Floats, rows: int, seed: int, *, has_signs: bool) -> MedianEstimates:
    places = seed.to_bytes(32)
    sketch = CountSketch(rows, 150, 1, 10_000, places, places if has_signs else None)
    return sketch.read(sketch.counts(sketch.insert(KEYS, counts.astype(np.int64))), KEYS)[0]


def read_rounds(rounds: Floats, rows: int, seed: int) -> MedianEstimates:
    """Return the estimates of all keys from a sketch of each round, with the same cells."""
    every, estimates = np.concatenate((KEYS, keys_of_nobody(1))), []
    for number, counts in enumerate(rounds.astype(np.int64)):
        signs = (1000 * seed + number + 1).to_bytes(32)
        sketch = CountSketch(rows, 150, 1, 10_000, seed.to_bytes(32), signs)
        estimates.append(sketch.estimates(sketch.counts(sketch.insert(KEYS, counts)), every))
    return estimate_sums_of_rounds(estimates, len(KEYS), np.random.default_rng(seed))


def assert_calibrated(parts: list[tuple[Floats, Floats]]) -> None:
    errors, variances = np.concatenate(parts, axis=1)
    deviations = np.sqrt(np.maximum(variances, 1 / 12))
    z_scores = errors / deviations
    assert abs(errors.mean()) < 0.08 * errors.std()
    assert 0.9 < np.sqrt((z_scores**2).mean()) < 1.1
    assert 0.93 < (np.abs(errors) < 1.96 * deviations + 0.5).mean() < 0.98
    assert (np.abs(z_scores) > 5).mean() < 1 / 200


@pytest.mark.parametrize(
    ("shape", "rows", "has_signs"),
    [("skewed", 6, True), ("skewed", 7, False), ("skewed", 6, False), ("even", 4, True)],
)
def test_sums_of_sketches_have_no_bias_and_true_errors(
    shape: str, rows: int, has_signs: bool
) -> None:
    """Check 3 studies of 8 rounds with fresh cells by 4 standard errors of 3,000 errors.

    One of these tests fails with a probability of 1e-3. Errors of a sketch are nearly independent,
    and one in 1,000 is beyond 5 standard errors in such small and skewed sketches.
    """
    rng, parts = np.random.default_rng(1), []
    for study in range(3):
        rounds = rng.multinomial(2000, SHARES[shape] / SHARES[shape].sum(), 8)
        read = [
            read_once(counts, rows, 8 * study + number + 1, has_signs=has_signs)
            for number, counts in enumerate(rounds)
        ]
        counts, variances = np.sum(read, axis=0)
        parts.append((counts - rounds.sum(axis=0), variances))
    assert_calibrated(parts)


@pytest.mark.parametrize(("shape", "rows"), [("skewed", 5), ("skewed", 6), ("even", 3)])
def test_sums_over_the_same_cells_have_no_bias_and_true_errors(shape: str, rows: int) -> None:
    """Check 3 studies of 20 rounds, as above, which keep the cells and have fresh signs."""
    rng, parts = np.random.default_rng(2), []
    for seed in range(3):
        rounds = rng.multinomial(1000, SHARES[shape] / SHARES[shape].sum(), 20)
        estimates = read_rounds(rounds, rows, seed)
        parts.append((estimates.counts - rounds.sum(axis=0), estimates.variances))
    assert_calibrated(parts)


@pytest.mark.parametrize("has_signs", [True, False])
@pytest.mark.parametrize("rows", [1, 3])
def test_the_own_count_of_a_frequent_key_is_not_in_its_error(rows: int, has_signs: bool) -> None:
    """Every estimate of a key with 9,000 of 10,000 counts is within 5 of its standard errors.

    Its standard errors are those of the other 1,000 counts in 150 cells. Of 20 sketches, none fails
    with a probability above 1e-4.
    """
    rng = np.random.default_rng(3)
    for seed in range(20):
        counts = rng.multinomial(1000, np.ones(1000) / 1000)
        counts[0] += 9000
        estimate = read_once(counts, rows, seed, has_signs=has_signs)
        deviation = estimate.variances[0] ** 0.5
        assert deviation < 5
        assert abs(estimate.counts[0] - counts[0]) < 5 * deviation


def test_the_largest_noise_of_many_candidates_is_seen() -> None:
    """Count the candidates, of 2^17, with more noise than all keys that measure it.

    Of two equal samples of noise, k of the first are above the second with probability 2^-(k + 1).
    The sum of five is above 20 with a probability of 1e-3. With 2^14 keys it is 40 on average.
    """
    candidates = np.arange(1000, 1000 + 2**17, dtype=np.uint64).reshape(-1, 1)
    held = np.array([4000] * 3 + [1] * 997)
    above = 0
    for seed in range(5):
        places = seed.to_bytes(32)
        sketch = CountSketch(5, 150, 1, 20_000, places, places)
        read, noise = sketch.read(sketch.counts(sketch.insert(KEYS, held)), candidates)
        above += int((read.counts > noise.counts.max()).sum())
    assert above <= 20


def test_keys_alone_in_their_cells_are_exact() -> None:
    rounds = np.zeros((4, 1000))
    rounds[:, 0] = 50
    estimates = read_rounds(rounds, 5, 1)
    assert (estimates.counts[0], estimates.variances[0]) == (200, 0)


def test_variances_are_never_rounded_below_zero() -> None:
    """Noise that grows faster than the squares of the gaps has no variance at a gap of 0."""
    cells = np.arange(250).reshape(5, 50)
    for seed in range(200):
        rng = np.random.default_rng(seed)
        gaps = rng.random(50) * np.where(rng.random(50) < 0.1, 9, 1)
        middles = np.where(gaps > 1, gaps**2 / 7, 0) * rng.choice([-1, 1], 50)
        noise = middles + gaps / 2 * np.array([-1, -1, 0, 1, 1])[:, np.newaxis]
        keys = RowEstimates(np.zeros((5, 3)), cells[:, :3])
        both = estimate_medians(keys, RowEstimates(noise, cells), has_signs=True)
        assert all((each.variances >= 0).all() for each in both)


READERS: list[Callable[[Floats], MedianEstimates]] = [
    lambda rounds: read_once(rounds[0], 5, 7, has_signs=False),
    lambda rounds: read_rounds(rounds, 5, 7),
]


@pytest.mark.parametrize("read", READERS)
def test_a_sum_is_read_alike_each_time(read: Callable[[Floats], MedianEstimates]) -> None:
    rounds = np.random.default_rng(4).multinomial(
        1000, SHARES["skewed"] / SHARES["skewed"].sum(), 3
    )
    first, second = read(rounds.astype(np.float64)), read(rounds.astype(np.float64))
    assert (first.counts == second.counts).all()
    assert (first.variances == second.variances).all()


@given(
    arrays(np.float64, st.tuples(st.integers(1, 18), st.integers(1, 6)), elements=st.floats(-9, 9))
)
def test_the_median_is_the_median(rows: np.ndarray) -> None:
    before = rows.copy()
    assert np.allclose(median(rows), np.median(rows, axis=0))
    assert (rows == before).all()
