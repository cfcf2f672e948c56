"""Apple's count-mean sketch with Hadamard encoding (HCMS): k public hash functions, drawn once.

Each device draws one of the k hash functions. It reports one sign of the row of a Hadamard matrix
that its hashed value names, flipped with probability 1 / (1 + e):

    vote     =  sign (-1)^<l, h_j(x)>
    f^       =  m/(m - 1) (C S/n - 1/m)        C = (e + 1)/(e - 1)
    n Var    =  (m/(m - 1))^2 (C^2 - f - (1 - f)/m^2)        over fresh hash functions

Because all devices share the k functions, estimates have a bias that no number of reports reduces
(docs/research/oracles.md), so this oracle is only a baseline.

Source: [Apple17]; the bias is theorem 3.10 of [Pan24].
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from protocol.hashing import splitmix_hash
from protocol.numerics.array_types import Codes, ItemValues, Support, Votes
from protocol.numerics.finite_fields import walsh_hadamard
from protocol.numerics.tail_bounds import binomial_upper_quantile
from protocol.oracles.base_oracles import HashedResponseOracle
from protocol.randomness import PROBABILITY_ONE

_MAX_CELLS = 2**27
_SEED_BOUND = 2**32
_SCORES_PER_BATCH = 2**20  # they stay in the cache


@dataclass(frozen=True)
class HadamardCountMeanSketch(HashedResponseOracle):
    """`functions` hash functions of family `seed`, to `m` symbols, m a power of 2."""

    name = "apple-cms"
    m: int = 1024
    functions: int = 2**16
    seed: int = 0

    def __post_init__(self) -> None:
        if self.m < 2 or self.m & (self.m - 1):
            raise ValueError(f"m must be a power of 2, at least 2, not {self.m}")
        if self.functions < 1 or self.functions * self.m > _MAX_CELLS:
            raise ValueError(f"functions must be from 1 to 2^27 / m, not {self.functions}")
        if not 0 <= self.seed < _SEED_BOUND:
            raise ValueError(f"seed must be from 0 to 2^32 - 1, not {self.seed}")
        HashedResponseOracle.__post_init__(self)

    _symbols = 2

    @property
    def _functions(self) -> int:
        return self.functions * self.m  # a hash function j and a column l of the Hadamard matrix

    @property
    def cells(self) -> int:
        return self._functions

    @property
    def mean_vote_if_held(self) -> Fraction:
        return Fraction(2 * self.keep_of_2_64 - PROBABILITY_ONE, PROBABILITY_ONE)

    @property
    def mean_vote_if_other(self) -> Fraction:
        return self.mean_vote_if_held / self.m

    @cached_property
    def scaled_variances(self) -> tuple[float, float]:
        p, q = self.mean_vote_if_held, self.mean_vote_if_other
        return float((1 - q**2) / (p - q) ** 2), float((1 - p**2) / (p - q) ** 2)

    def detection_threshold(self, n: int, tail: float) -> float:
        p, q = float(self.mean_vote_if_held), float(self.mean_vote_if_other)
        return (2 * binomial_upper_quantile(n, (1 + q) / 2, tail) / n - 1 - q) / (p - q)

    def decode_ns(self, reports: int) -> float:
        return 8.0 * reports + self.functions * (60.0 * self.m + 12.0 * self.domain)

    @property
    def _batch_cells(self) -> int:
        return self.cells

    def _locations(self, j: Codes, values: ItemValues) -> Codes:
        return splitmix_hash(j + (np.uint64(self.seed) << np.uint64(32)), values, self.m)

    def _hash(self, functions: Codes, values: ItemValues) -> Codes:
        j, column = np.divmod(functions, np.uint64(self.m))
        bits = np.bitwise_count(column & self._locations(j, values))
        signs: Codes = bits.astype(np.uint64) & np.uint64(1)
        return signs

    def _code_votes(self, codes: Codes, candidates: ItemValues) -> Votes:
        agree = super()._code_votes(codes, candidates)
        return 2 * agree - np.int8(1)

    def _count_codes(self, codes: Codes) -> Support:
        pairs, negative = np.divmod(codes.astype(np.int64), 2)
        # Up to half a gigabyte, of which only few pages are written.
        cells: Support = np.zeros(self.cells, np.int64)
        np.add.at(cells, pairs, 1 - 2 * negative)
        return cells

    def _support(self, cells: Support) -> Support:
        rows = cells.reshape(self.functions, self.m)
        drawn = np.flatnonzero(rows.any(axis=1))  # few devices draw few of the functions
        total, values = np.zeros(self.domain, np.int64), np.arange(self.domain, dtype=np.uint64)
        size = max(1, _SCORES_PER_BATCH // max(self.m, self.domain))
        for first in range(0, len(drawn), size):
            batch = drawn[first : first + size]
            scores = walsh_hadamard(rows[batch])
            hashed = self._locations(batch[:, np.newaxis].astype(np.uint64), values[np.newaxis])
            total += np.take_along_axis(scores, hashed.astype(np.int64), axis=1).sum(axis=0)
        return total
