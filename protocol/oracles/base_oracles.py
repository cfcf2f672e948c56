"""Base classes of oracles whose report is an integer, or a vector of one bit per value."""

from abc import abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from protocol.numerics.array_types import Codes, Flags, ItemValues, PackedReports, Support, Votes
from protocol.oracles.oracle import Oracle
from protocol.randomness import (
    PROBABILITY_ONE,
    RandomWords,
    favoured_of_2_64,
    randomize,
    uniform_below,
)

_MAX_RANDOM_WORDS = 2**20  # of one batch of bit vectors
_MAX_REPORT_BITS = 2**24


@dataclass(frozen=True)
class IntegerReportOracle(Oracle):
    """An oracle whose report is an integer below `possible_reports`: its fields in mixed radix."""

    def __post_init__(self) -> None:
        Oracle.__post_init__(self)
        if self.possible_reports > 2**64:
            raise ValueError(
                f"domain must be smaller: reports of {self.name} over {self.domain:,} values "
                f"take {self.bits} bits, and 64 are the maximum"
            )

    @property
    @abstractmethod
    def possible_reports(self) -> int: ...

    @property
    def bits(self) -> int:
        return (self.possible_reports - 1).bit_length()

    @abstractmethod
    def _encode(self, values: ItemValues, chance: RandomWords) -> Codes: ...

    @abstractmethod
    def _code_votes(self, codes: Codes, candidates: ItemValues) -> Votes:
        """Return the votes of reports that are in range."""

    @abstractmethod
    def _count_codes(self, codes: Codes) -> Support:
        """Return the cells of reports that are in range."""

    def _perturb(self, values: ItemValues, chance: RandomWords) -> PackedReports:
        return self.pack(self._encode(values, chance))

    def pack(self, codes: Codes) -> PackedReports:
        """Return integers below `possible_reports` as packed reports."""
        return codes.astype("<u8").view(np.uint8).reshape(-1, 8)[:, : self.nbytes]

    def codes(self, reports: PackedReports) -> Codes:
        """Return reports as integers; ValueError if a report is malformed."""
        self.check(reports)
        return self._codes(reports)

    def _codes(self, reports: PackedReports) -> Codes:
        wide: PackedReports = np.zeros((len(reports), 8), np.uint8)
        wide[:, : self.nbytes] = reports
        return wide.view("<u8").reshape(-1).astype(np.uint64)

    def _check(self, reports: PackedReports) -> None:
        codes = self._codes(reports)
        wrong = np.flatnonzero(codes > np.uint64(self.possible_reports - 1))
        if len(wrong):
            row = int(wrong[0])
            raise ValueError(
                f"report {row} must be from 0 to {self.possible_reports - 1}, not {codes[row]}"
            )

    def _votes(self, reports: PackedReports, candidates: ItemValues) -> Votes:
        return self._code_votes(self._codes(reports), candidates)

    def _aggregate(self, reports: PackedReports) -> Support:
        return self._count_codes(self._codes(reports))


@dataclass(frozen=True)
class HashedResponseOracle(IntegerReportOracle):
    """An oracle whose report is a hash function and a symbol: function * symbols + symbol.

    The device draws the function and reports the hashed value by randomized response. A report
    votes for the values that the function hashes to its symbol.
    """

    @property
    @abstractmethod
    def _functions(self) -> int: ...

    @property
    @abstractmethod
    def _symbols(self) -> int: ...

    @abstractmethod
    def _hash(self, functions: Codes, values: ItemValues) -> Codes:
        """Return the symbols of `values` by `functions`, which are broadcast."""

    def _draw_functions(self, chance: RandomWords, count: int) -> Codes:
        return uniform_below(chance, self._functions, count)

    @property
    def possible_reports(self) -> int:
        return self._functions * self._symbols

    @cached_property
    def keep_of_2_64(self) -> int:
        """Return the probability, as a part of 2^64, of the true symbol."""
        return favoured_of_2_64(self.epsilon, 1, self._symbols - 1)

    @property
    def _other_probability(self) -> Fraction:
        return Fraction(PROBABILITY_ONE - self.keep_of_2_64, PROBABILITY_ONE * (self._symbols - 1))

    @property
    def mean_vote_if_held(self) -> Fraction:
        return Fraction(self.keep_of_2_64, PROBABILITY_ONE)

    def distribution(self, value: int) -> dict[int, Fraction]:
        self._check_listable(value, self.possible_reports)
        functions = np.arange(self._functions, dtype=np.uint64)
        hashed = self._hash(functions, np.full(self._functions, value, np.uint64)).tolist()
        true = Fraction(self.keep_of_2_64, PROBABILITY_ONE) / self._functions
        other = self._other_probability / self._functions
        return {
            function * self._symbols + symbol: true if symbol == truth else other
            for function, truth in enumerate(hashed)
            for symbol in range(self._symbols)
        }

    def _encode(self, values: ItemValues, chance: RandomWords) -> Codes:
        functions = self._draw_functions(chance, len(values))
        hashed = self._hash(functions, values)
        reported = randomize(chance, hashed, self._symbols, self.keep_of_2_64)
        return functions * np.uint64(self._symbols) + reported

    def _code_votes(self, codes: Codes, candidates: ItemValues) -> Votes:
        functions, symbols = np.divmod(codes[:, np.newaxis], np.uint64(self._symbols))
        votes: Votes = (self._hash(functions, candidates[np.newaxis]) == symbols).astype(np.int8)
        return votes


@dataclass(frozen=True)
class BitVectorOracle(Oracle):
    """An oracle whose report is a vector of d bits: bit x is the vote for value x.

    Element x is bit x of the little-endian bytes. A report takes one bit for each value, and a
    device draws one word for each, so these oracles are for small dictionaries.
    """

    ns_per_vote = 3.0

    def __post_init__(self) -> None:
        Oracle.__post_init__(self)
        if self.domain > _MAX_REPORT_BITS:
            raise ValueError(
                f"domain must be at most 2^24, one bit for each value, not {self.domain}"
            )

    @property
    def bits(self) -> int:
        return self.domain

    @property
    def encode_batch(self) -> int:
        return max(1, _MAX_RANDOM_WORDS // self.domain)

    def decode_ns(self, reports: int) -> float:
        return reports * (10.0 + self.domain)

    @abstractmethod
    def _random_bits(self, values: ItemValues, chance: RandomWords) -> Flags: ...

    def _perturb(self, values: ItemValues, chance: RandomWords) -> PackedReports:
        return np.packbits(self._random_bits(values, chance), axis=1, bitorder="little")

    def _check(self, reports: PackedReports) -> None:
        surplus = reports[:, -1] >> np.uint8((self.domain - 1) % 8 + 1)
        if surplus.any():
            row = int(np.flatnonzero(surplus)[0])
            raise ValueError(f"report {row} votes for values above {self.domain - 1}")

    def _votes(self, reports: PackedReports, candidates: ItemValues) -> Votes:
        column, bit = np.divmod(candidates.astype(np.int64), 8)
        return (reports[:, column] >> bit.astype(np.uint8) & np.uint8(1)).astype(np.int8)

    def _aggregate(self, reports: PackedReports) -> Support:
        total = np.zeros(self.domain, np.int64)
        for start in range(0, len(reports), self.encode_batch):
            batch = reports[start : start + self.encode_batch]
            bits = np.unpackbits(batch, axis=1, count=self.domain, bitorder="little")
            total += bits.sum(axis=0, dtype=np.int64)
        return total
