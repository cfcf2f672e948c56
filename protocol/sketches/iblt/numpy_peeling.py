"""Peeling in numpy: the reference of `peeling_kernel.pyx`, and its replacement if not compiled.

The kernel inspects one cell after another. Here a step inspects all cells that changed, and takes
out all keys that it finds alone. Keys that together are more than one of their cells holds are not
all true: of them it takes those from the cell that the kernel would inspect first. So both find the
same keys of a sum, in another order, unless a key is false.

The kernel's limits hold: a cell makes no entry of a key twice, a key has at most two entries, each
is withdrawn at most once, and a call inspects each cell 73 times on average at most. Instead of a
link, `LAST_ENTRY` of a cell is not 0 if any entry was taken from it.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from protocol.numerics.array_types import Flags, Indices, Integers, Keys

if TYPE_CHECKING:
    from protocol.sketches.iblt.peeling import PeelingState, TableParameters

# Raise it here and in the kernel with each change of arguments. The kernel checks no index, so one
# of another number would write beyond its arrays: it is not used.
INTERFACE = 1
V, LAST_ENTRY, K = 0, 1, 2  # columns of a row
ENTRIES, INSPECTIONS, REPEATED_KEYS = 0, 1, 2  # totals
_MAX_ENTRIES_OF_KEY, _MAX_INSPECTIONS_PER_CELL = 2, 73


class _LoneKeys(NamedTuple):
    """Keys that are alone in a cell, by all tests but the last; a negative value is owed."""

    cells: Indices
    values: Integers
    keys: Keys
    elements: Keys

    def where(self, passes: Flags) -> "_LoneKeys":
        return _LoneKeys._make(array[passes] for array in self)


def peel(
    rows: Integers, parameters: "TableParameters", state: "PeelingState", _: Keys, strict: bool
) -> None:
    """Take keys out of the table until no cell is pure; only `strict` applies the last test."""
    sketch, p, waiting = parameters.sketch, parameters.p, rows[:, V] != 0
    end = state.totals[INSPECTIONS] + _MAX_INSPECTIONS_PER_CELL * len(rows)
    while waiting.any() and state.totals[INSPECTIONS] < end:
        lone = _inspect(rows, parameters, state, np.flatnonzero(waiting))
        waiting[:] = False
        numbers, cells = sketch.edges(lone.keys)
        passes = lone.values > 0
        if strict:
            passes[numbers[rows[cells, V] < lone.values[numbers]]] = False
        fingerprints = sketch.family.fingerprint(lone.keys)
        owed = np.full(len(passes), -1)
        # The cell that a key's entry was taken from is one of the key's cells.
        if rows[cells, LAST_ENTRY].any():
            owed = _compare_with_entries(rows, parameters, state, lone, fingerprints, passes)
        # Each key is taken once, from the highest of the cells that hold it alone.
        taken = np.flatnonzero(passes)[::-1]
        taken = taken[np.unique(fingerprints[taken], return_index=True)[1]]
        passes[:] = False
        passes[taken] = True
        if strict:
            pairs = passes[numbers]
            later = _crowding(rows, lone, numbers[pairs], cells[pairs])
            passes[later], waiting[lone.cells[later]] = False, True
        if not _append_entries(rows, state, lone.where(passes)):
            return
        state.values[owed[passes & (owed >= 0)]] = 0
        numbers, cells = numbers[passes[numbers]], cells[passes[numbers]]
        weights = (lone.values % p).astype(np.uint64)[:, np.newaxis]
        terms = (lone.elements * weights % np.uint64(p)).astype(np.int64)
        np.subtract.at(rows[:, V], cells, lone.values[numbers])
        np.subtract.at(rows[:, K:], cells, terms[numbers])
        rows[cells, K:] %= p
        waiting[cells] = True


def add_entry(
    rows: Integers, _: object, state: "PeelingState", __: object, key: Keys, cell: int, value: int
) -> None:
    """Append an entry for `value` of `key`, taken from `cell`."""
    keys = key[np.newaxis]
    _append_entries(rows, state, _LoneKeys(np.array([cell]), np.array([value]), keys, keys))


def _inspect(
    rows: Integers, parameters: "TableParameters", state: "PeelingState", cells: Indices
) -> _LoneKeys:
    sketch, p, table = parameters.sketch, np.uint64(parameters.p), parameters.inverses
    sizes = np.abs(rows[cells, V])
    within = (sizes > 0) & (sizes <= parameters.max_value)
    cells, sizes = cells[within], sizes[within]
    state.totals[INSPECTIONS] += len(cells)
    inverses = table[np.minimum(sizes, len(table) - 1)]
    large = sizes >= len(table)
    inverses[large] = [pow(size, -1, parameters.p) for size in sizes[large].tolist()]
    values = rows[cells, V]
    inverses = np.where(values > 0, inverses, p - inverses)
    elements = rows[cells, K:].astype(np.uint64) * inverses[:, np.newaxis] % p
    lone = _LoneKeys(cells, values, sketch.cell.keys_of(elements), elements)
    lone = lone.where(np.all(lone.keys < parameters.key_bound, axis=1))
    lone = lone.where(np.all(sketch.elements(lone.keys) == lone.elements, axis=1))
    numbers, key_cells = sketch.edges(lone.keys)
    here = np.zeros(len(lone.cells), np.bool_)
    here[numbers[key_cells == lone.cells[numbers]]] = True
    return lone.where(here)


def _compare_with_entries(
    rows: Integers,
    parameters: "TableParameters",
    state: "PeelingState",
    lone: _LoneKeys,
    fingerprints: Keys,
    passes: Flags,
) -> Indices:
    """Decide in `passes` on keys with entries; return the entry that each withdraws, or -1."""
    entries = parameters.sketch.family.fingerprint(state.keys[: state.totals[ENTRIES]])
    owed = np.full(len(passes), -1)
    for number in np.flatnonzero(np.isin(fingerprints, entries)):
        state.totals[REPEATED_KEYS] += 1
        earlier, value = np.flatnonzero(entries == fingerprints[number]), lone.values[number]
        sources = state.source_cells[earlier]
        if value > 0:
            is_new = lone.cells[number] not in sources
            passes[number] &= is_new and len(earlier) < _MAX_ENTRIES_OF_KEY
            continue
        # A true entry leaves the cell that it was taken from empty.
        is_false = (rows[sources, V] != 0) | (rows[sources, K:] != 0).any(axis=1)
        matching = earlier[is_false & (state.values[earlier] == -value)]
        if len(matching):
            passes[number], owed[number] = True, matching[0]
    return owed


def _crowding(rows: Integers, lone: _LoneKeys, numbers: Indices, cells: Indices) -> Indices:
    """Return the keys that wait, because they and others are more than one of their cells holds.

    Of each such cell's keys, the one from the highest cell goes first.
    """
    wanted, highest = np.zeros((2, len(rows)), np.int64)
    np.add.at(wanted, cells, lone.values[numbers])
    np.maximum.at(highest, cells, lone.cells[numbers])
    crowded = (wanted > rows[:, V]) & (wanted > 0)
    return numbers[crowded[cells] & (lone.cells[numbers] < highest[cells])]


def _append_entries(rows: Integers, state: "PeelingState", taken: _LoneKeys) -> bool:
    """Append an entry for each key that is not owed; return False if there is no room."""
    taken, begin = taken.where(taken.values > 0), int(state.totals[ENTRIES])
    end = begin + len(taken.cells)
    if end > len(state.values):
        return False
    state.keys[begin:end], state.values[begin:end] = taken.keys, taken.values
    state.source_cells[begin:end], rows[taken.cells, LAST_ENTRY] = taken.cells, 1
    state.totals[ENTRIES] = end
    return True
