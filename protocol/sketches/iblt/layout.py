"""The cells of a key, and the number of keys that a table of these cells can hold.

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

**Capacity.** Keys are hyperedges over their cells. Peeling reads all of them unless a *core* is
left, a set of keys of which each cell is hit at least twice. Large tables have none below 0.915
keys per cell. Small ones need more room, mostly because two keys with the same cells leave a core.
Sizes were measured (150 to 20,000 random tables each) to be read in full with probability 97% and
99%, and tables are filled for 97%. Between 150 and 500 keys 99% would cost a third more cells, and
one unread round in fifty costs little. The paper's flat 1.3 cells per key, with three cells for
each, fails in 45% of tables at 100 keys.

**Stuck tables.** If S of C cells are not empty, the number of keys that hit a core cell is
Poisson(x) given that it is at least two, where

    S / C = 1 - e^-x (1 + x)                                                            (3)

so with u = 1 - e^-x and Lambda(u) = sum P(degree) u^degree the core holds C x Lambda(u) /
Lambda'(u) keys, to which the peeled keys are added. With the expected number of peeled keys this is
N / C = x / Lambda'(u), of which the paper's (4) is the case of three cells for each key. We add the
actual number instead: (4) grows without bound as a small core shrinks, where our estimate tends to
the 2 S / degree keys that such a core must hold.

Source: [Rink13] for mixed degrees; 18 and 11% are the best that we tried of degrees that divide by
3. Capacity: appendix C of [Gascon23], after [Molloy05].
"""

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from protocol.hashing import HashFamily
from protocol.numerics import optimize
from protocol.numerics.array_types import Indices, Words

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
        return 3 if self.cells >= MIN_LARGE_TABLE_CELLS else 4

    @property
    def width(self) -> int:
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
        return 1 + (self.subtables + 1) // 2

    @property
    def heavy_words(self) -> int:
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


SuccessPercent = Literal[97, 99]

# keys: the smallest number of cells that suffice in 97% and in 99% of tables, to about 1%
_CELLS_OF_4_SUBTABLES = {
    1: (4, 4),
    2: (12, 16),
    3: (16, 20),
    5: (20, 24),
    7: (24, 28),
    10: (28, 36),
    15: (36, 44),
    20: (40, 52),
    30: (56, 64),
    50: (80, 84),
    70: (108, 112),
    100: (148, 152),
    130: (188, 192),
    150: (216, 220),
}
_CELLS_OF_3_SUBTABLES = {
    130: (195, 267),
    150: (216, 288),
    200: (267, 354),
    250: (324, 414),
    300: (381, 480),
    400: (495, 573),
    500: (609, 651),
    700: (834, 858),
    1_000: (1_173, 1_194),
    1_500: (1_734, 1_755),
    2_000: (2_292, 2_310),
    3_000: (3_405, 3_426),
    5_000: (5_619, 5_640),
    7_000: (7_830, 7_857),
    10_000: (11_130, 11_160),
    20_000: (22_137, 22_176),
    30_000: (33_129, 33_180),
    50_000: (55_074, 55_200),
    100_000: (109_944, 110_028),
    200_000: (219_555, 219_750),
}


def cells_for(keys: int, percent: SuccessPercent = 97) -> int:
    """Return the cells in which `keys` >= 1 keys are read in full in `percent` of tables."""
    small = _interpolate(_CELLS_OF_4_SUBTABLES, keys, percent, 4)
    if small < MIN_LARGE_TABLE_CELLS:
        return small
    return max(MIN_LARGE_TABLE_CELLS, _interpolate(_CELLS_OF_3_SUBTABLES, keys, percent, 3))


def capacity(cells: int, percent: SuccessPercent = 97) -> int:
    """Return the largest number of keys that `cells` >= 4 read in full in `percent` of tables."""
    return bisect_right(range(1, cells + 1), cells, key=lambda keys: cells_for(keys, percent))


def _interpolate(
    measured: dict[int, tuple[int, int]], keys: int, percent: SuccessPercent, multiple: int
) -> int:
    """Return the measured cells for `keys`, between sizes by logarithm, as a `multiple`."""
    column = {97: 0, 99: 1}[percent]
    cells_per_key = [cells[column] / size for size, cells in measured.items()]
    cells = keys * float(np.interp(math.log(keys), np.log(list(measured)), cells_per_key))
    return multiple * math.ceil(cells / multiple - 1e-9)  # measured sizes stay unchanged


def estimate_keys(layout: Layout, peeled: int, stuck: int) -> float:
    """Return the estimated number of keys in a table with `stuck` non-empty cells after peeling.

    The result is finite: a table without an empty cell counts as one with half an empty cell. So
    far above capacity the estimate stops at about `cells` log(20 cells) / degree.
    """
    if stuck == 0:
        return float(peeled)
    share = min(stuck, layout.cells - 0.5) / layout.cells
    x = float(optimize.brentq(lambda x: -math.expm1(-x) - x * math.exp(-x) - share, 1e-9, 700.0))
    return peeled + layout.cells * x * layout.core_ratio(-math.expm1(-x))
