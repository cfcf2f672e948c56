"""In which cells a key goes: as many of each sub-table as of any other, and of two kinds.

A table is a few *sub-tables* of as many cells. Peeling is limited by how keys spread, and
the best spread known for large tables has keys of two kinds [Rink13]:

    small   4 sub-tables, and each key in one cell of each
    large   3 sub-tables. 89% of keys are *light*: one cell of each. 11% are *heavy*: six cells
            of each, one in each of its six segments, so that no two are the same

Light keys of few cells leave many cells to one key, with which peeling starts; heavy keys
touch so many that they become readable once it runs. 1,000 keys take 1.19 cells each to be
read with odds of 99%, where three cells for all take 1.30; 100,000 keys 1.10 and 1.23. In a
small table two keys often choose the same cells, and then neither is read. This is rarer
with four.

All keys, light and heavy, add the same to each sub-table: the laws of `iblt.py` rest on it.
Measured against one table without sub-tables, this costs nothing from 1,000 keys on and 2% at
100.

Source: [Rink13] for mixed degrees; 18 and 11% are the best of those we tried that divide by 3.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from protocol.hashing import Family

LARGE = 216  # cells from which the large kind reads more keys, with odds of 97%
_HEAVY_SHARE = 0.11
_SPREAD = 6
_LOW = np.uint64(2**32 - 1)
_U32 = np.uint64(32)


@dataclass(frozen=True, slots=True)
class Layout:
    """The sub-tables of a table of `cells` cells; hash words tell each key's cells.

    Word 0 of a key decides, by its lower half, whether it is heavy. Each half of the
    words 1, 2 .. chooses one cell.
    """

    cells: int

    def __post_init__(self) -> None:
        if self.cells < self.subtables or self.cells % self.subtables:
            raise ValueError(
                f"a table has 4, 8, 12 .. cells, or from {LARGE} on a multiple of 3; "
                f"got {self.cells}"
            )

    @property
    def subtables(self) -> int:
        """Return the number of sub-tables."""
        return 3 if self.cells >= LARGE else 4

    @property
    def width(self) -> int:
        """Return the cells of a sub-table."""
        return self.cells // self.subtables

    @property
    def spread(self) -> int:
        """Return in how many cells of each sub-table a heavy key goes."""
        return _SPREAD if self.cells >= LARGE else 1

    @property
    def heavy_below(self) -> int:
        """Return the number that the lower half of a heavy key's word 0 stays below."""
        return int(_HEAVY_SHARE * 2**32) if self.cells >= LARGE else 0

    @property
    def near(self) -> int:
        """Return how many hash words a light key has."""
        return 1 + (self.subtables + 1) // 2

    @property
    def words(self) -> int:
        """Return how many hash words a heavy key has."""
        return 1 + (self.subtables * self.spread + 1) // 2

    @property
    def degree(self) -> float:
        """Return the mean number of cells of a key."""
        share = self.heavy_below / 2**32
        return self.subtables * (1 + share * (self.spread - 1))

    def core(self, covered: float) -> float:
        """Return Lambda / Lambda' at `covered`, for Lambda(u) = sum of P(degree) u^degree."""
        share, few, many = self.heavy_below / 2**32, self.subtables, self.subtables * self.spread
        light, heavy = (1 - share) * covered ** (few - 1), share * covered ** (many - 1)
        return covered * (light + heavy) / (few * light + many * heavy)

    def edges(
        self, family: Family, keys: NDArray[np.uint64], words: NDArray[np.uint64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return rows of `keys` and cells, flat: each row as often as it has cells.

        `words` are the keys' first `near` hash words; heavy keys need more of them.
        """
        heavy = (words[:, 0] & _LOW) < np.uint64(self.heavy_below)
        light_rows, heavy_rows = np.flatnonzero(~heavy), np.flatnonzero(heavy)
        light = self._cells(words[light_rows, 1:], self.segments(heavy=False))
        far = family.hash(keys[heavy_rows], slice(1, self.words))
        many = self._cells(far, self.segments(heavy=True))
        rows = np.repeat(light_rows, light.shape[1]), np.repeat(heavy_rows, many.shape[1])
        return np.concatenate(rows), np.concatenate((light.reshape(-1), many.reshape(-1)))

    def segments(self, *, heavy: bool) -> NDArray[np.int64]:
        """Return first cell and size of the segments in which light or heavy keys go."""
        spread = self.spread if heavy else 1
        return _segments(self.subtables, self.width, spread)

    def _cells(self, words: NDArray[np.uint64], segments: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the cell that each half of the words chooses of its segment."""
        halves = np.stack((words >> _U32, words & _LOW), axis=2).reshape(-1, 2 * words.shape[1])
        starts, sizes = segments[:, 0].astype(np.uint64), segments[:, 1].astype(np.uint64)
        places = halves[:, : len(segments)] * sizes >> _U32
        return (places + starts).astype(np.int64)


def fitting(most: int) -> int:
    """Return the cells of the largest table of at most so many, 0 if there is none."""
    return most - most % (3 if most >= LARGE else 4)


@lru_cache(64)
def _segments(subtables: int, width: int, spread: int) -> NDArray[np.int64]:
    subtable, place = np.divmod(np.arange(subtables * spread), spread)
    start, end = place * width // spread, (place + 1) * width // spread
    return np.stack((subtable * width + start, end - start), axis=1)
