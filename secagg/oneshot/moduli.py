"""Moduli of the lanes of a sum: powers of two in pairwise sums, one prime in a one-shot sum.

A mechanism asks for the smallest modulus above the largest sum that must not wrap.

    pairwise    2^b: additions wrap at no cost, and an element takes b bits
    one-shot    one prime p below 2^26 for all lanes, at least m + rho + 1 for a committee of m
                members with rho secrets in a polynomial. Elements are packed in base p
                (`field.PackedRows`), and products of two are exact in float64

A prime above 2^b takes little more than b bits: 16.3 for 65,609, and 8.2 for 277. So decoders must
not assume that a modulus is even, nor that counts wrap at 2^b. A field must have a point for each
member and each secret, and a message has blinds and a degree proof for its prime, of about 48 bits
per member and per node: several primes would cost as many. A mechanism whose lanes have different
bounds chooses the prime, and then uses `Moduli.fixed`.

Source: an addition of blindtally.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Self

import numpy as np

from secagg.oneshot.field import PackedRows, suitable_prime
from secagg.oneshot.parameters import CommitteeParameters
from secagg.ring import Lane, Ring, Vector


@dataclass(frozen=True, slots=True)
class Moduli:
    """The moduli that lanes may have: primes of `min_prime` or more, with 0 the powers of two.

    With a `prime` all lanes have this one.
    """

    min_prime: int = 0
    prime: int = 0

    @classmethod
    def of(cls, parameters: CommitteeParameters) -> Self:
        """Return the moduli of one-shot sums for a committee."""
        return cls(suitable_prime(parameters.members + parameters.packed_secrets + 1))

    def fixed(self, prime: int) -> "Moduli":
        """Return these moduli with one `prime` for all lanes.

        Raises:
            ValueError: if the prime is not suitable, or below `min_prime`.
        """
        if prime < self.min_prime or suitable_prime(prime) != prime:
            raise ValueError(f"{prime} is no prime for this sum: {self.above(prime - 1)} is one")
        return Moduli(self.min_prime, prime)

    def above(self, largest: int) -> int:
        """Return the smallest modulus above `largest`, so that 0 to `largest` do not wrap.

        Raises:
            ValueError: if it would be a prime of 2^26 or more, or the fixed one is too small.
        """
        if not self.min_prime:
            return 1 << largest.bit_length()
        if self.prime and self.prime <= largest:
            raise ValueError(f"sums up to {largest:,} wrap modulo the prime {self.prime:,}")
        return self.prime or suitable_prime(max(largest + 1, self.min_prime))

    def element_bits(self, q: int) -> float:
        """Return the mean number of bits that an element modulo `q` takes in a long lane."""
        if not self.min_prime:
            return (q - 1).bit_length()
        packing = PackedRows.of(q, 1)
        return packing.bits / packing.group

    def nbytes(self, ring: Ring) -> int:
        """Return the size in bytes of a packed vector of `ring`."""
        return self.nbytes_of(ring.lanes)

    def nbytes_of(self, lanes: Sequence[Lane]) -> int:
        """Return the size in bytes of packed `lanes`; those of a one-shot sum are one lane."""
        if not self.min_prime or not lanes:
            return sum(lane.nbytes for lane in lanes)
        return PackedRows.of(lanes[0].q, sum(lane.length for lane in lanes)).nbytes

    def lane_bytes(self, lane: Lane) -> int:
        """Return the size in bytes of a packed lane."""
        return PackedRows.of(lane.q, lane.length).nbytes if self.min_prime else lane.nbytes

    def max_length(self, q: int, nbytes: int) -> int:
        """Return the number of elements modulo `q` that pack into `nbytes`, 0 if none does."""
        length = int(8 * nbytes // self.element_bits(q))
        while length and self.lane_bytes(Lane(q, length)) > nbytes:
            length -= 1
        return length


PAIRWISE: Final = Moduli()


def one_lane(ring: Ring) -> Ring:
    """Return the ring of one lane in which a committee sums vectors of `ring`, joined.

    Raises:
        ValueError: if its lanes have different moduli.
    """
    if len({lane.q for lane in ring.lanes}) != 1:
        raise ValueError("the lanes of a one-shot sum have one modulus")
    return Ring((Lane(ring.lanes[0].q, sum(lane.length for lane in ring.lanes)),))


def joined(vector: Vector) -> Vector:
    """Return a vector in one lane."""
    return (np.concatenate(vector),)


def divided(ring: Ring, vector: Vector) -> Vector:
    """Return the vector of `ring` whose `joined` form is given."""
    ends = accumulate(lane.length for lane in ring.lanes)
    return tuple(np.split(vector[0], [*ends][:-1]))
