"""Votes for a few of very many cells: a table that is read whole except with a proven probability.

A key is a cell's number, its value the votes for it. The table has eight sub-tables of `width`
cells, and each key is in one cell of each: in four by one hash, in four by another. A cell holds

    V  sum v          mod q, read as the number next to 0; q is 2^b, or p in a one-shot sum
    K  sum v x'_j     mod p, for each chunk j of the key: x'_j = H x_j + g_j with hash digits g_j

as in `iblt/table.py`, which has several elements for each chunk in a one-shot sum, and is peeled in
the same way: where K / V is an x' with its digits that hashes to this very cell, V of that key is
subtracted from all eight. A false key leaves its negative, which is peeled as any other: the result
is the sum of what was subtracted.

**Probability of failure.** The keys that peeling leaves are a set of s keys of which none is alone
in a cell. If s balls are thrown into w bins, the probability that none is alone in its bin is
q(s, w), and eight independent sub-tables give

    P(failure)  <=  sum over s of C(N, s) q(s, w)^8     for any N keys
    q(s, w)     =  sum over j of w! / (w - j)! S(s, j) / w^s         (S: blocks of two or more)
                <=  s! (e^r - r)^w / (r^s w^s)     for every r > 0   (a coefficient of (e^x - x)^w)

The first form is used up to s = 64. Two keys with the same value of one hash, of probability 2^-61,
still have the four sub-tables of the other. And a cell of several keys passes as one key with
probability 1 in H^c w; a cell is inspected first and whenever a key of it is subtracted, so at most
8 (1 + N / w) / H^c keys are false on average. All bounds hold for hash functions that are as good
as random, and keys that are chosen before the seed.

Source: [GoodrichMitzenmacher11] for the table; the bound by sets without a key that is alone is the
first moment of [Molloy05]; eight sub-tables by two hashes, signed values and numbers are ours.
"""

import math
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Self

import numpy as np
from pydantic import Field, model_validator

from protocol.hashing import HashFamily
from protocol.numerics import special
from protocol.numerics.array_types import Floats, Integers, Keys
from protocol.numerics.binary_search import first_true
from protocol.public_model import PublicModel
from protocol.sketches.iblt.table import CellFormat
from secagg.oneshot.moduli import PAIRWISE, Moduli
from secagg.ring import Ring, Vector

HASH_FUNCTIONS, SUBTABLES_PER_HASH = 2, 4
SUBTABLES = HASH_FUNCTIONS * SUBTABLES_PER_HASH
MAX_KEYS = 2**17  # for which a width is computed in a second
MAX_WIDTH = 2**21
MAX_BOUND = 2**52
MAX_EVIDENCE = 2**80
_MAX_CHUNKS = 6
_MAX_EXACT_KEYS = 64  # for which q is exact
_SPARE_FALSE_KEYS = 64  # additional keys, which are false
_U32, _LOW32 = np.uint64(32), np.uint64(2**32 - 1)
_FALSE_KEY_SHARE = 0.1  # of the probability of failure


class VoteTableShape(PublicModel):
    """Sub-tables of `width` cells for numbers below `bound` and at most `votes` votes in all.

    A cell of several keys passes as one key with probability 1 in `evidence` times `width`.
    """

    bound: int = Field(ge=2, le=MAX_BOUND)
    votes: int = Field(ge=1, lt=2**31)
    width: int = Field(ge=1, le=MAX_WIDTH)
    evidence: int = Field(ge=1, le=MAX_EVIDENCE)

    @model_validator(mode="after")
    def _has_cells(self) -> Self:
        if not self._cells(PAIRWISE):
            raise ValueError("evidence needs a prime above 2^31")
        return self

    @classmethod
    def fitting(cls, bound: int, votes: int, failure_probability: float) -> Self | None:
        """Return the smallest shape that is read whole with this probability; None if none is."""
        keys = min(votes, bound)
        if keys > MAX_KEYS or bound > MAX_BOUND:
            return None
        width = min_width(keys, (1 - _FALSE_KEY_SHARE) * failure_probability)
        false_key_probability = _FALSE_KEY_SHARE * failure_probability
        evidence = math.ceil(SUBTABLES * (1 + keys / width) / false_key_probability)
        if evidence > MAX_EVIDENCE or width > MAX_WIDTH:
            return None
        return cls(bound=bound, votes=votes, width=width, evidence=evidence)

    def cell(self, moduli: Moduli) -> CellFormat:
        """Return the smallest cell with this evidence; ValueError if there is none."""
        cells = self._cells(moduli)
        if not cells:
            raise ValueError(
                f"{self.votes:,} votes do not fit in cells of a one-shot sum: use fewer devices or "
                "a smaller contribution"
            )
        return min(cells, key=lambda cell: cell.bits)

    def _cells(self, moduli: Moduli) -> list[CellFormat]:
        cells = list[CellFormat]()
        for chunks in range(1, _MAX_CHUNKS + 1):
            base = 2 ** max(1, -(-(self.bound - 1).bit_length() // chunks))
            # One more than any chunk, so that all chunks have the same room for digits. And twice
            # the votes, because values have a sign.
            with suppress(ValueError):  # no prime is large enough
                bounds = base + 1, self.votes, 2 * self.votes
                cells.append(CellFormat(chunks, *bounds, self.evidence, moduli=moduli))
        return cells

    def ring(self, moduli: Moduli) -> Ring:
        """Return the ring of the tables, with `moduli` of the sum."""
        return self.cell(moduli).ring(SUBTABLES * self.width)

    def nbytes(self, moduli: Moduli) -> int:
        """Return the bytes of a packed table."""
        return moduli.nbytes(self.ring(moduli))


@dataclass(frozen=True, slots=True)
class VoteTable:
    """A table of one `shape`, with hash functions of a 32-byte `seed` and `moduli` of the sum."""

    shape: VoteTableShape
    seed: bytes
    moduli: Moduli = PAIRWISE
    cell: CellFormat = field(init=False)
    base: int = field(init=False)  # of a number's chunks
    families: tuple[HashFamily, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        cell = self.shape.cell(self.moduli)
        words = cell.chunks + SUBTABLES_PER_HASH // 2  # for digits, and for two cells each
        families = tuple(
            HashFamily(self.seed, f"votes {number}", cell.chunks, words)
            for number in range(HASH_FUNCTIONS)
        )
        object.__setattr__(self, "cell", cell)
        object.__setattr__(self, "base", cell.key_bound - 1)
        object.__setattr__(self, "families", families)

    @property
    def ring(self) -> Ring:
        return self.shape.ring(self.moduli)

    def insert(self, numbers: Integers, votes: Integers) -> Vector:
        """Return the table of `votes` for `numbers` below the bound, as a vector of the ring."""
        counts = np.zeros(SUBTABLES * self.shape.width, np.int64)
        sums = np.zeros((len(counts), self.cell.elements), np.int64)
        self._add(counts, sums, numbers, votes)
        pairs = zip(self.ring.lanes, (counts % self.cell.count_modulus, sums), strict=True)
        return tuple(array.reshape(-1).astype(lane.dtype) for lane, array in pairs)

    def decode(self, table: Vector) -> tuple[Integers, Integers]:
        """Return the numbers in `table`, in ascending order, and their votes, as far as it is read.

        Any vector of the ring is allowed; the work is bounded for all of them.
        """
        cell, half = self.cell, (self.cell.count_modulus + 1) // 2
        counts = table[0].astype(np.int64)
        counts = np.where(counts >= half, counts - cell.count_modulus, counts)
        sums = table[1].astype(np.int64).reshape(-1, cell.elements)
        parts = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
        cells = np.flatnonzero(counts)
        # A key is subtracted once. Malicious tables could add and subtract thousands for ever.
        remaining = min(self.shape.votes, self.shape.bound) + _SPARE_FALSE_KEYS
        while remaining > 0:
            numbers, votes = self.pure_keys(counts, sums, cells)
            if not len(numbers):
                break
            remaining -= len(numbers)
            parts.append((numbers, votes))
            cells = np.unique(self._add(counts, sums, numbers, -votes))
            cells = cells[counts[cells] != 0]
        distinct, index = np.unique(
            np.concatenate([part[0] for part in parts]), return_inverse=True
        )
        total = np.zeros(len(distinct), np.int64)
        np.add.at(total, index, np.concatenate([part[1] for part in parts]))
        return distinct[total != 0], total[total != 0]

    def fault(self, table: Vector, max_total: int) -> str | None:
        """Return the law that `table` breaks and all sums of at most `max_total` votes keep.

        All sub-tables hold the same. The result, None if no law is broken, reveals no amount.
        """
        counts = (
            table[0].astype(np.int64).reshape(SUBTABLES, -1).sum(axis=1) % self.cell.count_modulus
        )
        sums = table[1].astype(np.int64).reshape(SUBTABLES, -1, self.cell.elements).sum(axis=1)
        if (counts != counts[0]).any() or (sums % self.cell.p != sums[0] % self.cell.p).any():
            return "the sub-tables' votes add up differently"
        if int(counts[0]) > max_total:
            return "there are more votes than devices have items"
        return None

    def _add(
        self, counts: Integers, sums: Integers, numbers: Integers, votes: Integers
    ) -> Integers:
        """Add `votes` to the cells of `numbers`, and return these cells."""
        elements, cells = self._elements_and_cells(numbers)
        p = self.cell.p
        np.add.at(counts, cells, votes[:, np.newaxis])
        terms = elements * (votes % p)[:, np.newaxis] % p
        for number in range(self.cell.elements):
            np.add.at(sums[:, number], cells, terms[:, number, np.newaxis])
        touched = cells.reshape(-1)
        sums[touched] %= p
        return touched

    def pure_keys(
        self, counts: Integers, sums: Integers, cells: Integers
    ) -> tuple[Integers, Integers]:
        """Return the distinct keys that are alone in one of `cells`, and their votes."""
        cell, values = self.cell, counts[cells]
        distinct, index = np.unique(values, return_inverse=True)
        inverses = [pow(int(value), -1, cell.p) if value % cell.p else 0 for value in distinct]
        elements = sums[cells] * np.array(inverses, np.int64)[index, np.newaxis] % cell.p
        chunks = np.minimum(cell.keys_of(elements.astype(np.uint64)), np.uint64(self.base - 1))
        numbers = np.zeros(len(cells), np.int64)
        for column in chunks.T.astype(np.int64):
            numbers = numbers * self.base + column
        inside = (numbers < self.shape.bound) & (np.abs(values) <= self.shape.votes)
        numbers = np.where(inside, numbers, 0)
        true_elements, true_cells = self._elements_and_cells(numbers)
        passes = inside & (true_elements == elements).all(axis=1)
        passes &= (true_cells == cells[:, np.newaxis]).any(axis=1)
        numbers, first = np.unique(numbers[passes], return_index=True)
        return numbers, values[passes][first]

    def _elements_and_cells(self, numbers: Integers) -> tuple[Integers, Integers]:
        """Return the elements of each key, `(n, elements)`, and its cells, `(n, SUBTABLES)`."""
        cell, width = self.cell, np.uint64(self.shape.width)
        keys: Keys = np.zeros((len(numbers), cell.chunks), np.uint64)
        rest = numbers.astype(np.uint64)
        for column in reversed(range(cell.chunks)):
            rest, keys[:, column] = np.divmod(rest, np.uint64(self.base))
        hashed = [family.hash(keys) for family in self.families]
        digits = (hashed[0][:, : cell.chunks] >> _U32) * np.uint64(cell.radix) >> _U32
        elements = cell.split(keys * np.uint64(cell.radix) + digits)
        halves = [
            half
            for words in hashed
            for word in words[:, cell.chunks :].T
            for half in (word >> _U32, word & _LOW32)
        ]
        columns = [
            (half * width >> _U32).astype(np.int64) + number * self.shape.width
            for number, half in enumerate(halves)
        ]
        return elements.astype(np.int64), np.stack(columns, axis=1)


@lru_cache(maxsize=256)
def max_votes(devices: int, probability: float, tail: float) -> int:
    """Return the heads that `devices` coins exceed with probability `tail` at most; at least 1."""
    return first_true(
        lambda k: bool(special.betainc(k + 1, devices - k, probability) <= tail), 1, devices
    )


@lru_cache(maxsize=256)
def min_width(keys: int, failure_probability: float) -> int:
    """Return the smallest width, to a part in 500, for `keys` keys and a failure probability."""

    def suffices(width: int) -> bool:
        return failure_probability_bound(keys, width) <= failure_probability

    low, high = 0, 8
    while not suffices(high):
        low, high = high, 2 * high
    while high - low > max(1, low // 500):
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high


def failure_probability_bound(keys: int, width: int) -> float:
    """Return the module's bound on the probability that a table of `width` is not read whole."""
    s = np.arange(2, keys + 1, dtype=np.float64)
    ways = special.gammaln(keys + 1) - special.gammaln(s + 1) - special.gammaln(keys - s + 1)
    logs = ways + SUBTABLES * log_no_singleton_probability(keys, width)[2:]
    equal_hashes = HASH_FUNCTIONS * keys**2 / 2 * 2.0**-61 * float(width) ** -SUBTABLES_PER_HASH
    return min(1.0, float(np.exp(np.minimum(logs, 0.0)).sum()) + equal_hashes)


def log_no_singleton_probability(max_keys: int, width: int) -> Floats:
    """Return ln q(s, `width`) or an upper bound, for s = 0 .. `max_keys`."""
    s = np.arange(max_keys + 1, dtype=np.float64)
    rates, balls = _saddle_points()
    r = np.interp(s / width, balls, rates)  # any r is valid, this one is nearly the best
    with np.errstate(over="ignore"):
        per_cell = np.where(r < 30, np.log(np.exp(np.minimum(r, 30)) - r), r)
    logs = special.gammaln(s + 1) + width * per_cell - s * np.log(r * width)
    exact_keys, blocks = min(_MAX_EXACT_KEYS, max_keys), np.arange(_MAX_EXACT_KEYS // 2 + 1)
    with np.errstate(divide="ignore"):
        shapes = np.log(_associated_stirling_numbers()[: exact_keys + 1])
    places = special.gammaln(width + 1) - special.gammaln(np.maximum(width - blocks, 0) + 1)
    places = np.where(blocks <= width, places, -np.inf)
    exact = np.logaddexp.reduce(shapes + places, axis=1)
    logs[: exact_keys + 1] = exact - s[: exact_keys + 1] * math.log(width)
    return np.asarray(np.minimum(logs, 0.0))


@lru_cache(maxsize=1)
def _saddle_points() -> tuple[Floats, Floats]:
    """Return values of r, and the balls per bin for which each is best."""
    r = np.geomspace(1e-6, 200, 4000)
    return r, r * np.expm1(r) / (np.exp(r) - r)


@lru_cache(maxsize=1)
def _associated_stirling_numbers() -> Floats:
    """Return S(s, j): the number of partitions of s things into j blocks of two or more."""
    ways = np.zeros((_MAX_EXACT_KEYS + 1, _MAX_EXACT_KEYS // 2 + 1))
    ways[0, 0] = 1
    for s in range(2, _MAX_EXACT_KEYS + 1):
        for j in range(1, s // 2 + 1):
            ways[s, j] = j * ways[s - 1, j] + (s - 1) * ways[s - 2, j - 1]
    return ways
