"""Moduli are primes, small fields are fields, and their transforms decode what enumeration does."""

import numpy as np
import pytest

from protocol.numerics.finite_fields import (
    finite_field,
    fourier_support,
    is_prime,
    walsh_hadamard,
    widest_prime,
)


def test_small_primes_are_distinguished_from_other_numbers() -> None:
    sieve = [n > 1 and all(n % d for d in range(2, int(n**0.5) + 1)) for n in range(10_000)]
    assert [is_prime(n) for n in range(10_000)] == sieve


@pytest.mark.parametrize(
    ("n", "prime"),
    [
        (2**31 - 1, True),
        (2**31 - 3, False),
        (2_047, False),  # a strong pseudoprime to base 2
        (1_373_653, False),  # to bases 2 and 3
        (25_326_001, False),  # to bases 2, 3 and 5
        (2**24 + 43, True),
    ],
)
def test_pseudoprimes_do_not_pass(n: int, *, prime: bool) -> None:
    assert is_prime(n) is prime


@pytest.mark.parametrize(
    ("above", "prime"),
    [
        (1, 3),
        (2, 3),
        (3, 7),  # the next, 5, takes 3 bits, and so does 7
        (97_335, 131_071),
        (2**24 - 1, 2**25 - 39),
        (2**31 - 2, 2**31 - 1),
    ],
)
def test_the_widest_prime_takes_no_more_bits_than_the_next(above: int, prime: int) -> None:
    assert widest_prime(above) == prime


def test_products_must_fit_in_64_bits() -> None:
    with pytest.raises(ValueError, match="below 2\\^31"):
        widest_prime(2**31 - 1)


@pytest.mark.parametrize("q", [2, 3, 4, 5, 7, 8, 16, 64])
def test_products_are_those_of_a_field(q: int) -> None:
    table = finite_field(q).products
    numbers = np.arange(q)
    assert (table == table.T).all()
    assert (table[1] == numbers).all()
    for u in range(1, q):
        assert sorted(table[u].tolist()) == numbers.tolist()  # so there is an inverse
        assert (table[table[u]] == table[u][table]).all()  # (u v) w = u (v w)
        sums = numbers[:, np.newaxis] ^ numbers if q in (2, 4, 8, 16, 64) else None
        if sums is not None:
            assert (table[u][sums] == table[u][:, np.newaxis] ^ table[u]).all()


@pytest.mark.parametrize("q", [2, 4, 8, 32])
def test_the_dual_turns_traces_of_products_into_bits(q: int) -> None:
    field = finite_field(q)
    numbers = np.arange(q)
    bits = np.bitwise_count(field.trace_dual[:, np.newaxis] & numbers) & 1
    traces = bits[1]  # Tr(1 v)
    assert (bits == traces[field.products.astype(np.int64)]).all()
    assert traces.sum() == q // 2
    assert (traces[numbers[:, np.newaxis] ^ numbers] == traces[:, np.newaxis] ^ traces).all()


@pytest.mark.parametrize("q", [1, 6, 9, 1025, 1031])
def test_other_orders_are_refused(q: int) -> None:
    with pytest.raises(ValueError, match="q must be a prime or a power of 2 from 2 to 1024"):
        finite_field(q)


@pytest.mark.parametrize(("q", "length"), [(2, 5), (3, 4), (4, 3), (5, 3), (8, 2), (13, 2)])
def test_the_transform_is_the_sum_over_reports(q: int, length: int) -> None:
    field, size = finite_field(q), q**length
    table = np.random.default_rng(q).integers(0, 1000, (size, q))
    r, x = np.arange(size, dtype=np.uint64)[:, np.newaxis], np.arange(size, dtype=np.uint64)
    hashed = field.inner_product(r, x[np.newaxis], length).astype(np.int64)
    expected = np.take_along_axis(table, hashed, axis=1).sum(axis=0)
    assert (fourier_support(table, field, length) == expected).all()


def test_the_hadamard_transform_is_the_matrix() -> None:
    j = np.arange(64)
    matrix = 1 - 2 * (np.bitwise_count(j[:, np.newaxis] & j) & 1).astype(np.int64)
    cells = np.random.default_rng(1).integers(-50, 50, (3, 64))
    assert (walsh_hadamard(cells) == cells @ matrix).all()
