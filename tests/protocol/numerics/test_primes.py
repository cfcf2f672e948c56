"""Moduli are primes, and as wide as their bits allow."""

import pytest

from protocol.numerics.primes import is_prime, widest_prime


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
