"""The state of a table during peeling: what is left of it, and what was taken out."""

from copy import copy
from functools import lru_cache
from typing import Self

import numpy as np

from protocol.arrays import Integers, Keys
from protocol.sketches.iblt.kernel import (
    ENTRIES,
    INSPECTIONS,
    REPEATED_KEYS,
    CandidateKey,
    K,
    PeelingState,
    TableParameters,
    V,
    add_entry,
    fill_inverses,
    peel,
)
from protocol.sketches.iblt.table import Iblt
from protocol.sketches.iblt.tight_kernel import EntryIndex, StageLists, peel_tight
from secagg.ring import Vector

_CACHED_INVERSES = 1024  # a table of inverses pays for itself from 1,000 keys
_CACHED_TIGHT_INVERSES = 2**16


class Peeling:
    """One table being peeled: what is left of it, and what was taken out."""

    def __init__(self, sketch: Iblt, table: Vector) -> None:
        """Copy `table`, of which every cell waits for inspection."""
        cells, chunks = sketch.cells, sketch.cell.chunks
        self.sketch = sketch
        self.parameters = table_parameters(sketch)
        self.rows = np.zeros((cells, 2 + chunks), np.int64)
        self.rows[:, V], self.rows[:, K:] = table[0], table[1].reshape(cells, chunks)
        self.state = PeelingState(
            keys=np.empty((2 * cells, chunks), np.uint64),
            values=np.zeros(2 * cells, np.int64),
            previous_entries=np.zeros(2 * cells, np.int64),
            source_cells=np.zeros(2 * cells, np.int32),
            queue=np.empty(cells, np.int32),
            is_queued=np.zeros(cells, np.bool_),
            totals=np.zeros(4, np.int64),
        )
        self.candidate = CandidateKey(
            np.empty(chunks, np.uint64),
            np.empty(chunks, np.uint64),
            np.empty(18, np.int64),
            np.zeros(1, np.int64),
        )

    def run(self, *, strict: bool = True, stages: int | None = None) -> None:
        """Peel until no cell is pure; only `strict` applies the last test.

        Tight tables have no such test; they are peeled in a number of `stages`, by default all.
        """
        if self.sketch.cell.q:
            lists = _stage_lists(self.sketch, stages)
            peel_tight(self.rows, self.parameters, self.state, self.candidate, *lists)
        else:
            peel(self.rows, self.parameters, self.state, self.candidate, strict)

    def copy(self) -> Self:
        """Return an independent copy of this state."""
        other = copy(self)
        other.rows = self.rows.copy()
        other.state = PeelingState._make(array.copy() for array in self.state)
        return other

    def remove_key(self, key: Keys, value: int, cell: int) -> None:
        """Subtract `value` of `key` (chunks,) from its cells, unless there are too many entries."""
        if self.state.totals[ENTRIES] == len(self.state.values):
            return
        sketch, p = self.sketch, self.sketch.cell.p
        _, cells = sketch.edges(key[np.newaxis])
        self.rows[cells, V] -= value
        term = sketch.elements(key[np.newaxis]).astype(np.int64) * value
        self.rows[cells, K:] = (self.rows[cells, K:] - term) % p
        self.state.totals[REPEATED_KEYS] += 1  # the key may have an entry already
        add_entry(
            self.rows, self.state, key, cell, value, sketch.family.fingerprint(key[np.newaxis])[0]
        )

    @property
    def inspections(self) -> int:
        """Return the number of inspections of cells."""
        return int(self.state.totals[INSPECTIONS])

    @property
    def nonempty_cells(self) -> int:
        """Return the number of cells that are not empty."""
        content = self.rows[:, V].copy()
        for column in range(K, self.rows.shape[1]):
            content |= self.rows[:, column]
        return int(np.count_nonzero(content))

    def entries(self) -> tuple[Keys, Integers]:
        """Return the distinct keys that were taken out and not put back, and their values."""
        values = self.state.values[: self.state.totals[ENTRIES]]
        keys = self.state.keys[: len(values)]
        if not values.all():
            keys, values = keys[values != 0], values[values != 0]
        if not self.state.totals[REPEATED_KEYS]:
            return keys, values
        fingerprints = self.sketch.family.fingerprint(keys)
        _, first, number = np.unique(fingerprints, return_index=True, return_inverse=True)
        summed = np.zeros(len(first), np.int64)
        np.add.at(summed, number, values)
        return keys[first], summed


def _stage_lists(sketch: Iblt, stages: int | None) -> tuple[StageLists, EntryIndex]:
    """Return empty lists of stages, and an empty index of entries."""
    cells, multiples = sketch.cells, sketch.cell.value_bound // sketch.cell.q
    lists = StageLists(
        first_cells=np.full(stages or 2 + multiples.bit_length(), -1, np.int32),
        next_cells=np.empty(cells, np.int32),
        previous_cells=np.empty(cells, np.int32),
        stages=np.full(cells, -1, np.int8),
    )
    index = EntryIndex(
        heads=np.zeros(2 ** (2 * cells).bit_length(), np.int32),
        links=np.empty(2 * cells, np.int32),
        hashes=np.empty(2 * cells, np.uint64),
    )
    return lists, index


def table_parameters(sketch: Iblt) -> TableParameters:
    """Return the parameters of `sketch` for the kernel."""
    cell, layout = sketch.cell, sketch.layout
    first, second = sketch.family.keys
    count = min(_CACHED_TIGHT_INVERSES, cell.value_bound + 1) if cell.q else _CACHED_INVERSES
    return TableParameters(
        max_value=cell.value_bound,
        key_bound=np.uint64(cell.key_bound),
        radix=np.uint64(cell.radix),
        p=np.uint64(cell.p),
        min_element=np.uint64(cell.min_element),
        q=np.int64(cell.q),
        inverses=inverses(count, cell.p),
        coefficients=sketch.family.coefficients,
        first_keys=first,
        second_keys=second,
        heavy_below=np.uint64(layout.heavy_below),
        light_segments=layout.segments(heavy=False),
        heavy_segments=layout.segments(heavy=True),
    )


@lru_cache(64)
def inverses(count: int, p: int) -> Keys:
    """Return 1/i modulo the prime p for i = 1 .. `count` - 1, or p - 1 if that is less."""
    table = np.zeros(min(count, p), np.uint64)
    fill_inverses(table, np.uint64(p))
    return table
