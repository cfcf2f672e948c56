"""How many keys a table of cells holds, and how many a table held that could not be read.

Keys are hyperedges over the cells they hash to, of the two kinds of `layout.py`. Peeling
reads all of them unless a *core* is left, a set of keys of which each cell is hit at least
twice. Large tables have none below 0.915 keys a cell; small ones need more room, mostly
because two keys may choose the same cells. Such *twins* alone leave a core.

We interpolate sizes that were measured (150 to 20,000 random tables each) to be read in full
with odds of 97% and of 99%, and fill tables for 97%: between 150 and 500 keys twins make
99% cost a third more cells, and studies in small tables find much less with that many fewer
keys, where a round more in fifty that is not read costs little. The paper's flat 1.3 cells
a key, with three cells for each, fails in 45% of tables at 100 keys.

From a stuck table, S non-empty of C cells, the number of keys is estimated. The keys that
hit a core cell are Poisson(x) in number given that they are at least two, where

    S / C = 1 - e^-x (1 + x)                                                            (3)

so with u = 1 - e^-x and Lambda(u) = sum P(degree) u^degree the core holds
C x Lambda(u) / Lambda'(u) keys, to which those that were peeled are added. With the expected
number of peeled keys this is N / C = x / Lambda'(u), of which the paper's (4) is the case of
three cells for each key. We add the number that was seen instead: (4) grows without bound as
a small core shrinks (twins in a table that nearly decoded), where ours tends to the 2 S / degree
keys that such a core must hold.

Source: appendix C of [Gascon23], after [Molloy05]; mixed degrees after [Rink13].
"""

import math
from typing import Literal

import numpy as np
from scipy.optimize import brentq

from protocol.sketches.layout import LARGE, Layout

Percent = Literal[97, 99]

# keys -> the fewest cells found to be enough in 97% and in 99% of tables, to about 1%
_SMALL = {
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
_LARGE = {
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


def cells_for(keys: int, percent: Percent = 97) -> int:
    """Return the cells in which `keys` >= 1 keys are read in full in so many percent of tables."""
    small = _interpolate(_SMALL, keys, percent, 4)
    return small if small < LARGE else max(LARGE, _interpolate(_LARGE, keys, percent, 3))


def capacity(cells: int, percent: Percent = 97) -> int:
    """Return the most keys that are read in full in so many percent of tables of `cells` >= 4."""
    low, high = 1, cells
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if cells_for(middle, percent) <= cells else (low, middle - 1)
    return low


def _interpolate(measured: dict[int, tuple[int, int]], keys: int, percent: Percent, of: int) -> int:
    """Return the measured cells for `keys`, between sizes by logarithm, as a multiple of `of`."""
    column = {97: 0, 99: 1}[percent]
    a_key = [cells[column] / size for size, cells in measured.items()]
    cells = keys * float(np.interp(math.log(keys), np.log(list(measured)), a_key))
    return of * math.ceil(cells / of - 1e-9)  # what was measured stays as it is


def estimate_keys(layout: Layout, peeled: int, stuck: int) -> float:
    """Return the estimated number of keys in a table of which `stuck` cells stay non-empty.

    Always finite: a table without any empty cell counts as one with half of one, so far
    above capacity the estimate stops at about `cells` log(20 cells) / degree and says "too
    many".
    """
    if stuck == 0:
        return float(peeled)
    share = min(stuck, layout.cells - 0.5) / layout.cells
    x = float(brentq(lambda x: -math.expm1(-x) - x * math.exp(-x) - share, 1e-9, 700.0))
    return peeled + layout.cells * x * layout.core(-math.expm1(-x))
