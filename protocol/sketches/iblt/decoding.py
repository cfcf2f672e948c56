"""Decoding of a table: its keys and values, or estimates if it cannot be read whole.

A table at or below its capacity is read whole, and the result is exact. Above it peeling gets
stuck, and the result still has

    keys, values   what was peeled, with a bound on the expected number of false keys. A key's value
                   is exact, but heavy keys are peeled much more often than light ones
                   (`layout.py`: 52% and 14% at 1.1 times capacity), so sums over the keys are
                   biased, unless each table has a fresh hash seed
    distinct       the estimated number of keys in the table, within 5% (rms) up to twice the
                   capacity of tables of at least 1,250 cells

Known keys, for example from earlier rounds, help a table out of a stuck core: they split cells of
two keys. For a cell, a known key x that hashes to it, and each possible value w of x (up to the
smallest V of its cells), the rest of the cell is one key or not: V - w and K - w x' are put to the
tests of `table.py`. If exactly one way to split the cell passes, x is subtracted with w, and
peeling continues.

A split passes by chance with the probability of a false key, and a cell has one split for each
value of each of its known keys. So the cells with the fewest splits are tried first, a cell is
tried again only after it changed, and only tables that end empty count as read: no later step
repairs the effect of a false split.

The work is bounded: at most `4,096 cells` splits are tried in at most 500 rounds, and each round
may inspect all cells again. Cells with more than 2^18 splits, or a V of 2^16 or more, are skipped.

With the same bytes 1,191 cells hold 25% more keys if 30% of them are known, and 45% more if half
are, with probability 95% or more (tests/protocol/sketches/iblt/test_known_keys.py). All keys of a
small domain may count as known: keys of three of 46 characters (97,336) then take 35 bits each
instead of 45, in every round, and decoding takes a second. The idea is ours.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.numerics.array_types import Flags, Indices, Keys
from protocol.sketches.iblt.layout import estimate_keys
from protocol.sketches.iblt.numpy_peeling import K, V
from protocol.sketches.iblt.peeling import Peeling, inverses
from protocol.sketches.iblt.table import DecodedTable, Iblt
from secagg.ring import Vector

_MAX_SPLITS_PER_CELL, _MAX_SPLITS_PER_BATCH = 4096, 2**20
_MAX_ROUNDS = 500  # 6 to 120 occur
_MAX_CELL_VALUE = 2**16


def decode_table(sketch: Iblt, table: Vector, known: Keys | None = None) -> DecodedTable:
    """Return the content of `table`; `known` keys, shape `(n, chunks)`, help if it gets stuck.

    Any vector of the ring is allowed, also one that is not a sum of honest tables. The work is
    bounded for all of them: by 73 inspections per cell, and by the splits above.
    """
    sketch.ring.check(table)
    peeling = Peeling(sketch, table)
    peeling.run()
    decoded = _decoded(sketch, peeling)
    if decoded.complete:
        return decoded
    final = _peel_without_dominance(sketch, peeling.copy())
    if not final.complete and known is not None:
        peel_with_known_keys(peeling, known)
        final = _peel_without_dominance(sketch, peeling)
    return final if final.complete else decoded


def _peel_without_dominance(sketch: Iblt, peeling: Peeling) -> DecodedTable:
    """Return the table as decoded if cells of a key may hold less than its value.

    They do where a false key was subtracted and not detected yet, because the true keys in such
    a cell are not subtracted.
    """
    peeling.run(strict=False)
    return _decoded(sketch, peeling)


def _decoded(sketch: Iblt, peeling: Peeling) -> DecodedTable:
    keys, values = peeling.entries()
    nonempty = peeling.nonempty_cells
    sound = bool((values <= sketch.cell.value_bound).all())
    degree = sketch.layout.mean_degree
    false = peeling.inspections * degree / sketch.cells * sketch.cell.false_digit_probability
    complete = nonempty == 0 and sound
    return DecodedTable(
        keys=keys,
        values=values,
        complete=complete,
        distinct=estimate_keys(sketch.layout, len(keys), nonempty),
        nonempty_cells=nonempty,
        expected_false_keys=0.0 if complete else false,
    )


@dataclass(frozen=True, slots=True)
class KnownKeys:
    """Known keys that may still be in the table, and their cells: pairs of a row and a cell."""

    keys: Keys
    elements: Keys
    key_rows: Indices
    cells: Indices


@dataclass(frozen=True, slots=True)
class CellSplits:
    """Ways to split cells: the known key of `row` may have `value` in `cell`."""

    cell: Indices
    row: Indices
    value: Indices

    def __getitem__(self, which: NDArray[np.bool_] | Indices) -> "CellSplits":
        return CellSplits(self.cell[which], self.row[which], self.value[which])


def peel_with_known_keys(peeling: Peeling, keys: Keys) -> None:
    """Continue a stuck `peeling` with the help of the known `keys`, shape `(n, chunks)`."""
    known = _remaining_known_keys(peeling, keys)
    tried = np.zeros_like(peeling.rows)
    budget = _MAX_SPLITS_PER_CELL * peeling.sketch.cells
    smallest = batch = min(max(16, peeling.sketch.cells // 4), _MAX_SPLITS_PER_BATCH)
    for _ in range(_MAX_ROUNDS):
        if budget <= 0 or not peeling.nonempty_cells:
            return
        splits = _next_splits(peeling, known, tried, batch)
        if not len(splits.cell):
            return
        budget -= len(splits.cell)
        tried[splits.cell] = peeling.rows[splits.cell]
        usable = _unambiguous(peeling, _plausible_splits(peeling, known, splits))
        for cell, row, value in zip(usable.cell, usable.row, usable.value, strict=True):
            if (tried[cell] == peeling.rows[cell]).all():  # unchanged by other splits
                peeling.remove_key(known.keys[row], int(value), int(cell))
        batch = smallest if len(usable.cell) else min(2 * batch, _MAX_SPLITS_PER_BATCH)
        if len(usable.cell):
            peeling.run()


def _remaining_known_keys(peeling: Peeling, keys: Keys) -> KnownKeys:
    sketch = peeling.sketch
    sketch.check_keys(keys)
    fingerprints = sketch.family.fingerprint(keys)
    _, first = np.unique(fingerprints, return_index=True)
    listed = sketch.family.fingerprint(peeling.entries()[0])
    keys = keys[first[~np.isin(fingerprints[first], listed)]]
    return KnownKeys(keys, sketch.elements(keys), *sketch.edges(keys))


def _next_splits(peeling: Peeling, known: KnownKeys, tried: Indices, batch: int) -> CellSplits:
    """Return the splits of the cells with the fewest, among cells that changed since `tried`."""
    counts = peeling.rows[:, V]
    max_values = np.full(len(known.keys), peeling.sketch.cell.value_bound)
    np.minimum.at(max_values, known.key_rows, counts[known.cells])
    changed = (peeling.rows != tried).any(axis=1) & (counts > 1) & (counts < _MAX_CELL_VALUE)
    ways = np.minimum(max_values[known.key_rows], counts[known.cells] - 1)
    pairs = np.flatnonzero((ways > 0) & changed[known.cells])
    splits_per_cell = np.zeros(len(counts), np.int64)
    np.add.at(splits_per_cell, known.cells[pairs], ways[pairs])
    order = np.argsort(splits_per_cell, kind="stable")
    order = order[
        (splits_per_cell[order] > 0) & (splits_per_cell[order] <= _MAX_SPLITS_PER_BATCH // 4)
    ]
    chosen = order[: max(1, int(np.searchsorted(np.cumsum(splits_per_cell[order]), batch)))]
    pairs = pairs[np.isin(known.cells[pairs], chosen)]
    number = np.repeat(pairs, ways[pairs])
    starts = np.cumsum(ways[pairs]) - ways[pairs]
    values = np.arange(len(number)) - np.repeat(starts, ways[pairs]) + 1
    return CellSplits(known.cells[number], known.key_rows[number], values)


def _plausible_splits(peeling: Peeling, known: KnownKeys, splits: CellSplits) -> CellSplits:
    """Return the splits whose rest passes the tests of a single key."""
    sketch, p = peeling.sketch, np.uint64(peeling.sketch.cell.p)
    rest = peeling.rows[splits.cell, V] - splits.value
    splits, rest = splits[rest <= sketch.cell.value_bound], rest[rest <= sketch.cell.value_bound]
    weights = splits.value.astype(np.uint64)[:, np.newaxis]
    subtracted = known.elements[splits.row] * weights % p
    remaining = (peeling.rows[splits.cell, K:].astype(np.uint64) + p - subtracted) % p
    elements = remaining * inverses(_MAX_CELL_VALUE, int(p))[rest][:, np.newaxis] % p
    keys = sketch.cell.keys_of(elements)
    fits: Flags = np.all(keys < sketch.cell.key_bound, axis=1)
    splits, rest, elements, keys = splits[fits], rest[fits], elements[fits], keys[fits]
    fits = (sketch.elements(keys) == elements).all(axis=1)
    splits, rest, keys = splits[fits], rest[fits], keys[fits]
    rows, cells = sketch.edges(keys)
    here, enough = np.zeros(len(keys), np.bool_), np.ones(len(keys), np.bool_)
    here[rows[cells == splits.cell[rows]]] = True
    enough[rows[peeling.rows[cells, V] < rest[rows]]] = False
    return splits[here & enough]


def _unambiguous(peeling: Peeling, splits: CellSplits) -> CellSplits:
    """Return the split of each cell with only one, or one of two if both keys are known."""
    cells, first, number, times = np.unique(
        splits.cell, return_index=True, return_inverse=True, return_counts=True
    )
    summed = np.zeros(len(cells), np.int64)
    np.add.at(summed, number, splits.value)
    mirrored = (times == 2) & (summed == peeling.rows[cells, V])
    return splits[first[(times == 1) | mirrored]]
