"""GLPS-HH: values hashed into buckets, and a bucket's bits read off one by one.

A faithful instance of the measurements of [GLPS10]: R repetitions, each of B buckets and L + 1
tests, entries in {-1, 0, 1}, R B (L + 1) = O(s log N) of them:

    test 0      sum over x in bucket b of  sigma_r(x) v_x
    test t      sum over x in bucket b of  sigma_r(x) (-1)^(bit t of x) v_x,   t = 1 .. L

Where one value outweighs the others of its bucket and the noise, bit t of it is 1 exactly if
tests t and 0 differ in sign: R B values are read, in time that does not depend on N. One that does
not hash to the bucket it was read from was noise. The count of x is the median over r of the
mean over t of x's signed cells, with variance about

    pi / (2 R + 1) (noise of a cell + sum of others' squared counts / B) / (L + 1)

where others' bits are unlike those of x. Neighbours differ in at most L coordinates of 2 a
repetition if they share its bucket, for one bit at least is unlike, and in 2 (L + 1) of 1 if not.

Source: section 4.1 and algorithm 2 of [hsu2012]. [GLPS10] reads values with an expander code and
iterates, which for one heavy hitter changes constants only; averaging all tests is ours.
"""

import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from protocol.hashing import Family, reduce
from protocol.oracles.composition import Profile, paper_scale
from protocol.oracles.projection import Projection, Values, bits_of, chunks
from protocol.oracles.randomizers import Floats, Symbols


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseRecovery(Projection):
    """GLPS-HH of `buckets` buckets and an odd number of `repetitions`."""

    buckets: int = 16
    repetitions: int = 3
    _places: Family = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 2 <= self.buckets <= 2**16:
            raise ValueError(f"buckets must be within 2 and 65,536, not {self.buckets}")
        if not 1 <= self.repetitions <= 63 or self.repetitions % 2 == 0:
            raise ValueError(f"repetitions must be odd, within 1 and 63, not {self.repetitions}")
        Projection.__post_init__(self)
        family = Family(self.seed, "hsu2012 glps", 2, self.repetitions + 1)
        object.__setattr__(self, "_places", family)

    @property
    def length(self) -> int:
        """Return L, the bits of a value."""
        return bits_of(self.size)

    @property
    def queries(self) -> int:
        """Return R (L + 1)."""
        return self.repetitions * (self.length + 1)

    @property
    def cells(self) -> int:
        """Return B."""
        return self.buckets

    @property
    def answers(self) -> int:
        """Return L + 1: what one repetition averages."""
        return self.length + 1

    @property
    def paper_scale(self) -> Fraction:
        """Return sqrt(8 m ln 1/delta) / epsilon for all m measurements."""
        return paper_scale(self.queries * self.buckets, self.epsilon, self.delta)

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """Return the worst shifts, by how many repetitions put both values in one bucket."""
        if self.relation == "deletion":
            return (((1, self.queries),),)
        together = range(self.repetitions + 1)
        apart = 2 * (self.length + 1)
        return tuple(((2, r * self.length), (1, (self.repetitions - r) * apart)) for r in together)

    def symbols(self, values: Values) -> Symbols:
        """Return the bucket and sign of each repetition and test, shape `(n, R (L + 1))`."""
        buckets, flips = self._hashed(values)
        tests = np.arange(self.length, dtype=np.uint64)
        bits = ((values[:, np.newaxis] >> tests) & np.uint64(1)).astype(np.uint32)
        tested = np.concatenate((np.zeros((len(values), 1), np.uint32), bits), axis=1)
        signs = flips[:, :, np.newaxis] ^ tested[:, np.newaxis, :]
        return (2 * buckets[:, :, np.newaxis] + signs).reshape(len(values), self.queries)

    def estimates(self, sums: Floats, values: Values) -> Floats:
        """Return the median over repetitions of the mean over tests."""
        symbols = self.symbols(values)
        cells = sums[np.arange(self.queries), symbols >> 1]
        signed = np.where(symbols & 1, -cells, cells)
        means = signed.reshape(len(values), self.repetitions, self.answers).mean(axis=2)
        return np.asarray(np.median(means, axis=1), np.float64)

    def candidates(self, sums: Floats, most: int) -> Values:
        """Return the values that can be read and hash to where they were read, by count."""
        del most
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
        """Return the variance of a repetition's mean, and of the median of R of them.

        Of normal ones it is pi / (2 R + 1) of theirs to 1%, from R = 3 on.
        """
        share = 1.0 if self.repetitions == 1 else math.pi / (2 * self.repetitions + 1)
        noise = self.randomizer.variance(n, min(max(count, 0.0), n), self.answers)
        return share * (noise + others / self.buckets / self.answers)

    def _hashed(self, values: Values) -> tuple[Symbols, Symbols]:
        """Return bucket, and whether the sign is -1, of each repetition, shapes `(n, R)`."""
        words = self._places.hash(chunks(values))
        buckets = reduce(words[:, :-1], self.buckets).astype(np.uint32)
        flips = words[:, -1:] >> np.arange(self.repetitions, dtype=np.uint64)
        return buckets, (flips & np.uint64(1)).astype(np.uint32)


def paper_sparsity(n: int, size: int, epsilon: float, delta: float, beta: float) -> float:
    """Return s, which balances the two errors of theorem 4.2: the buckets are of its order."""
    inner = math.sqrt(n / (math.log(size) * math.log(1 / delta)))
    return float((epsilon / math.log(1 / beta) * inner) ** (2 / 3))
