"""Lanes have powers of two in pairwise sums, and a prime that a committee can share in others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.oneshot.field import MAX_PRIME, check_prime, is_prime, suitable_prime
from secagg.oneshot.moduli import PAIRWISE, Moduli, divided, joined, one_lane
from secagg.oneshot.parameters import CommitteeParameters
from secagg.ring import Lane, Ring
from tests.secagg.oneshot.conftest import PARAMETERS, same

OPERATORS = Moduli.of(CommitteeParameters(7, 1, 1, 5))
VOLUNTEERS = Moduli.of(CommitteeParameters(200, 49, 45, 106))
each_moduli = pytest.mark.parametrize("moduli", [PAIRWISE, OPERATORS, VOLUNTEERS])


def test_the_smallest_prime_has_a_point_for_each_member_and_secret() -> None:
    assert (OPERATORS.min_prime, VOLUNTEERS.min_prime) == (13, 277)
    assert Moduli.of(PARAMETERS).min_prime == 13
    check_prime(OPERATORS.above(1), 7 + 4)


@each_moduli
@given(largest=st.integers(1, 2**25))
def test_a_modulus_is_the_smallest_allowed_one_above(moduli: Moduli, largest: int) -> None:
    q = moduli.above(largest)
    assert q > largest
    if moduli is PAIRWISE:
        assert q & (q - 1) == 0
        assert q <= 2 * largest
    else:
        assert is_prime(q)
        assert q == suitable_prime(max(largest + 1, moduli.min_prime))


def test_narrow_lanes_have_the_smallest_prime() -> None:
    assert [OPERATORS.above(2**bits - 1) for bits in range(1, 6)] == [13, 13, 13, 37, 37]


def test_primes_take_little_more_than_powers_of_two() -> None:
    assert [PAIRWISE.element_bits(2**bits) for bits in (1, 12, 16)] == [1, 12, 16]
    bits = [OPERATORS.element_bits(OPERATORS.above(2**b - 1)) for b in (5, 8, 12, 16)]
    assert bits == pytest.approx([5.22, 8.17, 12.25, 16.33], abs=0.01)


@each_moduli
@given(largest=st.integers(1, 2**20), nbytes=st.integers(0, 500))
def test_no_longer_lane_packs_into_the_bytes(moduli: Moduli, largest: int, nbytes: int) -> None:
    q = moduli.above(largest)
    length = moduli.max_length(q, nbytes)
    assert not length or moduli.lane_bytes(Lane(q, length)) <= nbytes
    # The mean over a full group is the smallest per element, so that one more may rarely fit.
    assert moduli.lane_bytes(Lane(q, length + 2)) > nbytes


def test_a_vector_takes_the_bytes_of_its_lanes() -> None:
    ring = Ring((Lane(521, 100), Lane(521, 3)))
    assert PAIRWISE.nbytes(ring) == ring.nbytes == 125 + 4
    assert OPERATORS.nbytes(ring) == OPERATORS.nbytes(one_lane(ring)) == 119


def test_a_lane_that_is_too_wide_is_refused() -> None:
    with pytest.raises(ValueError, match=r"less than 2\^26"):
        OPERATORS.above(MAX_PRIME)


def test_a_fixed_prime_is_that_of_all_lanes_below_it() -> None:
    fixed = OPERATORS.fixed(521)
    assert {fixed.above(largest) for largest in (1, 8, 520)} == {521}
    with pytest.raises(ValueError, match="sums up to 521 wrap modulo the prime 521"):
        fixed.above(521)
    for moduli, prime in ((OPERATORS, 509), (VOLUNTEERS, 13)):
        with pytest.raises(ValueError, match="is no prime for this sum"):
            moduli.fixed(prime)


def test_lanes_of_one_prime_are_one_lane() -> None:
    ring = Ring((Lane(13, 2), Lane(13, 1), Lane(13, 3)))
    vector = ring.vector([[1, 2], [3], [4, 5, 12]])
    (elements,) = joined(vector)
    assert elements.tolist() == [1, 2, 3, 4, 5, 12]
    assert one_lane(ring) == Ring((Lane(13, 6),))
    one_lane(ring).check((elements,))
    assert same(divided(ring, (elements,)), vector)
    with pytest.raises(ValueError, match="have one modulus"):
        one_lane(Ring((Lane(13, 2), Lane(37, 1))))
