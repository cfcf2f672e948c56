"""The cells of a key: the same number in each sub-table, and two kinds of keys.

A table is a few *sub-tables* of equal size. The limit of peeling depends on the distribution of
keys to cells, and the best one known for large tables has keys of two kinds [Rink13]:

    small   4 sub-tables, and each key in one cell of each
    large   3 sub-tables. 89% of keys are *light*: one cell of each. 11% are *heavy*: six cells
            of each, one in each of its six segments, so that no two are the same

Light keys with few cells leave many cells with one key, and peeling starts there. Heavy keys
have many cells, so that they become readable soon after. 1,000 keys take 1.19 cells each to be
read with probability 99%, where three cells for all keys take 1.30; 100,000 keys 1.10 and 1.23. In
a small table two keys often have the same cells, and then neither is read. This is rarer
with four sub-tables.

All keys, light and heavy, add the same to each sub-table, which the laws of `table.py` use.
Compared with one table without sub-tables, this costs nothing for 1,000 keys or more, and 2% for
100 (measured).

Source: [Rink13] for mixed degrees; 18 and 11% are the best that we tried of degrees that divide
by 3.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from protocol.arrays import Indices, Words
from protocol.hashing import HashFamily

MIN_LARGE_TABLE_CELLS = 216  # here the large kind begins to read more keys, with probability 97%
_HEAVY_SHARE = 0.11
_HEAVY_CELLS_PER_SUBTABLE = 6
_LOW32 = np.uint64(2**32 - 1)
_U32 = np.uint64(32)


@dataclass(frozen=True, slots=True)
class Layout:
    """The sub-tables of a table of `cells` cells, and the map of hash words to cells.

    The lower half of a key's word 0 decides if the key is heavy. Each half of the words 1, 2 ..
    gives one cell.
    """

    cells: int

    def __post_init__(self) -> None:
        if self.cells < self.subtables or self.cells % self.subtables:
            raise ValueError(
                "cells must be 4, 8, 12 .., or a multiple of 3 of at least "
                f"{MIN_LARGE_TABLE_CELLS}, not {self.cells}"
            )

    @property
    def subtables(self) -> int:
        """Return the number of sub-tables."""
        return 3 if self.cells >= MIN_LARGE_TABLE_CELLS else 4

    @property
    def width(self) -> int:
        """Return the cells of a sub-table."""
        return self.cells // self.subtables

    @property
    def heavy_cells_per_subtable(self) -> int:
        """Return the number of cells of a heavy key in each sub-table."""
        return _HEAVY_CELLS_PER_SUBTABLE if self.cells >= MIN_LARGE_TABLE_CELLS else 1

    @property
    def heavy_below(self) -> int:
        """Return the bound of the lower half of word 0 of a heavy key."""
        return int(_HEAVY_SHARE * 2**32) if self.cells >= MIN_LARGE_TABLE_CELLS else 0

    @property
    def light_words(self) -> int:
        """Return the number of hash words of a light key."""
        return 1 + (self.subtables + 1) // 2

    @property
    def heavy_words(self) -> int:
        """Return the number of hash words of a heavy key."""
        return 1 + (self.subtables * self.heavy_cells_per_subtable + 1) // 2

    @property
    def mean_degree(self) -> float:
        """Return the mean number of cells of a key."""
        share = self.heavy_below / 2**32
        return self.subtables * (1 + share * (self.heavy_cells_per_subtable - 1))

    def core_ratio(self, covered: float) -> float:
        """Return Lambda / Lambda' at `covered`, for Lambda(u) = sum of P(degree) u^degree."""
        share = self.heavy_below / 2**32
        few, many = self.subtables, self.subtables * self.heavy_cells_per_subtable
        light, heavy = (1 - share) * covered ** (few - 1), share * covered ** (many - 1)
        return covered * (light + heavy) / (few * light + many * heavy)

    def edges(self, family: HashFamily, keys: Words, words: Words) -> tuple[Indices, Indices]:
        """Return pairs of a row of `keys` and a cell of this key, as two flat arrays.

        `words` are the first `light_words` hash words of the keys; heavy keys need more.
        """
        heavy = (words[:, 0] & _LOW32) < np.uint64(self.heavy_below)
        light_rows, heavy_rows = np.flatnonzero(~heavy), np.flatnonzero(heavy)
        light = self._cells(words[light_rows, 1:], self.segments(heavy=False))
        more_words = family.hash(keys[heavy_rows], slice(1, self.heavy_words))
        many = self._cells(more_words, self.segments(heavy=True))
        rows = np.repeat(light_rows, light.shape[1]), np.repeat(heavy_rows, many.shape[1])
        return np.concatenate(rows), np.concatenate((light.reshape(-1), many.reshape(-1)))

    def segments(self, *, heavy: bool) -> Indices:
        """Return first cell and size of the segments of light or heavy keys."""
        spread = self.heavy_cells_per_subtable if heavy else 1
        return _segments(self.subtables, self.width, spread)

    def _cells(self, words: Words, segments: Indices) -> Indices:
        """Return the cell in its segment for each half of the words."""
        halves = np.stack((words >> _U32, words & _LOW32), axis=2).reshape(-1, 2 * words.shape[1])
        starts, sizes = segments[:, 0].astype(np.uint64), segments[:, 1].astype(np.uint64)
        offsets = halves[:, : len(segments)] * sizes >> _U32
        return (offsets + starts).astype(np.int64)


def largest_fitting_cells(cells: int) -> int:
    """Return the size of the largest table of at most `cells` cells, 0 if there is none."""
    return cells - cells % (3 if cells >= MIN_LARGE_TABLE_CELLS else 4)


@lru_cache(64)
def _segments(subtables: int, width: int, spread: int) -> Indices:
    subtable, place = np.divmod(np.arange(subtables * spread), spread)
    start, end = place * width // spread, (place + 1) * width // spread
    return np.stack((subtable * width + start, end - start), axis=1)
