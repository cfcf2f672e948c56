"""Primes, small finite fields GF(q), and inner products over them.

Primes are found by deterministic Miller-Rabin: the bases 2, 3, 5 and 7 decide every number below
3,215,031,751 [Jaeschke93]. The order q is a prime or a power of 2.

An element is a number below q; of GF(2^k), the bits of a polynomial modulo an irreducible one. A
vector of L elements is one number below q^L, its digits in base q, the first the lowest.
"""

from dataclasses import dataclass, field
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

FieldVectors: TypeAlias = NDArray[np.uint64]

MAX_FIELD_ORDER = 1024
_BASES = (2, 3, 5, 7)


@cache
def widest_prime(above: int) -> int:
    """Return the largest prime below 2^31 that takes as few bits as any prime above `above`.

    A lane of b bits costs the same for any modulus, and the largest detects most invalid values.
    """
    bits = max(2, (above + 1).bit_length())
    while bits <= 31:
        for candidate in range(2**bits - 1, above, -1):
            if is_prime(candidate):
                return candidate
        bits += 1  # no prime between `above` and the next power of two
    raise ValueError(f"no prime above {above:,} and below 2^31")


def is_prime(n: int) -> bool:
    """Return whether `n` < 3,215,031,751 is prime."""
    if n < 11:
        return n in _BASES
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    return n % 2 == 1 and all(_passes(n, base, odd, twos) for base in _BASES)


def _passes(n: int, base: int, odd: int, twos: int) -> bool:
    x = pow(base, odd, n)
    if x in (1, n - 1):
        return True
    for _ in range(twos - 1):
        x = x * x % n
        if x == n - 1:
            return True
    return False


@dataclass(frozen=True, eq=False)
class FiniteField:
    """GF(`q`): its products `(q, q)` and, for a power of 2, the dual of each element.

    The parity of `trace_dual[u] & v` is Tr(u v).
    """

    q: int
    products: FieldVectors = field(repr=False)
    trace_dual: NDArray[np.int64] = field(repr=False)

    @property
    def is_binary(self) -> bool:
        return self.q & (self.q - 1) == 0

    def inner_product(self, r: FieldVectors, x: FieldVectors, length: int) -> FieldVectors:
        """Return <r, x> of vectors of `length` digits; the arrays are broadcast."""
        if self.q == 2:
            parity: FieldVectors = np.bitwise_count(r & x).astype(np.uint64) & np.uint64(1)
            return parity
        q = np.uint64(self.q)
        total = np.zeros(np.broadcast_shapes(r.shape, x.shape), np.uint64)
        for _ in range(length):
            r_rest, x_rest = r // q, x // q
            digits = r - r_rest * q, x - x_rest * q
            if self.is_binary:
                total ^= self.products[digits]
            else:
                total += digits[0] * digits[1]
            r, x = r_rest, x_rest
        return total if self.is_binary else total % q


@cache
def finite_field(q: int) -> FiniteField:
    """Return GF(q); ValueError if `q` is not a prime or a power of 2 from 2 to 1024."""
    if not 2 <= q <= MAX_FIELD_ORDER or not (is_prime(q) or q & (q - 1) == 0):
        raise ValueError(f"q must be a prime or a power of 2 from 2 to {MAX_FIELD_ORDER}, not {q}")
    if q & (q - 1):
        numbers = np.arange(q, dtype=np.uint64)
        return FiniteField(
            q, numbers[:, np.newaxis] * numbers % np.uint64(q), np.zeros(0, np.int64)
        )
    degree = q.bit_length() - 1
    modulus = next(m for m in range(q | 1, 2 * q, 2) if _is_irreducible(m)) if degree > 1 else 3
    rows = [[_multiply(u, v, modulus) for v in range(q)] for u in range(q)]
    dual = [
        sum(_trace(rows[u][1 << bit], degree, modulus) << bit for bit in range(degree))
        for u in range(q)
    ]
    return FiniteField(q, np.array(rows, np.uint64), np.array(dual, np.int64))


def _multiply(u: int, v: int, modulus: int) -> int:
    top, product = modulus.bit_length() - 1, 0
    while v:
        if v & 1:
            product ^= u
        u, v = u << 1, v >> 1
        if u >> top:
            u ^= modulus
    return product


def _trace(u: int, degree: int, modulus: int) -> int:
    """Return u + u^2 + u^4 + .., which is 0 or 1."""
    total, power = 0, u
    for _ in range(degree):
        total, power = total ^ power, _multiply(power, power, modulus)
    return total


def _is_irreducible(polynomial: int) -> bool:
    half = polynomial.bit_length() // 2 + 1
    return all(_remainder(polynomial, divisor) for divisor in range(2, 1 << half))


def _remainder(polynomial: int, divisor: int) -> int:
    size = divisor.bit_length()
    while polynomial.bit_length() >= size:
        polynomial ^= divisor << (polynomial.bit_length() - size)
    return polynomial
