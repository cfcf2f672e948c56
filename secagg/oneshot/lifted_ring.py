"""Vectors of any ring in prime lanes, so that a committee can sum them: for simulations.

A mechanism adds modulo 2^b, and a committee modulo a prime. A lane whose q is a prime that fits
the committee stays as it is. Any other lane of n devices gets the smallest prime p above n q. Each
element x is lifted to the integer next to zero that it stands for, from -q / 2 to below q / 2, and
to its residue modulo p. The sum of these integers is between -p / 2 and p / 2, so that it follows
from its residue, and its residue modulo q is the sum in the ring.

This takes about log2(n) bits more per element than the ring, and reveals the sum of the integers
and not only its residue modulo q. A mechanism in a service therefore needs lanes that are prime
from the start (`sharing.prime_ring`); then nothing is lifted.

Source: an addition of blindtally.
"""

from dataclasses import dataclass

import numpy as np

from secagg.oneshot.field import MAX_PRIME, MIN_PRIME, is_prime, least_prime
from secagg.oneshot.parameters import CommitteeParameters
from secagg.ring import Lane, Ring, Vector


@dataclass(frozen=True, slots=True)
class LiftedRing:
    """The prime lanes `lifted` in which sums of vectors of `ring` are exact."""

    ring: Ring
    lifted: Ring

    @classmethod
    def of(cls, ring: Ring, devices: int, parameters: CommitteeParameters) -> "LiftedRing":
        """Return the lanes for sums of at most `devices` vectors of `ring`.

        Raises:
            ValueError: if a lane needs a prime of 2^62 or more.
        """
        points = parameters.members + parameters.packed_secrets
        smallest = max(MIN_PRIME, points + 1)

        def prime(q: int) -> int:
            if smallest <= q < MAX_PRIME and is_prime(q):
                return q
            return least_prime(max(smallest, devices * q + 1))

        return cls(ring, Ring(tuple(Lane(prime(lane.q), lane.length) for lane in ring.lanes)))

    def lift(self, vector: Vector) -> Vector:
        """Return a vector of `ring` in the prime lanes."""
        return tuple(
            _change_modulus(elements.astype(np.uint64), lane.q, target)
            for elements, lane, target in zip(
                vector, self.ring.lanes, self.lifted.lanes, strict=True
            )
        )

    def lower(self, total: Vector) -> Vector:
        """Return a sum of lifted vectors in `ring`."""
        return tuple(
            _change_modulus(elements.astype(np.uint64), lane.q, target)
            for elements, lane, target in zip(
                total, self.lifted.lanes, self.ring.lanes, strict=True
            )
        )


def _change_modulus(
    elements: np.ndarray[tuple[int, ...], np.dtype[np.uint64]], q: int, target: Lane
) -> np.ndarray[tuple[int, ...], np.dtype[np.unsignedinteger]]:
    """Return the integers next to zero that residues modulo `q` < 2^63 stand for, in `target`."""
    signed = elements.astype(np.int64)
    signed[signed >= (q + 1) // 2] -= q
    if target.q >= 2**63:  # the residue of a signed integer modulo 2^63 or 2^64 is its low bits
        low: np.ndarray[tuple[int, ...], np.dtype[np.unsignedinteger]]
        low = signed.astype(np.uint64) & np.uint64(target.q - 1)
        return low.astype(target.dtype)
    return (signed % target.q).astype(target.dtype)
