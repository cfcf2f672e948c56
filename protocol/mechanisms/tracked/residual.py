"""Sampling of untracked items into a table, at a threshold t that follows the data.

The next t is the one at which the table would be nearly full. The table keeps a margin free, since
the number of keys varies around its expectation. t changes by a factor of `MAX_T_FACTOR` at most,
and stays below twice the t at which any data of devices fits.

A table is sized for values up to `max_value`. At first this is a bound on what all tokens together
may reach (`iblt/sampled_table.py`). Once samples are known it is smaller: several times the
expected sum of all values, and enough for an item that was unknown so far.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from protocol.mechanisms.iblt.sampled_table import (
    SampledTable,
    TableQuestion,
    cell_in_mode,
    cells_in_bytes,
    likely_cell,
    likely_max_value,
    worst_case_threshold,
)
from protocol.mechanisms.tracked import tuning_constants as tuning
from protocol.sampling import ThresholdSampler
from protocol.sketches.iblt.capacity import capacity, cells_for
from protocol.sketches.iblt.table import CellFormat, Iblt
from protocol.study import Terms


@dataclass(frozen=True, slots=True)
class ResidualSampling:
    """Sampling at threshold `t` into a table of values up to `max_value`."""

    question: TableQuestion
    terms: Terms
    t: float
    max_value: int

    @classmethod
    def first(cls, question: TableQuestion, terms: Terms, nbytes: int) -> "ResidualSampling":
        """Return the sampling into `nbytes` before the first round."""
        t = worst_case_threshold(question, terms, nbytes)
        return cls(question, terms, t, likely_max_value(question, terms, t))

    @property
    def sampler(self) -> ThresholdSampler:
        """Return the sampler of the devices."""
        return ThresholdSampler(self.t, self.question.contribution)

    def cells(self, nbytes: int) -> int:
        """Return the cells that fit in `nbytes`, or that one key needs if that is more."""
        return max(cells_for(1), cells_in_bytes(self.question, self._cell, nbytes))

    def table(self, cells: int, seed: bytes) -> SampledTable:
        """Return the table of `cells` cells."""
        return SampledTable(
            Iblt(cell_in_mode(self.question, self._cell, cells), cells, seed), self.sampler
        )

    def after_missing_answer(self) -> "ResidualSampling":
        """Return the sampling after a failed round: at the same t, for the largest values."""
        return replace(self, max_value=likely_max_value(self.question, self.terms, self.t))

    def next_round(self, keys: float, values: float, nbytes: int) -> "ResidualSampling":
        """Return the sampling into `nbytes`, given expected `keys` and `values` at this t."""
        limit = capacity(self.cells(nbytes))
        margin = tuning.TABLE_MARGIN_SDS[self.question.table] * math.sqrt(limit)
        factor = keys / max(1.0, limit - margin)
        t = self.t * float(np.clip(factor, 1 / tuning.MAX_T_FACTOR, tuning.MAX_T_FACTOR))
        max_t = tuning.MAX_T_PER_WORST_CASE * worst_case_threshold(self.question, self.terms)
        t = min(max(1.0, t), max_t)
        sampling = ThresholdSampler(t, self.question.contribution)
        units = values * self.sampler.unit / sampling.unit
        headroom = tuning.MIN_VALUE_HEADROOM * sampling.max_item_units
        expected = tuning.VALUE_HEADROOM * units + headroom
        all_tokens = likely_max_value(self.question, self.terms, t)
        max_value = int(min(all_tokens, max(expected, tuning.NEW_ITEM_TOKEN_SHARE * all_tokens)))
        return replace(self, t=t, max_value=max_value)

    @property
    def _cell(self) -> CellFormat:
        return likely_cell(self.question, self.max_value, self.t)
