"""How many keys a table of cells holds, and how many a table holds that could not be read.

Keys are hyperedges over k = 3 random cells, one in each of three sub-tables of as many cells.
Peeling reads all of them unless a *core* is left, a set of keys of which each cell is hit at
least twice. Large tables have none up to 0.8185 keys a cell [Molloy05], whether or not they
are divided; small ones need more room, mostly because two keys may choose the same three
cells. These *twins* alone leave a core with odds of about keys^2 / 2 * (3 / cells)^3, 4.5
times as often as in one table of distinct cells.

That is the price of the sub-tables' laws (`iblt.py`). We pay it in odds, not in cells, and
interpolate sizes that were measured (500 to 200,000 random tables each) to be read in full
with odds of 97%. For 99%, 100 keys would take 40% more cells, and studies in small tables find
much less with that many fewer keys, where a round more in fifty that is not read costs
little. The paper's flat 1.3 cells a key fails in 45% of tables at 100 keys.

From a stuck table, S non-empty of C cells, the number of keys is estimated. The keys that
hit a core cell are Poisson(x) in number given that they are at least two, where

    S / C = 1 - e^-x (1 + x)                                                            (3)

so the core holds C x (1 - e^-x) / 3 keys, to which those that were peeled are added. With
the expected number of peeled keys this is the paper's 6 N / C = 2 x / (1 - e^-x)^2 (4). We add
the number that was seen instead: (4) grows without bound as a small core shrinks (twins in
a table that nearly decoded), where ours tends to the 2/3 S keys that such a core must hold.

Source: appendix C of [Gascon23], after [Molloy05].
"""

import math

import numpy as np
from scipy.optimize import brentq

SUBTABLES = 3

# keys -> the fewest cells found to be enough, to about 1%
_MEASURED = {
    1: 3,
    2: 12,
    3: 15,
    5: 21,
    10: 36,
    20: 57,
    30: 78,
    50: 108,
    70: 135,
    100: 171,
    150: 228,
    200: 285,
    300: 405,
    500: 657,
    700: 906,
    1_000: 1_278,
    1_500: 1_899,
    2_000: 2_520,
    3_000: 3_756,
    5_000: 6_222,
    10_000: 12_381,
    30_000: 36_930,
    100_000: 122_727,
}
_LOG_KEYS = np.log(list(_MEASURED))
_CELLS_PER_KEY = [cells / keys for keys, cells in _MEASURED.items()]


def cells_for(keys: int) -> int:
    """Return the cells in which `keys` >= 1 keys are read in full with odds of 97%."""
    cells = keys * float(np.interp(math.log(keys), _LOG_KEYS, _CELLS_PER_KEY))
    return SUBTABLES * math.ceil(cells / SUBTABLES - 1e-9)  # what was measured stays as it is


def capacity(cells: int) -> int:
    """Return the most keys that `cells` >= 3 cells let be read in full with odds of 97%."""
    low, high = 1, cells
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if cells_for(middle) <= cells else (low, middle - 1)
    return low


def estimate_keys(cells: int, peeled: int, stuck: int) -> float:
    """Return the estimated number of keys in a table of which `stuck` cells stay non-empty.

    Always finite: a table without any empty cell counts as one with half of one, so far
    above capacity the estimate stops at about `cells` log(20 cells) / 3 and says "too many".
    """
    if stuck == 0:
        return float(peeled)
    share = min(stuck, cells - 0.5) / cells
    x = float(brentq(lambda x: -math.expm1(-x) - x * math.exp(-x) - share, 1e-9, 700.0))
    return peeled - cells * x * math.expm1(-x) / 3
