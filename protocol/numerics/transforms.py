"""Fourier transforms over vector spaces of digits, which decode a whole dictionary at once.

With C(r, y) the number of reports (r, y), and chi the characters of GF(q),

    S(x)   =  sum over r of C(r, <r, x>)  =  (1/q) [n + sum over r' of chi(<r', x>) P(r')]
    P(r')  =  sum over t != 0 of C^(r'/t, t)      C^(r, t)  =  sum over y of chi(-t y) C(r, y)

which is one transform over q^L vectors. It is a fast Walsh-Hadamard transform in integers if q
is a power of 2, where chi(z) = (-1)^Tr(z), and a discrete Fourier transform of L dimensions if
q is a prime. The latter uses floating point and rounds to the nearest integer: errors are about
10^-15 n.

Source: ours; q = 2 is the decoder of Hadamard encoding [Bassily17].
"""

import numpy as np
from numpy.typing import NDArray

from protocol.numerics.arrays import Support
from protocol.numerics.finite_fields import FiniteField
from protocol.numerics.lazy_scipy import fft

_ROWS_PER_BATCH = 2**16


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
