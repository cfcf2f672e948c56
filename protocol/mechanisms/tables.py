"""Tables of sampled items: what the mechanisms share that insert into an IBLT.

A device samples its histogram at threshold t (`protocol/sampling.py`) and inserts what is left
(`protocol/sketches/iblt.py`); the sum of the tables lists each sampled item with its summed
value, an unbiased estimate of its count. A table has room for L0 keys (`capacity.py`), as many
as the words and the width of a cell allow.

A question may ask for fewer `hash_bits` beside a key, or none: cells are smaller, and only the keys
of a table that is not read whole may be false (`iblt.py`). That takes more cells than two keys
can share by chance: of tables of 4, 8 and 12 cells up to 3 in 4, 1 in 70 and 1 in 100 end empty
and are wrong, of 16 up none of some 50,000 was. So those of less than 48 carry 7 hash bits
whatever is asked for.

Or it may ask for *tight* tables (`sketches/tight.py`), which choose their hash bits themselves:
they have more cells in as many words, and say nothing when they are too full. What a key may add
up to is bounded for them by what all tokens together are likely to come to, as larger values
would be tried in vain.

Source: Algorithms 1 and 2 of [Gascon23].
"""

import math
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from protocol.domain import Domain
from protocol.mechanism import WORD_BITS, Estimate, SumQuestion, Terms, ranked
from protocol.mechanisms.holdings import Holdings
from protocol.sampling import Threshold
from protocol.sketches.capacity import capacity, cells_for
from protocol.sketches.iblt import EVIDENCE, Cell, Iblt, Listing
from protocol.sketches.tight import most_tight_cells, tight_cell
from secagg.ring import Vector

_MANY_CELLS = 48  # from which on a table needs no hash bits
LEAST_CAPACITY = 10  # keys, at 2.8 cells each; fewer take more still
MOST_CELLS = 3 * 2**22
_MOST_VALUE = 2**31


class TableQuestion(SumQuestion):
    """A question for one table a round; `table` is its mode, `hash_bits` of the default one."""

    table: Literal["default", "tight"] = "default"
    hash_bits: int = Field(default=7, ge=0, le=24)

    @model_validator(mode="after")
    def _has_room_for_hash_bits(self) -> Self:
        chunks, bound = self.domain.chunks, self.domain.bound
        most = (30 - (bound - 1).bit_length()) * chunks  # an element stays below 2^31
        if self.hash_bits > max(7, most):
            raise ValueError(f"hash_bits {self.hash_bits} do not fit in this domain's: {most} do")
        return self


@dataclass(frozen=True, slots=True)
class Table:
    """One table, and how devices sample what they insert."""

    iblt: Iblt
    threshold: Threshold

    def insert(self, held: Holdings, uniform: NDArray[np.float64]) -> Vector:
        """Return the sum of the devices' tables; `uniform` has a number for each holding."""
        return self.iblt.insert(*held.sums(self.threshold.sample(held.counts, uniform)))

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


def table(question: SumQuestion, terms: Terms, t: float, cells: int, seed: bytes) -> Table:
    """Return the table of `cells` cells; ValueError if there is none of so many."""
    threshold = Threshold(t, question.contribution)
    return Table(Iblt(in_mode(question, _cell(question, terms, t), cells), cells, seed), threshold)


def in_mode(question: SumQuestion, cell: Cell, cells: int) -> Cell:
    """Return `cell` as the tables of `cells` have it that the question asks for."""
    if _is_tight(question):
        return tight_cell(cell, cells)
    return cell if cells >= _MANY_CELLS else _sure(cell)


def fitting_cells(question: SumQuestion, cell: Cell, nbytes: int) -> int:
    """Return the most cells of a table that packs into `nbytes`, 0 if none does."""
    if _is_tight(question):
        return min(MOST_CELLS, most_tight_cells(cell, nbytes))
    cells = cell.most(nbytes)
    return min(MOST_CELLS, cells if cells >= _MANY_CELLS else _sure(cell).most(nbytes))


def most_cells(question: SumQuestion, terms: Terms, t: float, tables: int = 1) -> int:
    """Return the most cells that each of `tables` tables can have in the question's words.

    Raises:
        ValueError: if the devices' counts may add up to 2^31 or more.
    """
    return fitting_cells(question, _cell(question, terms, t), question.nbytes // tables)


def words(question: SumQuestion, terms: Terms, t: float, cells: int, tables: int = 1) -> int:
    """Return the 16-bit words that `tables` tables of `cells` cells take; raises as above."""
    cell = in_mode(question, _cell(question, terms, t), cells)
    nbytes: int = cell.ring(cells).nbytes
    return -(-tables * nbytes * 8 // WORD_BITS)


def likely(question: SumQuestion, terms: Terms, t: float) -> int:
    """Return what a key's value exceeds with odds of 1e-9: what all tokens together come to.

    That is six deviations above their mean, or what they can reach if that is less.
    """
    threshold = Threshold(t, question.contribution)
    reach = terms.devices * threshold.bound
    if threshold.unit == 1 and t > 1:
        return reach
    tokens = terms.devices * question.contribution / t
    return min(reach, math.ceil(tokens + 6 * math.sqrt(tokens) + 30))


def likely_cell(question: SumQuestion, most: int, t: float) -> Cell:
    """Return what a cell holds if no key comes to more than `most`, as `likely` or less has it."""
    domain, total = question.domain, most
    if _is_tight(question) and t < question.contribution:
        total *= math.ceil(t)  # all keys together may come to more than one of them can
    return Cell(domain.chunks, domain.bound, most, total, _evidence(question))


def least_bytes(question: SumQuestion, terms: Terms) -> int:
    """Return the bytes of a table of `LEAST_CAPACITY` keys, whatever devices hold."""
    cells = cells_for(LEAST_CAPACITY)
    nbytes: int = in_mode(question, _cell(question, terms, 1.0), cells).ring(cells).nbytes
    return nbytes


def check_words(question: SumQuestion, terms: Terms, parts: int = 1, least: int = 0) -> None:
    """Check that a table of `LEAST_CAPACITY` keys fits in one of `parts` of the words.

    Raises:
        ValueError: if it does not; says how many words do, `least` or more. Also as `most_cells`.
    """
    cells = cells_for(LEAST_CAPACITY)
    needed = words(question, terms, 1.0, cells)
    while most_cells(question.model_copy(update={"words": needed}), terms, 1.0) < cells:
        needed += 1  # each lane ends on a whole byte
    if question.words < parts * needed:
        devices = f"{terms.devices:,} devices"
        purpose = f"for a table of {LEAST_CAPACITY} items of this domain from {devices}"
        raise ValueError(too_few(question, purpose, max(parts * needed, least)))


def too_few(question: SumQuestion, purpose: str, needed: int) -> str:
    """Return why the question's words do not do for `purpose`, and how many do."""
    return f"{question.words} words are too few {purpose}: {needed} words are needed"


def worst_threshold(question: SumQuestion, terms: Terms, nbytes: int | None = None) -> float:
    """Return the t at which a table has room for whatever devices hold, with odds of about 1/2.

    It is n m / L0, with cells as wide as any threshold needs, in `nbytes` or all of the words.
    """
    size = question.nbytes if nbytes is None else nbytes
    cells = max(cells_for(1), fitting_cells(question, _cell(question, terms, 1.0), size))
    return max(1.0, terms.devices * question.contribution / capacity(cells))


def _cell(question: SumQuestion, terms: Terms, t: float) -> Cell:
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
    if _is_tight(question):
        return likely_cell(question, likely(question, terms, t), t)
    total = terms.devices * threshold.total
    return Cell(question.domain.chunks, question.domain.bound, most, total, _evidence(question))


def _sure(cell: Cell) -> Cell:
    return replace(cell, evidence=max(cell.evidence, EVIDENCE))


def _evidence(question: SumQuestion) -> int:
    """Return 1 / odds of the question's hash bits, less what makes powers of two cost a bit."""
    if not isinstance(question, TableQuestion):
        return EVIDENCE
    return max(1, (15 << question.hash_bits) // 16)


def _is_tight(question: SumQuestion) -> bool:
    return isinstance(question, TableQuestion) and question.table == "tight"
