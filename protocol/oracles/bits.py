"""Oracles that answer for every value of the dictionary at once: RAPPOR and subset selection.

A report of theirs is a vector of d bits, the values that it speaks for, element x at bit x of
the little-endian bytes. So it takes as many bits as there are values, and a device draws as
many words: they are for small dictionaries.
"""

from abc import abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations
from math import comb, exp
from typing import Self

import numpy as np
from numpy.typing import NDArray

from protocol.chance import Chance, happens
from protocol.oracles.counts import Reports, Support, Values, Votes
from protocol.oracles.limits import check_epsilon
from protocol.oracles.odds import WHOLE, favour
from protocol.oracles.optimal import best
from protocol.oracles.oracle import Oracle

Bits = NDArray[np.bool_]  # (n, d)

_MOST_WORDS = 2**20  # at once
_MOST_BITS = 2**24


@dataclass(frozen=True)
class _Bits(Oracle):
    """An oracle whose report is one bit a value."""

    def __post_init__(self) -> None:
        Oracle.__post_init__(self)
        if self.domain > _MOST_BITS:
            raise ValueError(f"domain must be at most 2^24 for a bit a value, not {self.domain}")

    @property
    def bits(self) -> int:
        """Return one bit a value."""
        return self.domain

    @property
    def batch(self) -> int:
        """Return how many reports are made at once: each takes a word a value."""
        return max(1, _MOST_WORDS // self.domain)

    @property
    def vote_ns(self) -> float:
        """Return the nanoseconds of reading a bit."""
        return 3.0

    def whole_ns(self, reports: int) -> float:
        """Return the nanoseconds of adding all vectors."""
        return reports * (10.0 + self.domain)

    @abstractmethod
    def _draw(self, values: Values, chance: Chance) -> Bits: ...

    def _perturb(self, values: Values, chance: Chance) -> Reports:
        return np.packbits(self._draw(values, chance), axis=1, bitorder="little")

    def _unpacked(self, reports: Reports) -> Reports:
        return np.unpackbits(reports, axis=1, count=self.domain, bitorder="little")

    def _check(self, reports: Reports) -> None:
        surplus = reports[:, -1] >> np.uint8((self.domain - 1) % 8 + 1)
        if surplus.any():
            row = int(np.flatnonzero(surplus)[0])
            raise ValueError(f"report {row} speaks for values beyond {self.domain - 1}")

    def _votes(self, reports: Reports, candidates: Values) -> Votes:
        column, bit = np.divmod(candidates.astype(np.int64), 8)
        return (reports[:, column] >> bit.astype(np.uint8) & np.uint8(1)).astype(np.int8)

    def _gather(self, reports: Reports) -> Support:
        total = np.zeros(self.domain, np.int64)
        for start in range(0, len(reports), self.batch):
            some = self._unpacked(reports[start : start + self.batch])
            total += some.sum(axis=0, dtype=np.int64)
        return total


@dataclass(frozen=True)
class Rappor(_Bits):
    """Basic RAPPOR, one-hot: each bit is flipped on its own, with odds that depend on it or not.

        symmetric       a bit stays with odds of e^(eps/2) / (e^(eps/2) + 1)
        asymmetric      a 1 stays with odds of 1/2, a 0 becomes 1 with odds of 1 / (e + 1)

    Two values differ in two bits, so e^epsilon is the ratio of odds over both. n Var is
    e^(eps/2) / (e^(eps/2) - 1)^2 at every f if symmetric, the least worst case of all; else
    4e/(e - 1)^2 + f.

    Source: [Erlingsson14] without its memory; the asymmetric is optimal unary encoding,
    [Wang17, section 4.3].
    """

    name = "rappor"
    symmetric: bool

    @cached_property
    def stays(self) -> int:
        """Return the odds, of 2^64, that the bit of a device's value is 1."""
        return favour(self.epsilon / 2, 1, 1) if self.symmetric else WHOLE // 2

    @cached_property
    def rises(self) -> int:
        """Return the odds, of 2^64, that the bit of another value is 1."""
        return WHOLE - favour(self.epsilon / 2 if self.symmetric else self.epsilon, 1, 1)

    @property
    def true_odds(self) -> Fraction:
        """Return p."""
        return Fraction(self.stays, WHOLE)

    @property
    def false_odds(self) -> Fraction:
        """Return q."""
        return Fraction(self.rises, WHOLE)

    def distribution(self, value: int) -> dict[int, Fraction]:
        """Return the odds of each vector of bits."""
        self._listable(value, 1 << self.domain)
        found = {0: Fraction(1)}
        for x in range(self.domain):
            odds = self.true_odds if x == value else self.false_odds
            found = {
                code | bit << x: share * (odds if bit else 1 - odds)
                for code, share in found.items()
                for bit in (0, 1)
            }
        return found

    def _draw(self, values: Values, chance: Chance) -> Bits:
        shape = len(values), self.domain
        drawn = happens(chance, self.rises, shape[0] * shape[1]).reshape(shape)
        drawn[np.arange(len(values)), values.astype(np.int64)] = happens(
            chance, self.stays, len(values)
        )
        return drawn


@dataclass(frozen=True)
class SubsetSelection(_Bits):
    """Subset selection: a random set of `w` values, with one's own in it or not.

        p  =  w e / (w e + d - w)              the own value is in
        q  =  [p (w - 1) + (1 - p) w] / (d - 1)

    The others are any w - 1 or w, all sets as likely. About w = d/(e + 1) has the least sum of
    squares; the least worst case, that of symmetric RAPPOR, takes w near d/(e^(eps/2) + 1). The
    entropy of a report is about d H(w/d); a bitmap is what travels.

    Source: [YeBarg18]; w for the worst case is ours.
    """

    name = "subset-selection"
    w: int

    def __post_init__(self) -> None:
        _Bits.__post_init__(self)
        if not 1 <= self.w < self.domain:
            raise ValueError(f"w must be within 1 and {self.domain - 1}, not {self.w}")

    @classmethod
    def standard(cls, epsilon: float, domain: int) -> Self:
        """Return the one with w = d/(e + 1), rounded; raises as the class does."""
        check_epsilon(epsilon)
        return cls(epsilon, domain, max(1, round(domain / (exp(epsilon) + 1))))

    @classmethod
    def for_mse(cls, epsilon: float, domain: int) -> Self:
        """Return the one with the least worst-case variance; raises as the class does."""
        low, high = 1, max(2, domain // 2)  # the variance at 1 is greater at first, and falls
        while high - low > 1:
            middle = (low + high) // 2
            absent, present = cls(epsilon, domain, middle).spread
            low, high = (middle, high) if absent < present else (low, middle)
        return cls(
            epsilon,
            domain,
            best({low, min(high, domain - 1)}, lambda w: max(cls(epsilon, domain, w).spread)),
        )

    @cached_property
    def include(self) -> int:
        """Return the odds, of 2^64, that a device's value is in its set."""
        return favour(self.epsilon, self.w, self.domain - self.w)

    @property
    def true_odds(self) -> Fraction:
        """Return p."""
        return Fraction(self.include, WHOLE)

    @property
    def false_odds(self) -> Fraction:
        """Return q."""
        return (self.w - self.true_odds) / (self.domain - 1)

    def distribution(self, value: int) -> dict[int, Fraction]:
        """Return the odds of each set, as a vector of bits."""
        self._listable(value, comb(self.domain, self.w))
        within = self.true_odds / comb(self.domain - 1, self.w - 1)
        without = (1 - self.true_odds) / comb(self.domain - 1, self.w)
        return {
            sum(1 << x for x in chosen): within if value in chosen else without
            for chosen in combinations(range(self.domain), self.w)
        }

    def _check(self, reports: Reports) -> None:
        _Bits._check(self, reports)
        sizes = np.bitwise_count(reports).sum(axis=1, dtype=np.int64)
        if (sizes != self.w).any():
            row = int(np.flatnonzero(sizes != self.w)[0])
            raise ValueError(f"report {row} is a set of {sizes[row]} values, not of {self.w}")

    def _draw(self, values: Values, chance: Chance) -> Bits:
        """Return sets of the w least words, where the own value's is made least or greatest."""
        shape = len(values), self.domain
        own = happens(chance, self.include, len(values))
        extreme = np.where(own, np.uint64(0), np.uint64(WHOLE - 1))
        drawn, left = np.zeros(shape, np.bool_), np.arange(len(values))
        while len(left):
            words = chance(len(left) * self.domain).reshape(-1, self.domain).copy()
            words[np.arange(len(left)), values[left].astype(np.int64)] = extreme[left]
            ranked = np.partition(words, (self.w - 1, self.w), axis=1)
            last = ranked[:, self.w - 1]
            # Without a tie there all sets are as likely; with one the words are drawn again.
            clear = last < ranked[:, self.w]
            drawn[left[clear]] = words[clear] <= last[clear, np.newaxis]
            left = left[~clear]
        return drawn
