"""The invertible Bloom lookup table: a linear sketch that lists its keys and their values.

The table is three sub-tables of as many cells each. A key x = (x_1 .. x_c) with value v goes
into one cell of each. A cell holds three sums over what hashed to it, each in a lane of its
own ring:

    V  sum v          mod 2^b     counts
    C  sum v G(x)     mod q       the check, G a random hash
    K  sum v x_j      mod p       the key, c elements a cell, all in one lane

A cell with one key is *pure*: K / V is the key, and V its value. Pure cells are listed,
their keys are subtracted wherever they hashed to, and this makes others pure, until nothing
is left: then, and only then, the table counts as read.

A cell is taken for pure if 1 <= V <= the largest value that a key can have, K / V is a key of
the domain, C = V G(K / V), and K / V hashes to this very cell. A cell of several keys passes
the last two by chance only, with odds of 3 / cells and 1 / q. A cell is inspected once and
again after a key was taken out of it, and no more keys are taken out than there are cells:
at most 4 inspections a cell. So a round lists a false key with odds of at most

    (4 cells) (3 / cells) (1 / q)  =  12 / q        (7.2e-7 for 24 check bits)

whatever the load. One that is listed corrupts other cells, so the table does not end empty.

Why sub-tables? Each of them holds every key once. So whatever was inserted, and by however many,

    V, C and each x_j of K add up to the same in all three, modulo 2^b, q and p,
    and V adds up to no more than the devices may insert.

Every honest sum keeps these linear laws, and `fault` tells which of them a sum breaks. A
single table in which a key takes any 3 cells keeps none, so that garbage in it is just a
table that cannot be read. The price is that two keys meet in the same three cells 4.5 times
as often: see `capacity.py`.

Source: appendix C of [Gascon23], after [GoodrichMitzenmacher11]; the laws are ours. The lane
of ones is left out: C and K are weighted with v, so V divides. This is exact, because a
key's value is not zero and below p and q. V may wrap in a cell of several keys, never for
one key, and peeling subtracts in the same ring.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.hashing import Family, reduce
from protocol.sketches.capacity import SUBTABLES, estimate_keys
from protocol.sketches.primes import widest_prime
from secagg.ring import Lane, Ring, Vector

CHECK_BITS = 24

Keys = NDArray[np.uint64]
Values = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Listing:
    """What was read off a table: keys and values row by row, and the cells that stayed full.

    `complete` says that nothing is left, so that keys and values are exact. If not, they are
    what was peeled before the table got stuck; of `distinct` keys by estimate.
    """

    keys: Keys
    values: Values
    stuck: int
    complete: bool
    distinct: float


@dataclass(frozen=True, slots=True)
class Cell:
    """What one cell must hold: keys of `chunks` chunks below `key_bound`, and their values.

    No key's values add up to more than `value_bound`. Both bounds stay below 2^31, so that
    products fit in 64 bits.
    """

    chunks: int
    key_bound: int
    value_bound: int
    check_bits: int = CHECK_BITS

    def __post_init__(self) -> None:
        if self.chunks < 1 or self.value_bound < 1 or self.key_bound < 1:
            raise ValueError(f"chunks and bounds are 1 or more, got {self}")

    @property
    def q(self) -> int:
        """Return the modulus of the check lane."""
        return widest_prime(max(self.value_bound, 2 ** (self.check_bits - 1)))

    @property
    def p(self) -> int:
        """Return the modulus of the key lane."""
        return widest_prime(max(self.value_bound, self.key_bound - 1))

    def ring(self, cells: int) -> Ring:
        """Return the ring of tables of `cells` such cells."""
        counts = Lane(2 ** self.value_bound.bit_length(), cells)
        return Ring((counts, Lane(self.q, cells), Lane(self.p, cells * self.chunks)))

    def most(self, nbytes: int) -> int:
        """Return the most cells of a table that packs into `nbytes`, 0 if none does."""
        bits = sum(lane.length * lane.bits for lane in self.ring(SUBTABLES).lanes)
        cells = 8 * nbytes // bits * SUBTABLES
        while cells and self.ring(cells).nbytes > nbytes:  # each lane ends on a whole byte
            cells -= SUBTABLES
        return cells


@dataclass(frozen=True, slots=True)
class Iblt:
    """The shape and hash functions of one table; tables are vectors of its `ring`."""

    cell: Cell
    cells: int
    seed: bytes
    ring: Ring = field(init=False)
    _places: Family = field(init=False, repr=False)
    _check: Family = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.cells < SUBTABLES or self.cells % SUBTABLES:
            raise ValueError(f"a table has 3, 6, 9 .. cells, got {self.cells}")
        chunks = self.cell.chunks
        object.__setattr__(self, "ring", self.cell.ring(self.cells))
        object.__setattr__(self, "_places", Family(self.seed, "iblt places", chunks, SUBTABLES))
        object.__setattr__(self, "_check", Family(self.seed, "iblt check", chunks, 1))

    def insert(self, keys: Keys, values: Values) -> Vector:
        """Return the table of `keys`, shape `(n, chunks)`, with `values` from 1 up.

        Raises:
            ValueError: if a key or value is out of its bounds.
        """
        if keys.shape != (len(values), self.cell.chunks) or (keys >= self.cell.key_bound).any():
            raise ValueError(
                f"keys of {self.cell.chunks} chunks below {self.cell.key_bound} expected"
            )
        if ((values < 1) | (values > self.cell.value_bound)).any():
            raise ValueError(f"values from 1 to {self.cell.value_bound} expected")
        lanes = self._zero()
        places = self.places(keys)
        self._add(lanes, places, self._terms(keys, values.astype(np.uint64)))
        self._reduce(lanes, slice(None))
        pairs = zip(self.ring.lanes, lanes, strict=True)
        return tuple(array.reshape(-1).astype(lane.dtype) for lane, array in pairs)

    def places(self, keys: Keys) -> NDArray[np.int64]:
        """Return the cells of each key, one a sub-table, shape `(n, 3)`."""
        within = reduce(self._places.hash(keys), self.cells // SUBTABLES).astype(np.int64)
        return within + np.arange(0, self.cells, self.cells // SUBTABLES)

    def fault(self, table: Vector, most: int) -> str | None:
        """Return which law `table` breaks of those that sums of tables keep, None if none.

        The laws are the module's; `most` is what all values may add up to. A sum with one
        uniformly random vector in it keeps them with odds of at most

            (2^b q p^c)^-2        (about 2^-110 for 10,000 devices and keys of 17 bits)

        since V, C and x_1 .. x_c have two laws each; 1/modulus if it is random in one lane of
        one sub-table only. There are no other linear laws: what keeps these is a sum and
        difference of honest tables (of a domain far larger than the table), and is not seen.
        """
        self.ring.check(table)
        names = "counts", "checks", "keys"
        for name, lane, array in zip(names, self.ring.lanes, table, strict=True):
            # Below 2^31 each, so 2^33 of them fit.
            cells = array.reshape(SUBTABLES, self.cells // SUBTABLES, -1)
            sums = cells.sum(axis=1, dtype=np.uint64)
            if (sums % np.uint64(lane.q) != sums[0] % np.uint64(lane.q)).any():
                return f"the sub-tables' {name} add up differently"
            # A cell that wrapped shows less than it holds, so the law holds for it as well.
            if name == "counts" and int(sums.max()) > most:
                return f"the counts add up to {sums.max():,}, which is more than {most:,}"
        return None

    def list_entries(self, table: Vector) -> Listing:
        """Return what `table` holds, by peeling all pure cells at a time.

        Any vector of the ring will do, also one that no honest tables add up to: there are no
        more keys taken out than cells, and no more passes than three times what honest tables
        at their capacity were seen to take (72 for 1,000 keys, 149 for 10,000).
        """
        self.ring.check(table)
        lanes = self._zero()
        for wide, narrow in zip(lanes, table, strict=True):
            wide[:] = narrow.reshape(wide.shape)
        keys, values = [np.zeros((0, self.cell.chunks), np.uint64)], [np.zeros(0, np.uint64)]
        inspect, budget = np.arange(self.cells), self.cells
        for _ in range(100 + 4 * math.isqrt(self.cells)):
            peeled, counts, places = self._pure(lanes, inspect)
            budget -= len(counts)
            if len(counts) == 0 or budget < 0:
                break
            keys.append(peeled)
            values.append(counts)
            self._add(lanes, places, self._negative(self._terms(peeled, counts)))
            inspect = np.unique(places)
            self._reduce(lanes, inspect)
        return self._listing(lanes, np.concatenate(keys), np.concatenate(values))

    def _listing(self, lanes: tuple[Keys, ...], keys: Keys, values: Keys) -> Listing:
        counts, checks, sums = lanes
        stuck = int(((counts != 0) | (checks != 0) | sums.any(axis=1)).sum())
        # An honest table gives each key once; fingerprints of two keys meet with odds 2^-61.
        unique = np.unique(self._places.fingerprint(keys)).size == len(keys)
        return Listing(
            keys=keys,
            values=values.astype(np.int64),
            stuck=stuck,
            complete=stuck == 0 and unique,
            distinct=estimate_keys(self.cells, len(keys), stuck),
        )

    def _pure(
        self, lanes: tuple[Keys, ...], cells: NDArray[np.int64]
    ) -> tuple[Keys, Keys, NDArray[np.int64]]:
        """Return keys, values and places of the pure ones among `cells`, each key once."""
        counts, checks, sums = lanes
        q, p = (np.uint64(lane.q) for lane in self.ring.lanes[1:])
        cells = cells[(counts[cells] > 0) & (counts[cells] <= self.cell.value_bound)]
        keys = sums[cells] * _inverse(counts[cells], p)[:, np.newaxis] % p
        fits = (keys < self.cell.key_bound).all(axis=1)
        cells, keys = cells[fits], keys[fits]
        fits = counts[cells] * self._check_of(keys) % q == checks[cells]
        cells, keys = cells[fits], keys[fits]
        places = self.places(keys)
        fits = (places == cells[:, np.newaxis]).any(axis=1)
        cells, keys, places = cells[fits], keys[fits], places[fits]
        pure = np.zeros(self.cells, dtype=np.bool_)
        pure[cells] = True
        # A key that is alone in several of its cells is taken from the first of them.
        first = np.where(pure[places], places, self.cells).min(axis=1, initial=self.cells)
        return keys[first == cells], counts[cells[first == cells]], places[first == cells]

    def _check_of(self, keys: Keys) -> NDArray[np.uint64]:
        return reduce(self._check.hash(keys)[:, 0], self.ring.lanes[1].q)

    def _terms(self, keys: Keys, values: Keys) -> tuple[Keys, ...]:
        """Return what each key adds to each of its cells, lane by lane."""
        q, p = (np.uint64(lane.q) for lane in self.ring.lanes[1:])
        return values, values * self._check_of(keys) % q, values[:, np.newaxis] * keys % p

    def _negative(self, terms: tuple[Keys, ...]) -> tuple[Keys, ...]:
        moduli = (np.uint64(lane.q) for lane in self.ring.lanes)
        return tuple(q - term for q, term in zip(moduli, terms, strict=True))

    def _zero(self) -> tuple[Keys, ...]:
        shapes: tuple[Any, ...] = (self.cells, self.cells, (self.cells, self.cell.chunks))
        return tuple(np.zeros(shape, dtype=np.uint64) for shape in shapes)

    def _add(
        self, lanes: tuple[Keys, ...], places: NDArray[np.int64], terms: tuple[Keys, ...]
    ) -> None:
        """Add each row's terms to its 3 cells; sums of 2^33 terms still fit."""
        for lane, term in zip(lanes, terms, strict=True):
            width = lane[:1].size
            where = places[:, :, np.newaxis] * width + np.arange(width)
            what = np.broadcast_to(term.reshape(-1, 1, width), where.shape)
            np.add.at(lane.reshape(-1), where.reshape(-1), what.reshape(-1))

    def _reduce(self, lanes: tuple[Keys, ...], cells: slice | NDArray[np.int64]) -> None:
        for lane, array in zip(self.ring.lanes, lanes, strict=True):
            array[cells] %= np.uint64(lane.q)


def _inverse(values: Keys, p: np.uint64) -> Keys:
    """Return 1 / `values` modulo the prime p < 2^31, as the power p - 2."""
    result, square, exponent = np.ones_like(values), values % p, int(p) - 2
    while exponent:
        if exponent & 1:
            result = result * square % p
        square = square * square % p
        exponent >>= 1
    return result
