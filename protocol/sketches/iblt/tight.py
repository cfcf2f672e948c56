"""Tight tables: counts modulo a small prime q, for rounds that are read whole or not at all.

Sampled items have small values, so a count below q is most of the information of a cell about a
value. V is kept modulo q, and costs 5 to 7 bits instead of 14 and more. The reader of the
table tries the values v = V, V + q, V + 2q .. up to the largest possible value of a key, in
stages, the small ones first (`peeling_kernel.pyx`). The rest is as in `table.py`: K / v is an x',
its digits those of the hash of x, and x hashes to this very cell. Two things differ.

    V = 0 mod q   the cell may not be empty; if it is not, K is not zero: every x'_j is 1 or more
    dominance     "no other cell of x holds less" means nothing modulo q. Only digits replace it:
                  there are more tests, so there must be more evidence

**False keys.** Each value that is tried lets a false key pass with probability d / (C H^c), for C
cells and a mean of d cells per key, so for T of them

    E(false keys)  <=  T d / (C H^c)

A cell whose values are all tried takes M / q tests for values up to M, so it has a false key with
probability

    M d / (q C H^c)  <=  1/3                                                             (1)

which takes `log2(M / q)` bits more evidence than one test, and is what `tight_cell` ensures. Few
cells get there: others are read at small values first. False keys are detected and put back; a
third per cell costs at most 1% of the room (measured).

**Wrong reads.** A table is read whole if it ends empty, and then it is exact except in two cases.
A key x with v > q may be mistaken for another, of v - j q, in the very same cells. There are v / q
of those, each with the probability w^-s of a light key's cells in s sub-tables of w, so with N for
all values

    P(read whole, and wrong)  <=  N / (q H^c w^s)  <=  2^-19                              (2)

which (1) implies in large tables. In tables of less than 1,000 cells (2) needs more evidence, for
all q up to one above all values, of which there is only one to try. And of *twins*, two keys in the
same cells, which stop the default mode, one may be mistaken for both with another value, with
probability 2 M / (q p^c). Two keys of n are twins with probability n^2 / (2 w^s): for 1,000 keys of
17 bits both together happen once in 100,000 tables at most. Such a value is mostly large, so a
table whose values add up to more than their bound does not count as read.

A table that gets stuck lists nothing: its false keys cannot be distinguished from the others.

1,000 keys take 29 bits each if they are of three of 46 characters and 52 if they are of 36 bits,
where the default takes 45 and 69. A tight table gives up: keys of stuck tables, help by known keys,
a bound on the total of counts (`Iblt.fault`), and speed in stuck tables.

Packing elements in mixed radix (31^12 in 60 bits) would save 0.9% of V's lane, which is 0.2% of
a table, as p is the largest prime of its bits: not worth a wire format.

Source: mode and bounds are ours.
"""

import math
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache

from protocol.numerics.finite_fields import widest_prime
from protocol.sketches.iblt.layout import Layout, largest_fitting_cells
from protocol.sketches.iblt.table import CellFormat

_MIN_COUNT_BITS = 5  # of q: 13, the prime of 4 bits, leaves a fifth of the values unused
_MAX_FALSE_KEYS_PER_CELL = 1 / 3  # if all values of the cell are tried
_MIN_EVIDENCE = 100  # of q H^c: with less, nearly full large tables are read slowly
_MAX_WRONG_READ_PROBABILITY = 2.0**-19  # of tables that are read whole


@lru_cache(1024)
def tight_cell(cell: CellFormat, cells: int) -> CellFormat:
    """Return the narrowest tight cell that holds what `cell` does, in a table of `cells`."""
    layout = Layout(cells)
    min_evidence = max(
        _MIN_EVIDENCE, cell.value_bound * layout.mean_degree / cells / _MAX_FALSE_KEYS_PER_CELL
    )
    wrong_reads = cell.total_bound / float(layout.width) ** layout.subtables
    against_wrong_reads = wrong_reads / _MAX_WRONG_READ_PROBABILITY
    smallest = max(2 ** (_MIN_COUNT_BITS - 1), cell.moduli.min_prime)
    formats, q = list[CellFormat](), widest_prime(smallest - 1)
    while not formats or formats[-1].q <= cell.value_bound:
        product = min_evidence if q > cell.value_bound else max(min_evidence, against_wrong_reads)
        evidence = max(2**cell.chunks, math.ceil(product / q))
        with suppress(ValueError):  # p would be 2^31 or more
            formats.append(replace(cell, evidence=evidence, q=q))
        q = widest_prime(q)
    return min(formats, key=lambda tight: (tight.bits, -tight.q * tight.radix**tight.chunks))


def max_tight_cells(cell: CellFormat, nbytes: int) -> int:
    """Return the cells of the largest tight table that packs into `nbytes`, 0 if none does."""
    cells = largest_fitting_cells(8 * nbytes // (1 + cell.chunks))
    while cells:
        tight = tight_cell(cell, cells)
        fitting = tight.max_cells(nbytes)
        if fitting >= cells:
            return cells
        cells = fitting  # cells of smaller tables are not narrower
    return 0
