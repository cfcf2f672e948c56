"""Optimised local hashing (OLH): a seeded hash function, and randomized response on its range.

    report   =  (s, y)                         seed bits + log2 g
    p, q     =  e / (e + g - 1),  1/g          g about 1 + e

It is OCMS with a hash function that is merely well mixed instead of one with a proof. That two
values collide with probability 1/g is assumed, and bounded only by the number of seeds. Decoding
cannot use any structure: the whole dictionary takes n d hashes. It is here for comparison.

Source: [Wang17, section 4.4]; g is the better of floor and ceiling, for the sum of squares.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Self

import numpy as np

from protocol.arrays import Codes, ItemValues, Support, Votes
from protocol.hashing import splitmix_hash
from protocol.oracles.ocms.hash_range import check_hash_range, m_for_l2
from protocol.oracles.randomized_response import (
    PROBABILITY_ONE,
    favoured_of_2_64,
    randomize,
    response_probabilities,
)
from protocol.oracles.report_format import IntegerReportOracle
from protocol.randomness import RandomWords


@dataclass(frozen=True)
class LocalHashing(IntegerReportOracle):
    """Local hashing to `g` symbols by seeds of `seed_bits` bits."""

    name = "olh"
    g: int
    seed_bits: int = 40

    def __post_init__(self) -> None:
        check_hash_range(self.g, self.domain)
        if not 8 <= self.seed_bits <= 56:
            raise ValueError(f"seed_bits must be from 8 to 56, not {self.seed_bits}")
        IntegerReportOracle.__post_init__(self)

    @classmethod
    def for_l2(cls, epsilon: float, domain: int) -> Self:
        """Return the oracle with the smallest sum of variances.

        Raises:
            ValueError: if a parameter is out of range, or the domain is not larger than g.
        """
        return cls(epsilon, domain, m_for_l2(epsilon, domain))

    @property
    def possible_reports(self) -> int:
        """Return the number of reports (s, y)."""
        return self.g << self.seed_bits

    @cached_property
    def keep_of_2_64(self) -> int:
        """Return the probability, as a part of 2^64, that y is the hashed value."""
        return favoured_of_2_64(self.epsilon, 1, self.g - 1)

    @property
    def mean_vote_if_held(self) -> Fraction:
        """Return p."""
        return Fraction(self.keep_of_2_64, PROBABILITY_ONE)

    @property
    def mean_vote_if_other(self) -> Fraction:
        """Return 1/g, as for random hash functions."""
        return Fraction(1, self.g)

    def decode_ns(self, reports: int) -> float:
        """Return the nanoseconds of hashing all values for each report."""
        return 0.35 * reports * self.domain

    def distribution(self, value: int) -> dict[int, Fraction]:
        """Return the probability of each (s, y)."""
        self._check_listable(value, self.possible_reports)
        seeds = 1 << self.seed_bits
        hashed = splitmix_hash(
            np.arange(seeds, dtype=np.uint64), np.array([value], np.uint64), self.g
        )
        rows = response_probabilities(self.g, self.keep_of_2_64, Fraction(1, seeds))
        return {
            seed * self.g + y: probability
            for seed, h in enumerate(hashed.tolist())
            for y, probability in enumerate(rows[h])
        }

    def _encode(self, values: ItemValues, chance: RandomWords) -> Codes:
        seeds = chance(len(values)) >> np.uint64(64 - self.seed_bits)
        y = randomize(chance, splitmix_hash(seeds, values, self.g), self.g, self.keep_of_2_64)
        return seeds * np.uint64(self.g) + y

    def _code_votes(self, codes: Codes, candidates: ItemValues) -> Votes:
        seeds, y = (column[:, np.newaxis] for column in np.divmod(codes, np.uint64(self.g)))
        votes: Votes = (splitmix_hash(seeds, candidates[np.newaxis], self.g) == y).astype(np.int8)
        return votes

    def _count_codes(self, codes: Codes) -> Support:
        from protocol.oracles.numerics.kernel import count_hashed  # noqa: PLC0415 (devices do without)

        counted = np.zeros(self.domain, np.uint32)
        seeds, y = np.divmod(codes, np.uint64(self.g))
        count_hashed(counted, seeds, y, np.uint64(self.g))
        return counted.astype(np.int64)
