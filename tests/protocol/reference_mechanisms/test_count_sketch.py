"""Rows of counters, with signs and without: exact laws, unbiased rows, medians that resist."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.privacy.noise_shares import simulate_skellam_sum
from protocol.reference_mechanisms.count_sketch import CountSketch, absolute_sum_bound, cell_modulus
from secagg.oneshot.moduli import PAIRWISE, Moduli

SEED, OTHER_SEED = bytes(range(32)), bytes(32)
SIGNS = pytest.mark.parametrize("signs", [None, OTHER_SEED])


def keys(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.uint64).reshape(-1, 1)


def sketch(signs: bytes | None = None, rows: int = 5, width: int = 50) -> CountSketch:
    return CountSketch(rows, width, 1, 1000, SEED, signs)


@SIGNS
@given(st.lists(st.integers(1, 50), max_size=20))
def test_sums_of_sketches_are_the_sketch_of_sums(signs: bytes | None, values: list[int]) -> None:
    table, half = sketch(signs), len(values) // 2
    counts, every = np.array(values, np.int64), keys(len(values))
    total = table.insert(every[:half], counts[:half])
    table.ring.add(total, table.insert(every[half:], counts[half:]))
    assert (total[0] == table.insert(every, counts)[0]).all()
    assert table.fault(total, sum(values)) is None
    if signs is None:
        assert (table.counts(total).sum(axis=1) == sum(values)).all()


@SIGNS
def test_a_key_alone_is_read_exactly(signs: bytes | None) -> None:
    table = sketch(signs)
    counts = table.counts(table.insert(keys(1), np.array([1000])))
    estimates = table.estimates(counts, keys(1))
    assert (estimates == 1000).all()
    assert table.read(counts, keys(1))[0] == (1000, 0)


@SIGNS
def test_rows_are_unbiased_with_signs_and_too_high_by_the_mean_without(signs: bytes | None) -> None:
    """The mean of 4,000 rows is within 4.5 standard errors: p = 1e-5."""
    values = np.array([30] + [5] * 40)
    rows = []
    for seed in range(80):
        places, own = seed.to_bytes(32, "big"), signs and (seed + 1000).to_bytes(32, "big")
        table = CountSketch(50, 20, 1, 1000, places, own)
        rows.append(table.estimates(table.counts(table.insert(keys(41), values)), keys(1))[:, 0])
    estimates = np.concatenate(rows)
    expected = 30 if signs else 30 + 40 * 5 / 20
    assert abs(estimates.mean() - expected) < 4.5 * estimates.std() / len(estimates) ** 0.5
    assert estimates.var() == pytest.approx(40 * 25 / 20, rel=0.15)


def test_signs_and_places_are_seeded_apart() -> None:
    values = np.full(30, 3)
    first = sketch(OTHER_SEED).insert(keys(30), values)[0]
    assert (first != CountSketch(5, 50, 1, 1000, SEED, SEED).insert(keys(30), values)[0]).any()
    same_cells = first != 0
    unsigned = sketch().insert(keys(30), values)[0]
    assert (unsigned[same_cells] > 0).all()  # signs move no key to another cell


def test_unsigned_sums_that_break_a_law_are_faults() -> None:
    table = sketch()
    total = table.insert(keys(30), np.full(30, 3))
    assert table.fault(total, 90) is None
    assert table.fault(total, 89) == "the counts are more than the devices may hold"
    total[0][7] += 1
    assert table.fault(total, 90) == "the rows add up differently"


def test_signed_sums_that_break_a_law_are_faults() -> None:
    table = sketch(OTHER_SEED)
    total = table.insert(keys(30), np.full(30, 3))
    counts = np.abs(table.counts(total)).sum(axis=1).max()
    assert table.fault(total, counts) is None
    fault = table.fault(total, counts - 1)
    assert fault == "the counts of a row are more than the devices may hold"
    total[0][7] ^= 1
    assert table.fault(total, 90) == "some rows add up to an odd number, some to an even one"
    total[0][7] ^= 1
    total[0][7] ^= 2  # an even change within the bound: no law has it
    assert table.fault(total, 92) is None


@pytest.mark.parametrize("signs", [None, OTHER_SEED])
def test_garbage_breaks_a_law(signs: bytes | None) -> None:
    """The probability is 2^-40 or less without signs and 2^-99 with them, as documented."""
    table, rng = sketch(signs), np.random.default_rng(1)
    for _ in range(50):
        q = table.ring.lanes[0].q
        total = (rng.integers(0, q, 250).astype(table.ring.lanes[0].dtype),)
        assert table.fault(total, 1000) is not None


def test_cells_hold_everybodys_counts() -> None:
    moduli = [cell_modulus(1000, PAIRWISE, signed=signed) for signed in (False, True)]
    primes = [cell_modulus(1000, Moduli(13), signed=signed) for signed in (False, True)]
    assert (moduli, primes) == ([1024, 2048], [1009, 2017])
    for signs, own in product((None, OTHER_SEED), (PAIRWISE, Moduli(13))):
        table = replace(sketch(signs), moduli=own)
        counts = table.counts(table.insert(keys(1), np.array([1000])))
        assert np.abs(counts).max() == np.abs(counts.sum(axis=1)).min() == 1000


@pytest.mark.parametrize("shape", [(0, 5), (64, 5), (3, 1)])
def test_impossible_shapes_are_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="rows"):
        CountSketch(*shape, chunks=1, max_count=9, location_seed=SEED)


@pytest.mark.parametrize("variance", [2.0**-10, 0.5, 30.0, 10_000.0])
@pytest.mark.parametrize("cells", [2, 100])
def test_absolute_noise_rarely_exceeds_its_bound(variance: float, cells: int) -> None:
    """Draw 2,000 sums: 30 or more exceed a bound of one in 200 with probability 1e-6."""
    rng = np.random.default_rng(5)
    sums = [int(np.abs(simulate_skellam_sum(rng, variance, cells)).sum()) for _ in range(2000)]
    bound = absolute_sum_bound(variance, cells, 1 / 200)
    assert sum(total > bound for total in sums) < 30
    assert bound < 10 + 4 * cells * max(variance, 1) ** 0.5  # and it is not without use
