"""Subset selection: a random set of `w` values, which contains the device's value or not.

    p  =  w e / (w e + d - w)              probability that the own value is in the set
    q  =  [p (w - 1) + (1 - p) w] / (d - 1)

The other w - 1 or w members are uniform among all sets of this size. About w = d/(e + 1) has the
smallest sum of squares, and w near d/(e^(eps/2) + 1) the smallest worst case.

Source: [YeBarg18]; w for the worst case is ours.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations
from math import comb, exp
from typing import Self

import numpy as np

from protocol.numerics.array_types import Flags, ItemValues, PackedReports
from protocol.numerics.binary_search import first_true
from protocol.oracles.base_oracles import BitVectorOracle
from protocol.oracles.limits import check_epsilon
from protocol.oracles.ocms.hash_range import least_loss
from protocol.randomness import PROBABILITY_ONE, RandomWords, bernoulli, favoured_of_2_64


@dataclass(frozen=True)
class SubsetSelection(BitVectorOracle):
    """Subset selection with sets of `w` values."""

    name = "subset-selection"
    w: int

    def __post_init__(self) -> None:
        BitVectorOracle.__post_init__(self)
        if not 1 <= self.w < self.domain:
            raise ValueError(f"w must be from 1 to {self.domain - 1}, not {self.w}")

    @classmethod
    def standard(cls, epsilon: float, domain: int) -> Self:
        """Return the oracle with w = d/(e + 1), rounded; raises as the class."""
        check_epsilon(epsilon)
        return cls(epsilon, domain, max(1, round(domain / (exp(epsilon) + 1))))

    @classmethod
    def for_mse(cls, epsilon: float, domain: int) -> Self:
        """Return the oracle with the smallest worst-case variance; raises as the class."""

        def is_past_best(w: int) -> bool:
            absent, present = cls(epsilon, domain, w).scaled_variances
            return absent >= present

        # The variance of a present value is greater at w = 1, and falls with w.
        high = first_true(is_past_best, 2, max(2, domain // 2))
        nearest = {high - 1, min(high, domain - 1)}
        return cls(
            epsilon,
            domain,
            least_loss(nearest, lambda w: max(cls(epsilon, domain, w).scaled_variances)),
        )

    @cached_property
    def include_of_2_64(self) -> int:
        """Return the probability, as a part of 2^64, that the set contains the device's value."""
        return favoured_of_2_64(self.epsilon, self.w, self.domain - self.w)

    @property
    def mean_vote_if_held(self) -> Fraction:
        return Fraction(self.include_of_2_64, PROBABILITY_ONE)

    @property
    def mean_vote_if_other(self) -> Fraction:
        return (self.w - self.mean_vote_if_held) / (self.domain - 1)

    def distribution(self, value: int) -> dict[int, Fraction]:
        self._check_listable(value, comb(self.domain, self.w))
        inside = self.mean_vote_if_held / comb(self.domain - 1, self.w - 1)
        outside = (1 - self.mean_vote_if_held) / comb(self.domain - 1, self.w)
        return {
            sum(1 << x for x in chosen): inside if value in chosen else outside
            for chosen in combinations(range(self.domain), self.w)
        }

    def _check(self, reports: PackedReports) -> None:
        BitVectorOracle._check(self, reports)
        sizes = np.bitwise_count(reports).sum(axis=1, dtype=np.int64)
        if (sizes != self.w).any():
            row = int(np.flatnonzero(sizes != self.w)[0])
            raise ValueError(f"report {row} is a set of {sizes[row]} values, not of {self.w}")

    def _random_bits(self, values: ItemValues, chance: RandomWords) -> Flags:
        """Return sets of the w smallest words, where the own word is set to 0 or to 2^64 - 1."""
        shape = len(values), self.domain
        own = bernoulli(chance, self.include_of_2_64, len(values))
        extreme = np.where(own, np.uint64(0), np.uint64(PROBABILITY_ONE - 1))
        sets, pending = np.zeros(shape, np.bool_), np.arange(len(values))
        while len(pending):
            words = chance(len(pending) * self.domain).reshape(-1, self.domain).copy()
            words[np.arange(len(pending)), values[pending].astype(np.int64)] = extreme[pending]
            ranked = np.partition(words, (self.w - 1, self.w), axis=1)
            last = ranked[:, self.w - 1]
            # Without a tie all sets have the same probability; with a tie words are drawn again.
            clear = last < ranked[:, self.w]
            sets[pending[clear]] = words[clear] <= last[clear, np.newaxis]
            pending = pending[~clear]
        return sets
