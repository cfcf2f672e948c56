"""Primes, found by deterministic Miller-Rabin.

The bases 2, 3, 5 and 7 decide every number below 3,215,031,751 [Jaeschke93].
"""

from functools import cache

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
