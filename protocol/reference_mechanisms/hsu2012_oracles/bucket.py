"""The Bucket mechanism: linear hash bits, whose majority is solved for the value.

A hash function is h(x) = <r, x> + c mod 2, for random bits r that are not all zero. In each of k2
trials, k1 of them split all devices in two. A heavy hitter is in the larger half each time, so
its hash bits give k1 linear equations over GF(2). Most trials agree on it:

    k1 = ceil(log2 12 N),  k2 = ceil(8 ln 1/beta),  T = k1 k2 signs (-1)^h(x) in all

Solutions of N or more, contradictory systems and systems that leave more than 3 bits open count as
infeasible. Counts are estimated from all T signs, as by JL-HH.

Source: section 4.2 and algorithm 3 of [hsu2012]. There c = 0, so that value 0 is always in the
same half, and the family is not pairwise independent. Half-counts u - n/2 are ours / -2, so the
paper's scale is doubled.
"""

import math
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from protocol.hashing import HashFamily
from protocol.numerics.array_types import Floats, ItemValues
from protocol.reference_mechanisms.hsu2012_oracles.noise_calibration import paper_scale
from protocol.reference_mechanisms.hsu2012_oracles.projection_oracle import Projection, value_bits
from protocol.reference_mechanisms.hsu2012_oracles.randomizers import Symbols

_MAX_FREE_BITS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketProjection(Projection):
    """The Bucket mechanism, which fails with probability `beta` where theorem 4.8 holds."""

    cells = 1  # the two halves of a hash function are the two signs
    beta: float = 0.1
    _rows: NDArray[np.uint64] = field(init=False, repr=False, compare=False)
    _flips: NDArray[np.uint32] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 1e-9 <= self.beta <= 0.9:
            raise ValueError(f"beta must be from 1e-9 to 0.9, not {self.beta}")
        Projection.__post_init__(self)
        numbers = np.arange(self.queries, dtype=np.uint64)[:, np.newaxis]
        words = HashFamily(self.seed, "hsu2012 bucket", 1, 3).hash(numbers).tolist()
        row_count = 2 ** value_bits(self.size) - 1
        # From 1 to `row_count`, uniform with a bias of 2^-64, because 128 bits are scaled to it.
        rows = [1 + ((high << 64 | low) * row_count >> 128) for high, low, _ in words]
        flips = [flip >> 63 for _, _, flip in words]
        object.__setattr__(self, "_rows", np.array(rows, np.uint64))
        object.__setattr__(self, "_flips", np.array(flips, np.uint32))

    @property
    def trials(self) -> int:
        """Return k2."""
        return math.ceil(8 * math.log(1 / self.beta))

    @property
    def hashes(self) -> int:
        """Return k1, the hash functions of a trial."""
        return value_bits(12 * self.size)

    @property
    def queries(self) -> int:
        return self.trials * self.hashes

    @property
    def paper_scale(self) -> Fraction:
        return 2 * paper_scale(self.queries, self.epsilon, self.delta)

    def symbols(self, values: ItemValues) -> Symbols:
        ones = np.bitwise_count(values[:, np.newaxis] & self._rows).astype(np.uint32)
        return np.asarray((ones ^ self._flips) & np.uint32(1), np.uint32)

    def estimates(self, sums: Floats, values: ItemValues) -> Floats:
        signs = 1.0 - 2.0 * self.symbols(values)
        return np.asarray(signs @ sums[:, 0] / self.queries, np.float64)

    def candidates(self, sums: Floats, max_results: int) -> ItemValues:
        del max_results
        halves = ((sums[:, 0] < 0) ^ (self._flips == 1)).astype(int).tolist()
        rows, votes = self._rows.tolist(), Counter[int]()
        for start in range(0, self.queries, self.hashes):
            trial = slice(start, start + self.hashes)
            solved = solve_gf2(rows[trial], halves[trial], value_bits(self.size))
            votes.update(x for x in solved if x < self.size)
        values = np.array(sorted(votes), np.uint64)
        counts = self.estimates(sums, values)
        negative_votes = np.array([-votes[x] for x in values.tolist()], np.int64)
        order = np.lexsort((-counts, negative_votes))
        return values[order]


def solve_gf2(rows: list[int], bits: list[int], length: int) -> list[int]:
    """Return the x below 2^`length` with <row, x> = bit mod 2 for each of `rows`.

    The list is empty if no solution exists or more than 3 bits are open.
    """
    # By highest bit: a row with its bit below. No other pivot has the highest bit.
    pivots = dict[int, int]()
    for row, bit in zip(rows, bits, strict=True):
        reduced = row << 1 | bit
        for at, pivot in pivots.items():
            if reduced >> at & 1:
                reduced ^= pivot
        if reduced == 1:
            return []  # 0 = 1
        if reduced:
            top = reduced.bit_length() - 1
            pivots = {at: p ^ reduced if p >> top & 1 else p for at, p in pivots.items()}
            pivots[top] = reduced
    open_bits = [at for at in range(1, length + 1) if at not in pivots]
    if len(open_bits) > _MAX_FREE_BITS:
        return []
    solutions = list[int]()
    for choice in range(2 ** len(open_bits)):
        x = sum(1 << at for i, at in enumerate(open_bits) if choice >> i & 1) | 1
        x |= sum(1 << at for at, pivot in pivots.items() if (pivot & x).bit_count() % 2)
        solutions.append(x >> 1)
    return solutions
