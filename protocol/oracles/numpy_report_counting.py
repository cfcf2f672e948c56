"""Votes of reports in numpy: the reference of `report_counting_kernel.pyx`, which it replaces."""

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from protocol.hashing import splitmix_hash
from protocol.numerics.array_types import Integers, Keys

INTERFACE: Final = 1  # with the kernel; `numpy_peeling.py` explains it
Counters: TypeAlias = NDArray[np.uint32]
_BATCH_VOTES: Final = 2**20  # of 8 bytes each


def count_preimages(counted: Counters, a: Integers, b: Integers, y: Integers, m: int) -> int:
    """Add each report to the x with ((a x + b) mod F) mod m = y; F counters, F prime.

    Returns the number of reports that vote for every x, which are not added.
    """
    prime, is_line = len(counted), a != 0
    for_all = int((b[~is_line] % m == y[~is_line]).sum())
    a, b, y = a[is_line], b[is_line], y[is_line]
    inverses = np.array([pow(number, -1, prime) for number in a.tolist()], np.int64)
    first, step = (y + prime - b) * inverses % prime, inverses * m % prime
    votes, numbers = (prime - y + m - 1) // m, np.arange(-(-prime // m))
    size = max(1, _BATCH_VOTES // len(numbers))
    for start in range(0, len(a), size):
        batch = slice(start, start + size)
        x = (first[batch, np.newaxis] + step[batch, np.newaxis] * numbers) % prime
        x = x[numbers < votes[batch, np.newaxis]]
        counted += np.bincount(x, minlength=prime).astype(np.uint32)
    return for_all


def count_solutions(
    counted: Counters, r: Integers, y: Integers, products: Integers, _: Integers, binary: bool
) -> None:
    """Add each report to the x with <r, x> = y over GF(q); a multiple of q counters."""
    q = len(products)
    rows = counted.reshape(-1, q)  # by all digits of x except the lowest
    for vector, symbol in zip(r.tolist(), y.tolist(), strict=True):
        first, rest = vector % q, vector // q
        partial = np.zeros(1, np.int64)
        while len(partial) < len(rows):
            terms = products[rest % q, :, np.newaxis]
            partial = (terms ^ partial if binary else (terms + partial) % q).ravel()
            rest //= q
        partial = partial[: len(rows)]
        if not first:
            rows[partial == symbol] += 1
            continue
        missing = products[first] ^ symbol if binary else (symbol - products[first]) % q
        lowest = np.argsort(missing)  # the digit that adds each missing number
        rows[np.arange(len(rows)), lowest[partial]] += 1


def count_hashed(counted: Counters, seeds: Keys, y: Keys, m: int) -> None:
    """Add each report to the x with h_s(x) = y; see `protocol/hashing.py`."""
    values = np.arange(len(counted), dtype=np.uint64)
    for seed, symbol in zip(seeds[:, np.newaxis], y, strict=True):
        counted += splitmix_hash(seed, values, m) == symbol
