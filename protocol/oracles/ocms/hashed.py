"""OCMS: count-mean sketch by the paper's hash, with randomized response on the hashed value.

Each device draws its own hash function, hashes its value to one of m symbols, and reports that
symbol or, with some probability, another:

    h(x)     =  ((a x + b) mod F) mod m        a, b uniform on 0 .. F - 1, F prime >= max(d, 101)
    p        =  e / (e + m - 1)                probability of y = h(x)
    q        =  c' p + (1 - c') (1 - p)/(m - 1)
    c'       =  [r (l + 1)^2 + (m - r) l^2] / F^2        l = floor(F/m), r = F mod m

c' is the probability that two values collide: before `mod m` their hashes are independent, since a
may be 0. It is a little above 1/m, with which estimates would be biased.

The whole dictionary is decoded from the preimages of y: the u = y, y + m, .. below F, and of
each x = (u - b)/a mod F, an arithmetic progression. That takes n F / m steps.

Source: [Pan24], sections 3.1 to 3.5; the constant c' with a = 0 included is lemma 3.2.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import log2
from typing import Self

import numpy as np
from numpy.typing import NDArray

from protocol.numerics.array_types import Codes, ItemValues, Support
from protocol.numerics.finite_fields import is_prime
from protocol.oracles.base_oracles import HashedResponseOracle
from protocol.oracles.ocms.hash_range import (
    MAX_PRIME,
    MIN_PRIME,
    check_hash_range,
    hash_prime,
    m_for_l2,
    m_for_mse,
)
from protocol.randomness import RandomWords, uniform_below

_COUNTERS_IN_CACHE = 10**5  # counters that fit in the cache of a core


@dataclass(frozen=True)
class Ocms(HashedResponseOracle):
    """Count-mean sketch with a hash range of `m` and hash functions modulo `prime`."""

    name = "ocms"
    m: int
    prime: int

    def __post_init__(self) -> None:
        check_hash_range(self.m, self.domain)
        smallest = max(self.domain, MIN_PRIME)
        if not (smallest <= self.prime < MAX_PRIME and is_prime(self.prime)):
            raise ValueError(f"prime must be a prime from {smallest} to 2^31, not {self.prime}")
        HashedResponseOracle.__post_init__(self)

    @classmethod
    def for_mse(cls, epsilon: float, domain: int, max_frequency: float = 1.0) -> Self:
        """Return the sketch of the smallest worst-case variance for a bound on frequencies."""
        return cls(epsilon, domain, m_for_mse(epsilon, max_frequency), hash_prime(domain))

    @classmethod
    def for_l2(cls, epsilon: float, domain: int) -> Self:
        """Return the sketch of the smallest sum of variances; raises as `for_mse`."""
        return cls(epsilon, domain, m_for_l2(epsilon, domain), hash_prime(domain))

    @property
    def _functions(self) -> int:
        return self.prime**2

    @property
    def _symbols(self) -> int:
        return self.m

    @cached_property
    def collision_probability(self) -> Fraction:
        """Return c', the probability that two values collide."""
        low, more = divmod(self.prime, self.m)
        collisions = more * (low + 1) ** 2 + (self.m - more) * low**2
        return Fraction(collisions, self.prime**2)

    @property
    def mean_vote_if_other(self) -> Fraction:
        collision = self.collision_probability
        return collision * self.mean_vote_if_held + (1 - collision) * self._other_probability

    def decode_ns(self, reports: int) -> float:
        step = 0.7 + 0.25 * max(0.0, log2(self.prime / _COUNTERS_IN_CACHE))
        return step * reports * self.prime / self.m + 200.0 * reports + self.prime

    def _draw_functions(self, chance: RandomWords, count: int) -> Codes:
        a, b = (uniform_below(chance, self.prime, count) for _ in range(2))
        return a * np.uint64(self.prime) + b

    def _hash(self, functions: Codes, values: ItemValues) -> Codes:
        prime = np.uint64(self.prime)
        a = functions // prime
        return (a * values + (functions - a * prime)) % prime % np.uint64(self.m)

    def _count_codes(self, codes: Codes) -> Support:
        from protocol.oracles.report_counting import count_preimages  # noqa: PLC0415 (devices do without)

        functions, symbols = np.divmod(codes, np.uint64(self.m))
        fields = *np.divmod(functions, np.uint64(self.prime)), symbols
        a, b, y = (column.astype(np.int64) for column in fields)
        counted: NDArray[np.uint32] = np.zeros(self.prime, np.uint32)
        reports_for_all = count_preimages(counted, a, b, y, self.m)
        return counted[: self.domain].astype(np.int64) + reports_for_all
