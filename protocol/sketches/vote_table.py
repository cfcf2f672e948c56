"""Votes for a few of very many cells: a table that is read whole but for odds that are proven.

A key is a cell's number, its value the votes for it. The table has eight sub-tables of `width`
cells, and each key is in one cell of each: in four by one hash, in four by another. A cell holds

    V  sum v          mod 2^b, read from -2^(b-1) on
    K  sum v x'_j     mod p, for each chunk j of the key: x'_j = H x_j + g_j with hash digits g_j

as in `iblt.py`, and is peeled likewise: where K / V is an x' with its digits that hashes to this
very cell, V of that key is taken out of all eight. A false key leaves its negative, which is peeled
as any other: what is read are the sums of what was taken out.

**When it is not read.** What was left by peeling is a set of s keys of which none is alone in a
cell. Eight times s balls are thrown into w bins, and none is alone in a bin with odds q(s, w), so

    odds  <=  sum over s of C(N, s) q(s, w)^8     for any N keys, whatever they are
    q(s, w)  =  sum over j of w! / (w - j)! S(s, j) / w^s            (S: blocks of two or more)
            <=  s! (e^r - r)^w / (r^s w^s)        for every r > 0    (a coefficient of (e^x - x)^w)

The first form is taken up to s = 64. Two keys that a hash cannot tell apart, with odds of 2^-61,
still have four sub-tables of the other. And a cell of several keys passes for one with odds of 1 in
H^c w; a cell is inspected first and whenever a key of it is taken out, so 8 (1 + N / w) / H^c keys
are false at most, on average. All of it is for hash functions that are as good as random, and keys
chosen before the seed.

Published thresholds of peeling let tables be fuller, but say nothing of odds as small as a delta.

Source: [GoodrichMitzenmacher11] for the table; the bound by sets without a key that is alone is the
first moment of [Molloy05]; eight sub-tables by two hashes, signed values and numbers are ours.
"""

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from scipy.special import betainc, gammaln

from protocol.hashing import Family
from protocol.public import Public
from protocol.sketches.iblt import Cell, Keys, Values
from secagg.ring import Lane, Ring, Vector

HASHES, EACH = 2, 4
SUBTABLES = HASHES * EACH
MOST_KEYS = 2**17  # for which a width is found in a second
MOST_WIDTH = 2**21
MOST_BOUND = 2**52
MOST_EVIDENCE = 2**80
_MOST_CHUNKS = 6
_EXACT = 64  # keys up to which q is exact
_SPARE = 64  # more keys: false ones
_U32, _LOW32 = np.uint64(32), np.uint64(2**32 - 1)
_TENTH = 0.1  # of the odds: for false keys

Floats = NDArray[np.float64]


class Shape(Public):
    """Sub-tables of `width` cells for numbers below `bound` and so many `votes` in all, at most.

    A cell of several keys passes for one with odds of 1 in `evidence` times `width`.
    """

    bound: int = Field(ge=2, le=MOST_BOUND)
    votes: int = Field(ge=1, lt=2**31)
    width: int = Field(ge=1, le=MOST_WIDTH)
    evidence: int = Field(ge=1, le=MOST_EVIDENCE)

    @model_validator(mode="after")
    def _has_cells(self) -> Self:
        if not self._cells():
            raise ValueError("no prime below 2^31 has room for so much evidence")
        return self

    @classmethod
    def fitting(cls, bound: int, votes: int, odds: float) -> Self | None:
        """Return the least shape that is read whole but for `odds`; None if there is none."""
        keys = min(votes, bound)
        if keys > MOST_KEYS or bound > MOST_BOUND:
            return None
        width = least_width(keys, (1 - _TENTH) * odds)
        evidence = math.ceil(SUBTABLES * (1 + keys / width) / (_TENTH * odds))
        if evidence > MOST_EVIDENCE or width > MOST_WIDTH:
            return None
        return cls(bound=bound, votes=votes, width=width, evidence=evidence)

    @property
    def cell(self) -> Cell:
        """Return the cell of least bits with so much evidence."""
        return min(self._cells(), key=lambda cell: cell.bits)

    def _cells(self) -> list[Cell]:
        cells = []
        for chunks in range(1, _MOST_CHUNKS + 1):
            base = 2 ** max(1, -(-(self.bound - 1).bit_length() // chunks))
            # One more than any chunk, so that all have the same room for digits; and twice the
            # votes, since values are read with a sign.
            try:
                cell = Cell(chunks, base + 1, self.votes, 2 * self.votes, self.evidence)
            except ValueError:  # no prime is as wide
                continue
            cells.append(cell)
        return cells

    @property
    def ring(self) -> Ring:
        """Return the ring of tables: the lanes of V and K."""
        cells, cell = SUBTABLES * self.width, self.cell
        return Ring((Lane(cell.counts, cells), Lane(cell.p, cells * cell.chunks)))


@dataclass(frozen=True, slots=True)
class VoteTable:
    """A table of one `shape` with the hash functions of `seed`, 32 bytes."""

    shape: Shape
    seed: bytes
    cell: Cell = field(init=False)
    base: int = field(init=False)  # of a number's chunks
    families: tuple[Family, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        cell = self.shape.cell
        words = cell.chunks + EACH // 2  # for digits, and two places each
        families = tuple(
            Family(self.seed, f"votes {number}", cell.chunks, words) for number in range(HASHES)
        )
        object.__setattr__(self, "cell", cell)
        object.__setattr__(self, "base", cell.key_bound - 1)
        object.__setattr__(self, "families", families)

    def insert(self, numbers: Values, votes: Values) -> Vector:
        """Return the table of `votes` for `numbers`, below the bound; values as in the ring."""
        counts, sums = self._zeros()
        self._add(counts, sums, numbers, votes)
        pairs = zip(self.shape.ring.lanes, (counts % self.cell.counts, sums), strict=True)
        return tuple(array.reshape(-1).astype(lane.dtype) for lane, array in pairs)

    def read(self, table: Vector) -> tuple[Values, Values]:
        """Return the numbers in `table`, lowest first, and their votes: as far as it is read.

        Any vector of the ring will do; the work is bounded for all of them.
        """
        cell, half = self.cell, self.cell.counts // 2
        counts = table[0].astype(np.int64)
        counts = np.where(counts >= half, counts - cell.counts, counts)
        sums = table[1].astype(np.int64).reshape(-1, cell.chunks)
        taken: list[tuple[Values, Values]] = []
        where = np.flatnonzero(counts)
        # A key is taken out once. Made-up tables may give and take thousands for ever.
        left = min(self.shape.votes, self.shape.bound) + _SPARE
        while left > 0:
            numbers, votes = self._alone(counts, sums, where)
            if not len(numbers):
                break
            left -= len(numbers)
            taken.append((numbers, votes))
            touched = self._add(counts, sums, numbers, -votes)
            where = np.unique(touched)
            where = where[counts[where] != 0]
        numbers = np.concatenate([one for one, _ in taken] or [np.zeros(0, np.int64)])
        votes = np.concatenate([one for _, one in taken] or [np.zeros(0, np.int64)])
        found, places = np.unique(numbers, return_inverse=True)
        total = np.zeros(len(found), np.int64)
        np.add.at(total, places, votes)
        return found[total != 0], total[total != 0]

    def fault(self, table: Vector, most: int) -> str | None:
        """Return which law `table` breaks, as no sum of tables of `most` votes can; None if none.

        All sub-tables hold the same. Nothing is said of how much.
        """
        counts = table[0].astype(np.int64).reshape(SUBTABLES, -1).sum(axis=1) % self.cell.counts
        sums = table[1].astype(np.int64).reshape(SUBTABLES, -1, self.cell.chunks).sum(axis=1)
        if (counts != counts[0]).any() or (sums % self.cell.p != sums[0] % self.cell.p).any():
            return "the sub-tables' votes add up differently"
        if int(counts[0]) > most:
            return "there are more votes than devices have items"
        return None

    def _zeros(self) -> tuple[Values, Values]:
        cells = SUBTABLES * self.shape.width
        return np.zeros(cells, np.int64), np.zeros((cells, self.cell.chunks), np.int64)

    def _add(self, counts: Values, sums: Values, numbers: Values, votes: Values) -> Values:
        """Add `votes` to the cells of `numbers`; return these cells."""
        elements, cells = self._of(numbers)
        p = self.cell.p
        np.add.at(counts, cells, votes[:, np.newaxis])
        terms = elements * (votes % p)[:, np.newaxis] % p
        for chunk in range(self.cell.chunks):
            np.add.at(sums[:, chunk], cells, terms[:, chunk, np.newaxis])
        touched = cells.reshape(-1)
        sums[touched] %= p
        return touched

    def _alone(self, counts: Values, sums: Values, where: Values) -> tuple[Values, Values]:
        """Return the keys that are alone in a cell of those, each once, and their votes."""
        cell, values = self.cell, counts[where]
        different, places = np.unique(values, return_inverse=True)
        inverses = [pow(int(value), -1, cell.p) if value % cell.p else 0 for value in different]
        elements = sums[where] * np.array(inverses, np.int64)[places, np.newaxis] % cell.p
        chunks = np.minimum(elements // cell.radix, self.base - 1)
        numbers = np.zeros(len(where), np.int64)
        for column in chunks.T:
            numbers = numbers * self.base + column
        inside = (numbers < self.shape.bound) & (np.abs(values) <= self.shape.votes)
        numbers = np.where(inside, numbers, 0)
        right, cells = self._of(numbers)
        passes = inside & (right == elements).all(axis=1) & (cells == where[:, np.newaxis]).any(1)
        numbers, first = np.unique(numbers[passes], return_index=True)
        return numbers, values[passes][first]

    def _of(self, numbers: Values) -> tuple[Values, Values]:
        """Return the elements of each key, `(n, chunks)`, and its cells, `(n, SUBTABLES)`."""
        cell, width = self.cell, np.uint64(self.shape.width)
        keys: Keys = np.zeros((len(numbers), cell.chunks), np.uint64)
        rest = numbers.astype(np.uint64)
        for column in reversed(range(cell.chunks)):
            rest, keys[:, column] = np.divmod(rest, np.uint64(self.base))
        hashed = [family.hash(keys) for family in self.families]
        digits = (hashed[0][:, : cell.chunks] >> _U32) * np.uint64(cell.radix) >> _U32
        elements = keys * np.uint64(cell.radix) + digits
        halves = [
            part for words in hashed for word in words[:, cell.chunks :].T for part in _halves(word)
        ]
        columns = [
            (half * width >> _U32).astype(np.int64) + number * self.shape.width
            for number, half in enumerate(halves)
        ]
        return elements.astype(np.int64), np.stack(columns, axis=1)


def _halves(word: Keys) -> tuple[Keys, Keys]:
    return word >> _U32, word & _LOW32


@lru_cache(maxsize=256)
def most_votes(devices: int, probability: float, odds: float) -> int:
    """Return what the heads of so many coins exceed with `odds` at most."""
    low, high = 0, devices
    while high - low > 1:  # P(more than `high`) is within the odds, that of `low` is not
        middle = (low + high) // 2
        more = float(betainc(middle + 1, devices - middle, probability))
        low, high = (low, middle) if more <= odds else (middle, high)
    return high


@lru_cache(maxsize=256)
def least_width(keys: int, odds: float) -> int:
    """Return the least width, to a part in 500, in which any `keys` are read but for `odds`."""
    low, high = 0, 8
    while unread(keys, high) > odds:
        low, high = high, 2 * high
    while high - low > max(1, low // 500):
        middle = (low + high) // 2
        low, high = (low, middle) if unread(keys, middle) <= odds else (middle, high)
    return high


def unread(keys: int, width: int) -> float:
    """Return the bound on the odds that a table of `width` is not read whole: the module's."""
    s = np.arange(2, keys + 1, dtype=np.float64)
    ways = gammaln(keys + 1) - gammaln(s + 1) - gammaln(keys - s + 1)
    logs = ways + SUBTABLES * log_none_alone(keys, width)[2:]
    alike = HASHES * keys**2 / 2 * 2.0**-61 * float(width) ** -EACH
    return min(1.0, float(np.exp(np.minimum(logs, 0.0)).sum()) + alike)


def log_none_alone(most: int, width: int) -> Floats:
    """Return ln q(s, `width`) for s = 0 .. `most`, or what is above it."""
    s = np.arange(most + 1, dtype=np.float64)
    rates, balls = _saddles()
    r = np.interp(s / width, balls, rates)  # any will do, this is nearly the best
    with np.errstate(over="ignore"):
        each = np.where(r < 30, np.log(np.exp(np.minimum(r, 30)) - r), r)
    logs = gammaln(s + 1) + width * each - s * np.log(r * width)
    few, blocks = min(_EXACT, most), np.arange(_EXACT // 2 + 1)
    with np.errstate(divide="ignore"):
        shapes = np.log(_in_blocks()[: few + 1])
    places = gammaln(width + 1) - gammaln(np.maximum(width - blocks, 0) + 1)
    places = np.where(blocks <= width, places, -np.inf)
    exact = np.logaddexp.reduce(shapes + places, axis=1)
    logs[: few + 1] = exact - s[: few + 1] * math.log(width)
    return np.asarray(np.minimum(logs, 0.0))


@lru_cache(maxsize=1)
def _saddles() -> tuple[Floats, Floats]:
    """Return values of r, and the balls a bin for which they are best."""
    r = np.geomspace(1e-6, 200, 4000)
    return r, r * np.expm1(r) / (np.exp(r) - r)


@lru_cache(maxsize=1)
def _in_blocks() -> Floats:
    """Return S(s, j): in how many ways s things fall into j blocks of two or more."""
    ways = np.zeros((_EXACT + 1, _EXACT // 2 + 1))
    ways[0, 0] = 1
    for s in range(2, _EXACT + 1):
        for j in range(1, s // 2 + 1):
            ways[s, j] = j * ways[s - 1, j] + (s - 1) * ways[s - 2, j - 1]
    return ways
