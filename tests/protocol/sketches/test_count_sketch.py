"""Rows of counters, with signs and without: exact laws, unbiased rows, medians that resist."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from protocol.sketches.count_sketch import CountSketch, cell_bits, median

SEED, OTHER = bytes(range(32)), bytes(32)
SIGNS = pytest.mark.parametrize("signs", [None, OTHER])


def keys(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.uint64).reshape(-1, 1)


def sketch(signs: bytes | None = None, rows: int = 5, width: int = 50) -> CountSketch:
    return CountSketch(rows, width, 1, 1000, SEED, signs)


@SIGNS
@given(st.lists(st.integers(1, 50), max_size=20))
def test_sums_of_sketches_are_the_sketch_of_sums(signs: bytes | None, values: list[int]) -> None:
    one, half = sketch(signs), len(values) // 2
    counts, every = np.array(values, np.int64), keys(len(values))
    total = one.insert(every[:half], counts[:half])
    one.ring.add(total, one.insert(every[half:], counts[half:]))
    assert (total[0] == one.insert(every, counts)[0]).all()
    assert one.fault(total, sum(values)) is None
    if signs is None:
        assert (one.counts(total).sum(axis=1) == sum(values)).all()


@SIGNS
def test_a_key_alone_is_read_exactly(signs: bytes | None) -> None:
    one = sketch(signs)
    counts = one.counts(one.insert(keys(1), np.array([1000])))
    estimates = one.estimates(counts, keys(1))
    assert (estimates == 1000).all()
    assert one.variance(counts, median(estimates)) == 0


@SIGNS
def test_rows_are_unbiased(signs: bytes | None) -> None:
    """The mean of 4,000 rows is within 4.5 standard errors: odds of 1e-5."""
    values = np.array([30] + [5] * 40)
    rows = []
    for seed in range(80):
        places, own = seed.to_bytes(32, "big"), signs and (seed + 1000).to_bytes(32, "big")
        one = CountSketch(50, 20, 1, 1000, places, own)
        rows.append(one.estimates(one.counts(one.insert(keys(41), values)), keys(1))[:, 0])
    found = np.concatenate(rows)
    assert abs(found.mean() - 30) < 4.5 * found.std() / len(found) ** 0.5
    assert found.var() == pytest.approx(40 * 25 / 20, rel=0.15)


def test_signs_and_places_are_seeded_apart() -> None:
    values = np.full(30, 3)
    first = sketch(OTHER).insert(keys(30), values)[0]
    assert (first != CountSketch(5, 50, 1, 1000, SEED, SEED).insert(keys(30), values)[0]).any()
    same_cells = first != 0
    unsigned = sketch().insert(keys(30), values)[0]
    assert (unsigned[same_cells] > 0).all()  # signs move no key to another cell


@given(
    arrays(np.float64, st.tuples(st.integers(1, 18), st.integers(1, 6)), elements=st.floats(-9, 9))
)
def test_the_median_is_the_median(rows: np.ndarray) -> None:
    before = rows.copy()
    assert np.allclose(median(rows), np.median(rows, axis=0))
    assert (rows == before).all()


def test_unsigned_sums_that_break_a_law_are_told() -> None:
    one = sketch()
    total = one.insert(keys(30), np.full(30, 3))
    assert one.fault(total, 90) is None
    assert one.fault(total, 89) == "the counts add up to 90, which is more than 89"
    total[0][7] += 1
    assert one.fault(total, 90) == "the rows add up differently"


def test_signed_sums_that_break_a_law_are_told() -> None:
    one = sketch(OTHER)
    total = one.insert(keys(30), np.full(30, 3))
    counts = np.abs(one.counts(total)).sum(axis=1).max()
    assert one.fault(total, counts) is None
    fault = one.fault(total, counts - 1)
    assert fault == f"the counts of a row amount to {counts}, which is more than {counts - 1}"
    total[0][7] ^= 1
    assert one.fault(total, 90) == "some rows add up to an odd number, some to an even one"
    total[0][7] ^= 1
    total[0][7] ^= 2  # an even change within the bound: no law has it
    assert one.fault(total, 92) is None


@pytest.mark.parametrize("signs", [None, OTHER])
def test_garbage_breaks_a_law(signs: bytes | None) -> None:
    """As in the docstring, odds are 2^-40 or less without signs and 2^-99 with them."""
    one, rng = sketch(signs), np.random.default_rng(1)
    for _ in range(50):
        q = one.ring.lanes[0].q
        total = (rng.integers(0, q, 250).astype(one.ring.lanes[0].dtype),)
        assert one.fault(total, 1000) is not None


def test_cells_hold_everybodys_counts() -> None:
    assert (cell_bits(1000, signed=False), cell_bits(1000, signed=True)) == (10, 11)
    for signs in (None, OTHER):
        one = sketch(signs)
        assert np.abs(one.counts(one.insert(keys(1), np.array([1000])))).max() == 1000


@pytest.mark.parametrize("shape", [(0, 5), (64, 5), (3, 1)])
def test_impossible_shapes_are_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="rows"):
        CountSketch(*shape, chunks=1, max_count=9, location_seed=SEED)


def test_narrow_cells_count_modulo_and_tell_keys_without_bias() -> None:
    """Whoever reads them knows where a count lies: here from -28 up. Four standard errors."""
    counts, errors = np.arange(40) % 8, []
    for seed in range(300):
        fresh = seed.to_bytes(32, "big")
        one = CountSketch(1, 30, 1, 15, fresh, fresh, bits=6)
        total = one.insert(keys(40), counts)
        assert total[0].max() < 64 == one.ring.lanes[0].q
        cells, signs = one.edges(keys(40))
        read = total[0][cells[0]].astype(np.int64) * signs[0]
        errors.append((read + 28) % 64 - 28 - counts)
    assert abs(np.mean(errors)) < 4 * np.std(errors) / np.sqrt(40 * 300)
    variance = ((counts**2).sum() - counts**2).mean() / 30
    assert np.var(errors) == pytest.approx(variance, rel=0.1)
