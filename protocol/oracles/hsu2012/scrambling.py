"""A public permutation of the values below 2^bits, which makes similar values unlike in their bits.

Strings that begin alike have values with similar bits, and GLPS-HH, which adds up a value once
for each of its bits, would count a rival's agreeing bits as its own. Three rounds of

    x  <-  a x + b mod 2^bits,     x  <-  x xor (x >> ceil(bits / 2))           a odd

remove the structure of strings. The permutation hides nothing: anyone can invert it.

Source: the finalizers of [Steele14] (SplitMix), with random a and b.
"""

from dataclasses import dataclass, field

import numpy as np

from protocol.arrays import ItemValues
from protocol.hashing import HashFamily

_ROUNDS = 3


@dataclass(frozen=True)
class Scrambling:
    """The permutation of `bits` bits, 2 to 64, for the 32 bytes of `seed`."""

    bits: int
    seed: bytes = field(repr=False)

    def scramble(self, values: ItemValues) -> ItemValues:
        """Return the image of each of `values`."""
        for a, b in self._round_constants():
            values = self._truncate(values * np.uint64(a) + np.uint64(b))
            values = values ^ (values >> self._shift)
        return values

    def unscramble(self, values: ItemValues) -> ItemValues:
        """Return the preimage of each of `values`."""
        for a, b in reversed(self._round_constants()):
            values = values ^ (
                values >> self._shift
            )  # its own inverse, since twice the shift is all bits
            inverse = pow(a, -1, 2**64)
            values = self._truncate((values - np.uint64(b)) * np.uint64(inverse))
        return values

    @property
    def _shift(self) -> np.uint64:
        return np.uint64(-(-self.bits // 2))

    def _truncate(self, values: ItemValues) -> ItemValues:
        return values & np.uint64(2**self.bits - 1)

    def _round_constants(self) -> list[tuple[int, int]]:
        numbers = np.arange(_ROUNDS, dtype=np.uint64)[:, np.newaxis]
        words = HashFamily(self.seed, "scrambling", 1, 2).hash(numbers).tolist()
        return [(a | 1, b) for a, b in words]
