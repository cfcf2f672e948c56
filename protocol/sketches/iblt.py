"""The invertible Bloom lookup table: a linear sketch that lists its keys and their values.

A key x = (x_1 .. x_c) with value v goes into a few cells (`layout.py`). A cell holds sums
over what hashed to it, in lanes of their own rings:

    V  sum v          mod 2^b     b bits hold all that the devices may insert: it never wraps
    K  sum v x'_j     mod p       c elements a cell, all in one lane

where x'_j = H x_j + g_j, for as large an H as keeps them apart below p, carries a digit g_j < H
of a random hash of the whole key. A cell with one key is *pure*: K / V is x', and V its value. Pure
cells are listed, their keys are taken out wherever they hashed to, and this makes others pure,
until nothing is left: then, and only then, the table counts as read (`listing.py`).

There is no third lane for a check, as others have it; hash digits and the layout itself are
enough. A cell is taken for pure if

    1 <= V <= the largest value that a key can have
    K / V is an x', its x_j below their bound, its digits those of the hash of x
    x hashes to this very cell
    no other cell of x holds less than V

**False keys.** K / V of a cell of several keys is a weighted mean of their x'. If it is none of
theirs, its hash digits and its cells are independent of all that is in the table, so it passes
the second and third test with odds of H^-c and d / C, for C cells and d cells a key on average.
(It is one of theirs, with another value, only if the digits of the others' hashes happen
to cancel, which the second odds bound as well.) So of I inspections

    E(false keys)  <=  I d / (C H^c)

let a false key pass, before the fourth test, which a quarter of these survive. I is 3 to 5 a
cell where a table is read, 1 to 2 where it is stuck. False keys are found out: what was taken
out of cells in vain is found in them as a negative amount, and put back. So a table that ends
empty is exact, and a stuck one lists false keys at the odds above: `Listing.false`.

**Laws.** Each sub-table holds every key as often as any other. So whatever was inserted,

    V and each x'_j of K add up to the same in all of them, modulo 2^b and p,
    and V adds up to no more than the devices may insert, times the cells a heavy key has in each.

Every honest sum keeps these laws, and `fault` tells which of them a sum breaks.

A cell with a `q` is *tight*: V is kept modulo this prime, in fewer bits; see `tight.py`.

Source: appendix C of [Gascon23], after [GoodrichMitzenmacher11]; hash digits in the key, tests
and laws are ours. The lane of ones is left out: K is weighted with v, so V divides. This is
exact, because a key's value is not zero and below p.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from protocol.hashing import Family
from protocol.sketches.layout import Layout, fitting
from protocol.sketches.primes import widest_prime
from secagg.ring import Lane, Ring, Vector

EVIDENCE = 120  # 7 bits: what a chunk of 24 bits leaves below 2^31

Keys = NDArray[np.uint64]
Values = NDArray[np.int64]
FALSE_SHARE = 0.01  # of keys that may be shown although their table was not read whole

_U32, _LOW32 = np.uint64(32), np.uint64(2**32 - 1)


@dataclass(frozen=True, slots=True)
class Listing:
    """What was read off a table: keys and values row by row, and the cells that stayed full.

    `complete` says that nothing is left, so that keys and values are exact. If not, they are
    what was peeled before the table got stuck, and at most `false` of them are expected not
    to be in it (`iblt.py`); of `distinct` keys by estimate.
    """

    keys: Keys
    values: Values
    complete: bool
    distinct: float
    stuck: int
    false: float
    residual: Vector

    @property
    def shown(self) -> bool:
        """Return whether the keys may be published: exact, or 99% of them true by the bound."""
        return self.complete or self.false <= FALSE_SHARE * len(self.keys)


@dataclass(frozen=True, slots=True)
class Cell:
    """What one cell must hold: keys of `chunks` chunks below `key_bound`, and their values.

    No key's values add up to more than `value_bound`, and all keys' together to no more than
    `total_bound`: if they do, in one cell, the table is not read. A false key has the right
    hash digits with odds of at most 1 / `evidence`.
    """

    chunks: int
    key_bound: int
    value_bound: int
    total_bound: int
    evidence: int = EVIDENCE
    q: int = 0

    def __post_init__(self) -> None:
        if min(self.chunks, self.key_bound, self.value_bound, self.evidence) < 1:
            raise ValueError(f"chunks, bounds and evidence are 1 or more, got {self}")
        if not self.value_bound <= self.total_bound < 2**62:
            raise ValueError(f"a total from {self.value_bound} to 2^62 - 1 expected, got {self}")
        if self.q and (self.q < 2 or self.evidence < 2**self.chunks):
            raise ValueError(f"q from 2 up, and a bit of evidence a chunk expected, got {self}")
        assert self.p  # ValueError if there is none

    @property
    def p(self) -> int:
        """Return the modulus of the key lane, the widest prime of the fewest bits that do."""
        p = widest_prime(max(self.value_bound, self.key_bound - 1))
        while self._radix(p) ** self.chunks < self.evidence:
            p = widest_prime(p)
        return p

    @property
    def radix(self) -> int:
        """Return H: the hash digit beside each chunk stays below."""
        return self._radix(self.p)

    def _radix(self, p: int) -> int:
        # The largest chunk makes do with the digits that are left: 2^18 chunks in 19 bits have 2.
        return (p - 1) // max(1, self.key_bound - 1)

    @property
    def least(self) -> int:
        """Return the least x'_j: 1 if V may be 0 where keys are, and K must not."""
        return 1 if self.q else 0

    @property
    def counts(self) -> int:
        """Return the modulus of V."""
        return self.q or 2 ** self.total_bound.bit_length()

    @property
    def odds(self) -> float:
        """Return the odds that the hash digits of a false key are right."""
        return 1.0 / int(min(self.radix**self.chunks, 2**32))

    @property
    def bits(self) -> int:
        """Return the bits that a cell takes."""
        return (self.counts - 1).bit_length() + self.chunks * self.p.bit_length()

    def ring(self, cells: int) -> Ring:
        """Return the ring of tables of `cells` such cells."""
        return Ring((Lane(self.counts, cells), Lane(self.p, cells * self.chunks)))

    def most(self, nbytes: int) -> int:
        """Return the most cells of a table that packs into `nbytes`, 0 if none does."""
        cells = fitting(8 * nbytes // self.bits)
        if cells and self.ring(cells).nbytes > nbytes:  # each lane ends on a whole byte
            cells = fitting(cells - 1)
        return cells


@dataclass(frozen=True, slots=True)
class Iblt:
    """The shape and hash functions of one table; tables are vectors of its `ring`."""

    cell: Cell
    cells: int
    seed: bytes
    ring: Ring = field(init=False)
    layout: Layout = field(init=False, repr=False)
    family: Family = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.seed) != 32:
            raise ValueError(f"a seed of 32 bytes expected, got {len(self.seed)}")
        layout = Layout(self.cells)
        object.__setattr__(self, "layout", layout)
        object.__setattr__(self, "ring", self.cell.ring(self.cells))
        family = Family(self.seed, "iblt", self.cell.chunks, layout.words)
        object.__setattr__(self, "family", family)

    def insert(self, keys: Keys, values: Values) -> Vector:
        """Return the table of `keys`, shape `(n, chunks)`, with `values` from 1 up.

        A value may be the sum of many devices', and beyond what the cells can hold: as in the
        sum of their tables it wraps then, and the table is not read.

        Raises:
            ValueError: if a key is out of its bounds, or a value below 1 or above 2^32 - 1.
        """
        cell = self.cell
        self.check_keys(keys)
        if values.shape != keys.shape[:1] or not _within(values, 1, 2**32 - 1):
            raise ValueError("values from 1 to 2^32 - 1 expected, one a key")
        weights = values.astype(np.uint64)
        words = self.family.hash(keys, slice(self.layout.near))
        p = np.uint64(cell.p)
        terms = self._elements(keys, words) * (weights % p)[:, np.newaxis] % p
        rows, cells = self.layout.edges(self.family, keys, words)
        counts, sums = (np.zeros(lane.length, np.uint64) for lane in self.ring.lanes)
        np.add.at(counts, cells, weights[rows])
        for chunk in range(cell.chunks):  # sums of 2^33 terms still fit
            np.add.at(sums, cells * cell.chunks + chunk, terms[rows, chunk])
        counts %= np.uint64(self.ring.lanes[0].q)
        sums %= p
        pairs = zip(self.ring.lanes, (counts, sums), strict=True)
        return tuple(array.astype(lane.dtype) for lane, array in pairs)

    def check_keys(self, keys: Keys) -> None:
        """Raise ValueError unless `keys` are of this table: shape `(n, chunks)` and bound."""
        cell = self.cell
        if keys.ndim != 2 or keys.shape[1] != cell.chunks or (keys >= cell.key_bound).any():
            raise ValueError(f"keys of {cell.chunks} chunks below {cell.key_bound} expected")

    def elements(self, keys: Keys) -> Keys:
        """Return x' of each key x: its chunks, with the digits of its hash."""
        return self._elements(keys, self.family.hash(keys, slice(1)))

    def _elements(self, keys: Keys, words: Keys) -> Keys:
        radix = np.uint64(self.cell.radix)
        elements = keys * radix
        digits = words[:, 0] >> _U32
        for chunk in range(self.cell.chunks):
            product = digits * radix
            elements[:, chunk] += product >> _U32
            digits = product & _LOW32
        least, most = np.uint64(self.cell.least), np.uint64(self.cell.p - 1)
        cut: Keys = np.clip(elements, least, most)
        return cut

    def edges(self, keys: Keys) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return rows of `keys` and cells, flat: each row as often as it has cells."""
        words = self.family.hash(keys, slice(self.layout.near))
        return self.layout.edges(self.family, keys, words)

    def list_entries(self, table: Vector, known: Keys | None = None) -> Listing:
        """Return what `table` holds; `known` keys help if it gets stuck, shape `(n, chunks)`.

        Any vector of the ring will do, also one that no honest tables add up to: the work is
        bounded for all of them, by 73 inspections a cell and what `memory.py` says. A tight
        table is listed whole or not at all, in 4,096 tests a cell, and `known` keys do not help.

        Raises:
            ValueError: if the table is not of this ring, or the keys are not of this table.
        """
        # Devices, which only insert, never import the compiler that this takes.
        from protocol.sketches.listing import list_entries  # noqa: PLC0415

        return list_entries(self, table, known)

    def most_of(self, table: Vector, keys: Keys) -> Values:
        """Return the most that `table` can hold of each key: the least V of its cells.

        True of sums of honest tables, and of what is left of one after a listing without
        false keys. A key whose cells it shares with few others has a tight bound.

        Raises:
            ValueError: if the table is tight, so that V bounds nothing.
        """
        if self.cell.q:
            raise ValueError("a tight table bounds no values")
        rows, cells = self.edges(keys)
        most = np.full(len(keys), self.cell.total_bound, np.int64)
        np.minimum.at(most, rows, table[0][cells].astype(np.int64))
        return most

    def fault(self, table: Vector, most: int) -> str | None:
        """Return which law `table` breaks of those that sums of tables keep, None if none.

        The laws are the module's; `most` is what all values may add up to. A sum with one
        uniformly random vector in it keeps them, with s sub-tables, with odds of at most

            (2^b p^c)^-(s - 1)        (about 2^-76 for 10,000 devices and keys of 17 bits)

        with q for 2^b in a tight table (2^-48), since V and x'_1 .. x'_c have s - 1 laws each;
        1/modulus if it is random in one lane of one sub-table only. There are no other linear
        laws: what keeps these is a sum and difference of honest tables (of a domain far larger
        than the table), and is not seen.
        A tight table keeps no bound on counts: modulo q nothing is more than `most`.
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
            allowed = most * self.layout.spread
            if name == "counts" and not self.cell.q and sums.max() > allowed:
                return f"the counts add up to {sums.max():,}, which is more than {allowed:,}"
        return None


def _within(values: Values, least: int, most: int) -> bool:
    return bool((values >= least).all() and (values <= most).all())
