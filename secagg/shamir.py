"""Shamir secret sharing of 32-byte secrets: any `threshold` shares recover the secret.

The secret is f(0) of a random polynomial f of degree threshold - 1 over GF(P). Share x is
the point (x, f(x)), x = 1, 2, ..., and recovery is Lagrange interpolation at zero. Fewer
than `threshold` points leave every secret equally likely. A secret is one field element:
sharing it in blocks costs a hundredfold.

False shares are found by what Shamir sharing is besides: a Reed-Solomon code. Among m shares
of which at most (m - threshold) / 2 are false there is one polynomial that all others lie on.

Source: [Shamir79]. P is fixed, where the paper lets the dealer choose it, so that every
share has one size on the wire. Decoding is [Gao03].
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import zip_longest
from math import prod
from random import Random
from typing import TypeAlias

import numpy as np

P = 2**256 + 297  # the smallest prime above every 32-byte secret
SHARE_BYTES = 33
MOST_HOLDER = 2**21 - 1  # so that differences of three pairs of holders multiply in 64 bits


def split(secret: bytes, holders: Iterable[int], threshold: int, rng: Random) -> dict[int, bytes]:
    """Return one 33-byte share for each of `holders`, distinct x from 1 to `MOST_HOLDER`.

    Raises:
        ValueError: if the secret is not 32 bytes, a holder is out of range or repeated, or
            there are fewer holders than `threshold`.
    """
    xs = list(holders)
    if len(secret) != 32:
        raise ValueError("only 32-byte secrets are shared")
    if len(set(xs)) != len(xs) or min(xs, default=0) < 1 or max(xs) > MOST_HOLDER:
        raise ValueError(f"holders are distinct numbers from 1 to {MOST_HOLDER:,}")
    if not 1 <= threshold <= len(xs):
        raise ValueError(f"threshold {threshold} with {len(xs)} holders")
    coefficients = [rng.randrange(P) for _ in range(threshold - 1)]
    coefficients.append(int.from_bytes(secret, "big"))
    return {x: _evaluate(coefficients, x).to_bytes(SHARE_BYTES, "big") for x in xs}


def _evaluate(coefficients: list[int], x: int) -> int:
    y = 0
    for coefficient in coefficients:
        y = (y * x + coefficient) % P
    return y


def recover(shares: Mapping[int, bytes]) -> bytes | None:
    """Return the secret that `shares` (by holder) meet in, or None if it is no 32-byte one.

    Pass exactly `threshold` shares: more cost time, and a false one among them is not named.

    Raises:
        ValueError: if there are none, or one is not a field element of 33 bytes.
    """
    if not shares or min(shares) < 1 or max(shares) > MOST_HOLDER:
        raise ValueError(f"shares of holders from 1 to {MOST_HOLDER:,} are needed")
    holders = tuple(sorted(shares))
    if not all(map(is_share, shares.values())):
        raise ValueError(f"a share is a field element of {SHARE_BYTES} bytes")
    ys = [int.from_bytes(shares[x], "big") for x in holders]
    weights = _weights_at_zero(holders)
    secret = sum(y * weight for y, weight in zip(ys, weights, strict=True)) % P
    return secret.to_bytes(32, "big") if secret < 2**256 else None


def is_share(share: bytes) -> bool:
    """Return whether `share` is a field element of 33 bytes; if not, it recovers nothing."""
    return len(share) == SHARE_BYTES and int.from_bytes(share, "big") < P


@lru_cache(maxsize=64)  # in a complete graph all owners have the same holders
def _weights_at_zero(xs: tuple[int, ...]) -> tuple[int, ...]:
    """Return the Lagrange weights at zero, with one inversion for all (Montgomery's trick)."""
    product = prod(xs)
    points = np.array(xs, dtype=np.int64)
    differences = points[np.newaxis, :] - points[:, np.newaxis]
    np.fill_diagonal(differences, points)
    padded = np.ones((len(xs), -(-len(xs) // 3) * 3), dtype=np.int64)
    padded[:, : len(xs)] = differences
    thirds = padded.reshape(len(xs), -1, 3).prod(axis=2)  # below 2^63, and a third to multiply
    denominators = [prod(row) % P for row in thirds.tolist()]
    before = [1]
    for denominator in denominators:
        before.append(before[-1] * denominator % P)
    inverse = pow(before.pop(), -1, P)
    weights = []
    for denominator, partial in zip(reversed(denominators), reversed(before), strict=True):
        weights.append(product * inverse * partial % P)
        inverse = inverse * denominator % P
    return tuple(reversed(weights))


def correct(shares: Mapping[int, bytes], threshold: int) -> tuple[bytes, frozenset[int]] | None:
    """Return the secret and the holders of false shares; None if too many are false.

    Interpolates all shares and divides by Euclid until what is left of the false ones can be
    divided out; a hundred shares take some 30 ms, so use it when `recover` gave no good
    secret. More than (m - threshold) / 2 false ones may meet in another secret.

    Each must be a share (`is_share`) of a holder of its own.
    """
    xs = sorted(shares)
    ys = [int.from_bytes(shares[x], "big") for x in xs]
    vanishing, through = _interpolate(xs, ys)
    f = _rational(vanishing, through, (len(xs) + threshold) // 2)
    if f is None or len(f) > threshold:
        return None
    top_first = f[::-1]
    false = frozenset(x for x, y in zip(xs, ys, strict=True) if _evaluate(top_first, x) != y)
    secret = f[0] if f else 0
    return (secret.to_bytes(32, "big"), false) if secret < 2**256 else None


Poly: TypeAlias = list[int]  # coefficients modulo P, lowest first, the last one not zero


def _interpolate(xs: list[int], ys: list[int]) -> tuple[Poly, Poly]:
    """Return the polynomial that vanishes on `xs`, and the one through all points (Newton)."""
    vanishing, through = [1], Poly()
    for x, y in zip(xs, ys, strict=True):
        gap = (y - _evaluate(through[::-1], x)) % P
        scale = gap * pow(_evaluate(vanishing[::-1], x), -1, P) % P
        through = _plus(through, [scale * c % P for c in vanishing])
        shifted = [0, *vanishing]
        vanishing = _plus(shifted, [-x * c % P for c in vanishing])
    return vanishing, through


def _rational(r0: Poly, r1: Poly, degree: int) -> Poly | None:
    """Return r / v of Euclid's first remainder r below `degree`, v its factor of `r1`."""
    v0, v1 = Poly(), [1]
    while len(r1) > degree:
        quotient, rest = _divide(r0, r1)
        v0, v1 = v1, _plus(v0, [-c % P for c in _times(quotient, v1)])
        r0, r1 = r1, rest
    ratio, rest = _divide(r1, v1)
    return None if rest else ratio


def _plus(one: Poly, other: Poly) -> Poly:
    total = [(a + b) % P for a, b in zip_longest(one, other, fillvalue=0)]
    while total and total[-1] == 0:
        total.pop()
    return total


def _times(one: Poly, other: Poly) -> Poly:
    product = [0] * max(len(one) + len(other) - 1, 0)
    for place, a in enumerate(one):
        for shift, b in enumerate(other):
            product[place + shift] += a * b
    return _plus(product, [])


def _divide(one: Poly, other: Poly) -> tuple[Poly, Poly]:
    rest, inverse = list(one), pow(other[-1], -1, P)
    quotient = [0] * max(len(one) - len(other) + 1, 0)
    for place in reversed(range(len(quotient))):
        scale = quotient[place] = rest[place + len(other) - 1] * inverse % P
        for shift, c in enumerate(other):
            rest[place + shift] = (rest[place + shift] - scale * c) % P
    return _plus(quotient, []), _plus(rest, [])
