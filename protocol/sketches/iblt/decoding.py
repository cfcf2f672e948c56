"""Decoding of a table: its keys and values, or estimates if it cannot be read whole.

A table at or below its capacity is read whole, and the result is exact. Above it peeling gets
stuck, and the result still has

    keys, values   what was peeled, with a bound on the expected number of false keys. A key's value
                   is exact, but heavy keys are peeled much more often than light ones
                   (`layout.py`: 52% and 14% at 1.1 times capacity), so sums over the keys are
                   biased, unless each table has a fresh hash seed
    distinct       the estimated number of keys in the table, within 5% (rms) up to twice the
                   capacity of tables of at least 1,250 cells

Keys that are already known, for example from earlier rounds, help (`known_keys.py`). A tight table
that is stuck (`tight.py`) only has `distinct`: it lists no key.

Importing this module imports the compiler, which devices do without: they only insert.
"""

from copy import copy
from dataclasses import replace
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
from protocol.sketches.iblt.layout import estimate_keys
from protocol.sketches.iblt.table import DecodedTable, Iblt
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
            from protocol.sketches.iblt.tight_kernel import peel_in_stages  # noqa: PLC0415 - rare

            peel_in_stages(self.rows, self.parameters, self.state, self.candidate, stages)
        else:
            peel(self.rows, self.parameters, self.state, self.candidate, strict)

    def copy(self) -> Self:
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
        return int(self.state.totals[INSPECTIONS])

    @property
    def nonempty_cells(self) -> int:
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


def decode_table(sketch: Iblt, table: Vector, known: Keys | None = None) -> DecodedTable:
    """Return the content of `table`; see `Iblt.decode`."""
    sketch.ring.check(table)
    peeling = Peeling(sketch, table)
    peeling.run()
    decoded = _decoded(sketch, peeling)
    if decoded.complete:
        return decoded
    if sketch.cell.q:
        # The number of keys is estimated at values up to 2 q, where false keys are rare.
        few_stages = Peeling(sketch, table)
        few_stages.run(stages=2)
        distinct = _decoded(sketch, few_stages).distinct
        keys, values = decoded.keys[:0], decoded.values[:0]
        return replace(decoded, keys=keys, values=values, distinct=distinct)
    final = _peel_without_dominance(sketch, peeling.copy())
    if not final.complete and known is not None:
        from protocol.sketches.iblt.known_keys import peel_with_known_keys  # noqa: PLC0415 - cycle

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
    if sketch.cell.q:
        sound = sound and int(values.sum()) <= sketch.cell.total_bound
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
