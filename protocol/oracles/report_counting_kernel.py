"""Compiled kernels that count, for the whole dictionary, the values that reports vote for.

Each writes into 32-bit counters, which fit in a core's cache where 64-bit counters would not; so
one call takes at most 2^32 - 1 reports. Importing this module imports numba.
"""

import numpy as np
from numpy.typing import NDArray

from protocol.hashing import GOLDEN_RATIO, mix
from protocol.sketches.iblt.cell_kernel import jit_compiled, jit_inlined

_U32 = np.uint64(32)
_mix = jit_inlined(mix)


@jit_inlined
def _inverse_modulo(a: int, prime: int) -> int:
    r0, r1, s0, s1 = prime, a, 0, 1
    while r1 > 1:
        quotient = r0 // r1
        r0, r1 = r1, r0 - quotient * r1
        s0, s1 = s1, s0 - quotient * s1
    return s1 if s1 > 0 else s1 + prime


@jit_compiled
def count_preimages(
    counted: NDArray[np.uint32],
    a: NDArray[np.int64],
    b: NDArray[np.int64],
    y: NDArray[np.int64],
    m: int,
) -> int:
    """Add each report to the x with ((a x + b) mod F) mod m = y; F counters, F prime.

    Returns the number of reports that vote for every x, which are not added.
    """
    prime, reports_for_all = len(counted), 0
    for i in range(len(a)):
        if a[i] == 0:
            reports_for_all += b[i] % m == y[i]
            continue
        inverse = _inverse_modulo(a[i], prime)
        step = inverse * m % prime
        count = (prime - y[i] + m - 1) // m
        # Four independent runs, because each step depends on the one before.
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
    return reports_for_all


@jit_compiled
def count_solutions(
    counted: NDArray[np.uint32],
    r: NDArray[np.int64],
    y: NDArray[np.int64],
    products: NDArray[np.int64],
    scratch: NDArray[np.int64],
    binary: bool,
) -> None:
    """Add each report to the x with <r, x> = y over GF(q); a multiple of q counters.

    The loop runs over all digits of x except the lowest, which is looked up. The sums of the digits
    from the third up are tabulated once for each report, a digit at a time: one step per entry
    instead of L. Both tables are in `scratch`, q + d / q^2 zeros.
    """
    q = len(products)
    blocks = len(counted) // q
    lowest, bases = scratch[:q], scratch[q:]
    for i in range(len(r)):
        first, second, rest = r[i] % q, r[i] // q % q, r[i] // (q * q)
        for x in range(q):
            gone = products[first, x] ^ y[i] if binary else (y[i] + q - products[first, x]) % q
            lowest[gone] = x  # the rest of <r, x> that this lowest digit completes
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


@jit_compiled
def count_hashed(
    counted: NDArray[np.uint32], seeds: NDArray[np.uint64], y: NDArray[np.uint64], m: np.uint64
) -> None:
    """Add each report to the x with h_s(x) = y; see `protocol/randomness.py`."""
    for i in range(len(seeds)):
        stream, symbol = _mix(seeds[i] + GOLDEN_RATIO), y[i]
        for x in range(len(counted)):
            word = _mix(stream + np.uint64(x + 1) * GOLDEN_RATIO)
            counted[x] += np.uint32(((word >> _U32) * m) >> _U32 == symbol)
