"""JL-HH: random signs for every value, and the value whose signs agree best with the sum.

A device's message is the signs s_j(x) of its value x with noise, in units of the paper's
1 / sqrt(m). The server estimates every value of the domain:

    count(x) = 1/m sum_j s_j(x) u_j,    Var = (noise of u_j + sum of others' squared counts) / m

Own signs cancel exactly, so m only has to keep the others' signs from adding up. The paper's
m ~ n^4 log N would be 10^13 rows for a thousand devices without any gain.

Source: section 3.1 and algorithm 1 of [hsu2012]. Signs are those of a `HashFamily`.
"""

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from protocol.hashing import HashFamily
from protocol.numerics.array_types import Floats, ItemValues
from protocol.reference_mechanisms.hsu2012_oracles.noise_calibration import paper_scale
from protocol.reference_mechanisms.hsu2012_oracles.projection_oracle import Projection, key_chunks
from protocol.reference_mechanisms.hsu2012_oracles.randomizers import Symbols

_MAX_ENUMERATED_VALUES = 2**24
_VALUES_PER_BATCH = 2**13


@dataclass(frozen=True, slots=True, kw_only=True)
class JohnsonLindenstrauss(Projection):
    """JL-HH over `rows` rows, for domains small enough to be enumerated."""

    cells = 1  # a row is a number
    rows: int = 512
    _signs: HashFamily = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 1 <= self.rows <= 2**14:
            raise ValueError(f"rows must be from 1 to 16,384, not {self.rows}")
        Projection.__post_init__(self)
        family = HashFamily(self.seed, "hsu2012 jl", 2, -(-self.rows // 64))
        object.__setattr__(self, "_signs", family)

    @property
    def max_values(self) -> int:
        return _MAX_ENUMERATED_VALUES

    @property
    def queries(self) -> int:
        return self.rows

    @property
    def paper_scale(self) -> Fraction:
        return paper_scale(self.rows, self.epsilon, self.delta)

    def symbols(self, values: ItemValues) -> Symbols:
        words = self._signs.hash(key_chunks(values)).astype("<u8")
        bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little", count=self.rows)
        return bits.astype(np.uint32)

    def estimates(self, sums: Floats, values: ItemValues) -> Floats:
        # The sum of s u is the sum of u minus twice its part where s is -1.
        parts = [
            self.symbols(values[at : at + _VALUES_PER_BATCH]).astype(np.float64) @ sums[:, 0]
            for at in range(0, len(values), _VALUES_PER_BATCH)
        ]
        return np.asarray((sums.sum() - 2 * np.concatenate(parts)) / self.rows, np.float64)

    def candidates(self, sums: Floats, max_results: int) -> ItemValues:
        values = np.arange(self.size, dtype=np.uint64)
        counts = self.estimates(sums, values)
        return values[np.argsort(-counts, kind="stable")[:max_results]]
