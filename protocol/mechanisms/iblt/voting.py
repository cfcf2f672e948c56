"""Several tables in one round, each with its own sample and hash functions, and their vote.

A *repetition* is one of these tables in every round. An item is on the list of a repetition if any
of its tables that were read whole holds it. An item is elected if half of the lists or more have
it. Estimates are means over the tables that were read.

Source: lines 4 to 13 of Algorithm 2 of [Gascon23].
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from protocol.arrays import Flags
from protocol.histograms import KeyedHistograms
from protocol.mechanism import Answer, Estimate, add_estimates, ranked
from protocol.mechanisms.iblt.sampled_table import SampledTable, sampled_table
from protocol.randomness import RandomWords, uniform_floats
from protocol.study import StudyState, SumQuestion, Terms
from secagg.ring import Lane, Vector

_LISTS_ARRAY = "lists"  # of the study state: (items, repetitions), true if on the list


@dataclass(frozen=True, slots=True)
class TableReadings:
    """Estimates of the tables of a round, one list for each; empty if it was not read."""

    lists: Sequence[Sequence[Estimate]]
    decoded_tables: int
    distinct: float

    def answer(self, state: StudyState) -> Answer:
        """Return the means of the tables that were read; decoded if half of them or more were."""
        if self.decoded_tables == 0:
            return Answer(False, self.distinct, state=state)
        is_enough = 2 * self.decoded_tables >= len(self.lists)
        return Answer(is_enough, self.distinct, tuple(self.mean()), self.record(state))

    def mean(self) -> list[Estimate]:
        """Return the means over the tables that were read; an item counts 0 if it is not listed."""
        if len(self.lists) == 1:
            return list(self.lists[0])
        counts: dict[str, float] = {}
        variances: dict[str, float] = {}
        for estimates in self.lists:
            for each in estimates:
                item, variance = each.item, each.variance / self.decoded_tables**2
                counts[item] = counts.get(item, 0) + each.count / self.decoded_tables
                variances[item] = variances.get(item, 0) + variance
        return ranked(Estimate(item, counts[item], variances[item]) for item in counts)

    def record(self, state: StudyState) -> StudyState:
        """Return `state` with the means and the lists added."""
        state = add_estimates(state, self.mean())
        lists: Flags = np.zeros((len(state.items), len(self.lists)), np.bool_)
        earlier = state.arrays.get(_LISTS_ARRAY, lists[:0])
        lists[: len(earlier)] = earlier
        for repetition, estimates in enumerate(self.lists):
            lists[[state.rows[each.item] for each in estimates], repetition] = True
        return state.with_array(_LISTS_ARRAY, lists)


def elected_rows(state: StudyState) -> list[int]:
    """Return the rows of the items that half of the lists or more have."""
    lists = state.arrays.get(_LISTS_ARRAY, np.zeros((0, 1), np.bool_))
    return np.flatnonzero(2 * lists.sum(axis=1) >= lists.shape[1]).tolist()


@dataclass(frozen=True, slots=True)
class Repetitions:
    """`tables` tables of `cells` cells for one round, sampled at threshold `t`."""

    question: SumQuestion
    terms: Terms
    t: float
    tables: int
    cells: int
    seed: bytes

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Return the lanes of all tables, one table after the other."""
        return self._table(0).iblt.ring.lanes * self.tables

    def insert(self, held: KeyedHistograms, chance: RandomWords) -> Vector:
        """Return the sum of the devices' tables; draws a number for each holding and table."""
        uniform = uniform_floats(chance, len(held.counts) * self.tables).reshape(-1, self.tables)
        parts = (self._table(j).insert(held, uniform[:, j]) for j in range(self.tables))
        return tuple(lane for part in parts for lane in part)

    def fault(self, total: Vector, participants: int) -> str | None:
        """Return the law that a table of `total` breaks; `Iblt.fault` has the probabilities."""
        for number, (table, part) in enumerate(self._each(total)):
            fault = table.iblt.fault(part, participants * table.sampler.max_device_units)
            if fault is not None:
                return fault if self.tables == 1 else f"table {number}: {fault}"
        return None

    def read(self, total: Vector) -> TableReadings:
        """Return the estimates of all tables, and the mean number of distinct keys."""
        listings = [(table, table.iblt.decode(part)) for table, part in self._each(total)]
        lists = [
            table.estimates(self.question.domain, listing) if listing.complete else []
            for table, listing in listings
        ]
        distinct = sum(listing.distinct for _, listing in listings) / self.tables
        return TableReadings(lists, sum(listing.complete for _, listing in listings), distinct)

    def _each(self, total: Vector) -> Iterator[tuple[SampledTable, Vector]]:
        lanes = len(total) // self.tables
        for number in range(self.tables):
            yield self._table(number), total[number * lanes : (number + 1) * lanes]

    def _table(self, number: int) -> SampledTable:
        seed = sha256(self.seed + number.to_bytes(4, "big")).digest()
        return sampled_table(self.question, self.terms, self.t, self.cells, seed)
