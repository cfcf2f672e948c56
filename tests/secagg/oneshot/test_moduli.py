"""Lanes have powers of two in pairwise sums, and primes that a committee can share in others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.oneshot.field import check_prime_lanes, is_prime
from secagg.oneshot.moduli import PAIRWISE, Moduli
from secagg.oneshot.parameters import CommitteeParameters
from secagg.ring import Lane, Ring
from tests.secagg.oneshot.conftest import PARAMETERS

OPERATORS = Moduli.of(CommitteeParameters(7, 1, 1, 5))
VOLUNTEERS = Moduli.of(CommitteeParameters(200, 49, 45, 106))
each_moduli = pytest.mark.parametrize("moduli", [PAIRWISE, OPERATORS, VOLUNTEERS])


def test_the_smallest_prime_has_a_point_for_each_member_and_secret() -> None:
    assert (OPERATORS.min_prime, VOLUNTEERS.min_prime) == (13, 263)
    assert Moduli.of(PARAMETERS).min_prime == 13
    check_prime_lanes(Ring((Lane(OPERATORS.above(1), 1),)), 7 + 4)


@each_moduli
@given(largest=st.integers(1, 2**40))
def test_a_modulus_is_the_smallest_allowed_one_above(moduli: Moduli, largest: int) -> None:
    q = moduli.above(largest)
    assert q > largest
    if moduli is PAIRWISE:
        assert q & (q - 1) == 0
        assert q <= 2 * largest
    else:
        assert is_prime(q)
        assert not any(map(is_prime, range(max(largest + 1, moduli.min_prime), q)))


def test_narrow_lanes_have_the_smallest_prime() -> None:
    assert [OPERATORS.above(2**bits - 1) for bits in range(1, 6)] == [13, 13, 13, 17, 37]
    assert [each.min_bits for each in (PAIRWISE, OPERATORS, VOLUNTEERS)] == [1, 3, 8]
    for moduli in (OPERATORS, VOLUNTEERS):
        q = moduli.above(2**moduli.min_bits - 1)
        assert q == moduli.min_prime < moduli.above(2 ** (moduli.min_bits + 1) - 1)


def test_primes_take_little_more_than_powers_of_two() -> None:
    assert [PAIRWISE.element_bits(2**bits) for bits in (1, 12, 16)] == [1, 12, 16]
    bits = [OPERATORS.element_bits(OPERATORS.above(2**b - 1)) for b in (4, 5, 8, 12, 16)]
    assert bits == pytest.approx([4.09, 5.22, 8.17, 12.25, 16.33], abs=0.01)


@each_moduli
@given(largest=st.integers(1, 2**20), nbytes=st.integers(0, 500))
def test_no_longer_lane_packs_into_the_bytes(moduli: Moduli, largest: int, nbytes: int) -> None:
    q = moduli.above(largest)
    length = moduli.max_length(q, nbytes)
    assert not length or moduli.lane_bytes(Lane(q, length)) <= nbytes
    # The mean over a full group is the smallest per element, so that one more may rarely fit.
    assert moduli.lane_bytes(Lane(q, length + 2)) > nbytes


def test_a_vector_takes_the_bytes_of_its_lanes() -> None:
    ring = Ring((Lane(17, 100), Lane(65537, 3)))
    assert PAIRWISE.nbytes(ring) == ring.nbytes == 63 + 7
    assert OPERATORS.nbytes(ring) == 52 + 7


def test_a_lane_that_is_too_wide_is_refused() -> None:
    with pytest.raises(ValueError, match=r"below 2\^53"):
        OPERATORS.above(2**53)
