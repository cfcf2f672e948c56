"""How keys that are known help a table out of a stuck core: cells of two keys, one of them known.

Peeling is stuck when each cell holds two keys or more. For a cell, a known key x that hashes to
it, and each value w that x may have (up to the least V of its cells), the rest of the cell is
one key or it is not: V - w and K - w x' are put to the tests of `iblt.py`. If exactly one way
to split the cell passes, x is taken out with w, and peeling goes on.

A split passes by chance with the odds of a false key, and a cell has as many of them as its
known keys have values; so the cells with the fewest are tried first, a cell is not tried
again before it changed, and only tables that end empty count as read: what a false
split does to the table, no later step makes good.

Work is bounded: at most `4,096 cells` splits are tried, in 500 turns, after each of which all
cells may be inspected again. Cells with more than 2^18 splits, or V from 2^16 on, are left.

With the same bytes 1,191 cells hold 25% more keys if 30% of them are known, and 45% more if
half are, at odds of 95% and more (`tests/protocol/sketches/test_memory.py`). All keys of a small
domain may be called known: three of 46 characters (97,336) take 35 bits a key then in the place
of 45, from the first round on, and a second of decoding. The idea is ours.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.sketches.iblt import Keys
from protocol.sketches.kernel import K, V
from protocol.sketches.peeling import Peeling, inverses

_SPLITS_A_CELL, _SPLITS_AT_ONCE = 4096, 2**20
_TURNS = 500  # 6 to 120 are seen
_MOST = 2**16

Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Known:
    """The keys that may be in the table still, and where: pairs of a row and a cell."""

    keys: Keys
    elements: Keys
    rows: Index
    cells: Index


@dataclass(frozen=True, slots=True)
class Splits:
    """Ways to split cells: in `cell` the known key of `row` may have `value`."""

    cell: Index
    row: Index
    value: Index

    def __getitem__(self, which: NDArray[np.bool_] | Index) -> "Splits":
        return Splits(self.cell[which], self.row[which], self.value[which])


def recall(peeling: Peeling, keys: Keys) -> None:
    """Go on with a stuck `peeling`, with the help of the known `keys`, shape `(n, chunks)`.

    Raises:
        ValueError: if a key is not one of the table's.
    """
    known = _known(peeling, keys)
    tried = np.zeros_like(peeling.rows)
    budget = _SPLITS_A_CELL * peeling.sketch.cells
    least = batch = min(max(16, peeling.sketch.cells // 4), _SPLITS_AT_ONCE)
    for _ in range(_TURNS):
        if budget <= 0 or not peeling.stuck:
            return
        splits = _next_splits(peeling, known, tried, batch)
        if not len(splits.cell):
            return
        budget -= len(splits.cell)
        tried[splits.cell] = peeling.rows[splits.cell]
        found = _unambiguous(peeling, _passing(peeling, known, splits))
        for cell, row, value in zip(found.cell, found.row, found.value, strict=True):
            if (tried[cell] == peeling.rows[cell]).all():  # not touched by another split
                peeling.take(known.keys[row], int(value), int(cell))
        batch = least if len(found.cell) else min(2 * batch, _SPLITS_AT_ONCE)
        if len(found.cell):
            peeling.run()


def _known(peeling: Peeling, keys: Keys) -> Known:
    sketch = peeling.sketch
    sketch.check_keys(keys)
    prints = sketch.family.fingerprint(keys)
    _, first = np.unique(prints, return_index=True)
    listed = sketch.family.fingerprint(peeling.entries()[0])
    keys = keys[first[~np.isin(prints[first], listed)]]
    return Known(keys, sketch.elements(keys), *sketch.edges(keys))


def _next_splits(peeling: Peeling, known: Known, tried: Index, batch: int) -> Splits:
    """Return the splits of the cells with the fewest, of those that changed since `tried`."""
    counts = peeling.rows[:, V]
    most = np.full(len(known.keys), peeling.sketch.cell.value_bound)
    np.minimum.at(most, known.rows, counts[known.cells])
    fresh = (peeling.rows != tried).any(axis=1) & (counts > 1) & (counts < _MOST)
    ways = np.minimum(most[known.rows], counts[known.cells] - 1)
    pairs = np.flatnonzero((ways > 0) & fresh[known.cells])
    a_cell = np.zeros(len(counts), np.int64)
    np.add.at(a_cell, known.cells[pairs], ways[pairs])
    order = np.argsort(a_cell, kind="stable")
    order = order[(a_cell[order] > 0) & (a_cell[order] <= _SPLITS_AT_ONCE // 4)]
    chosen = order[: max(1, int(np.searchsorted(np.cumsum(a_cell[order]), batch)))]
    pairs = pairs[np.isin(known.cells[pairs], chosen)]
    number = np.repeat(pairs, ways[pairs])
    starts = np.cumsum(ways[pairs]) - ways[pairs]
    values = np.arange(len(number)) - np.repeat(starts, ways[pairs]) + 1
    return Splits(known.cells[number], known.rows[number], values)


def _passing(peeling: Peeling, known: Known, splits: Splits) -> Splits:
    """Return those of `splits` whose rest passes for one key."""
    sketch, p = peeling.sketch, np.uint64(peeling.sketch.cell.p)
    rest = peeling.rows[splits.cell, V] - splits.value
    splits, rest = splits[rest <= sketch.cell.value_bound], rest[rest <= sketch.cell.value_bound]
    weights = splits.value.astype(np.uint64)[:, np.newaxis]
    taken = known.elements[splits.row] * weights % p
    left = (peeling.rows[splits.cell, K:].astype(np.uint64) + p - taken) % p
    found = left * inverses(_MOST, int(p))[rest][:, np.newaxis] % p
    keys = found // np.uint64(sketch.cell.radix)
    fits = (keys < sketch.cell.key_bound).all(axis=1)
    splits, rest, found, keys = splits[fits], rest[fits], found[fits], keys[fits]
    fits = (sketch.elements(keys) == found).all(axis=1)
    splits, rest, keys = splits[fits], rest[fits], keys[fits]
    rows, cells = sketch.edges(keys)
    here, enough = np.zeros(len(keys), np.bool_), np.ones(len(keys), np.bool_)
    here[rows[cells == splits.cell[rows]]] = True
    enough[rows[peeling.rows[cells, V] < rest[rows]]] = False
    return splits[here & enough]


def _unambiguous(peeling: Peeling, splits: Splits) -> Splits:
    """Return one split of each cell that has one only, two if both of its keys are known."""
    cells, first, number, times = np.unique(
        splits.cell, return_index=True, return_inverse=True, return_counts=True
    )
    together = np.zeros(len(cells), np.int64)
    np.add.at(together, number, splits.value)
    mirrored = (times == 2) & (together == peeling.rows[cells, V])
    return splits[first[(times == 1) | mirrored]]
