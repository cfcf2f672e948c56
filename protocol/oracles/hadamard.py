"""Hadamard encoding, and recursive Hadamard response: one sign of a row, told by a device.

A value is split into a residue x mod K and a quotient x // K. The device draws a column r of a
Hadamard matrix over quotients, and answers with one of 2K symbols, by randomised response: its
residue with the sign (-1)^<r, x // K>.

    report   =  (r, residue, sign)             log2 d + 1 bits, for d a power of 2
    vote     =  sign (-1)^<r, x // K>          0 if x has another residue
    f^       =  (S/n) / (p - q)                p, q: odds of the true and of any other symbol
    n Var    =  f (C - 1) + g C + (1 - f - g) 2q/(p - q)^2         C = (p + q)/(p - q)^2

with g the frequency of all *other* values of x's residue. With K = 1 that is all others, and
n Var = ((e + 1)/(e - 1))^2 - f: Hadamard encoding. A larger K tells more of values that have few
companions, and of those that have many it tells less; the bound for values unknown has
g = 1 - f. How many reports name each residue is counted, whatever their sign, and tells g: a
report names the true one with odds of p + q, any other with 2q. Both are
decoded by a fast Walsh-Hadamard transform of d elements.

Source: [Bassily17] for K = 1; [Chen20], with 2K the power of 2 from e^epsilon up. Variance of
the latter is derived for data that are given, which the remark in section 4.3 of [Pan24] is not.
"""

from abc import abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import exp
from typing import Self

import numpy as np
from numpy.typing import NDArray

from protocol.chance import Chance, below
from protocol.oracles.coded import Coded
from protocol.oracles.counts import Codes, Counts, Frequencies, Support, Values, Votes
from protocol.oracles.limits import check_epsilon
from protocol.oracles.odds import WHOLE, favour, respond, responses
from protocol.oracles.tails import bernstein_bar, binomial_bar, check_tail
from protocol.oracles.transforms import hadamard


@dataclass(frozen=True)
class _Signs(Coded):
    """An oracle whose symbols are a residue and a sign of the quotient's Hadamard row."""

    @property
    @abstractmethod
    def _residues(self) -> int: ...

    @property
    def columns(self) -> int:
        """Return the columns of the Hadamard matrix: a power of 2."""
        quotients = -(-self.domain // self._residues)
        return 1 << (quotients - 1).bit_length()

    @property
    def space(self) -> int:
        """Return the number of reports (r, residue, sign)."""
        return self.columns * 2 * self._residues

    @property
    def cells(self) -> int:
        """Return the sums of signs (r, residue), and how many reports name each residue."""
        return self.space // 2 + self._residues

    @cached_property
    def keep(self) -> int:
        """Return the odds, of 2^64, of the true residue and sign."""
        return favour(self.epsilon, 1, 2 * self._residues - 1)

    @property
    def _other(self) -> Fraction:
        return Fraction(WHOLE - self.keep, WHOLE * (2 * self._residues - 1))

    @property
    def true_odds(self) -> Fraction:
        """Return p - q: the mean of a vote that is 1 or -1."""
        return Fraction(self.keep, WHOLE) - self._other

    @property
    def false_odds(self) -> Fraction:
        """Return 0: signs of others cancel."""
        return Fraction(0)

    @cached_property
    def spread(self) -> tuple[float, float]:
        """Return n times the variance at 0 and 1 if all others have the same residue: a bound."""
        lift = self.true_odds
        alike = float((lift + 2 * self._other) / lift**2)
        return alike, alike - 1

    def bar(self, n: int, tail: float) -> float:
        """Return the bar by Bernstein's bound, where all others have the same residue."""
        check_tail(n, tail)
        most = 1 / float(self.true_odds)
        return bernstein_bar(n * self.spread[0], most, tail) / n

    @property
    def vote_ns(self) -> float:
        """Return the nanoseconds of a sign."""
        return 5.0

    def whole_ns(self, reports: int) -> float:
        """Return the nanoseconds of the transform."""
        return 8.0 * reports + 15.0 * self.space

    @property
    def read_at_once(self) -> int:
        """Return how many reports a server reads at once."""
        return self._many_at_once(self.space)

    def distribution(self, value: int) -> dict[int, Fraction]:
        """Return the odds of each (r, residue, sign)."""
        self._listable(value, self.space)
        symbols = 2 * self._residues
        column = np.arange(self.columns, dtype=np.uint64)
        true = self._symbols(column, np.full(self.columns, value, np.uint64)).tolist()
        rows = responses(symbols, self.keep, Fraction(1, self.columns))
        return {
            r * symbols + symbol: odds
            for r, truth in enumerate(true)
            for symbol, odds in enumerate(rows[truth])
        }

    def _symbols(self, r: Codes, values: Values) -> Codes:
        quotients = values // np.uint64(self._residues)
        residues = values - quotients * np.uint64(self._residues)
        return residues * np.uint64(2) + (np.bitwise_count(r & quotients) & np.uint8(1))

    def _encode(self, values: Values, chance: Chance) -> Codes:
        r, symbols = below(chance, self.columns, len(values)), 2 * self._residues
        said = respond(chance, self._symbols(r, values), symbols, self.keep)
        return r * np.uint64(symbols) + said

    def _say(self, codes: Codes, candidates: Values) -> Votes:
        symbols = np.uint64(2 * self._residues)
        r, said = (column[:, np.newaxis] for column in np.divmod(codes, symbols))
        true = self._symbols(r, candidates[np.newaxis])
        votes: Votes = (said == true).astype(np.int8) - (said == (true ^ np.uint64(1))).astype(
            np.int8
        )
        return votes

    def _count(self, codes: Codes) -> Support:
        table: NDArray[np.int64] = np.bincount(codes.astype(np.int64), minlength=self.space)
        said = (table[0::2] + table[1::2]).reshape(self.columns, self._residues).sum(axis=0)
        return np.concatenate([table[0::2] - table[1::2], said])

    def _support(self, cells: Support) -> Support:
        signs = cells[: self.space // 2].reshape(self.columns, self._residues)
        by_residue = hadamard(signs.T)
        return by_residue.T.reshape(-1)[: self.domain]


@dataclass(frozen=True)
class Hadamard(_Signs):
    """Hadamard encoding (HE): one sign, flipped with odds of 1 / (1 + e)."""

    name = "hadamard"

    @property
    def _residues(self) -> int:
        return 1

    def bar(self, n: int, tail: float) -> float:
        """Return the bar by the exact tail of `n` fair signs."""
        return (2 * binomial_bar(n, 0.5, tail) / n - 1) / float(self.true_odds)


@dataclass(frozen=True)
class RecursiveHadamard(_Signs):
    """Recursive Hadamard response (RHR) with `residues` residues, a power of 2."""

    name = "recursive-hadamard"
    residues: int

    def __post_init__(self) -> None:
        if not 1 <= self.residues <= 2**31 or self.residues & (self.residues - 1):
            raise ValueError(f"residues must be a power of 2 from 1 to 2^31, not {self.residues}")
        if self.domain <= 2 * self.residues:
            raise ValueError(
                f"domain must be more than the {2 * self.residues} symbols, not {self.domain}: "
                "a dictionary that small takes k-ary randomised response (krr)"
            )
        _Signs.__post_init__(self)

    @classmethod
    def for_epsilon(cls, epsilon: float, domain: int) -> Self:
        """Return the response of the source, with as many symbols as e^epsilon asks for.

        Raises:
            ValueError: if a parameter is out of range, or the domain no larger than that.
        """
        check_epsilon(epsilon)
        residues = 1
        while 2 * residues < min(exp(epsilon), domain):
            residues *= 2
        return cls(epsilon, domain, residues)

    @property
    def _residues(self) -> int:
        return self.residues

    def variances(self, frequencies: Frequencies, n: int) -> Frequencies:
        """Return the exact variance of every value (d,), by the true frequencies of all of them.

        Raises:
            ValueError: as `Oracle.variances`.
        """
        super().variances(frequencies, n)
        mass = np.bincount(self._residue_of_all, frequencies, self.residues)
        return self.variance_among(frequencies, mass[self._residue_of_all] - frequencies, n)

    def estimated_variances(self, counts: Counts) -> Frequencies:
        """Return the variances at the estimates of values and of residues.

        Of named candidates it is the bound: their counts do not tell those of residues.

        Raises:
            ValueError: as `frequencies`.
        """
        if counts.candidates is not None:
            return super().estimated_variances(counts)
        shares = np.clip(self.frequencies(counts), 0, 1)
        said = counts.cells[self.space // 2 :] / counts.reports
        mass = (said - 2 * float(self._other)) / float(self.true_odds)
        alike = np.clip(mass[self._residue_of_all] - shares, 0, 1 - shares)
        return self.variance_among(shares, alike, counts.reports)

    @property
    def _residue_of_all(self) -> NDArray[np.int64]:
        return np.arange(self.domain) % self.residues

    def variance_among(self, frequencies: Frequencies, alike: Frequencies, n: int) -> Frequencies:
        """Return the variance where other values of the same residue have frequency `alike`.

        `variance` is the bound where all others have it, `variances` knows them all.
        """
        lift, other = float(self.true_odds), float(self._other)
        same, different = (lift + 2 * other) / lift**2, 2 * other / lift**2
        rest = 1 - frequencies - alike
        found: Frequencies = ((frequencies + alike) * same - frequencies + rest * different) / n
        return found
