"""OCMS over GF(q): a count-mean sketch by inner products, decoded by one Fourier transform.

Values are vectors of L digits in base q, q^L >= d. Each device draws a vector r, hashes its value
to one of q symbols, and reports the symbol by randomized response:

    h(x)     =  <r, x> over GF(q)              r uniform; q a prime or a power of 2
    report   =  (r, y)                         (L + 1) log2 q bits: 20 for d = 100,000, q = 3
    p, q*    =  e / (e + q - 1),  1/q          two values collide with probability exactly 1/q

since <r, x - x'> is uniform if x and x' differ. So the variance is that of perfect hashing
(`hash_range.py` with m = q), and the whole dictionary takes n + q^(L+1) log q steps.

Cells are counts of reports, or counts of values where q^(L+1) is more than 2^23. In the latter case
a batch is still transformed if that is less work and q^(L+1) is at most 2^25 (0.5 GB for a short
time), and otherwise counted by the d/q solutions x of each report.

Source: ours, as a family for section 3 of [Pan24]: its corollary 3.1 needs only the probability
of a collision. Hadamard encoding is q = 2.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from typing import Self

import numpy as np

from protocol.numerics.array_types import Codes, ItemValues, Support
from protocol.numerics.finite_fields import (
    MAX_FIELD_ORDER,
    FiniteField,
    finite_field,
    fourier_support,
    is_prime,
)
from protocol.oracles.base_oracles import HashedResponseOracle
from protocol.oracles.ocms.hash_range import (
    check_hash_range,
    least_loss,
    real_m_for_l2,
    real_m_for_mse,
    total_variance,
    worst_variance,
)

_MAX_STORED_CELLS = 2**23
_MAX_TRANSFORM_CELLS = 2**25
_ERROR_TOLERANCE = 1.03
_MAX_VECTORS = 2**32  # the range of `uniform_below`


@dataclass(frozen=True)
class OcmsGf(HashedResponseOracle):
    """Count-mean sketch by inner products over GF(`q`)."""

    name = "ocms-gf"
    q: int

    def __post_init__(self) -> None:
        finite_field(self.q)
        check_hash_range(self.q, self.domain)
        HashedResponseOracle.__post_init__(self)
        if self._functions > _MAX_VECTORS:
            raise ValueError(f"domain must be at most {self.q}^{self.length - 1} over GF({self.q})")

    @classmethod
    def for_mse(cls, epsilon: float, domain: int, max_frequency: float = 1.0) -> Self:
        """Return the sketch of the smallest worst-case variance for a bound on frequencies."""
        nearest = adjacent_field_orders(real_m_for_mse(epsilon, max_frequency))
        return cls._fastest_within_tolerance(
            epsilon, domain, nearest, lambda q: worst_variance(epsilon, q, max_frequency)
        )

    @classmethod
    def for_l2(cls, epsilon: float, domain: int) -> Self:
        """Return the sketch of the smallest sum of variances; raises as `for_mse`."""
        nearest = adjacent_field_orders(real_m_for_l2(epsilon, domain))
        return cls._fastest_within_tolerance(
            epsilon, domain, nearest, lambda q: total_variance(epsilon, q, domain)
        )

    @classmethod
    def _fastest_within_tolerance(
        cls, epsilon: float, domain: int, nearest: list[int], error: Callable[[int], float]
    ) -> Self:
        """Return the sketch of the smallest error, or one within 3% of it that is transformed."""
        best = cls(epsilon, domain, least_loss(nearest, error))
        if best.possible_reports <= _MAX_TRANSFORM_CELLS:
            return best
        sketches = [
            cls(epsilon, domain, q)
            for q in _field_orders()
            if q < domain
            and q * domain <= _MAX_TRANSFORM_CELLS
            and error(q) <= _ERROR_TOLERANCE * error(best.q)
        ]
        quick = [sketch for sketch in sketches if sketch.possible_reports <= _MAX_TRANSFORM_CELLS]
        return min(quick, key=lambda sketch: (sketch.bits, error(sketch.q)), default=best)

    @cached_property
    def field(self) -> FiniteField:
        return finite_field(self.q)

    @cached_property
    def length(self) -> int:
        """Return L, the digits of a value."""
        length = 1
        while self.q**length < self.domain:
            length += 1
        return length

    @property
    def _functions(self) -> int:
        return int(self.q**self.length)  # vectors r

    @property
    def _symbols(self) -> int:
        return self.q

    @property
    def stores_report_counts(self) -> bool:
        """Return whether cells count reports (r, y) and not values."""
        return self.possible_reports <= _MAX_STORED_CELLS

    @property
    def cells(self) -> int:
        return self.possible_reports if self.stores_report_counts else self.domain

    @property
    def mean_vote_if_other(self) -> Fraction:
        return Fraction(1, self.q)

    @property
    def ns_per_vote(self) -> float:
        return 4.0 if self.q == 2 else 7.0 * self.length

    def decode_ns(self, reports: int) -> float:
        transformed = 8.0 * reports + 50.0 * self.possible_reports
        solved = self._solve_ns_per_report * reports
        if self.stores_report_counts:
            return transformed
        return min(transformed, solved) if self.possible_reports <= _MAX_TRANSFORM_CELLS else solved

    @property
    def _batch_cells(self) -> int:
        return self.possible_reports

    def batched_decode_ns(self, reports: int) -> float:
        if self.stores_report_counts:
            return super().batched_decode_ns(reports)
        batches = -(-reports // self.reports_per_batch)
        return batches * self.decode_ns(-(-reports // batches))

    @property
    def _solve_ns_per_report(self) -> float:
        return 5.0 * self.domain / self.q + 10.0 * self.q

    def _hash(self, functions: Codes, values: ItemValues) -> Codes:
        return self.field.inner_product(functions, values, self.length)

    def _count_codes(self, codes: Codes) -> Support:
        if self.stores_report_counts:
            return self._report_counts(codes)
        if self.decode_ns(len(codes)) < self._solve_ns_per_report * len(codes):
            return self._transform(self._report_counts(codes))
        from protocol.oracles.report_counting import count_solutions  # noqa: PLC0415 (devices do without)

        counted = np.zeros(-(-self.domain // self.q) * self.q, np.uint32)
        r, y = np.divmod(codes.astype(np.int64), self.q)
        products = self.field.products.astype(np.int64)
        scratch = np.zeros(self.q + -(-len(counted) // self.q**2), np.int64)
        count_solutions(counted, r, y, products, scratch, self.field.is_binary)
        return counted[: self.domain].astype(np.int64)

    def _support(self, cells: Support) -> Support:
        return self._transform(cells) if self.stores_report_counts else cells

    def _report_counts(self, codes: Codes) -> Support:
        return np.bincount(codes.astype(np.int64), minlength=self.possible_reports).astype(np.int64)

    def _transform(self, table: Support) -> Support:
        return fourier_support(table.reshape(-1, self.q), self.field, self.length)[: self.domain]


def adjacent_field_orders(x: float) -> list[int]:
    """Return the nearest orders of fields on both sides of `x`; above 1024 only 1024."""
    low, high = [q for q in _field_orders() if q <= x], [q for q in _field_orders() if q >= x]
    return sorted({*low[-1:], *high[:1]})


@cache
def _field_orders() -> list[int]:
    return [q for q in range(2, MAX_FIELD_ORDER + 1) if is_prime(q) or q & (q - 1) == 0]
