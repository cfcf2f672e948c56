"""RAPPOR: the value as a vector of bits with a single 1, and each bit flipped at random.

    symmetric       a bit stays with probability e^(eps/2) / (e^(eps/2) + 1)
    asymmetric      a 1 stays with probability 1/2, a 0 becomes 1 with probability 1 / (e + 1)

Two values differ in two bits, so e^epsilon is the ratio of probabilities over both.

Source: [Erlingsson14] without its memory; the asymmetric form is optimal unary encoding
[Wang17, section 4.3].
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from protocol.numerics.array_types import Flags, ItemValues
from protocol.oracles.base_oracles import BitVectorOracle
from protocol.randomness import PROBABILITY_ONE, RandomWords, bernoulli, favoured_of_2_64


@dataclass(frozen=True)
class Rappor(BitVectorOracle):
    """Basic RAPPOR with symmetric or asymmetric probabilities."""

    name = "rappor"
    symmetric: bool

    @cached_property
    def one_stays_of_2_64(self) -> int:
        """Return the probability, as a part of 2^64, that the bit of a device's value is 1."""
        return favoured_of_2_64(self.epsilon / 2, 1, 1) if self.symmetric else PROBABILITY_ONE // 2

    @cached_property
    def zero_flips_of_2_64(self) -> int:
        """Return the probability, as a part of 2^64, that the bit of another value is 1."""
        return PROBABILITY_ONE - favoured_of_2_64(
            self.epsilon / 2 if self.symmetric else self.epsilon, 1, 1
        )

    @property
    def mean_vote_if_held(self) -> Fraction:
        return Fraction(self.one_stays_of_2_64, PROBABILITY_ONE)

    @property
    def mean_vote_if_other(self) -> Fraction:
        return Fraction(self.zero_flips_of_2_64, PROBABILITY_ONE)

    def distribution(self, value: int) -> dict[int, Fraction]:
        self._check_listable(value, 1 << self.domain)
        probabilities = {0: Fraction(1)}
        for x in range(self.domain):
            is_set = self.mean_vote_if_held if x == value else self.mean_vote_if_other
            probabilities = {
                code | bit << x: probability * (is_set if bit else 1 - is_set)
                for code, probability in probabilities.items()
                for bit in (0, 1)
            }
        return probabilities

    def _random_bits(self, values: ItemValues, chance: RandomWords) -> Flags:
        shape = len(values), self.domain
        drawn = bernoulli(chance, self.zero_flips_of_2_64, shape[0] * shape[1]).reshape(shape)
        drawn[np.arange(len(values)), values.astype(np.int64)] = bernoulli(
            chance, self.one_stays_of_2_64, len(values)
        )
        return drawn
