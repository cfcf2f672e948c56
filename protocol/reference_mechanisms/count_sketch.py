"""Count sketch: rows of counters, a linear sketch that estimates the count of any given key.

A sketch is `rows` rows of `width` cells. Row j adds a key's value, with a random sign or none,
to one cell g_j(x), and so estimates the count of x:

    signed      s_j(x) T_j(g_j(x))    unbiased: the other keys of the cell cancel
    unsigned    T_j(g_j(x))           too high by the other keys of the cell

either with variance about F2 / w, where F2 is the sum of all squared counts. The estimate is the
median over rows; `median_estimates.py` has its bias and variance.

An honest sum of devices that hold N tokens together, at most `max_total`, keeps these laws:

    unsigned    every row adds up to the same N, at most `max_total`; a random vector keeps them
                with probability at most q^-(rows - 1), in cells modulo q
    signed      every row adds up to N modulo 2, and its absolute values to at most `max_total`.
                No stronger law exists: signs make any sum from -N to N. A random row keeps the
                bound with probability about (2 e (max_total + w) / (w q))^w, which is negligible
                for w of at least 20; a small change by an even amount is not detected

Source: [Charikar02] for signs and medians; [CormodeMuthukrishnan05] for rows of counts
without signs; [Wu23] for locations that stay while signs change from sum to sum.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from protocol.hashing import HashFamily, fast_range
from protocol.numerics.array_types import Floats, Indices, Integers, Keys
from protocol.privacy.noise_shares import tail_bound
from protocol.reference_mechanisms.median_estimates import (
    MedianEstimates,
    RowEstimates,
    estimate_medians,
    keys_of_nobody,
)
from secagg.oneshot.moduli import PAIRWISE, Moduli
from secagg.ring import Lane, Ring, Vector

MAX_ROWS = 63  # one hash word has the signs of all rows
NOISE_TAIL = 2.0**-64  # probability that the noise of a row breaks a law


@dataclass(frozen=True, slots=True)
class CountSketch:
    """The shape and hash functions of one sketch, for keys of `chunks` chunks.

    `location_seed` seeds the locations and `sign_seed` the signs; without it all signs are 1. No
    sum has counts of more than `max_count` in it. Cells with noise may be negative, and `max_count`
    bounds their absolute values.
    """

    rows: int
    width: int
    chunks: int
    max_count: int
    location_seed: bytes
    sign_seed: bytes | None = None
    has_noise: bool = False
    moduli: Moduli = PAIRWISE
    _location_family: HashFamily = field(init=False, repr=False)
    _sign_family: HashFamily | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not (1 <= self.rows <= MAX_ROWS and self.width >= 2 and self.max_count >= 1):
            raise ValueError(f"a sketch has 1 to {MAX_ROWS} rows of 2 cells or more, not {self}")
        locations = HashFamily(self.location_seed, "count places", self.chunks, self.rows)
        signs = (
            HashFamily(self.sign_seed, "count signs", self.chunks, 1) if self.sign_seed else None
        )
        object.__setattr__(self, "_location_family", locations)
        object.__setattr__(self, "_sign_family", signs)

    @property
    def ring(self) -> Ring:
        """Return the ring of the sketches: one lane, row after row."""
        q = cell_modulus(self.max_count, self.moduli, signed=self._is_signed)
        return Ring((Lane(q, self._cells),))

    def insert(self, keys: Keys, values: Integers) -> Vector:
        """Return the sketch of `keys`, shape `(n, chunks)`, with `values`."""
        amounts = (self._sign(keys) * values).reshape(-1)  # exact as floats: below 2^53
        sums = np.bincount(self._cell(keys).reshape(-1), weights=amounts, minlength=self._cells)
        lane = self.ring.lanes[0]
        return ((sums.astype(np.int64) % lane.q).astype(lane.dtype),)

    def counts(self, total: Vector) -> Integers:
        """Return the cells of `total` as counts, shape `(rows, width)`."""
        lane = self.ring.lanes[0]
        cells = total[0].astype(np.int64)
        if self._is_signed:
            cells[cells >= (lane.q + 1) // 2] -= lane.q
        return cells.reshape(self.rows, self.width)

    def fault(self, total: Vector, max_total: int) -> str | None:
        """Return the law of the module that `total` breaks, None if none.

        `max_total` bounds the sum of all counts.
        """
        self.ring.check(total)
        counts = self.counts(total)
        sums = counts.sum(axis=1)
        if self.sign_seed is None:
            if (sums != sums[0]).any():
                return "the rows add up differently"
            if sums[0] > max_total:
                return "the counts are more than the devices may hold"
            return None
        if (sums % 2 != sums[0] % 2).any():
            return "some rows add up to an odd number, some to an even one"
        return _size_fault(counts, max_total)

    def noisy_fault(self, total: Vector, max_total: int, variance: float) -> str | None:
        """Return the law that `total` breaks under noise of at most `variance` in each cell.

        `max_total` bounds the sum of all counts without noise. Noise breaks a law with probability
        2^-64 for each row.
        """
        self.ring.check(total)
        counts = self.counts(total)
        sums = counts.sum(axis=1)
        room = tail_bound(2 * self.width * variance, NOISE_TAIL)
        if self.sign_seed is None and np.abs(sums - sums[0]).max() > room:
            return "the rows add up differently, by more than their noise"
        size = absolute_sum_bound(variance, self.width, NOISE_TAIL)
        return _size_fault(counts, max_total + size)

    def estimates(self, counts: Integers, keys: Keys) -> Floats:
        """Return each row's estimates for `keys`, shape `(rows, n)`; without signs, too high."""
        return (counts.reshape(-1)[self._cell(keys)] * self._sign(keys)).astype(np.float64)

    def read(self, counts: Integers, keys: Keys) -> tuple[MedianEstimates, MedianEstimates]:
        """Return the estimates of `keys` from the cells `counts`, without bias.

        The second ones are of keys that nobody holds: a sample of the noise. With signs there is
        one for each key, because fewer do not show the largest noise.
        """
        has_signs = self.sign_seed is not None
        rows, noise_rows = (
            RowEstimates(self.estimates(counts, each), self._cell(each))
            for each in (keys, keys_of_nobody(self.chunks, len(keys) if has_signs else 0))
        )
        return estimate_medians(rows, noise_rows, has_signs=has_signs)

    @property
    def _is_signed(self) -> bool:
        return self.sign_seed is not None or self.has_noise

    @property
    def _cells(self) -> int:
        return self.rows * self.width

    def _cell(self, keys: Keys) -> Indices:
        """Return the cell of each key in each row, shape `(rows, n)`."""
        within = fast_range(self._location_family.hash(keys), self.width).astype(np.int64).T
        return within + np.arange(0, self._cells, self.width)[:, np.newaxis]

    def _sign(self, keys: Keys) -> Integers:
        """Return 1 or -1 for each row and key, shape `(rows, n)`."""
        if self._sign_family is None:
            return np.ones((self.rows, 1), np.int64)
        bits = (
            self._sign_family.hash(keys)[:, 0]
            >> np.arange(self.rows, dtype=np.uint64)[:, np.newaxis]
        )
        return 1 - 2 * (bits & np.uint64(1)).astype(np.int64)


def absolute_sum_bound(variance: float, cells: int, tail: float) -> int:
    """Return an integer that the absolute noise of `cells` exceeds with probability `tail`.

    By Chernoff, since E e^(u |Z|) <= 2 e^(s (cosh u - 1)), with the u that makes both parts of the
    exponent equal.
    """
    part = math.log(2) - math.log(tail) / cells
    return math.ceil(2 * cells * part / math.acosh(1 + part / variance))


def _size_fault(counts: Integers, most: int) -> str | None:
    largest = int(np.abs(counts).sum(axis=1).max())
    if largest > most:
        return "the counts of a row are more than the devices may hold"
    return None


def cell_modulus(max_count: int, moduli: Moduli, *, signed: bool) -> int:
    """Return the modulus of cells that hold counts of up to `max_count`."""
    return moduli.above(2 * max_count if signed else max_count)
