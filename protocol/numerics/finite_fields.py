"""Primes, small finite fields GF(q), and inner products and Fourier transforms over them.

Primes are found by deterministic Miller-Rabin: the bases 2, 3, 5 and 7 decide every number below
3,215,031,751 [Jaeschke93]. The order q is a prime or a power of 2.

An element is a number below q; of GF(2^k), the bits of a polynomial modulo an irreducible one. A
vector of L elements is one number below q^L, its digits in base q, the first the lowest.

*Fourier transforms* over vector spaces of digits decode a whole dictionary at once. With C(r, y)
the number of reports (r, y), and chi the characters of GF(q),

    S(x)   =  sum over r of C(r, <r, x>)  =  (1/q) [n + sum over r' of chi(<r', x>) P(r')]
    P(r')  =  sum over t != 0 of C^(r'/t, t)      C^(r, t)  =  sum over y of chi(-t y) C(r, y)

which is one transform over q^L vectors. It is a fast Walsh-Hadamard transform in integers if q
is a power of 2, where chi(z) = (-1)^Tr(z), and a discrete Fourier transform of L dimensions if
q is a prime. The latter uses floating point and rounds to the nearest integer: errors are about
10^-15 n.

Source: ours; q = 2 is the decoder of Hadamard encoding [Bassily17].
"""

from dataclasses import dataclass, field
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from protocol.numerics import fft
from protocol.numerics.array_types import Support

FieldVectors: TypeAlias = NDArray[np.uint64]

MAX_FIELD_ORDER = 1024
_BASES = (2, 3, 5, 7)
_ROWS_PER_BATCH = 2**16


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


def walsh_hadamard(cells: Support) -> Support:
    """Return the sums over j of (-1)^<i, j> times element j of the last axis; 2^k elements."""
    sums = cells
    for _ in range(cells.shape[-1].bit_length() - 1):
        # Sums over the lowest bit of the index and moves it to the top: k times restore the order.
        even, odd = sums[..., 0::2], sums[..., 1::2]
        sums = np.concatenate([even + odd, even - odd], axis=-1)
    return sums


def fourier_support(table: Support, field: FiniteField, length: int) -> Support:
    """Return S (q^L,) by C, `(q^L, q)`, the counts of reports (r, y)."""
    if field.is_binary:
        return _binary_support(table, field, length)
    return _prime_support(table, field.q, length)


def _binary_support(table: Support, field: FiniteField, length: int) -> Support:
    by_trace = np.concatenate(  # in batches of rows: there may be 2^25 elements
        [
            walsh_hadamard(table[start : start + _ROWS_PER_BATCH])
            for start in range(0, len(table), _ROWS_PER_BATCH)
        ]
    )  # element w of a row: sum over y of (-1)^|w & y| C(r, y)
    at = _map_digits(length, field.trace_dual)  # the index of r' in a plain transform
    sums = np.zeros(len(table), np.int64)
    for t in range(1, field.q):
        scaled = _map_digits(length, field.products[t].astype(np.int64), field.q)
        sums[at[scaled]] += by_trace[:, field.trace_dual[t]]
    support: Support = (table.sum() + walsh_hadamard(sums)) // field.q
    return support


def _map_digits(length: int, digit: NDArray[np.int64], q: int = 0) -> NDArray[np.int64]:
    """Return for each vector the number whose digits are `digit` of the vector's."""
    q = q or len(digit)
    mapped = np.zeros(1, np.int64)
    for place in range(length):
        mapped = (mapped + digit[:, np.newaxis] * q**place).reshape(-1)
    return mapped


def _prime_support(table: Support, q: int, length: int) -> Support:

    digits, half = np.arange(q), np.arange(q // 2 + 1)
    # t = 0 .. q // 2; the others are conjugates. In batches, as above.
    spectra = np.empty((len(table), q // 2 + 1), np.complex128)
    for start in range(0, len(table), _ROWS_PER_BATCH):
        spectra[start : start + _ROWS_PER_BATCH] = fft.rfft(
            table[start : start + _ROWS_PER_BATCH].astype(float), axis=1
        )
    sums = np.zeros((q,) * (length - 1) + (q // 2 + 1,), np.complex128)
    for t in range(1, q):
        inverse = pow(t, -1, q)
        rows = np.ix_(*[digits * inverse % q] * (length - 1), half * inverse % q)
        column = spectra[:, min(t, q - t)].reshape((q,) * length)[rows]
        sums += column if t <= q // 2 else column.conj()
    waves = fft.irfftn(sums, s=(q,) * length, norm="forward")
    support: Support = np.rint((table.sum() + waves.reshape(-1)) / q).astype(np.int64)
    return support
