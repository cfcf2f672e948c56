"""Apple's count-mean sketch with Hadamard encoding (HCMS): k hash functions, drawn once for all.

Each device draws one of k public hash functions, and of the row of a Hadamard matrix that its
hashed value names, one sign, which it flips with odds of 1 / (1 + e):

    report   =  (j, l, sign)                   log2 k + log2 m + 1 bits
    vote     =  sign (-1)^<l, h_j(x)>
    f^       =  m/(m - 1) (C S/n - 1/m)        C = (e + 1)/(e - 1)
    n Var    =  (m/(m - 1))^2 (C^2 - f - (1 - f)/m^2)        over fresh hash functions

The k functions are the same for all, and how often two values meet among k is no longer 1/m
but near it: an error that is the same however many report, with the variance

    bias^2   =  sum over x' != x of f(x')^2 / (k (m - 1))

on average over families. It is below a tenth of the variance of chance only if k grows with n.
So this is a baseline; OCMS draws its hash function anew for each report, and has none of it.

Source: [Apple17]; the bias is theorem 3.10 of [Pan24].
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import sqrt

import numpy as np

from protocol.chance import Chance, below
from protocol.oracles.coded import Coded
from protocol.oracles.counts import Codes, Support, Values, Votes
from protocol.oracles.mixing import hash_values
from protocol.oracles.odds import WHOLE, favour, respond, responses
from protocol.oracles.tails import binomial_bar
from protocol.oracles.transforms import hadamard

_MOST_CELLS = 2**27
_SEEDS = 2**32
_BLOCK = 2**20  # scores at a time: they stay in the cache


@dataclass(frozen=True)
class AppleSketch(Coded):
    """`functions` hash functions of family `seed`, to `m` symbols, m a power of 2."""

    name = "apple-cms"
    m: int = 1024
    functions: int = 2**16
    seed: int = 0

    def __post_init__(self) -> None:
        if self.m < 2 or self.m & (self.m - 1):
            raise ValueError(f"m must be a power of 2 from 2 up, not {self.m}")
        if self.functions < 1 or self.functions * self.m > _MOST_CELLS:
            raise ValueError(f"functions must be within 1 and 2^27 / m, not {self.functions}")
        if not 0 <= self.seed < _SEEDS:
            raise ValueError(f"seed must be within 0 and 2^32 - 1, not {self.seed}")
        Coded.__post_init__(self)

    @property
    def space(self) -> int:
        """Return the number of reports (j, l, sign)."""
        return self.functions * self.m * 2

    @property
    def cells(self) -> int:
        """Return the sums of signs (j, l)."""
        return self.space // 2

    @cached_property
    def keep(self) -> int:
        """Return the odds, of 2^64, of the true sign."""
        return favour(self.epsilon, 1, 1)

    @property
    def true_odds(self) -> Fraction:
        """Return the mean vote for the value that a device holds."""
        return Fraction(2 * self.keep - WHOLE, WHOLE)

    @property
    def false_odds(self) -> Fraction:
        """Return the mean vote for another, over all families."""
        return self.true_odds / self.m

    @cached_property
    def spread(self) -> tuple[float, float]:
        """Return n times the variance at 0 and 1, of hash functions that are fresh each report."""
        p, q = self.true_odds, self.false_odds
        return float((1 - q**2) / (p - q) ** 2), float((1 - p**2) / (p - q) ** 2)

    def bar(self, n: int, tail: float) -> float:
        """Return the bar by the exact tail of `n` signs, of hash functions that are fresh."""
        p, q = float(self.true_odds), float(self.false_odds)
        return (2 * binomial_bar(n, (1 + q) / 2, tail) / n - 1 - q) / (p - q)

    def bias(self, others: float) -> float:
        """Return the rms error that no number of reports lessens.

        `others` is the sum of the squares of all other values' frequencies.
        """
        return sqrt(others / (self.functions * (self.m - 1)))

    def whole_ns(self, reports: int) -> float:
        """Return the nanoseconds of the transforms and of hashing all values by each function."""
        return 8.0 * reports + self.functions * (60.0 * self.m + 12.0 * self.domain)

    @property
    def read_at_once(self) -> int:
        """Return how many reports a server reads at once."""
        return self._many_at_once(self.cells)

    def distribution(self, value: int) -> dict[int, Fraction]:
        """Return the odds of each (j, l, sign)."""
        self._listable(value, self.space)
        pairs = self.space // 2
        values = np.full(pairs, value, np.uint64)
        signs = self._signs(np.arange(pairs, dtype=np.uint64), values).tolist()
        rows = responses(2, self.keep, Fraction(1, pairs))
        return {
            2 * pair + sign: odds
            for pair, true in enumerate(signs)
            for sign, odds in enumerate(rows[true])
        }

    def _hashed(self, j: Codes, values: Values) -> Codes:
        return hash_values(j + (np.uint64(self.seed) << np.uint64(32)), values, self.m)

    def _signs(self, pairs: Codes, values: Values) -> Codes:
        """Return 1 where the entry (l, h_j(x)) is negative; `pairs` are j m + l."""
        j, column = np.divmod(pairs, np.uint64(self.m))
        bits = np.bitwise_count(column & self._hashed(j, values))
        signs: Codes = bits.astype(np.uint64) & np.uint64(1)
        return signs

    def _encode(self, values: Values, chance: Chance) -> Codes:
        pairs = below(chance, self.functions * self.m, len(values))
        return pairs * np.uint64(2) + respond(chance, self._signs(pairs, values), 2, self.keep)

    def _say(self, codes: Codes, candidates: Values) -> Votes:
        pairs, said = (column[:, np.newaxis] for column in np.divmod(codes, np.uint64(2)))
        agree = self._signs(pairs, candidates[np.newaxis]) == said
        return np.where(agree, np.int8(1), np.int8(-1))

    def _count(self, codes: Codes) -> Support:
        pairs, negative = np.divmod(codes.astype(np.int64), 2)
        # Up to half a gigabyte, of which few pages are written.
        cells: Support = np.zeros(self.cells, np.int64)
        np.add.at(cells, pairs, 1 - 2 * negative)
        return cells

    def _support(self, cells: Support) -> Support:
        rows = cells.reshape(self.functions, self.m)
        drawn = np.flatnonzero(rows.any(axis=1))  # by few devices, few of the functions are
        total, values = np.zeros(self.domain, np.int64), np.arange(self.domain, dtype=np.uint64)
        size = max(1, _BLOCK // max(self.m, self.domain))
        for first in range(0, len(drawn), size):
            some = drawn[first : first + size]
            scores = hadamard(rows[some])
            places = self._hashed(some[:, np.newaxis].astype(np.uint64), values[np.newaxis])
            total += np.take_along_axis(scores, places.astype(np.int64), axis=1).sum(axis=0)
        return total
