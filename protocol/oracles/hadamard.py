"""Hadamard encoding: a device reports one sign of a row.

A value is split into a residue x mod K and a quotient x // K. The device draws a column r of a
Hadamard matrix over quotients, and reports one of 2K symbols by randomized response: its residue
with the sign (-1)^<r, x // K>.

    vote     =  sign (-1)^<r, x // K>          0 if x has another residue
    f^       =  (S/n) / (p - q)                p, q: probability of the true and of another symbol
    n Var    =  f (C - 1) + g C + (1 - f - g) 2q/(p - q)^2         C = (p + q)/(p - q)^2

with g the frequency of all *other* values of x's residue. K = 1 is Hadamard encoding, where these
are all others; for unknown values the bound has g = 1 - f.

Source: [Bassily17] for K = 1; [Chen20] for others (`reference_mechanisms/oracles`).
"""

from abc import abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from protocol.numerics.array_types import Codes, ItemValues, Support, Votes
from protocol.numerics.finite_fields import walsh_hadamard
from protocol.numerics.tail_bounds import (
    bernstein_upper_bound,
    binomial_upper_quantile,
    check_tail_probability,
)
from protocol.oracles.base_oracles import HashedResponseOracle
from protocol.randomness import PROBABILITY_ONE


@dataclass(frozen=True)
class SignOracle(HashedResponseOracle):
    """An oracle whose symbols are a residue and a sign of the quotient's Hadamard row."""

    mean_vote_if_other = Fraction(0)  # the signs of other values cancel
    ns_per_vote = 5.0

    @property
    @abstractmethod
    def _residues(self) -> int: ...

    @property
    def _functions(self) -> int:
        quotients = -(-self.domain // self._residues)
        return 1 << (quotients - 1).bit_length()  # columns of the Hadamard matrix

    @property
    def _symbols(self) -> int:
        return 2 * self._residues

    @property
    def cells(self) -> int:
        return self.possible_reports // 2 + self._residues

    @property
    def mean_vote_if_held(self) -> Fraction:
        return Fraction(self.keep_of_2_64, PROBABILITY_ONE) - self._other_probability

    @cached_property
    def scaled_variances(self) -> tuple[float, float]:
        lift = self.mean_vote_if_held
        absent = float((lift + 2 * self._other_probability) / lift**2)
        return absent, absent - 1

    def detection_threshold(self, n: int, tail: float) -> float:
        check_tail_probability(n, tail)
        max_term = 1 / float(self.mean_vote_if_held)
        return bernstein_upper_bound(n * self.scaled_variances[0], max_term, tail) / n

    def decode_ns(self, reports: int) -> float:
        return 8.0 * reports + 15.0 * self.possible_reports

    @property
    def _batch_cells(self) -> int:
        return self.possible_reports

    def _hash(self, functions: Codes, values: ItemValues) -> Codes:
        quotients = values // np.uint64(self._residues)
        residues = values - quotients * np.uint64(self._residues)
        return residues * np.uint64(2) + (np.bitwise_count(functions & quotients) & np.uint8(1))

    def _code_votes(self, codes: Codes, candidates: ItemValues) -> Votes:
        functions, reported = np.divmod(codes[:, np.newaxis], np.uint64(self._symbols))
        true = self._hash(functions, candidates[np.newaxis])
        agrees, disagrees = reported == true, reported == (true ^ np.uint64(1))
        votes: Votes = agrees.astype(np.int8) - disagrees.astype(np.int8)
        return votes

    def _count_codes(self, codes: Codes) -> Support:
        table: NDArray[np.int64] = np.bincount(
            codes.astype(np.int64), minlength=self.possible_reports
        )
        residues = (table[0::2] + table[1::2]).reshape(self._functions, self._residues).sum(axis=0)
        return np.concatenate([table[0::2] - table[1::2], residues])

    def _support(self, cells: Support) -> Support:
        signs = cells[: self.possible_reports // 2].reshape(self._functions, self._residues)
        by_residue = walsh_hadamard(signs.T)
        return by_residue.T.reshape(-1)[: self.domain]


@dataclass(frozen=True)
class Hadamard(SignOracle):
    """Hadamard encoding (HE): one sign, flipped with probability 1 / (1 + e)."""

    name = "hadamard"
    _residues = 1

    def detection_threshold(self, n: int, tail: float) -> float:
        return (2 * binomial_upper_quantile(n, 0.5, tail) / n - 1) / float(self.mean_vote_if_held)
