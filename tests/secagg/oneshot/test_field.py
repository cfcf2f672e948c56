"""Exact arithmetic in prime fields of all sizes, against integers of Python."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.oneshot.field import (
    FieldMatrix,
    PackedRows,
    check_prime,
    is_prime,
    lagrange_matrix,
    suitable_prime,
)
from tests.vectors import reference as ref

PRIMES = [13, 257, 521, 4129, 65537, 2**24 - 3, 2**26 - 5]
each_prime = pytest.mark.parametrize("p", PRIMES)


def elements(p: int, *shape: int, seed: int = 1) -> Any:
    """Return elements of GF(p), of which the first are the largest."""
    drawn = np.random.default_rng(seed).integers(0, p, shape, np.uint64)
    drawn.reshape(-1)[:2] = p - 1
    return drawn


def test_primes_below_ten_thousand_are_those_of_a_sieve() -> None:
    sieve = np.ones(10_000, bool)
    sieve[:2] = False
    for n in range(2, 100):
        if sieve[n]:
            sieve[n * n :: n] = False
    assert [n for n in range(10_000) if is_prime(n)] == np.flatnonzero(sieve).tolist()


@pytest.mark.parametrize(
    ("least", "prime"), [(0, 13), (14, 37), (257, 277), (509, 521), (522, 541), (10_000, 10_009)]
)
def test_a_suitable_prime_is_one_modulo_12_or_20(least: int, prime: int) -> None:
    assert suitable_prime(least) == prime


def test_strong_pseudoprimes_are_composite() -> None:
    assert not any(map(is_prime, (3_215_031_751, 3_825_123_056_546_413_051, 561, 2047, 1)))


def test_a_suitable_prime_is_below_two_to_the_26() -> None:
    assert suitable_prime(2**26 - 300) < 2**26
    with pytest.raises(ValueError, match=r"count to less than 2\^26"):
        suitable_prime(2**26 - 4)


@pytest.mark.parametrize(
    ("q", "points"), [(251, 251), (258, 10), (11, 11), (257, 257), (2**26, 10), (2**26 + 15, 10)]
)
def test_a_modulus_that_does_not_fit_is_refused(q: int, points: int) -> None:
    with pytest.raises(ValueError, match="a prime from"):
        check_prime(q, points)
    check_prime(257, 256)
    check_prime(13, 12)


@each_prime
@pytest.mark.parametrize("inner", [1, 60, 700])
def test_matrix_products_are_exact(p: int, inner: int) -> None:
    left, right = elements(p, 3, inner), elements(p, inner, 2, seed=2)
    left[0], right[:, 0] = p - 1, p - 1
    exact = left.astype(object) @ right.astype(object) % p
    assert ((FieldMatrix(p, left) @ right).astype(object) == exact).all()


def test_products_of_the_largest_elements_are_exact_in_as_many_limbs_as_they_need() -> None:
    p = 2**26 - 5
    for inner in (2, 2**14, 2**14 + 1, 2**20):  # limbs of 13, 13, 12 and 7 bits
        largest = np.full((1, inner), p - 1, np.uint64)
        assert (FieldMatrix(p, largest) @ largest.T).item() == inner
    too_long = np.broadcast_to(np.uint64(1), (1, 2**27 + 1))
    with pytest.raises(ValueError, match="too long to be exact"):
        FieldMatrix(p, too_long)


@pytest.mark.parametrize("p", [47, *PRIMES[1:]])  # above all differences of points
def test_interpolation_matrices_are_lagranges(p: int) -> None:
    nodes, points = [-1, -2, -3, 1, 2, 9], [-2, 1, 3, 8, 9, 40]
    values = elements(p, len(nodes))
    through = dict(zip(nodes, values.tolist(), strict=True))
    matrix = FieldMatrix(p, lagrange_matrix(p, nodes, points))
    expected = [ref.interpolate(through, x, p) for x in points]
    assert (matrix @ values[:, np.newaxis])[:, 0].tolist() == expected


def packed_by_hand(p: int, row: list[int], group: int, bits: int) -> bytes:
    """Return the row as one integer, whose digits are groups of elements in base p."""
    number, place = 0, 0
    for start in range(0, len(row), group):
        part = row[start : start + group]
        number |= sum(element * p**i for i, element in enumerate(part)) << place
        place += bits if len(part) == group else (p ** len(part) - 1).bit_length()
    return number.to_bytes((place + 7) // 8, "little")


@given(p=st.sampled_from(PRIMES), length=st.integers(1, 40), seed=st.integers(0, 9))
def test_packed_rows_come_back(p: int, length: int, seed: int) -> None:
    packing, rows = PackedRows.of(p, length), elements(p, 3, length, seed=seed)
    packed = packing.pack(rows)
    assert packed.shape == (3, packing.nbytes)
    by_hand = [packed_by_hand(p, row, packing.group, packing.bits) for row in rows.tolist()]
    assert [row.tobytes() for row in packed] == by_hand
    unpacked, is_valid = packing.unpack(packed)
    assert np.array_equal(unpacked, rows)
    assert is_valid.all()
    assert all(packing.is_valid(row.tobytes()) for row in packed)
    noise = np.random.default_rng(seed).integers(0, 256, (8, packing.nbytes), dtype=np.uint8)
    noise[:, -1] >>= np.arange(8, dtype=np.uint8)  # some have no padding bit
    are_packed = packing.unpack(noise)[1].tolist()
    assert [packing.is_valid(row.tobytes()) for row in noise] == are_packed
    assert packing.nbytes <= (length * ref.bits(p) + 7) // 8


@pytest.mark.parametrize(
    ("p", "length", "group", "nbytes"),
    [(257, 6, 6, 7), (257, 1, 6, 2), (4129, 8, 4, 13), (65537, 6, 3, 13), (2**26 - 5, 3, 1, 10)],
)
def test_sizes_of_packed_rows(p: int, length: int, group: int, nbytes: int) -> None:
    assert (PackedRows.of(p, length).group, PackedRows.of(p, length).nbytes) == (group, nbytes)


@pytest.mark.parametrize(
    ("p", "length", "row"),
    [
        (257, 1, "0101"),  # 257
        (257, 1, "0002"),  # padding
        (257, 6, (257**6).to_bytes(7, "little").hex()),
        (257, 6, (2**49).to_bytes(7, "little").hex()),
        (257, 7, (257**6).to_bytes(8, "little").hex()),
        (257, 7, (257 << 49).to_bytes(8, "little").hex()),
        (2**26 - 5, 1, "ffffff03"),
    ],
)
def test_bytes_into_which_elements_do_not_pack_are_not_valid(p: int, length: int, row: str) -> None:
    packing = PackedRows.of(p, length)
    bad, good = np.frombuffer(bytes.fromhex(row), np.uint8), np.zeros(packing.nbytes, np.uint8)
    unpacked, is_valid = packing.unpack(np.stack([bad, good]))
    assert is_valid.tolist() == [False, True]
    assert [packing.is_valid(row.tobytes()) for row in (bad, good)] == [False, True]
    assert (unpacked < p).all()
