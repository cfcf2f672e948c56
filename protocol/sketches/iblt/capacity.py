"""Capacity of a table: the keys that its cells hold, and the estimated keys of a stuck table.

Keys are hyperedges over the cells they hash to, of the two kinds of `layout.py`. Peeling
reads all of them unless a *core* is left, a set of keys of which each cell is hit at least
twice. Large tables have none below 0.915 keys per cell. Small ones need more room, mostly
because two keys may have the same cells. Such *twins* alone leave a core.

We interpolate sizes that were measured (150 to 20,000 random tables each) to be read in full
with probability 97% and 99%, and fill tables for 97%. Between 150 and 500 keys twins make
99% cost a third more cells; studies in small tables would find much less with fewer keys, and one
unread round in fifty costs little. The paper's flat 1.3 cells per key, with three cells for each,
fails in 45% of tables at 100 keys.

From a stuck table, S non-empty of C cells, the number of keys is estimated. The keys that
hit a core cell are Poisson(x) in number given that they are at least two, where

    S / C = 1 - e^-x (1 + x)                                                            (3)

so with u = 1 - e^-x and Lambda(u) = sum P(degree) u^degree the core holds
C x Lambda(u) / Lambda'(u) keys, to which the peeled keys are added. With the expected
number of peeled keys this is N / C = x / Lambda'(u), of which the paper's (4) is the case of
three cells for each key. We add the actual number of peeled keys instead: (4) grows without bound
as a small core shrinks (twins in a table that is nearly read), where our estimate tends to the
2 S / degree keys that such a core must hold.

Source: appendix C of [Gascon23], after [Molloy05]; mixed degrees after [Rink13].
"""

import math
from typing import Literal

import numpy as np
from scipy.optimize import brentq

from protocol.search import first_true
from protocol.sketches.iblt.layout import MIN_LARGE_TABLE_CELLS, Layout

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
    return first_true(lambda keys: cells_for(keys, percent) > cells, 2, cells + 1) - 1


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
    x = float(brentq(lambda x: -math.expm1(-x) - x * math.exp(-x) - share, 1e-9, 700.0))
    return peeled + layout.cells * x * layout.core_ratio(-math.expm1(-x))
