"""How what is not tracked is sampled into a table, and how the threshold t follows the data.

The next t is the one at which the table would be nearly full: what it keeps free is how far the
number of keys may stray from what is expected. It changes by a factor of `_FACTOR` at most, and
stays below twice what is needed whatever devices hold.

A table is sized for values up to `most`, which is no more than all tokens together are likely to
come to (`tables.py`), and less once it is known what is sampled: several times what is expected of
all keys together, and enough for an item that nobody knew of.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from protocol.mechanism import Terms
from protocol.mechanisms.tables import (
    Table,
    TableQuestion,
    fitting_cells,
    in_mode,
    likely,
    likely_cell,
    worst_threshold,
)
from protocol.sampling import Threshold
from protocol.sketches.capacity import capacity, cells_for
from protocol.sketches.iblt import Cell, Iblt

# Deviations of the number of keys that a table keeps free. Known keys do not help a tight one.
_SPARE = {"default": 1.0, "tight": 2.0}
_FACTOR = 3.0  # that t changes by at most
_SURPRISE = 0.125  # of all tokens: what one item that nobody knew of may hold
_ROOM = 4.0  # by which more may be sampled than is expected, before the table cannot be read


@dataclass(frozen=True, slots=True)
class Untracked:
    """Sample at `t` into a table of values up to `most`."""

    question: TableQuestion
    terms: Terms
    t: float
    most: int

    @classmethod
    def first(cls, question: TableQuestion, terms: Terms, nbytes: int) -> "Untracked":
        """Return how to sample into `nbytes` when nothing is known."""
        t = worst_threshold(question, terms, nbytes)
        return cls(question, terms, t, likely(question, terms, t))

    @property
    def threshold(self) -> Threshold:
        """Return how devices sample."""
        return Threshold(self.t, self.question.contribution)

    def cells(self, nbytes: int) -> int:
        """Return the cells that fit in `nbytes`, and at least those of one key."""
        return max(cells_for(1), fitting_cells(self.question, self._cell, nbytes))

    def table(self, cells: int, seed: bytes) -> Table:
        """Return the table of `cells` cells."""
        return Table(Iblt(in_mode(self.question, self._cell, cells), cells, seed), self.threshold)

    def unheard(self) -> "Untracked":
        """Return how to sample after a round without an answer: at this t, and for any values."""
        return replace(self, most=likely(self.question, self.terms, self.t))

    def following(self, keys: float, values: float, nbytes: int) -> "Untracked":
        """Return how to sample into `nbytes` what comes to so many keys and values at this t."""
        factor = keys / self._aim(capacity(self.cells(nbytes)))
        t = self.t * float(np.clip(factor, 1 / _FACTOR, _FACTOR))
        t = min(max(1.0, t), 2 * worst_threshold(self.question, self.terms))
        sampling = Threshold(t, self.question.contribution)
        units = values * self.threshold.unit / sampling.unit
        room_for = _ROOM * units + 16 * sampling.bound
        everybody = likely(self.question, self.terms, t)
        most = int(min(everybody, max(room_for, _SURPRISE * everybody)))
        return replace(self, t=t, most=most)

    def _aim(self, room: int) -> float:
        """Return how many keys to expect in a table that has room for so many."""
        return max(1.0, room - _SPARE[self.question.table] * math.sqrt(room))

    @property
    def _cell(self) -> Cell:
        return likely_cell(self.question, self.most, self.t)
