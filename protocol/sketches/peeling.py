"""One table being peeled: what is left of it, and what was taken out so far."""

from copy import copy
from functools import lru_cache
from typing import Self

import numpy as np

from protocol.sketches.iblt import Iblt, Keys, Values
from protocol.sketches.kernel import (
    ENTRIES,
    INSPECTIONS,
    TWICE,
    K,
    Ledger,
    Rules,
    Scratch,
    V,
    enter,
    fill_inverses,
    peel,
)
from protocol.sketches.tight_kernel import Contents, Waiting, peel_tight
from secagg.ring import Vector

_INVERSES = 1024  # kept in a table, which pays for itself from 1,000 keys on

_TIGHT_INVERSES = 2**16


class Peeling:
    """One table being peeled: what is left of it, and what was taken out."""

    def __init__(self, sketch: Iblt, table: Vector) -> None:
        """Take a copy of `table`, with every cell to be inspected."""
        cells, chunks = sketch.cells, sketch.cell.chunks
        self.sketch = sketch
        self.rules = rules_of(sketch)
        self.rows = np.zeros((cells, 2 + chunks), np.int64)
        self.rows[:, V], self.rows[:, K:] = table[0], table[1].reshape(cells, chunks)
        self.ledger = Ledger(
            keys=np.empty((2 * cells, chunks), np.uint64),
            values=np.zeros(2 * cells, np.int64),
            links=np.zeros(2 * cells, np.int64),
            sources=np.zeros(2 * cells, np.int32),
            queue=np.empty(cells, np.int32),
            queued=np.zeros(cells, np.bool_),
            totals=np.zeros(4, np.int64),
        )
        self.scratch = Scratch(
            np.empty(chunks, np.uint64),
            np.empty(chunks, np.uint64),
            np.empty(18, np.int64),
            np.zeros(1, np.int64),
        )

    def run(self, *, strict: bool = True, stages: int | None = None) -> None:
        """Peel until no cell is pure, by all tests or without the last.

        A tight table knows no such test; it is peeled in so many `stages`, or all there are.
        """
        if self.sketch.cell.q:
            lists = _stages(self.sketch, stages)
            peel_tight(self.rows, self.rules, self.ledger, self.scratch, *lists)
        else:
            peel(self.rows, self.rules, self.ledger, self.scratch, strict)

    def copy(self) -> Self:
        """Return another that stands where this one does."""
        other = copy(self)
        other.rows = self.rows.copy()
        other.ledger = Ledger._make(array.copy() for array in self.ledger)
        return other

    def take(self, key: Keys, value: int, cell: int) -> None:
        """Take `value` of `key`, of shape `(chunks,)`, out of its cells, on account of `cell`.

        Nothing is taken once there are as many entries as there may be.
        """
        if self.ledger.totals[ENTRIES] == len(self.ledger.values):
            return
        sketch, p = self.sketch, self.sketch.cell.p
        _, cells = sketch.edges(key[np.newaxis])
        self.rows[cells, V] -= value
        term = sketch.elements(key[np.newaxis]).astype(np.int64) * value
        self.rows[cells, K:] = (self.rows[cells, K:] - term) % p
        self.ledger.totals[TWICE] += 1  # it may have been
        enter(
            self.rows, self.ledger, key, cell, value, sketch.family.fingerprint(key[np.newaxis])[0]
        )

    @property
    def inspections(self) -> int:
        """Return how many cells were inspected, each as often as it was."""
        return int(self.ledger.totals[INSPECTIONS])

    @property
    def stuck(self) -> int:
        """Return how many cells are not empty."""
        content = self.rows[:, V].copy()
        for column in range(K, self.rows.shape[1]):
            content |= self.rows[:, column]
        return int(np.count_nonzero(content))

    def entries(self) -> tuple[Keys, Values]:
        """Return the keys that were taken out and not put back, each once, and their values."""
        values = self.ledger.values[: self.ledger.totals[ENTRIES]]
        keys = self.ledger.keys[: len(values)]
        if not values.all():
            keys, values = keys[values != 0], values[values != 0]
        if not self.ledger.totals[TWICE]:
            return keys, values
        prints = self.sketch.family.fingerprint(keys)
        _, first, number = np.unique(prints, return_index=True, return_inverse=True)
        summed = np.zeros(len(first), np.int64)
        np.add.at(summed, number, values)
        return keys[first], summed

    def residual(self) -> Vector:
        """Return what is left, as a vector of the ring."""
        counts, sums = self.sketch.ring.lanes
        left = self.rows[:, V] % counts.q, self.rows[:, K:].reshape(-1)
        return left[0].astype(counts.dtype), left[1].astype(sums.dtype)


def _stages(sketch: Iblt, stages: int | None) -> tuple[Waiting, Contents]:
    """Return who waits at which stage, and which content was an entry's: nobody, and none."""
    cells, multiples = sketch.cells, sketch.cell.value_bound // sketch.cell.q
    waiting = Waiting(
        heads=np.full(stages or 2 + multiples.bit_length(), -1, np.int32),
        after=np.empty(cells, np.int32),
        before=np.empty(cells, np.int32),
        stage=np.full(cells, -1, np.int8),
    )
    contents = Contents(
        heads=np.zeros(2 ** (2 * cells).bit_length(), np.int32),
        links=np.empty(2 * cells, np.int32),
        hashes=np.empty(2 * cells, np.uint64),
    )
    return waiting, contents


def rules_of(sketch: Iblt) -> Rules:
    """Return what the kernel must know of `sketch`."""
    cell, layout = sketch.cell, sketch.layout
    first, second = sketch.family.keys
    kept = min(_TIGHT_INVERSES, cell.value_bound + 1) if cell.q else _INVERSES
    return Rules(
        most=cell.value_bound,
        bound=np.uint64(cell.key_bound),
        radix=np.uint64(cell.radix),
        p=np.uint64(cell.p),
        least=np.uint64(cell.least),
        q=np.int64(cell.q),
        inverses=inverses(kept, cell.p),
        coefficients=sketch.family.coefficients,
        first=first,
        second=second,
        heavy_below=np.uint64(layout.heavy_below),
        light=layout.segments(heavy=False),
        heavy=layout.segments(heavy=True),
    )


@lru_cache(64)
def inverses(count: int, p: int) -> Keys:
    """Return 1/i modulo the prime p for i = 1 .. `count` - 1, or p - 1 if that is less."""
    found = np.zeros(min(count, p), np.uint64)
    fill_inverses(found, np.uint64(p))
    return found
