"""A public permutation of the values below 2^bits, so that what is alike in values is not in bits.

Strings that begin alike have values whose bits are alike, and GLPS-HH, which adds up a value once
for each of its bits, would count a rival's agreeing bits as its own. Three rounds of

    x  <-  a x + b mod 2^bits,     x  <-  x xor (x >> ceil(bits / 2))           a odd

leave no structure that strings have. It hides nothing: everybody can undo it.

Source: the finalizers of [Steele14] (SplitMix), with a and b drawn.
"""

from dataclasses import dataclass, field

import numpy as np

from protocol.hashing import Family
from protocol.item_space import Values

_ROUNDS = 3


@dataclass(frozen=True)
class Scrambling:
    """The permutation of `bits` bits, 2 to 64, that grows from the 32 bytes of `seed`."""

    bits: int
    seed: bytes = field(repr=False)

    def forth(self, values: Values) -> Values:
        """Return where `values` go."""
        for a, b in self._steps():
            values = self._low(values * np.uint64(a) + np.uint64(b))
            values = values ^ (values >> self._half)
        return values

    def back(self, values: Values) -> Values:
        """Return what goes to `values`."""
        for a, b in reversed(self._steps()):
            values = values ^ (values >> self._half)  # undoes itself: twice the shift is all bits
            inverse = pow(a, -1, 2**64)
            values = self._low((values - np.uint64(b)) * np.uint64(inverse))
        return values

    @property
    def _half(self) -> np.uint64:
        return np.uint64(-(-self.bits // 2))

    def _low(self, values: Values) -> Values:
        return values & np.uint64(2**self.bits - 1)

    def _steps(self) -> list[tuple[int, int]]:
        numbers = np.arange(_ROUNDS, dtype=np.uint64)[:, np.newaxis]
        words = Family(self.seed, "scrambling", 1, 2).hash(numbers).tolist()
        return [(a | 1, b) for a, b in words]
