"""OCMS: count-mean sketch by the paper's hash, with randomised response on the hashed value.

Each device draws a hash function of its own, hashes its value to one of m symbols, and answers
with that symbol or, with some odds, another:

    h(x)     =  ((a x + b) mod F) mod m        a, b uniform on 0 .. F - 1, F prime >= max(d, 101)
    report   =  (a, b, y)                      2 log2 F + log2 m bits
    p        =  e / (e + m - 1)                y = h(x) with these odds
    q        =  c' p + (1 - c') (1 - p)/(m - 1)

c' is the odds that two values meet. What they are before `mod m` is independent, since a may be
0; and F mod m of the symbols have floor(F/m) + 1 preimages below F, the others floor(F/m):

    c'       =  [r (l + 1)^2 + (m - r) l^2] / F^2        l = floor(F/m), r = F mod m

a little above 1/m. With 1/m in its place estimates would be biased by up to m^2 / (4 (m-1) F^2),
which 100,000 reports show if F is 101. Values of F from 101 up cost at most 0.3% of variance.

The whole dictionary is decoded from the preimages of y: the u = y, y + m, .. below F, and of
each x = (u - b)/a mod F, an arithmetic progression. That takes n F / m steps. Few candidates
are hashed instead.

Source: [Pan24], sections 3.1 to 3.5; the constant c' with a = 0 included is lemma 3.2.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import log2
from typing import Self

import numpy as np
from numpy.typing import NDArray

from protocol.chance import Chance, below
from protocol.oracles.coded import Coded
from protocol.oracles.counts import Codes, Support, Values, Votes
from protocol.oracles.odds import WHOLE, favour, respond, responses
from protocol.oracles.optimal import l2_m, mse_m
from protocol.sketches.primes import is_prime

_LEAST_PRIME, _MOST_PRIME = 101, 2**31
_IN_CACHE = 10**5  # counters that are next to the core


@dataclass(frozen=True)
class Ocms(Coded):
    """Count-mean sketch with a hash range of `m` and hash functions modulo `prime`."""

    name = "ocms"
    m: int
    prime: int

    def __post_init__(self) -> None:
        check_range(self.m, self.domain)
        least = max(self.domain, _LEAST_PRIME)
        if not (least <= self.prime < _MOST_PRIME and is_prime(self.prime)):
            raise ValueError(f"prime must be a prime from {least} to 2^31, not {self.prime}")
        Coded.__post_init__(self)

    @classmethod
    def for_mse(cls, epsilon: float, domain: int, most: float = 1.0) -> Self:
        """Return the sketch of the least worst-case variance if no frequency is above `most`.

        Raises:
            ValueError: if a parameter is out of range, or the domain no larger than m.
        """
        return cls(epsilon, domain, mse_m(epsilon, most), prime_for(domain))

    @classmethod
    def for_l2(cls, epsilon: float, domain: int) -> Self:
        """Return the sketch of the least sum of variances; raises as `for_mse`."""
        return cls(epsilon, domain, l2_m(epsilon, domain), prime_for(domain))

    @property
    def space(self) -> int:
        """Return the number of reports (a, b, y)."""
        return self.prime**2 * self.m

    @cached_property
    def keep(self) -> int:
        """Return the odds, of 2^64, that y is the hashed value."""
        return favour(self.epsilon, 1, self.m - 1)

    @cached_property
    def collision(self) -> Fraction:
        """Return c', the odds that two values are hashed alike."""
        low, more = divmod(self.prime, self.m)
        meet = more * (low + 1) ** 2 + (self.m - more) * low**2
        return Fraction(meet, self.prime**2)

    @property
    def true_odds(self) -> Fraction:
        """Return p."""
        return Fraction(self.keep, WHOLE)

    @property
    def false_odds(self) -> Fraction:
        """Return q."""
        p, meet = self.true_odds, self.collision
        return meet * p + (1 - meet) * (1 - p) / (self.m - 1)

    def whole_ns(self, reports: int) -> float:
        """Return the nanoseconds of going through all preimages; counters leave the cache."""
        step = 0.7 + 0.25 * max(0.0, log2(self.prime / _IN_CACHE))
        return step * reports * self.prime / self.m + 200.0 * reports + self.prime

    def distribution(self, value: int) -> dict[int, Fraction]:
        """Return the odds of each (a, b, y)."""
        self._listable(value, self.space)
        found, functions = dict[int, Fraction](), self.prime**2
        rows = responses(self.m, self.keep, Fraction(1, functions))
        for function in range(functions):
            a, b = divmod(function, self.prime)
            row = rows[(a * value + b) % self.prime % self.m]
            for y, odds in enumerate(row):
                found[function * self.m + y] = odds
        return found

    def _encode(self, values: Values, chance: Chance) -> Codes:
        f, m = np.uint64(self.prime), np.uint64(self.m)
        a, b = (below(chance, self.prime, len(values)) for _ in range(2))
        y = respond(chance, (a * values + b) % f % m, self.m, self.keep)
        return (a * f + b) * m + y

    def _fields(self, codes: Codes) -> tuple[Codes, Codes, Codes]:
        f, m = np.uint64(self.prime), np.uint64(self.m)
        function = codes // m
        a = function // f
        return a, function - a * f, codes - function * m

    def _say(self, codes: Codes, candidates: Values) -> Votes:
        a, b, y = (column[:, np.newaxis] for column in self._fields(codes))
        hashed = (a * candidates + b) % np.uint64(self.prime) % np.uint64(self.m)
        votes: Votes = (hashed == y).astype(np.int8)
        return votes

    def _count(self, codes: Codes) -> Support:
        from protocol.oracles.kernel import count_preimages  # noqa: PLC0415 (devices do without)

        a, b, y = (column.astype(np.int64) for column in self._fields(codes))
        counted: NDArray[np.uint32] = np.zeros(self.prime, np.uint32)
        everybody = count_preimages(counted, a, b, y, self.m)
        return counted[: self.domain].astype(np.int64) + everybody


def check_range(m: int, domain: int) -> None:
    """Refuse to hash `domain` values to `m`.

    Raises:
        ValueError: if `m` is below 2, or not below `domain`.
    """
    if m < 2:
        raise ValueError(f"m must be 2 or more, not {m}")
    if domain <= m:
        raise ValueError(
            f"domain must be more than m = {m}, not {domain}: "
            "a dictionary that small takes k-ary randomised response (krr)"
        )


def prime_for(domain: int) -> int:
    """Return the least prime from 101 up that is no less than `domain`.

    Raises:
        ValueError: if it is not below 2^31.
    """
    prime = max(domain, _LEAST_PRIME)
    while prime < _MOST_PRIME and not is_prime(prime):
        prime += 1
    if prime >= _MOST_PRIME:
        raise ValueError(f"domain must be below 2^31 for hashing modulo a prime, not {domain}")
    return prime
