"""GLPS-HH: values hashed into buckets, and the bits of a bucket's value read off one by one.

R repetitions, each of B buckets and L + 1 tests, have entries in {-1, 0, 1}:

    test 0      sum over x in bucket b of  sigma_r(x) v_x
    test t      sum over x in bucket b of  sigma_r(x) (-1)^(bit t of x) v_x,   t = 1 .. L

Where one value outweighs the others of its bucket and the noise, bit t of it is 1 exactly if
tests t and 0 differ in sign. A value that does not hash to the bucket it was read from is noise.
The count of x is the median over r of the mean over t of x's signed cells, with variance about

    pi / (2 R + 1) (noise of a cell + sum of others' squared counts / B) / (L + 1)

where the bits of the others are unlike those of x. If two neighbours share the bucket of a
repetition, they differ there by 2 in at most L coordinates, because at least one bit differs;
otherwise they differ by 1 in 2 (L + 1) coordinates.

Source: section 4.1 and algorithm 2 of [hsu2012], with the measurements of [GLPS10], which reads
values with an expander code and iterates; the mean over all tests is ours.
"""

import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from protocol.hashing import HashFamily, fast_range
from protocol.numerics.array_types import Floats, ItemValues
from protocol.reference_mechanisms.hsu2012_oracles.noise_calibration import (
    ShiftProfile,
    paper_scale,
)
from protocol.reference_mechanisms.hsu2012_oracles.projection_oracle import (
    Projection,
    key_chunks,
    value_bits,
)
from protocol.reference_mechanisms.hsu2012_oracles.randomizers import Symbols

_SCRAMBLING_ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseRecovery(Projection):
    """GLPS-HH of `buckets` buckets and an odd number of `repetitions`."""

    buckets: int = 16
    repetitions: int = 3
    _bucket_family: HashFamily = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 2 <= self.buckets <= 2**16:
            raise ValueError(f"buckets must be from 2 to 65,536, not {self.buckets}")
        if not 1 <= self.repetitions <= 63 or self.repetitions % 2 == 0:
            raise ValueError(f"repetitions must be odd, from 1 to 63, not {self.repetitions}")
        Projection.__post_init__(self)
        family = HashFamily(self.seed, "hsu2012 glps", 2, self.repetitions + 1)
        object.__setattr__(self, "_bucket_family", family)

    @property
    def length(self) -> int:
        return value_bits(self.size)

    @property
    def queries(self) -> int:
        return self.repetitions * (self.length + 1)

    @property
    def cells(self) -> int:
        return self.buckets

    @property
    def averaged_queries(self) -> int:
        return self.length + 1

    @property
    def paper_scale(self) -> Fraction:
        return paper_scale(self.queries * self.buckets, self.epsilon, self.delta)

    @property
    def profiles(self) -> tuple[ShiftProfile, ...]:
        if self.relation == "add-remove":
            return (((1, self.queries),),)
        together = range(self.repetitions + 1)
        apart = 2 * (self.length + 1)
        return tuple(((2, r * self.length), (1, (self.repetitions - r) * apart)) for r in together)

    def symbols(self, values: ItemValues) -> Symbols:
        buckets, flips = self._hashed(values)
        tests = np.arange(self.length, dtype=np.uint64)
        bits = ((values[:, np.newaxis] >> tests) & np.uint64(1)).astype(np.uint32)
        tested = np.concatenate((np.zeros((len(values), 1), np.uint32), bits), axis=1)
        signs = flips[:, :, np.newaxis] ^ tested[:, np.newaxis, :]
        return (2 * buckets[:, :, np.newaxis] + signs).reshape(len(values), self.queries)

    def estimates(self, sums: Floats, values: ItemValues) -> Floats:
        symbols = self.symbols(values)
        cells = sums[np.arange(self.queries), symbols >> 1]
        signed = np.where(symbols & 1, -cells, cells)
        means = signed.reshape(len(values), self.repetitions, self.averaged_queries).mean(axis=2)
        return np.asarray(np.median(means, axis=1), np.float64)

    def candidates(self, sums: Floats, max_results: int) -> ItemValues:
        del max_results
        tests = sums.reshape(self.repetitions, self.length + 1, self.buckets)
        unlike = (tests[:, 1:] < 0) != (tests[:, :1] < 0)
        powers = np.uint64(1) << np.arange(self.length, dtype=np.uint64)
        read = (unlike * powers[:, np.newaxis]).sum(axis=1, dtype=np.uint64).reshape(-1)
        rows, own = np.divmod(np.arange(read.size), self.buckets)
        buckets, _ = self._hashed(read)
        known = (buckets[np.arange(read.size), rows] == own) & (read <= np.uint64(self.size - 1))
        values = np.unique(read[known])
        return values[np.argsort(-self.estimates(sums, values), kind="stable")]

    def variance(self, n: int, count: float, others: float) -> float:
        share = 1.0 if self.repetitions == 1 else math.pi / (2 * self.repetitions + 1)
        noise = self.randomizer.variance(n, min(max(count, 0.0), n), self.averaged_queries)
        return share * (noise + others / self.buckets / self.averaged_queries)

    def _hashed(self, values: ItemValues) -> tuple[Symbols, Symbols]:
        """Return the bucket of each repetition, and 1 where the sign is -1, shapes `(n, R)`."""
        words = self._bucket_family.hash(key_chunks(values))
        buckets = fast_range(words[:, :-1], self.buckets).astype(np.uint32)
        flips = words[:, -1:] >> np.arange(self.repetitions, dtype=np.uint64)
        return buckets, (flips & np.uint64(1)).astype(np.uint32)


def paper_sparsity(n: int, size: int, epsilon: float, delta: float, beta: float) -> float:
    """Return s, which balances both errors of theorem 4.2; the number of buckets is O(s)."""
    inner = math.sqrt(n / (math.log(size) * math.log(1 / delta)))
    return float((epsilon / math.log(1 / beta) * inner) ** (2 / 3))


@dataclass(frozen=True)
class Scrambling:
    """A public permutation of values of `bits` bits, 2 to 64, which makes similar values unlike.

    Strings that begin alike have values with similar bits, and GLPS-HH, which adds up a value once
    for each of its bits, would count a rival's agreeing bits as its own. Three rounds of

        x  <-  a x + b mod 2^bits,     x  <-  x xor (x >> ceil(bits / 2))           a odd

    remove the structure of strings: the finalizers of [Steele14] (SplitMix), with a and b from
    the 32 bytes of `seed`. The permutation hides nothing: anyone can invert it.
    """

    bits: int
    seed: bytes = field(repr=False)

    def scramble(self, values: ItemValues) -> ItemValues:
        for a, b in self._round_constants():
            values = self._truncate(values * np.uint64(a) + np.uint64(b))
            values = values ^ (values >> self._shift)
        return values

    def unscramble(self, values: ItemValues) -> ItemValues:
        for a, b in reversed(self._round_constants()):
            # This step is its own inverse, since twice the shift is all bits.
            values = values ^ (values >> self._shift)
            inverse = pow(a, -1, 2**64)
            values = self._truncate((values - np.uint64(b)) * np.uint64(inverse))
        return values

    @property
    def _shift(self) -> np.uint64:
        return np.uint64(-(-self.bits // 2))

    def _truncate(self, values: ItemValues) -> ItemValues:
        return values & np.uint64(2**self.bits - 1)

    def _round_constants(self) -> list[tuple[int, int]]:
        numbers = np.arange(_SCRAMBLING_ROUNDS, dtype=np.uint64)[:, np.newaxis]
        words = HashFamily(self.seed, "scrambling", 1, 2).hash(numbers).tolist()
        return [(a | 1, b) for a, b in words]
