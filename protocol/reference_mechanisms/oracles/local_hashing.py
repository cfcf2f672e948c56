"""Optimised local hashing (OLH): a seeded hash function, and randomized response on its range.

It is OCMS with a hash function that is assumed to be random, where two values collide with
probability 1/g. It is here for comparison: to decode the whole dictionary takes n d hashes.

Source: [Wang17, section 4.4]; g is the better of floor and ceiling, for the sum of squares.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Self

import numpy as np

from protocol.hashing import splitmix_hash
from protocol.numerics.array_types import Codes, ItemValues, Support
from protocol.oracles.base_oracles import HashedResponseOracle
from protocol.oracles.ocms.hash_range import check_hash_range, m_for_l2
from protocol.randomness import RandomWords


@dataclass(frozen=True)
class LocalHashing(HashedResponseOracle):
    """Local hashing to `g` symbols by seeds of `seed_bits` bits."""

    name = "olh"
    g: int
    seed_bits: int = 40

    def __post_init__(self) -> None:
        check_hash_range(self.g, self.domain)
        if not 8 <= self.seed_bits <= 56:
            raise ValueError(f"seed_bits must be from 8 to 56, not {self.seed_bits}")
        HashedResponseOracle.__post_init__(self)

    @classmethod
    def for_l2(cls, epsilon: float, domain: int) -> Self:
        """Return the oracle with the smallest sum of variances."""
        return cls(epsilon, domain, m_for_l2(epsilon, domain))

    @property
    def _functions(self) -> int:
        return 1 << self.seed_bits

    @property
    def _symbols(self) -> int:
        return self.g

    @property
    def mean_vote_if_other(self) -> Fraction:
        return Fraction(1, self.g)

    def decode_ns(self, reports: int) -> float:
        return 0.35 * reports * self.domain

    def _hash(self, functions: Codes, values: ItemValues) -> Codes:
        return splitmix_hash(functions, values, self.g)

    def _draw_functions(self, chance: RandomWords, count: int) -> Codes:
        return chance(count) >> np.uint64(64 - self.seed_bits)

    def _count_codes(self, codes: Codes) -> Support:
        from protocol.oracles.report_counting import count_hashed  # noqa: PLC0415 (devices do without)

        counted = np.zeros(self.domain, np.uint32)
        seeds, y = np.divmod(codes, np.uint64(self.g))
        count_hashed(counted, seeds, y, self.g)
        return counted.astype(np.int64)
