"""Compiled kernels that count, for the whole dictionary, the values that reports speak for.

Each writes into an array of 32-bit counters, which fits in a core's cache where 64-bit ones
would not; so at most 2^32 - 1 reports at once. Importing this module imports numba.
"""

import numpy as np
from numpy.typing import NDArray

from protocol.sketches.kernel import compiled, inlined

_U27, _U30, _U31, _U32 = (np.uint64(shift) for shift in (27, 30, 31, 32))
_STAFFORD1, _STAFFORD2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@inlined
def _inverse(a: int, prime: int) -> int:
    r0, r1, s0, s1 = prime, a, 0, 1
    while r1 > 1:
        quotient = r0 // r1
        r0, r1 = r1, r0 - quotient * r1
        s0, s1 = s1, s0 - quotient * s1
    return s1 if s1 > 0 else s1 + prime


@compiled
def count_preimages(
    counted: NDArray[np.uint32],
    a: NDArray[np.int64],
    b: NDArray[np.int64],
    y: NDArray[np.int64],
    m: int,
) -> int:
    """Add each report to the x with ((a x + b) mod F) mod m = y; F counters, F prime.

    Return how many reports speak for every x, which are not added.
    """
    prime, everybody = len(counted), 0
    for i in range(len(a)):
        if a[i] == 0:
            everybody += b[i] % m == y[i]
            continue
        inverse = _inverse(a[i], prime)
        step = inverse * m % prime
        count = (prime - y[i] + m - 1) // m
        # Four runs side by side: each step of one waits for the one before.
        quarter = count // 4
        x0 = (y[i] + prime - b[i]) * inverse % prime
        far = quarter * step % prime
        x1 = (x0 + far) % prime
        x2 = (x1 + far) % prime
        x3 = (x2 + far) % prime
        for _ in range(quarter):
            counted[x0] += np.uint32(1)
            counted[x1] += np.uint32(1)
            counted[x2] += np.uint32(1)
            counted[x3] += np.uint32(1)
            x0 += step
            x0 -= prime if x0 >= prime else 0
            x1 += step
            x1 -= prime if x1 >= prime else 0
            x2 += step
            x2 -= prime if x2 >= prime else 0
            x3 += step
            x3 -= prime if x3 >= prime else 0
        for _ in range(count - 4 * quarter):
            counted[x3] += np.uint32(1)
            x3 += step
            x3 -= prime if x3 >= prime else 0
    return everybody


@compiled
def count_solutions(
    counted: NDArray[np.uint32],
    r: NDArray[np.int64],
    y: NDArray[np.int64],
    products: NDArray[np.int64],
    scratch: NDArray[np.int64],
    binary: bool,
) -> None:
    """Add each report to the x with <r, x> = y over GF(q); a multiple of q counters.

    All digits of x but the lowest are gone through, and the lowest is looked up. What the digits
    from the third up add to <r, x> is tabled once for each report, a digit at a time: one step an
    entry, where each alone takes L. Both tables are in `scratch`, q + d / q^2 zeros.
    """
    q = len(products)
    blocks = len(counted) // q
    lowest, bases = scratch[:q], scratch[q:]
    for i in range(len(r)):
        first, second, rest = r[i] % q, r[i] // q % q, r[i] // (q * q)
        for x in range(q):
            gone = products[first, x] ^ y[i] if binary else (y[i] + q - products[first, x]) % q
            lowest[gone] = x  # the rest of <r, x> that this lowest digit makes up for
        filled = 1
        while filled < len(bases):
            for at in range(filled, min(q * filled, len(bases))):
                term = products[rest % q, at // filled]
                low = bases[at % filled]
                bases[at] = low ^ term if binary else (low + term) % q
            rest, filled = rest // q, filled * q
        for block in range(0, blocks, q):
            base = bases[block // q]
            for digit in range(min(q, blocks - block)):
                term = products[second, digit]
                gone = base ^ term if binary else (base + term) % q
                start = (block + digit) * q
                if first:
                    counted[start + lowest[gone]] += np.uint32(1)
                elif gone == y[i]:
                    for x in range(q):
                        counted[start + x] += np.uint32(1)


@compiled
def count_hashed(
    counted: NDArray[np.uint32],
    seeds: NDArray[np.uint64],
    y: NDArray[np.uint64],
    m: np.uint64,
) -> None:
    """Add each report to the x with h_s(x) = y; see `mixing.py`."""
    for i in range(len(seeds)):
        stream, symbol = _mix(seeds[i] + _GOLDEN), y[i]
        for x in range(len(counted)):
            word = _mix(stream + np.uint64(x + 1) * _GOLDEN)
            counted[x] += np.uint32(((word >> _U32) * m) >> _U32 == symbol)


@inlined
def _mix(x: np.uint64) -> np.uint64:
    x = (x ^ (x >> _U30)) * _STAFFORD1
    x = (x ^ (x >> _U27)) * _STAFFORD2
    return x ^ (x >> _U31)
