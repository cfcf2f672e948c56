"""OCMS over GF(q): a count-mean sketch by inner products, decoded by one Fourier transform.

Values are vectors of L digits in base q, q^L >= d. Each device draws a vector r and hashes its
value to one of q symbols, of which it tells by randomised response:

    h(x)     =  <r, x> over GF(q)              r uniform; q a prime or a power of 2
    report   =  (r, y)                         (L + 1) log2 q bits: 20 for d = 100,000, q = 3
    p, q*    =  e / (e + q - 1),  1/q          two values meet with odds of exactly 1/q

since <r, x - x'> is uniform where x is not x'. So the estimate is unbiased without a correction,
variance is that of perfect hashing (`optimal.py` with m = q), and the whole dictionary takes
n + q^(L+1) log q steps in the place of n d / m (`transforms.py`). Where q^(L+1) is more than
2^23 what is kept are counts of values instead. A batch of reports is counted by the transform
all the same if that is less work, up to 2^25 (0.5 GB for as long as it takes), else by the d/q
solutions x of each report; and a q within 3% of the least error is taken that is transformed, if
there is one and the best is not.

Source: ours, as a family for section 3 of [Pan24]: its corollary 3.1 asks for nothing but the
odds of collision. Hadamard encoding is q = 2.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from typing import Self

import numpy as np

from protocol.chance import Chance, below
from protocol.oracles.coded import Coded
from protocol.oracles.counts import Codes, Support, Values, Votes
from protocol.oracles.fields import MOST_ELEMENTS, Field, field_of
from protocol.oracles.ocms import check_range
from protocol.oracles.odds import WHOLE, favour, respond, responses
from protocol.oracles.optimal import best, l2_range, mse_range, squares, worst
from protocol.oracles.transforms import supports
from protocol.sketches.primes import is_prime

_MOST_CELLS = 2**23  # that are kept
_MOST_TRANSFORMED = 2**25  # at once
_ALIKE = 1.03  # errors
_MOST_VECTORS = 2**32  # of which `below` draws one


@dataclass(frozen=True)
class OcmsGf(Coded):
    """Count-mean sketch by inner products over GF(`q`)."""

    name = "ocms-gf"
    q: int

    def __post_init__(self) -> None:
        field_of(self.q)
        check_range(self.q, self.domain)
        Coded.__post_init__(self)
        if self.vectors > _MOST_VECTORS:
            raise ValueError(f"domain must be at most {self.q}^{self.length - 1} over GF({self.q})")

    @classmethod
    def for_mse(cls, epsilon: float, domain: int, most: float = 1.0) -> Self:
        """Return the sketch of the least worst-case variance if no frequency is above `most`.

        Raises:
            ValueError: if a parameter is out of range, or the domain no larger than q.
        """
        around = orders(mse_range(epsilon, most))
        return cls._quickest(epsilon, domain, around, lambda q: worst(epsilon, q, most))

    @classmethod
    def for_l2(cls, epsilon: float, domain: int) -> Self:
        """Return the sketch of the least sum of variances; raises as `for_mse`."""
        around = orders(l2_range(epsilon, domain))
        return cls._quickest(epsilon, domain, around, lambda q: squares(epsilon, q, domain))

    @classmethod
    def _quickest(
        cls, epsilon: float, domain: int, around: list[int], error: Callable[[int], float]
    ) -> Self:
        """Return the sketch of the least error, or the shortest transformed one within 3% of it."""
        found = cls(epsilon, domain, best(around, error))
        if found.space <= _MOST_TRANSFORMED:
            return found
        small = [q for q in _all_orders() if q < domain and q * domain <= _MOST_TRANSFORMED]
        alike = [q for q in small if error(q) <= _ALIKE * error(found.q)]
        sketches = [cls(epsilon, domain, q) for q in alike]
        quick = [one for one in sketches if one.space <= _MOST_TRANSFORMED]
        return min(quick, key=lambda one: (one.bits, error(one.q)), default=found)

    @cached_property
    def field(self) -> Field:
        """Return GF(q)."""
        return field_of(self.q)

    @cached_property
    def length(self) -> int:
        """Return L, the digits of a value."""
        length = 1
        while self.q**length < self.domain:
            length += 1
        return length

    @property
    def vectors(self) -> int:
        """Return q^L, the number of hash functions."""
        return int(self.q**self.length)

    @property
    def space(self) -> int:
        """Return the number of reports (r, y)."""
        return self.vectors * self.q

    @property
    def is_tabled(self) -> bool:
        """Return whether cells count reports (r, y), and not values."""
        return self.space <= _MOST_CELLS

    @property
    def cells(self) -> int:
        """Return the reports (r, y), or the values."""
        return self.space if self.is_tabled else self.domain

    @cached_property
    def keep(self) -> int:
        """Return the odds, of 2^64, that y is the hashed value."""
        return favour(self.epsilon, 1, self.q - 1)

    @property
    def true_odds(self) -> Fraction:
        """Return p."""
        return Fraction(self.keep, WHOLE)

    @property
    def false_odds(self) -> Fraction:
        """Return 1/q."""
        return Fraction(1, self.q)

    @property
    def vote_ns(self) -> float:
        """Return the nanoseconds of an inner product."""
        return 4.0 if self.q == 2 else 7.0 * self.length

    def whole_ns(self, reports: int) -> float:
        """Return the nanoseconds of the transform, or of all solutions."""
        transformed, solved = 8.0 * reports + 50.0 * self.space, self._solving_ns * reports
        if self.is_tabled:
            return transformed
        return min(transformed, solved) if self.space <= _MOST_TRANSFORMED else solved

    @property
    def read_at_once(self) -> int:
        """Return how many reports a server reads at once."""
        return self._many_at_once(self.space)

    def batched_ns(self, reports: int) -> float:
        """Return the nanoseconds of one transform, or of one for each batch."""
        if self.is_tabled:
            return Coded.batched_ns(self, reports)
        batches = -(-reports // self.read_at_once)
        return batches * self.whole_ns(-(-reports // batches))

    @property
    def _solving_ns(self) -> float:
        return 5.0 * self.domain / self.q + 10.0 * self.q

    def distribution(self, value: int) -> dict[int, Fraction]:
        """Return the odds of each (r, y)."""
        self._listable(value, self.space)
        r = np.arange(self.vectors, dtype=np.uint64)
        hashed = self.field.inner(r, np.array([value], np.uint64), self.length).tolist()
        rows = responses(self.q, self.keep, Fraction(1, self.vectors))
        return {
            number * self.q + y: rows[h][y]
            for number, h in enumerate(hashed)
            for y in range(self.q)
        }

    def _encode(self, values: Values, chance: Chance) -> Codes:
        r = below(chance, self.vectors, len(values))
        hashed = self.field.inner(r, values, self.length)
        return r * np.uint64(self.q) + respond(chance, hashed, self.q, self.keep)

    def _fields(self, codes: Codes) -> tuple[Codes, Codes]:
        q = np.uint64(self.q)
        return codes // q, codes % q

    def _say(self, codes: Codes, candidates: Values) -> Votes:
        r, y = (column[:, np.newaxis] for column in self._fields(codes))
        hashed = self.field.inner(r, candidates[np.newaxis], self.length)
        votes: Votes = (hashed == y).astype(np.int8)
        return votes

    def _count(self, codes: Codes) -> Support:
        if self.is_tabled:
            return self._table(codes)
        if self.whole_ns(len(codes)) < self._solving_ns * len(codes):
            return self._transformed(self._table(codes))
        from protocol.oracles.kernel import count_solutions  # noqa: PLC0415 (devices do without)

        counted = np.zeros(-(-self.domain // self.q) * self.q, np.uint32)
        r, y = (column.astype(np.int64) for column in self._fields(codes))
        products = self.field.products.astype(np.int64)
        scratch = np.zeros(self.q + -(-len(counted) // self.q**2), np.int64)
        count_solutions(counted, r, y, products, scratch, self.field.is_binary)
        return counted[: self.domain].astype(np.int64)

    def _support(self, cells: Support) -> Support:
        if not self.is_tabled:
            return cells
        return self._transformed(cells)

    def _table(self, codes: Codes) -> Support:
        return np.bincount(codes.astype(np.int64), minlength=self.space).astype(np.int64)

    def _transformed(self, table: Support) -> Support:
        return supports(table.reshape(-1, self.q), self.field, self.length)[: self.domain]


def orders(x: float) -> list[int]:
    """Return the orders of fields next to `x`: the nearest primes and powers of 2 on both sides.

    Fields have 1024 elements at most, so above that it is 1024 alone.
    """
    low, high = [q for q in _all_orders() if q <= x], [q for q in _all_orders() if q >= x]
    return sorted({*low[-1:], *high[:1]})


@cache
def _all_orders() -> list[int]:
    return [q for q in range(2, MOST_ELEMENTS + 1) if is_prime(q) or q & (q - 1) == 0]
