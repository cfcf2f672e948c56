"""The invertible Bloom lookup table: a linear sketch whose keys and values can be listed.

A key x = (x_1 .. x_c) with value v goes into a few cells (`layout.py`). A cell holds sums
over the keys that hash to it, in lanes with their own rings:

    V  sum v          mod 2^b     b bits hold all that the devices may insert: it never wraps
    K  sum v x'_j     mod p       c elements per cell, all in one lane

where x'_j = H x_j + g_j, with H as large as p allows, contains a digit g_j < H of a random hash of
the whole key. A cell with one key is *pure*: K / V is x', and V its value. Pure cells are listed
and their keys are subtracted from all their cells. This makes other cells pure. The table counts as
read only if no key is left (`decoding.py`).

In a one-shot sum both lanes have one prime p, above all that the devices may insert. Each x'_j is
written in base p with e digits, the lowest first, so K has c e elements per cell. H is as large as
p^e allows, up to 2^32. Of e = 1 to 6, each with the least prime that it needs, a cell has the one
with the fewest bits: 11^5 words of 1,000 devices have p = 4,421 and e = 2, so 36.75 bits.

Unlike other IBLTs, a cell has no third lane for a check: hash digits and the layout itself suffice.
A cell is treated as pure if

    1 <= V <= the largest value that a key can have
    K / V is an x', its x_j below their bound, its digits those of the hash of x
    x hashes to this very cell
    no other cell of x holds less than V

**False keys.** K / V of a cell of several keys is a weighted mean of their x'. If it is not one of
these, its hash digits and its cells are independent of the table's content, so it passes the second
and third test with probability H^-c and d / C, for C cells and a mean of d cells per key.
(It is one of these, with another value, only if the digits of the others' hashes happen to cancel,
whose probability has the same bound as the second test.) So of I inspections

    E(false keys)  <=  I d / (C H^c)

let a false key pass, before the fourth test, which a quarter of these survive. I is 3 to 5 per cell
if a table is read, 1 to 2 if it is stuck. False keys are detected: a key that was subtracted
wrongly is found in its cells as a negative amount, and put back. So a table that ends empty is
exact, and a stuck one lists false keys at the rate above: `DecodedTable.expected_false_keys`.

**Laws.** Each sub-table holds every key as often as any other. So for all insertions,

    V and each element of K add up to the same in all of them, modulo their q and p,
    and V adds up to at most what the devices may insert, times the cells of a heavy key in each.

Every honest sum keeps these laws, and `fault` returns the one that a sum breaks.

Source: appendix C of [Gascon23], after [GoodrichMitzenmacher11]; hash digits in the key, tests
and laws are ours. The lane of ones is left out: K is weighted with v, so V divides. This is
exact, because a key's value is not zero and below p.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from protocol.hashing import HashFamily
from protocol.numerics.array_types import Integers, Keys
from protocol.numerics.binary_search import first_true
from protocol.numerics.finite_fields import widest_prime
from protocol.sketches.iblt.layout import Layout, largest_fitting_cells
from secagg.oneshot.field import MAX_PRIME
from secagg.oneshot.moduli import PAIRWISE, Moduli
from secagg.ring import Lane, Ring, Vector

DEFAULT_EVIDENCE = 120  # 7 bits: the rest of 31 bits after a chunk of 24

_MAX_PARTS = 6
_INTEGER_BOUND = 2**62  # of an x', so that sums of two fit in 64 bits
_MAX_RADIX = 2**32  # hash digits are made from 32 bits

_U32, _LOW32 = np.uint64(32), np.uint64(2**32 - 1)


@dataclass(frozen=True, slots=True)
class CellFormat:
    """Format of a cell for keys of `chunks` chunks below `key_bound`, and their values.

    The values of one key add up to at most `value_bound`, and those of all keys in a cell to at
    most `total_bound`; otherwise the table is not read. A false key has the right hash digits with
    probability at most 1 / `evidence`. Lanes have `moduli` of the sum.
    """

    chunks: int
    key_bound: int
    value_bound: int
    total_bound: int
    evidence: int = DEFAULT_EVIDENCE
    moduli: Moduli = PAIRWISE

    def __post_init__(self) -> None:
        if min(self.chunks, self.key_bound, self.value_bound, self.evidence) < 1:
            raise ValueError(f"chunks, bounds and evidence are 1 or more, got {self}")
        if not self.value_bound <= self.total_bound < 2**62:
            raise ValueError(f"a total from {self.value_bound} to 2^62 - 1 expected, got {self}")
        assert self.p  # raises ValueError if there is none

    @property
    def p(self) -> int:
        """Return the modulus of the key lane, and of both lanes of a one-shot sum."""
        return _prime_and_parts(self)[0]

    @property
    def parts(self) -> int:
        """Return e, the number of elements that hold the x' of a chunk."""
        return _prime_and_parts(self)[1]

    @property
    def radix(self) -> int:
        """Return H, the bound of the hash digit of each chunk."""
        return _radix(self, self.p, self.parts)

    @property
    def elements(self) -> int:
        """Return the number of elements of K in a cell."""
        return self.chunks * self.parts

    @property
    def count_modulus(self) -> int:
        return self.p if self.moduli.min_prime else self.moduli.above(self.total_bound)

    def split(self, integers: Keys) -> Keys:
        """Return the elements `(n, elements)` of x', shape `(n, chunks)`."""
        if self.parts == 1:
            return integers
        digits = integers[:, :, np.newaxis] // self._powers % np.uint64(self.p)
        return digits.reshape(-1, self.elements)

    def keys_of(self, elements: Keys) -> Keys:
        """Return the x of x' with these `elements`, also of those that no key has."""
        digits = elements.reshape(-1, self.chunks, self.parts)
        integers: Keys = (digits * self._powers).sum(axis=2, dtype=np.uint64)
        return integers // np.uint64(self.radix)

    @property
    def _powers(self) -> Keys:
        return np.uint64(self.p) ** np.arange(self.parts, dtype=np.uint64)

    @property
    def false_digit_probability(self) -> float:
        """Return the probability that the hash digits of a false key are right."""
        return 1.0 / int(min(self.radix**self.chunks, 2**32))

    @property
    def bits(self) -> float:
        """Return the mean number of bits of a cell in a long vector."""
        element_bits = self.moduli.element_bits
        return element_bits(self.count_modulus) + self.elements * element_bits(self.p)

    def ring(self, cells: int) -> Ring:
        return Ring((Lane(self.count_modulus, cells), Lane(self.p, cells * self.elements)))

    def nbytes(self, cells: int) -> int:
        """Return the bytes of a packed table of `cells` cells."""
        return self.moduli.nbytes(self.ring(cells))

    def max_cells(self, nbytes: int) -> int:
        """Return the cells of the largest table that packs into `nbytes`, 0 if none does."""
        cells = largest_fitting_cells(max(0, int(8 * nbytes // self.bits)))
        while cells and self.nbytes(cells) > nbytes:  # each lane ends on a whole byte
            cells = largest_fitting_cells(cells - 1)
        return cells


def _radix(cell: CellFormat, p: int, parts: int) -> int:
    # The largest chunk has only the remaining digits: 2^18 chunks in 19 bits have 2.
    digits: int = (p**parts - 1) // max(1, cell.key_bound - 1)
    return min(digits, _MAX_RADIX)


@lru_cache(1024)
def _prime_and_parts(cell: CellFormat) -> tuple[int, int]:
    """Return p and e; ValueError if there are none."""
    moduli = cell.moduli
    if not moduli.min_prime:  # the largest prime of the fewest sufficient bits
        p = widest_prime(max(cell.value_bound, cell.key_bound - 1))
        while _radix(cell, p, 1) ** cell.chunks < cell.evidence:
            p = widest_prime(p)
        return p, 1
    least, choices = moduli.above(cell.total_bound), list[tuple[int, int]]()
    for parts in range(1, _MAX_PARTS + 1):
        with suppress(ValueError):  # the fixed prime is too small, or one above 2^26 is needed
            p = moduli.above(_least_base(cell, parts, least) - 1)
            if p**parts < _INTEGER_BOUND:
                choices.append((p, parts))
    if not choices:
        raise ValueError(
            f"keys below {cell.key_bound:,} do not fit in cells of a one-shot sum that count to "
            f"{cell.total_bound:,}: use fewer hash bits, fewer devices or a smaller contribution"
        )
    return min(choices, key=lambda each: moduli.element_bits(each[0]) * (1 + cell.chunks * each[1]))


def _least_base(cell: CellFormat, parts: int, least: int) -> int:
    """Return the smallest base from `least` in which `parts` digits hold chunk and hash digit."""
    return first_true(
        lambda p: _radix(cell, p, parts) ** cell.chunks >= cell.evidence, least, MAX_PRIME
    )


@dataclass(frozen=True, slots=True)
class DecodedTable:
    """Keys and values that were read from a table, row by row.

    If `complete`, keys and values are exact. Otherwise they are what was peeled before the table
    got stuck: on average at most `expected_false_keys` of them are not in the table, which held
    about `distinct` keys.
    """

    keys: Keys
    values: Integers
    complete: bool
    distinct: float
    nonempty_cells: int
    expected_false_keys: float


@dataclass(frozen=True, slots=True)
class Iblt:
    """The shape and hash functions of one table; tables are vectors of its `ring`."""

    cell: CellFormat
    cells: int
    seed: bytes
    ring: Ring = field(init=False)
    layout: Layout = field(init=False, repr=False)
    family: HashFamily = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.seed) != 32:
            raise ValueError(f"a seed of 32 bytes expected, got {len(self.seed)}")
        layout = Layout(self.cells)
        object.__setattr__(self, "layout", layout)
        object.__setattr__(self, "ring", self.cell.ring(self.cells))
        family = HashFamily(self.seed, "iblt", self.cell.chunks, layout.heavy_words)
        object.__setattr__(self, "family", family)

    def insert(self, keys: Keys, values: Integers) -> Vector:
        """Return the table of `keys`, shape `(n, chunks)`, with `values` from 1 to 2^32 - 1.

        A value may be the sum over many devices, and exceed the cells' moduli. It then wraps, as
        in the sum of their tables, and the table is not read.
        """
        cell = self.cell
        self.check_keys(keys)
        within = (values >= 1) & (values <= 2**32 - 1)
        if values.shape != keys.shape[:1] or not within.all():
            raise ValueError("values from 1 to 2^32 - 1 expected, one per key")
        weights = values.astype(np.uint64)
        words = self.family.hash(keys, slice(self.layout.light_words))
        p = np.uint64(cell.p)
        terms = self._elements(keys, words) * (weights % p)[:, np.newaxis] % p
        rows, cells = self.layout.edges(self.family, keys, words)
        counts, sums = (np.zeros(lane.length, np.uint64) for lane in self.ring.lanes)
        np.add.at(counts, cells, weights[rows])
        for number in range(cell.elements):  # sums of 2^33 terms still fit
            np.add.at(sums, cells * cell.elements + number, terms[rows, number])
        counts %= np.uint64(self.ring.lanes[0].q)
        sums %= p
        pairs = zip(self.ring.lanes, (counts, sums), strict=True)
        return tuple(array.astype(lane.dtype) for lane, array in pairs)

    def check_keys(self, keys: Keys) -> None:
        """Raise ValueError unless `keys` have shape `(n, chunks)` and stay below the bound."""
        cell = self.cell
        if keys.ndim != 2 or keys.shape[1] != cell.chunks or (keys >= cell.key_bound).any():
            raise ValueError(f"keys of {cell.chunks} chunks below {cell.key_bound} expected")

    def elements(self, keys: Keys) -> Keys:
        """Return the elements of x' of each key x: its chunks with the digits of its hash."""
        return self._elements(keys, self.family.hash(keys, slice(1)))

    def _elements(self, keys: Keys, words: Keys) -> Keys:
        cell, radix = self.cell, np.uint64(self.cell.radix)
        integers = keys * radix
        digits = words[:, 0] >> _U32
        for chunk in range(cell.chunks):
            product = digits * radix
            integers[:, chunk] += product >> _U32
            digits = product & _LOW32
        return cell.split(np.minimum(integers, np.uint64(cell.p**cell.parts - 1)))

    def edges(self, keys: Keys) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return pairs of a row of `keys` and a cell of this key, as two flat arrays."""
        words = self.family.hash(keys, slice(self.layout.light_words))
        return self.layout.edges(self.family, keys, words)

    def fault(self, table: Vector, max_total: int) -> str | None:
        """Return the law that `table` breaks and all sums of tables keep, None if none.

        The laws are the module's; `max_total` bounds the sum of all values. A sum that includes a
        uniformly random vector keeps them, with s sub-tables, with probability at most

            (2^b p^c)^-(s - 1)        (about 2^-76 for 10,000 devices and keys of 17 bits)
            p^-(1 + c e)(s - 1)       in a one-shot sum

        since V and each element of K have s - 1 laws; 1/modulus if the vector is random in one lane
        of one sub-table only. No other linear laws exist: a vector that keeps these is a sum and
        difference of honest tables (of a domain far larger than the table), and is not detected.
        """
        self.ring.check(table)
        for name, lane, array in zip(("counts", "keys"), self.ring.lanes, table, strict=True):
            # Below 2^62 each and 2^31 of keys, in at most 2^24 cells: counts need Python's ints.
            cells = array.reshape(self.layout.subtables, self.layout.width, -1)
            low = (cells & cells.dtype.type(2**31 - 1)).sum(axis=1, dtype=np.uint64)
            high = (cells >> cells.dtype.type(31)).sum(axis=1, dtype=np.uint64)
            sums = low.astype(object) + high.astype(object) * 2**31
            if (sums % lane.q != sums[0] % lane.q).any():
                return f"the sub-tables' {name} add up differently"
            allowed = max_total * self.layout.heavy_cells_per_subtable
            if name == "counts" and sums.max() > allowed:
                return "the counts are more than the devices may insert"
        return None
