"""Optimised local hashing (OLH): a hash function by a seed, and randomised response on its range.

    report   =  (s, y)                         seed bits + log2 g
    p, q     =  e / (e + g - 1),  1/g          g about 1 + e

It is OCMS with a hash function that somebody wrote instead of one with a proof: that values
meet with odds of 1/g is assumed, and bounded by nothing but the number of seeds. No structure
helps to decode it: the whole dictionary takes n d hashes. So it is here as what others have.

Source: [Wang17, section 4.4]; g is the better of floor and ceiling, for the sum of squares.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Self

import numpy as np

from protocol.chance import Chance
from protocol.oracles.coded import Coded
from protocol.oracles.counts import Codes, Support, Values, Votes
from protocol.oracles.mixing import hash_values
from protocol.oracles.ocms import check_range
from protocol.oracles.odds import WHOLE, favour, respond, responses
from protocol.oracles.optimal import l2_m


@dataclass(frozen=True)
class LocalHashing(Coded):
    """Local hashing to `g` symbols by seeds of `seed_bits` bits."""

    name = "olh"
    g: int
    seed_bits: int = 40

    def __post_init__(self) -> None:
        check_range(self.g, self.domain)
        if not 8 <= self.seed_bits <= 56:
            raise ValueError(f"seed_bits must be within 8 and 56, not {self.seed_bits}")
        Coded.__post_init__(self)

    @classmethod
    def for_l2(cls, epsilon: float, domain: int) -> Self:
        """Return the optimised one.

        Raises:
            ValueError: if a parameter is out of range, or the domain no larger than g.
        """
        return cls(epsilon, domain, l2_m(epsilon, domain))

    @property
    def space(self) -> int:
        """Return the number of reports (s, y)."""
        return self.g << self.seed_bits

    @cached_property
    def keep(self) -> int:
        """Return the odds, of 2^64, that y is the hashed value."""
        return favour(self.epsilon, 1, self.g - 1)

    @property
    def true_odds(self) -> Fraction:
        """Return p."""
        return Fraction(self.keep, WHOLE)

    @property
    def false_odds(self) -> Fraction:
        """Return 1/g, as if hash functions were random."""
        return Fraction(1, self.g)

    def whole_ns(self, reports: int) -> float:
        """Return the nanoseconds of hashing all values for each report."""
        return 0.35 * reports * self.domain

    def distribution(self, value: int) -> dict[int, Fraction]:
        """Return the odds of each (s, y)."""
        self._listable(value, self.space)
        seeds = 1 << self.seed_bits
        hashed = hash_values(
            np.arange(seeds, dtype=np.uint64), np.array([value], np.uint64), self.g
        )
        rows = responses(self.g, self.keep, Fraction(1, seeds))
        return {
            seed * self.g + y: odds
            for seed, h in enumerate(hashed.tolist())
            for y, odds in enumerate(rows[h])
        }

    def _encode(self, values: Values, chance: Chance) -> Codes:
        seeds = chance(len(values)) >> np.uint64(64 - self.seed_bits)
        y = respond(chance, hash_values(seeds, values, self.g), self.g, self.keep)
        return seeds * np.uint64(self.g) + y

    def _say(self, codes: Codes, candidates: Values) -> Votes:
        seeds, y = (column[:, np.newaxis] for column in np.divmod(codes, np.uint64(self.g)))
        votes: Votes = (hash_values(seeds, candidates[np.newaxis], self.g) == y).astype(np.int8)
        return votes

    def _count(self, codes: Codes) -> Support:
        from protocol.oracles.kernel import count_hashed  # noqa: PLC0415 (devices do without)

        counted = np.zeros(self.domain, np.uint32)
        seeds, y = np.divmod(codes, np.uint64(self.g))
        count_hashed(counted, seeds, y, np.uint64(self.g))
        return counted.astype(np.int64)
