"""Fourier transforms over vector spaces of digits, which decode a whole dictionary at once.

With C(r, y) the number of reports (r, y), and chi the characters of GF(q),

    S(x)   =  sum over r of C(r, <r, x>)  =  (1/q) [n + sum over r' of chi(<r', x>) P(r')]
    P(r')  =  sum over t != 0 of C^(r'/t, t)      C^(r, t)  =  sum over y of chi(-t y) C(r, y)

which is one transform over q^L vectors. It is a fast Walsh-Hadamard transform in integers if q
is a power of 2, where chi(z) = (-1)^Tr(z), and a discrete Fourier transform of L dimensions if
q is a prime, in floating point, of which the nearest integer is taken: errors are about
10^-15 n.

Source: ours; q = 2 is the decoder of Hadamard encoding [Bassily17].
"""

import numpy as np
from numpy.typing import NDArray

from protocol.oracles.counts import Support
from protocol.oracles.fields import Field

_ROWS = 2**16


def hadamard(cells: Support) -> Support:
    """Return the sums over j of (-1)^<i, j> times element j of the last axis; 2^k elements."""
    found = cells
    for _ in range(cells.shape[-1].bit_length() - 1):
        # The lowest bit of the index is summed over and put on top: k times, and all are back.
        even, odd = found[..., 0::2], found[..., 1::2]
        found = np.concatenate([even + odd, even - odd], axis=-1)
    return found


def supports(table: Support, field: Field, length: int) -> Support:
    """Return S (q^L,) by C, `(q^L, q)`, the counts of reports (r, y)."""
    if field.is_binary:
        return _binary_supports(table, field, length)
    return _prime_supports(table, field.q, length)


def _binary_supports(table: Support, field: Field, length: int) -> Support:
    by_trace = np.concatenate(  # some rows at a time: there may be 2^25 elements
        [hadamard(table[start : start + _ROWS]) for start in range(0, len(table), _ROWS)]
    )  # element w of a row: sum over y of (-1)^|w & y| C(r, y)
    at = _vectors(length, field.dual)  # the index of r' in a plain transform
    sums = np.zeros(len(table), np.int64)
    for t in range(1, field.q):
        scaled = _vectors(length, field.products[t].astype(np.int64), field.q)
        sums[at[scaled]] += by_trace[:, field.dual[t]]
    found: Support = (table.sum() + hadamard(sums)) // field.q
    return found


def _vectors(length: int, digit: NDArray[np.int64], q: int = 0) -> NDArray[np.int64]:
    """Return for each vector the number whose digits are `digit` of the vector's."""
    q = q or len(digit)
    found = np.zeros(1, np.int64)
    for place in range(length):
        found = (found + digit[:, np.newaxis] * q**place).reshape(-1)
    return found


def _prime_supports(table: Support, q: int, length: int) -> Support:
    from scipy.fft import irfftn, rfft  # noqa: PLC0415 (devices do without)

    digits, half = np.arange(q), np.arange(q // 2 + 1)
    # t = 0 .. q // 2; the others are conjugates. Some rows at a time: there may be 2^25 elements.
    spectra = np.empty((len(table), q // 2 + 1), np.complex128)
    for start in range(0, len(table), _ROWS):
        spectra[start : start + _ROWS] = rfft(table[start : start + _ROWS].astype(float), axis=1)
    sums = np.zeros((q,) * (length - 1) + (q // 2 + 1,), np.complex128)
    for t in range(1, q):
        inverse = pow(t, -1, q)
        rows = np.ix_(*[digits * inverse % q] * (length - 1), half * inverse % q)
        column = spectra[:, min(t, q - t)].reshape((q,) * length)[rows]
        sums += column if t <= q // 2 else column.conj()
    waves = irfftn(sums, s=(q,) * length, norm="forward")
    found: Support = np.rint((table.sum() + waves.reshape(-1)) / q).astype(np.int64)
    return found
