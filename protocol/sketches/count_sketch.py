"""Rows of counters: a linear sketch that estimates the count of any key it is asked about.

A sketch is `rows` rows of `width` cells. Row j adds a key's value, with a random sign or none,
into one cell g_j(x), and so estimates the count of x:

    signed      s_j(x) T_j(g_j(x))              unbiased: what else is in the cell cancels
    unsigned    (w T_j(g_j(x)) - N) / (w - 1)   unbiased: the mean N / w of what else is there
                                                is taken off; N is the sum of all counts

either with variance about F2 / w, where F2 is the sum of all squared counts. The median over
rows keeps heavy keys that share a cell with others in a few rows from being misjudged. It is
unbiased for signed rows, whose errors are symmetric; of unsigned ones it falls below by at
most one standard deviation of a row.

Cells count modulo 2^b, wide enough for everybody's counts in one cell. An honest sum of
devices that hold N tokens together, of at most `most`, keeps these laws:

    unsigned    every row adds up to the same N, at most `most`; garbage keeps them with odds of
                at most 2^-b(rows - 1)
    signed      every row adds up to N modulo 2, and its absolute values to at most `most`.
                There is no law that says more: signs make any sum from -N to N. A row of
                garbage keeps the bound with odds of about (2 e (most + w) / (w 2^b))^w, which is
                nothing from w = 20 on; a small change of an even amount is not seen

Source: [Charikar02] for signs and medians; [CormodeMuthukrishnan05] for rows of counts
without signs, [DengRafiei07] for taking the mean off: otherwise every estimate is N / w too high,
R times over after R rounds. [Wu23] for locations that stay while signs change from sum to sum.
"""

from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from protocol.hashing import Family, reduce
from secagg.ring import Lane, Ring, Vector

MOST_ROWS = 63  # one hash word has a sign for each

F = TypeVar("F", np.float32, np.float64)
Counts = NDArray[np.int64]
Keys = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class CountSketch:
    """The shape and hash functions of one sketch, for keys of `chunks` chunks.

    `places` seeds the locations, `signs` the signs; without it there are none. No sum has
    counts of more than `most` in it. Cells have `bits`, fewer than `most` takes if who reads them
    knows what to expect, and they may wrap; 0 for as many as it does.
    """

    rows: int
    width: int
    chunks: int
    most: int
    places: bytes
    signs: bytes | None = None
    bits: int = 0
    _places: Family = field(init=False, repr=False)
    _signs: Family | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not (1 <= self.rows <= MOST_ROWS and self.width >= 2 and self.most >= 1):
            raise ValueError(f"1 to {MOST_ROWS} rows of 2 cells or more expected, got {self}")
        places = Family(self.places, "count places", self.chunks, self.rows)
        signs = Family(self.signs, "count signs", self.chunks, 1) if self.signs else None
        object.__setattr__(self, "_places", places)
        object.__setattr__(self, "_signs", signs)

    @property
    def ring(self) -> Ring:
        """Return the ring of the sketches: one lane, row after row."""
        bits = self.bits or cell_bits(self.most, self.signs is not None)
        return Ring((Lane(2**bits, self._cells),))

    def insert(self, keys: Keys, values: Counts) -> Vector:
        """Return the sketch of `keys`, shape `(n, chunks)`, with `values`."""
        amounts = (self._sign(keys) * values).reshape(-1)  # exact as floats: below 2^53
        sums = np.bincount(self._cell(keys).reshape(-1), weights=amounts, minlength=self._cells)
        lane = self.ring.lanes[0]
        return ((sums.astype(np.int64) % lane.q).astype(lane.dtype),)

    def counts(self, total: Vector) -> Counts:
        """Return the cells of `total` as the counts they stand for, shape `(rows, width)`."""
        lane = self.ring.lanes[0]
        cells = total[0].astype(np.int64)
        if self.signs is not None:
            cells[cells >= lane.q // 2] -= lane.q
        return cells.reshape(self.rows, self.width)

    def fault(self, total: Vector, most: int) -> str | None:
        """Return which of the module's laws `total` breaks, None if none.

        `most` is what all counts may add up to.
        """
        self.ring.check(total)
        counts = self.counts(total)
        sums = counts.sum(axis=1)
        if self.signs is None:
            if (sums != sums[0]).any():
                return "the rows add up differently"
            if sums[0] > most:
                return f"the counts add up to {sums[0]:,}, which is more than {most:,}"
            return None
        if (sums % 2 != sums[0] % 2).any():
            return "some rows add up to an odd number, some to an even one"
        reached = int(np.abs(counts).sum(axis=1).max())
        if reached > most:
            return f"the counts of a row amount to {reached:,}, which is more than {most:,}"
        return None

    def estimates(self, counts: Counts, keys: Keys) -> NDArray[np.float64]:
        """Return each row's estimates for `keys`, shape `(rows, n)`."""
        cells = counts.reshape(-1)[self._cell(keys)].astype(np.float64)
        if self.signs is not None:
            cells *= self._sign(keys)
            return cells
        cells *= self.width
        cells -= counts.sum(axis=1, keepdims=True)
        cells /= self.width - 1
        return cells

    def edges(self, keys: Keys) -> tuple[NDArray[np.int64], Counts]:
        """Return the cell of each key in each row, and its sign there, shapes `(rows, n)`."""
        return self._cell(keys), np.broadcast_to(self._sign(keys), (self.rows, len(keys)))

    def variance(self, counts: Counts, estimates: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the variances of medians over rows, as they are for many small errors.

        Each row has (F2 - x^2) / w; the median of H rows has pi / 2 H of that where errors are
        normal, and less where they are mostly zero.
        """
        f2 = float((counts.astype(np.float64) ** 2).sum(axis=1).mean())
        share = min(1.0, np.pi / (2 * self.rows)) / self.width
        return np.asarray(np.maximum(f2 - estimates**2, 0) * share, np.float64)

    @property
    def _cells(self) -> int:
        return self.rows * self.width

    def _cell(self, keys: Keys) -> NDArray[np.int64]:
        """Return the cell of each key in each row, shape `(rows, n)`."""
        within = reduce(self._places.hash(keys), self.width).astype(np.int64).T
        return within + np.arange(0, self._cells, self.width)[:, np.newaxis]

    def _sign(self, keys: Keys) -> Counts:
        """Return 1 or -1 for each row and key, shape `(rows, n)`."""
        if self._signs is None:
            return np.ones((self.rows, 1), np.int64)
        bits = self._signs.hash(keys)[:, 0] >> np.arange(self.rows, dtype=np.uint64)[:, np.newaxis]
        return 1 - 2 * (bits & np.uint64(1)).astype(np.int64)


def cell_bits(most: int, signed: bool) -> int:
    """Return the bits of a cell that counts to `most`, or from -`most` to `most`."""
    return (2 * most if signed else most).bit_length()


def median(rows: NDArray[F]) -> NDArray[F]:
    """Return the medians of the columns of `rows`.

    By exchanges of whole rows, which for a dozen of them beats sorting each column.
    """
    count = len(rows)
    if count > 15:
        ordered = list(np.sort(rows, axis=0))
    else:
        ordered, spare = list(rows.copy()), np.empty_like(rows[0])
        for end in range(count - 1, (count - 1) // 2 - 1, -1):  # the largest left goes to the end
            for at in range(end):
                low, high = ordered[at], ordered[at + 1]
                np.minimum(low, high, out=spare)
                np.maximum(low, high, out=high)
                ordered[at], spare = spare, low
    if count % 2 == 0:
        ordered[count // 2] += ordered[count // 2 - 1]
        ordered[count // 2] /= 2
    middle: NDArray[F] = ordered[count // 2]
    return middle
