"""Tables of sampled items: what the mechanisms share that insert into an IBLT.

A device samples its histogram at threshold t (`protocol/sampling.py`) and inserts what is left
(`protocol/sketches/iblt.py`); the sum of the tables lists each sampled item with its summed
value, an unbiased estimate of its count. A table has room for L0 keys (`capacity.py`), as many
as the words and the width of a cell allow.

Source: Algorithms 1 and 2 of [Gascon23].
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.domain import Domain
from protocol.mechanism import WORD_BITS, Estimate, Question, Terms, ranked
from protocol.mechanisms.holdings import Holdings
from protocol.sampling import Threshold
from protocol.sketches.capacity import capacity, cells_for
from protocol.sketches.iblt import Cell, Iblt, Listing
from secagg.ring import Vector

LEAST_CAPACITY = 10  # keys, at 2.8 cells each; fewer take more still
MOST_CELLS = 3 * 2**22
_MOST_VALUE = 2**31


@dataclass(frozen=True, slots=True)
class Table:
    """One table, and how devices sample what they insert."""

    iblt: Iblt
    threshold: Threshold

    def insert(self, held: Holdings, uniform: NDArray[np.float64]) -> Vector:
        """Return the sum of the devices' tables; `uniform` has a number for each holding."""
        values = held.total(self.threshold.sample(held.counts, uniform))
        return self.iblt.insert(held.keys[values > 0], values[values > 0])

    def estimates(self, domain: Domain, listing: Listing) -> list[Estimate]:
        """Return what `listing` says of counts, highest first.

        A variance is N (E[T] - 1) with the estimate in the place of N: unbiased if each
        device holds one of an item, else too high. A key that no item has comes from a
        device that made it up, and is left out.
        """
        unit, spread = self.threshold.unit, self.threshold.mean - 1
        items = domain.decode(listing.keys)
        return ranked(
            Estimate(item, value * unit, value * unit * spread)
            for item, value in zip(items, listing.values.tolist(), strict=True)
            if item is not None
        )


def table(question: Question, terms: Terms, t: float, cells: int, seed: bytes) -> Table:
    """Return the table of `cells` cells; ValueError if there is none of so many."""
    threshold = Threshold(t, question.contribution)
    return Table(Iblt(_cell(question, terms, t), cells, seed), threshold)


def most_cells(question: Question, terms: Terms, t: float, tables: int = 1) -> int:
    """Return the most cells that each of `tables` tables can have in the question's words.

    Raises:
        ValueError: if the devices' counts may add up to 2^31 or more.
    """
    return min(MOST_CELLS, _cell(question, terms, t).most(question.nbytes // tables))


def words(question: Question, terms: Terms, t: float, cells: int, tables: int = 1) -> int:
    """Return the 16-bit words that `tables` tables of `cells` cells take; raises as above."""
    nbytes: int = _cell(question, terms, t).ring(cells).nbytes
    return -(-tables * nbytes * 8 // WORD_BITS)


def check_words(question: Question, terms: Terms) -> None:
    """Check that a table of `LEAST_CAPACITY` keys fits.

    Raises:
        ValueError: if it does not; says how many words do. Also as `most_cells`.
    """
    least = cells_for(LEAST_CAPACITY)
    if most_cells(question, terms, 1.0) < least:
        raise ValueError(
            f"{question.words} words are too few for a table of {LEAST_CAPACITY} items "
            f"of this domain from {terms.devices:,} devices: "
            f"{words(question, terms, 1.0, least)} words are needed"
        )


def worst_threshold(question: Question, terms: Terms) -> float:
    """Return the t at which a table has room for whatever devices hold, with odds of about 1/2.

    It is n m / L0, with cells as wide as any threshold needs.
    """
    cells = max(cells_for(1), most_cells(question, terms, 1.0))
    return max(1.0, terms.devices * question.contribution / capacity(cells))


def _cell(question: Question, terms: Terms, t: float) -> Cell:
    """Return what a cell must hold when every device adds all it can to one item.

    Raises:
        ValueError: if that is 2^31 or more.
    """
    threshold = Threshold(t, question.contribution)
    most = terms.devices * threshold.bound
    if most >= _MOST_VALUE:
        raise ValueError(
            f"{terms.devices:,} devices with {question.contribution} items each may hold one "
            f"item {most:,} times; a cell counts to less than {_MOST_VALUE:,}"
        )
    total = terms.devices * threshold.total
    return Cell(question.domain.chunks, question.domain.bound, most, total)
