"""Tight tables: counts modulo a small prime q, for rounds that are read whole or not at all.

A count below q is most of what a cell tells of a value: items that were sampled have small ones.
So V is kept modulo q, and costs 5 to 7 bits in the place of 14 and more, and who reads the
table tries the values v = V, V + q, V + 2q .. up to the largest that a key may have, in
stages, the small ones first (`tight_kernel.py`). The rest is as in `iblt.py`: K / v is an x', its
digits those of the hash of x, and x hashes to this very cell. Two things differ.

    V = 0 mod q   is no empty cell, since K is not zero there: every x'_j is 1 or more
    dominance     "no other cell of x holds less" means nothing modulo q. Nothing takes its
                  place but digits: tests are more, so evidence must be

**False keys.** Each value that is tried lets a false key pass with odds of d / (C H^c), for C
cells and d cells a key on average, so T of them let pass

    E(false keys)  <=  T d / (C H^c)

A cell that is tried to the end takes M / q tests for values up to M, so it is false with odds of

    M d / (q C H^c)  <=  1/3                                                             (1)

which is `log2(M / q)` bits more evidence than one test takes, and what `tight_cell` asks for. Few
cells get there: others are read at small values first. False keys are found out and put back; as
many as a third a cell cost no more than 1% of the room (measured).

**Wrong reads.** A table is read whole if it ends empty, and then it is exact but for two cases.
A key x with v > q may be taken for another, of v - j q, in the very same cells. There are v / q
of those, each with the odds w^-s of a light key's cells in s sub-tables of w, so with N for all
values

    P(read whole, and wrong)  <=  N / (q H^c w^s)  <=  2^-19                              (2)

which (1) implies in large tables. In tables of less than 1,000 cells (2) asks for more, up to a q
above all values, of which there is only one to try. And of *twins*, two keys in the same
cells, which the default mode is stuck with, one may be taken for both with another value, with
odds of 2 M / (q p^c). Two keys of n are twins with odds of n^2 / (2 w^s): for 1,000 keys of 17
bits both together happen once in 100,000 tables at most. Such a value is mostly large, so a table
whose values add up to more than they may does not count as read.

A table that gets stuck lists nothing: its false keys cannot be told from the others.

1,000 keys take 29 bits each if they are of three of 46 characters and 52 if they are of 36 bits,
where the default takes 45 and 69. What it gives up: keys of tables that are stuck, help by
known keys, a bound on the total of counts (`Iblt.fault`), and speed in stuck tables.

Packing elements in mixed radix (31^12 in 60 bits) would save 0.9% of V's lane, which is 0.2% of
a table, as p is the largest prime of its bits: not worth a wire format.

Source: mode and bounds are ours.
"""

import math
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache

from protocol.sketches.iblt import Cell
from protocol.sketches.layout import Layout, fitting
from protocol.sketches.primes import widest_prime

_BITS = 5  # of the smallest q: the prime of 4 bits, 13, leaves a fifth of them unused
_FALSE = 1 / 3  # keys that one cell lets pass if all values are tried
_LEAST = 100  # of q H^c: with less, large tables that are nearly full are read slowly
_WRONG = 2.0**-19  # tables that are read whole and are not exact


@lru_cache(1024)
def tight_cell(cell: Cell, cells: int) -> Cell:
    """Return the narrowest tight cell that holds what `cell` does, in a table of `cells`."""
    layout = Layout(cells)
    tried = max(_LEAST, cell.value_bound * layout.degree / cells / _FALSE)
    wrong = cell.total_bound / float(layout.width) ** layout.subtables / _WRONG
    made, q = list[Cell](), 2**_BITS - 1
    while not made or made[-1].q <= cell.value_bound:
        needed = tried if q > cell.value_bound else max(tried, wrong)
        least = max(2**cell.chunks, math.ceil(needed / q))
        with suppress(ValueError):  # p would be 2^31 or more
            made.append(replace(cell, evidence=least, q=q))
        q = widest_prime(q)
    return min(made, key=lambda one: (one.bits, -one.q * one.radix**one.chunks))


def most_tight_cells(cell: Cell, nbytes: int) -> int:
    """Return the most cells of a tight table that packs into `nbytes`, 0 if none does."""
    cells = fitting(8 * nbytes // (1 + cell.chunks))
    while cells:
        tight = tight_cell(cell, cells)
        most = tight.most(nbytes)
        if most >= cells:
            return cells
        cells = most  # of fewer cells none is narrower
    return 0
