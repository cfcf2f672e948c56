"""Several tables in one round, each with its own sample and hash functions, and their vote.

A *repetition* is one of the tables, in every round. An item is on a repetition's list if any
of its tables that were read whole holds it; it is elected if at least half of the lists have
it. Estimates are means over the tables that were read.

Source: lines 4 to 13 of Algorithm 2 of [Gascon23].
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from protocol.chance import Chance, uniforms
from protocol.mechanism import Answer, Estimate, SumQuestion, Terms, add_estimates, ranked
from protocol.mechanisms.holdings import Holdings
from protocol.mechanisms.tables import Table, table
from protocol.tally import Tally
from secagg.ring import Lane, Vector

_LISTS = "lists"  # of a tally: for each item and repetition, whether it is on the list


@dataclass(frozen=True, slots=True)
class Reading:
    """What the tables of a round said: a list of estimates each, empty if it was not read."""

    lists: Sequence[Sequence[Estimate]]
    read: int
    distinct: float

    def answer(self, tally: Tally) -> Answer:
        """Return the means of the tables that were read; it is decoded if they are half or more."""
        if self.read == 0:
            return Answer(False, self.distinct, tally=tally)
        is_enough = 2 * self.read >= len(self.lists)
        return Answer(is_enough, self.distinct, tuple(self.mean()), self.record(tally))

    def mean(self) -> list[Estimate]:
        """Return the means over the lists that were read; an item counts 0 where it is not."""
        if len(self.lists) == 1:
            return list(self.lists[0])
        counts: dict[str, float] = {}
        variances: dict[str, float] = {}
        for estimates in self.lists:
            for one in estimates:
                counts[one.item] = counts.get(one.item, 0) + one.count / self.read
                variances[one.item] = variances.get(one.item, 0) + one.variance / self.read**2
        return ranked(Estimate(item, counts[item], variances[item]) for item in counts)

    def record(self, tally: Tally) -> Tally:
        """Return `tally` with the means added, and with who is on which list."""
        tally = add_estimates(tally, self.mean())
        before: NDArray[np.bool_] = tally.arrays.get(_LISTS, self._nothing)
        lists = np.zeros((len(tally.items), len(self.lists)), np.bool_)
        lists[: len(before)] = before
        for repetition, estimates in enumerate(self.lists):
            lists[[tally.rows[one.item] for one in estimates], repetition] = True
        return tally.keep(_LISTS, lists)

    @property
    def _nothing(self) -> NDArray[np.bool_]:
        return np.zeros((0, len(self.lists)), np.bool_)


def elected(tally: Tally) -> list[int]:
    """Return the rows of the items that half of the lists have."""
    lists = tally.arrays.get(_LISTS, np.zeros((0, 1), np.bool_))
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

    def insert(self, held: Holdings, chance: Chance) -> Vector:
        """Return the sum of the devices' tables; takes a number for each holding and table."""
        uniform = uniforms(chance, len(held.counts) * self.tables).reshape(-1, self.tables)
        parts = (self._table(j).insert(held, uniform[:, j]) for j in range(self.tables))
        return tuple(lane for part in parts for lane in part)

    def fault(self, total: Vector, participants: int) -> str | None:
        """Return which law a table of `total` breaks; `Iblt.fault` has them and the odds."""
        for number, (one, part) in enumerate(self._each(total)):
            fault = one.iblt.fault(part, participants * one.threshold.total)
            if fault is not None:
                return fault if self.tables == 1 else f"table {number}: {fault}"
        return None

    def read(self, total: Vector) -> Reading:
        """Return what the tables of `total` say; one that is stuck says how full it was."""
        listings = [(one, one.iblt.list_entries(part)) for one, part in self._each(total)]
        lists = [
            one.estimates(self.question.domain, listing) if listing.complete else []
            for one, listing in listings
        ]
        distinct = sum(listing.distinct for _, listing in listings) / self.tables
        return Reading(lists, sum(listing.complete for _, listing in listings), distinct)

    def _each(self, total: Vector) -> Iterator[tuple[Table, Vector]]:
        lanes = len(total) // self.tables
        for number in range(self.tables):
            yield self._table(number), total[number * lanes : (number + 1) * lanes]

    def _table(self, number: int) -> Table:
        seed = sha256(self.seed + number.to_bytes(4, "big")).digest()
        return table(self.question, self.terms, self.t, self.cells, seed)
