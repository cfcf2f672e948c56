"""Decoding over fields of any prime order, against the polynomial that was evaluated."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.reed_solomon import decode

PRIMES = (257, 65537, 2**61 - 1)


def values_of(p: int, polynomial: list[int], points: range) -> dict[int, int]:
    return {x: sum(c * x**i for i, c in enumerate(polynomial)) % p for x in points}


@given(data=st.data(), p=st.sampled_from(PRIMES), n=st.integers(1, 14))
def test_false_values_up_to_half_the_redundancy_are_located(
    data: st.DataObject, p: int, n: int
) -> None:
    k = data.draw(st.integers(1, n))
    polynomial = data.draw(st.lists(st.integers(0, p - 1), min_size=k, max_size=k))
    values = values_of(p, polynomial, range(1, n + 1))
    false = data.draw(st.sets(st.sampled_from(sorted(values)), max_size=(n - k) // 2))
    for x in false:
        values[x] = (values[x] + data.draw(st.integers(1, p - 1))) % p
    while polynomial and polynomial[-1] == 0:
        polynomial.pop()
    assert decode(p, values, k) == (polynomial, false)


@pytest.mark.parametrize("p", PRIMES)
def test_more_false_values_than_half_the_redundancy_are_not_located(p: int) -> None:
    values = values_of(p, [3, 1, 4], range(1, 10))
    for x in (2, 3, 5, 7):
        values[x] = (values[x] + x**4) % p
    assert decode(p, values, 3) is None
