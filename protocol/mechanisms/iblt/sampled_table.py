"""Tables of sampled items and their sizes, for all mechanisms with an IBLT.

A device samples its histogram (`threshold_sampling.py`) and inserts the sampled items
(`sketches/iblt/table.py`). The sum of the tables lists each sampled item with the sum of its
values, an unbiased estimate of its count.

Tables have room for L0 keys (`sketches/iblt/layout.py`); L0 depends on the message and on the
width of a cell. A question may use fewer `hash_bits` per key, or none. Cells are then smaller, and
only keys of a table that is not read whole may be false. This needs more cells than two keys can
share by chance: of tables of 4, 8 and 12 cells, up to 3 in 4, 1 in 70 and 1 in 100 end empty and
are wrong; of tables of 16 cells or more, none of some 50,000 was. So tables of less than 48 cells
have 7 hash bits in any case.

Source: algorithm 2 of [Gascon23].
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from protocol.domains import Domain
from protocol.estimation.estimates import Estimate, ranked
from protocol.histograms import KeyedHistograms
from protocol.mechanisms.cohort_comparison import compare_tables, merge_tables
from protocol.mechanisms.iblt.threshold_sampling import ThresholdSampler
from protocol.numerics.array_types import Keys
from protocol.question_and_plan import AUTO_BYTES, SumQuestion, Terms
from protocol.round_sizes import message_bytes, vector_bytes
from protocol.sketches.iblt.layout import capacity, cells_for
from protocol.sketches.iblt.table import DEFAULT_EVIDENCE, CellFormat, DecodedTable, Iblt
from secagg.oneshot.moduli import Moduli
from secagg.ring import Ring, Vector

_MIN_CELLS_WITHOUT_HASH_BITS = 48
MIN_CAPACITY = 10  # keys, with 2.8 cells each; smaller tables need more per key
MAX_CELLS = 3 * 2**22
_VALUE_LIMIT = 2**31


class TableQuestion(SumQuestion):
    """Question for one table per round, with `hash_bits` per key."""

    hash_bits: int = Field(default=7, ge=0, le=24)

    @model_validator(mode="after")
    def _has_room_for_hash_bits(self) -> Self:
        chunks, bound = self.domain.chunks, self.domain.bound
        limit = (30 - (bound - 1).bit_length()) * chunks  # so that an element stays below 2^31
        if self.hash_bits > max(7, limit):
            raise ValueError(f"hash_bits {self.hash_bits} do not fit in this domain: {limit} do")
        return self


@dataclass(frozen=True, slots=True)
class SampledTable:
    """One table, and the sampler of the items that devices insert."""

    iblt: Iblt
    sampler: ThresholdSampler

    def insert(self, held: KeyedHistograms, uniform: NDArray[np.float64]) -> Vector:
        """Return the sum of the devices' tables; `uniform` has a random number for each holding."""
        return self.iblt.insert(*held.item_totals(self.sampler.sample(held.counts, uniform)))

    def decode(self, table: Vector, known: Keys | None = None) -> DecodedTable:
        """Return the content of `table`, as `decode_table`."""
        # Devices only insert, and do without the compiled decoder.
        from protocol.sketches.iblt.decoding import decode_table  # noqa: PLC0415

        return decode_table(self.iblt, table, known)

    def fault(self, table: Vector, devices: int, total: int) -> str | None:
        """Return the law that the sum of the tables of `devices` breaks; None if it breaks none.

        The devices hold at most `total` items together. `Iblt.fault` has the linear laws. If the
        table can be read, its values must be what such devices may sample: an honest sum breaks
        this law with probability 2^-64. Other false items within these bounds are not detected. The
        text has no counts, since it is published: a liar would learn those of others.
        """
        allowed = self.sampler.max_units(total)
        fault = self.iblt.fault(table, allowed)
        if fault is not None:
            return fault
        listing = self.decode(table)
        if not listing.complete:
            return None
        units = int(listing.values.sum())
        if units > allowed:
            return "the sampled items are more than the devices may sample"
        largest, limit = listing.values.max(initial=0), devices * self.sampler.max_item_units
        if largest > limit:
            return "an item was sampled more often than the devices may sample it"
        return None

    def read(
        self, table: Vector, known: Keys | None = None, cohorts: Iterable[Vector] = ()
    ) -> "TableReading":
        """Return the content of `table`, and of those of the `cohorts` that it is the sum of.

        A table that is too full to be read is read by its cohorts, if each of them can be. If one
        of them cannot, the table is not read: keys whose values are negative in the cohort of a
        liar would take the counts of the others.
        """
        whole = self.decode(table, known)
        parts = [self.decode(each, known) for each in cohorts]
        if not all(part.complete for part in parts):
            return TableReading(replace(whole, complete=False))
        if not parts:
            return TableReading(whole)
        return TableReading(whole if whole.complete else merge_tables(parts), tuple(parts))

    def estimates(
        self, domain: Domain, reading: "TableReading", devices: Sequence[int]
    ) -> list[Estimate]:
        """Return the estimates of `reading`, highest first; `devices` are those of each cohort.

        A variance is N (E[T] - 1) with the estimate in place of N: unbiased if each device holds
        an item once, else too high. An estimate is cut to the largest possible count. Keys without
        an item are invented by a device, and left out.
        """
        unit, spread = self.sampler.unit, self.sampler.mean_threshold - 1
        largest = float(sum(devices) * self.sampler.max_count)
        compared = compare_tables(
            reading.whole, reading.cohorts, devices, self.sampler.max_item_units
        )
        counts, variances = compared.counts * unit, compared.counts * unit * spread
        variances = variances / compared.shares + compared.missing_variances * unit
        columns = np.minimum(counts, largest).tolist(), variances.tolist(), compared.flags
        items, shares = domain.decode(reading.whole.keys), compared.shares.tolist()
        return ranked(
            Estimate(item, count, variance, p_value, counted_share=share)
            for item, count, variance, p_value, share in zip(items, *columns, shares, strict=True)
            if item is not None
        )


@dataclass(frozen=True, slots=True)
class TableReading:
    """Content of a table, and of its cohorts' tables if all of them could be read."""

    whole: DecodedTable
    cohorts: tuple[DecodedTable, ...] = ()


def sampled_table(
    question: SumQuestion, terms: Terms, t: float, cells: int, seed: bytes
) -> SampledTable:
    """Return the table of `cells` cells; ValueError if there is none of this size."""
    cell = cell_of_table(_worst_case_cell(question, terms, t), cells)
    return SampledTable(Iblt(cell, cells, seed), ThresholdSampler(t, question.contribution))


def cell_of_table(cell: CellFormat, cells: int) -> CellFormat:
    """Return the format of `cell` in a table of `cells` cells: small ones have hash bits."""
    return cell if cells >= _MIN_CELLS_WITHOUT_HASH_BITS else _with_full_evidence(cell)


def cells_in_bytes(cell: CellFormat, nbytes: int) -> int:
    """Return the largest number of cells of a table in `nbytes`; 0 if no table fits."""
    cells = cell.max_cells(nbytes)
    if cells < _MIN_CELLS_WITHOUT_HASH_BITS:
        cells = _with_full_evidence(cell).max_cells(nbytes)
    return min(MAX_CELLS, cells)


def max_cells(question: SumQuestion, terms: Terms, t: float, tables: int = 1) -> int:
    """Return the most cells that each of `tables` tables has in the question's message.

    Raises ValueError if the devices' counts may add up to 2^31 or more.
    """
    cell = _worst_case_cell(question, terms, t)
    return cells_in_bytes(cell, vector_bytes(terms, question.message_bytes, cell.p) // tables)


def needed_bytes(question: SumQuestion, terms: Terms, t: float, cells: int, tables: int = 1) -> int:
    """Return the message of `tables` tables of `cells` cells, in bytes; raises as `max_cells`."""
    cell = cell_of_table(_worst_case_cell(question, terms, t), cells)
    return message_bytes(terms, Ring(tables * cell.ring(cells).lanes))


def likely_max_value(question: SumQuestion, terms: Terms, t: float) -> int:
    """Return a bound that the value of a key exceeds with probability 1e-9: on all tokens together.

    It is six standard deviations above their mean, or their maximum if that is less.
    """
    sampler = ThresholdSampler(t, question.contribution)
    reach = terms.max_devices * sampler.max_item_units
    if sampler.unit == 1 and t > 1:
        return reach
    tokens = terms.max_devices * question.contribution / t
    return min(reach, math.ceil(tokens + 6 * math.sqrt(tokens) + 30))


def likely_cell(question: SumQuestion, moduli: Moduli, max_value: int) -> CellFormat:
    """Return the format of a cell if no value of a key exceeds `max_value`."""
    return _cell(question, moduli, max_value, max_value)


def min_table_bytes(question: SumQuestion, terms: Terms) -> int:
    """Return the bytes of a table of `MIN_CAPACITY` keys, for any data of devices."""
    cells = cells_for(MIN_CAPACITY)
    cell = cell_of_table(_worst_case_cell(question, terms, 1.0), cells)
    return cell.nbytes(cells)


def check_message(question: SumQuestion, terms: Terms, tables: int = 1, least: int = 0) -> None:
    """Raise ValueError if `tables` tables of `MIN_CAPACITY` keys exceed the question's message.

    The text of the error names `least` bytes or more.
    """
    cells = cells_for(MIN_CAPACITY)
    needed = needed_bytes(question, terms, 1.0, cells, tables)
    while max_cells(_with_message(question, needed), terms, 1.0, tables) < cells:
        needed += 1  # each lane ends on a whole byte
    if question.message_bytes < needed:
        devices = f"{terms.max_devices:,} devices"
        purpose = f"for a table of {MIN_CAPACITY} items of this domain from {devices}"
        raise ValueError(too_small(question, purpose, max(needed, least)))


def _with_message(question: SumQuestion, nbytes: int) -> SumQuestion:
    return question.model_copy(update={"message_bytes": nbytes})


def check_size(question: SumQuestion, needed: int) -> None:
    """Raise ValueError if a message of `needed` bytes is larger than the question's."""
    if needed > question.message_bytes:
        most = question.message_bytes
        raise ValueError(f"a message of {needed:,} bytes exceeds the question's {most:,}")


def too_small(question: SumQuestion, purpose: str, needed: int) -> str:
    """Return the text of the error that the message has no room for `purpose`."""
    too_few = f"message_bytes {question.message_bytes:,} are too few"
    if question.message_bytes == AUTO_BYTES:
        too_few = "no message_bytes were chosen"
    return f"{too_few} {purpose}: {needed:,} are needed"


def worst_case_threshold(question: SumQuestion, terms: Terms, nbytes: int | None = None) -> float:
    """Return the t at which a table has room for any data of devices, with probability about 1/2.

    It is n m / L0, with cells wide enough for any threshold, in `nbytes` or the whole vector.
    """
    cell = _worst_case_cell(question, terms, 1.0)
    size = vector_bytes(terms, question.message_bytes, cell.p) if nbytes is None else nbytes
    cells = max(cells_for(1), cells_in_bytes(cell, size))
    return max(1.0, terms.max_devices * question.contribution / capacity(cells))


def _worst_case_cell(question: SumQuestion, terms: Terms, t: float) -> CellFormat:
    """Return the format of a cell if every device adds as much as it can to one item."""
    sampler = ThresholdSampler(t, question.contribution)
    max_value = terms.max_devices * sampler.max_item_units
    if max_value >= _VALUE_LIMIT:
        raise ValueError(
            f"{terms.max_devices:,} devices with {question.contribution} items each may hold one "
            f"item {max_value:,} times; a cell counts to less than {_VALUE_LIMIT:,}"
        )
    total = terms.max_devices * sampler.max_device_units
    return _cell(question, question.moduli(terms, t), max_value, total)


def _cell(question: SumQuestion, moduli: Moduli, max_value: int, total: int) -> CellFormat:
    domain, evidence = question.domain, _evidence(question)
    return CellFormat(domain.chunks, domain.bound, max_value, total, evidence, moduli)


def _with_full_evidence(cell: CellFormat) -> CellFormat:
    return replace(cell, evidence=max(cell.evidence, DEFAULT_EVIDENCE))


def _evidence(question: SumQuestion) -> int:
    """Return 15/16 of 2^hash_bits, since an exact power of two would cost another bit."""
    if not isinstance(question, TableQuestion):
        return DEFAULT_EVIDENCE
    return max(1, (15 << question.hash_bits) // 16)
