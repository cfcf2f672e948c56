"""k-ary randomized response: the value itself or, with some probability, one of the others.

p, q = e / (e + d - 1), 1 / (e + d - 1): the best oracle for the smallest dictionaries.

Source: [Kairouz16, section 2]; eq 12 of [Pan24] with m = d.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from protocol.numerics.array_types import Codes, ItemValues, Support
from protocol.oracles.base_oracles import HashedResponseOracle
from protocol.randomness import RandomWords, randomize


@dataclass(frozen=True)
class KaryRandomizedResponse(HashedResponseOracle):
    """k-ary randomized response over the whole dictionary: one function, the identity."""

    name = "krr"

    _functions = 1

    @property
    def _symbols(self) -> int:
        return self.domain

    @property
    def mean_vote_if_other(self) -> Fraction:
        return self._other_probability

    def decode_ns(self, reports: int) -> float:
        return 5.0 * reports + self.domain

    @property
    def _batch_cells(self) -> int:
        return self.cells

    def _hash(self, functions: Codes, values: ItemValues) -> Codes:  # noqa: ARG002
        return values

    def _encode(self, values: ItemValues, chance: RandomWords) -> Codes:
        return randomize(chance, values, self.domain, self.keep_of_2_64)

    def _count_codes(self, codes: Codes) -> Support:
        return np.bincount(codes.astype(np.int64), minlength=self.domain).astype(np.int64)
