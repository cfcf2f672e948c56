"""One table being peeled: its cells, the keys that were taken out, and what the kernel must know.

`peeling_kernel.pyx` has the loops, and `numpy_peeling.py` their slower reference, which takes their
place if they are not compiled, or were compiled for another `INTERFACE`.
"""

from copy import copy
from functools import lru_cache
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from protocol.numerics.array_types import Integers, Keys
from protocol.sketches.iblt import numpy_peeling
from protocol.sketches.iblt.numpy_peeling import ENTRIES, INSPECTIONS, REPEATED_KEYS, K, V
from protocol.sketches.iblt.table import Iblt
from secagg.ring import Vector

try:
    from protocol.sketches.iblt.peeling_kernel import INTERFACE as COMPILED_INTERFACE
    from protocol.sketches.iblt.peeling_kernel import add_entry, peel
except ImportError:  # not compiled, or before kernels had a number
    COMPILED_INTERFACE = 0
if COMPILED_INTERFACE != numpy_peeling.INTERFACE:
    from protocol.sketches.iblt.numpy_peeling import add_entry, peel

_CACHED_INVERSES = 1024  # a table of inverses pays for itself from 1,000 keys


class TableParameters(NamedTuple):
    """Parameters of a table for the kernel: bounds, moduli, hash functions, layout."""

    sketch: Iblt
    max_value: int  # the largest value of a key
    key_bound: int  # of the chunks of a key
    radix: int  # of the hash digits of each chunk
    p: int
    parts: int  # digits in base p of each chunk with its hash digit
    inverses: NDArray[np.uint64]  # of 0, 1, 2 .. modulo p, up to a size that pays for itself
    coefficients: NDArray[np.uint64]
    first_keys: NDArray[np.uint64]
    second_keys: NDArray[np.uint64]
    heavy_below: int
    light_segments: NDArray[np.int64]  # first cell and size of the segments of light keys
    heavy_segments: NDArray[np.int64]  # of heavy keys


class PeelingState(NamedTuple):
    """The entries, in order, and the cells that wait for inspection."""

    keys: NDArray[np.uint64]
    values: NDArray[np.int64]  # 0 once withdrawn
    previous_entries: NDArray[np.int64]  # links to the earlier entry of the same cell
    source_cells: NDArray[np.int32]  # the cell that the entry was taken from
    queue: NDArray[np.int32]
    is_queued: NDArray[np.bool_]
    totals: NDArray[np.int64]  # entries, inspections, repeated keys, length of the queue


class Peeling:
    """One table being peeled: what is left of it, and what was taken out."""

    def __init__(self, sketch: Iblt, table: Vector) -> None:
        """Copy `table`, of which every cell waits for inspection."""
        cells, chunks, elements = sketch.cells, sketch.cell.chunks, sketch.cell.elements
        self.sketch = sketch
        self.parameters = table_parameters(sketch)
        self.rows = np.zeros((cells, 2 + elements), np.int64)
        self.rows[:, V], self.rows[:, K:] = table[0], table[1].reshape(cells, elements)
        self.state = PeelingState(
            keys=np.empty((2 * cells, chunks), np.uint64),
            values=np.zeros(2 * cells, np.int64),
            previous_entries=np.zeros(2 * cells, np.int64),
            source_cells=np.zeros(2 * cells, np.int32),
            queue=np.empty(cells, np.int32),
            is_queued=np.zeros(cells, np.bool_),
            totals=np.zeros(4, np.int64),
        )
        self._scratch = np.empty(2 * chunks + elements, np.uint64)  # of the kernel

    def run(self, *, strict: bool = True) -> None:
        """Peel until no cell is pure; only `strict` applies the last test."""
        peel(self.rows, self.parameters, self.state, self._scratch, strict)

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
        add_entry(self.rows, self.parameters, self.state, self._scratch, key, cell, value)

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
    return TableParameters(
        sketch=sketch,
        max_value=cell.value_bound,
        key_bound=cell.key_bound,
        radix=cell.radix,
        p=cell.p,
        parts=cell.parts,
        inverses=inverses(_CACHED_INVERSES, cell.p),
        coefficients=sketch.family.coefficients,
        first_keys=first,
        second_keys=second,
        heavy_below=layout.heavy_below,
        light_segments=layout.segments(heavy=False),
        heavy_segments=layout.segments(heavy=True),
    )


@lru_cache(64)
def inverses(count: int, p: int) -> Keys:
    """Return 1/i modulo the prime p for i = 1 .. `count` - 1, or p - 1 if that is less."""
    return np.array([0, *(pow(i, -1, p) for i in range(1, min(count, p)))], np.uint64)
