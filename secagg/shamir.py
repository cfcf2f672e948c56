"""Shamir secret sharing of 32-byte secrets: any `threshold` shares recover the secret.

The secret is f(0) of a random polynomial f of degree threshold - 1 over GF(P). Share x is
the point (x, f(x)), x = 1, 2, ..., and recovery is Lagrange interpolation at zero. Fewer
than `threshold` points leave every secret equally likely. A secret is one field element:
sharing it in blocks costs a hundredfold.

Shares are numbered 1, 2, ... for each secret, so that Lagrange's weights are integers: a
binomial coefficient each, with a small factor for each missing number.

Shamir sharing is also a Reed-Solomon code, which corrects false shares. If at most
(m - threshold) / 2 of m shares are false, there is one polynomial through all others.

Source: [Shamir79]. P is fixed, where the paper lets the dealer choose it, so that every share has
the same size on the wire. Sharing by differences and the integer weights are
additions of blindtally.
"""

from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from math import comb, prod
from random import Random

import numpy as np
from numpy.typing import NDArray

from secagg.reed_solomon import decode

P = 2**256 + 297  # the smallest prime above every 32-byte secret
SHARE_BYTES = 33
MAX_SHARES = 2**12  # twice the holders of the largest cohort
_DRAW_BYTES = 32  # uniform below P except with probability 2^-247
_LIMB = 3  # bytes of a limb
_LIMB_BITS = 8 * _LIMB
_P_BYTES = P.to_bytes(SHARE_BYTES, "big")  # big-endian bytes sort as numbers


def split(secret: bytes, count: int, threshold: int, rng: Random) -> list[bytes]:
    """Return the 33-byte shares 1 to `count` of a secret.

    The random draws are the forward differences of f at zero, one for each power: they determine
    f, and its values are sums of them. All differences are in one integer, lowest first, each
    with room for the carries.

    Raises:
        ValueError: if the secret is not 32 bytes, or there are fewer shares than `threshold`
            or more than `MAX_SHARES`.
    """
    if len(secret) != 32:
        raise ValueError("only 32-byte secrets are shared")
    if not 1 <= threshold <= count <= MAX_SHARES:
        raise ValueError(f"{count} shares with threshold {threshold}: 1 to {MAX_SHARES} fit")
    drawn = rng.randbytes((threshold - 1) * _DRAW_BYTES)
    starts = range(0, len(drawn), _DRAW_BYTES)
    room = bytes(count // 8 + 1)  # f(x) is a sum of binomials, below 2^x, times differences
    row = [secret[::-1], *(drawn[start : start + _DRAW_BYTES] for start in starts)]
    differences = int.from_bytes(b"".join(difference + room for difference in row), "little")
    bits = 8 * (_DRAW_BYTES + len(room))
    lowest = (1 << bits) - 1
    shares = []
    for _ in range(count):
        differences += differences >> bits  # each at x + 1 is its value at x plus the next
        shares.append(((differences & lowest) % P).to_bytes(SHARE_BYTES, "big"))
    return shares


def recover_many(shares: NDArray[np.uint8], xs: NDArray[np.int64]) -> list[bytes | None]:
    """Return the secret of each row of `shares`, secrets x numbers x 33 bytes.

    The result is None where the shares give no 32-byte secret. The numbers `xs` rise in each row;
    each share must be valid (`is_share`). Pass exactly `threshold` shares of a secret: more cost
    time, and do not identify a false one. The weights in limbs of 24 bits times the bytes of shares
    are a matrix product for each secret, exact in float64: at most 2^12 products, each below
    2^(24 + 8), add up to less than 2^44.
    """
    # Without dropouts, the same shares of all secrets are used.
    limbs, divisors = _limbs_at_zero(xs[:1] if (xs == xs[0]).all() else xs)
    divisors *= len(xs) // len(divisors)
    # Below 2^(12 + 24 limbs + 264); the columns hold it, and its sign.
    columns = np.zeros((SHARE_BYTES + _LIMB * (len(limbs) + 1), len(shares)), dtype=np.int64)
    weights = limbs.transpose(1, 0, 2).astype(np.float64)
    products = np.matmul(weights, shares.astype(np.float64)).astype(np.int64)
    for limb in range(len(limbs)):  # at most 11 overlap: below 2^48
        start = _LIMB * limb
        columns[start : start + SHARE_BYTES] += products[:, limb, ::-1].T
    for low, high in pairwise(columns):
        np.add(high, low >> 8, out=high)
    rows = columns.T.astype(np.uint8)  # removes what was carried
    sums = (int.from_bytes(row, "little", signed=True) for row in rows)
    secrets = (total * divisor % P for total, divisor in zip(sums, divisors, strict=True))
    return [y.to_bytes(32, "big") if y < 2**256 else None for y in secrets]


def recover(shares: Mapping[int, bytes]) -> bytes | None:
    """Return the secret of `threshold` shares, by number; None if it does not fit 32 bytes.

    Each share must be valid (`is_share`). For many secrets use `recover_many`.
    """
    xs = sorted(shares)
    rows = np.frombuffer(b"".join(shares[x] for x in xs), np.uint8)
    (secret,) = recover_many(rows.reshape(1, len(xs), SHARE_BYTES), np.array([xs]))
    return secret


def _limbs_at_zero(xs: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[int]]:
    """Return Lagrange's weights at zero as integers, and factors to multiply the sums by.

    The shape is limbs, low to high, x secrets x numbers. For the points 1 .. m the weight of i is
    (-1)^(i-1) C(m, i); each missing point j multiplies it by (j - i) / j. The signs always
    alternate: each smaller number flips the sign, by the binomial if it is present, and by its
    factor if it is missing.
    """
    lasts = xs[:, -1]
    missing, is_padding = _missing(xs)
    last = max(map(int, lasts))
    bits = comb(last, last // 2).bit_length() + missing.shape[1] * last.bit_length()
    limbs = np.zeros((-(-bits // _LIMB_BITS), *xs.shape), np.int64)
    for end in set(lasts.tolist()):
        full, rows = _full_limbs(end), np.flatnonzero(lasts == end)
        limbs[: len(full), rows] = full[:, xs[rows] - 1]
    batch_size = (62 - _LIMB_BITS) // last.bit_length()
    for start in range(0, missing.shape[1], batch_size):
        batch = slice(start, start + batch_size)
        gaps = np.abs(missing[:, batch, np.newaxis] - xs[:, np.newaxis])
        gaps[is_padding[:, batch]] = 1
        limbs *= gaps.prod(axis=1)  # below 2^62
        for low, high in pairwise(limbs):
            np.add(high, low >> _LIMB_BITS, out=high)
            np.bitwise_and(low, 2**_LIMB_BITS - 1, out=low)
    limbs[:, :, 1::2] *= -1
    divisors = np.where(is_padding, 1, missing).tolist()
    return limbs, [pow(prod(row), -1, P) for row in divisors]


def _missing(xs: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the numbers missing below the last of each row, and flags of the padding.

    All rows have the length of the longest.
    """
    lasts = xs[:, -1:]
    is_missing = np.arange(1, lasts.max()) < lasts
    inside = np.nonzero(xs < lasts)
    is_missing[inside[0], xs[inside] - 1] = False
    counts = is_missing.sum(axis=1, keepdims=True)
    width = int(counts.max())
    numbers = np.argsort(~is_missing, axis=1, kind="stable")[:, :width] + 1
    return numbers, np.arange(width) >= counts


@lru_cache(maxsize=1024)
def _full_limbs(last: int) -> NDArray[np.int64]:
    """Return the limbs, low to high, of binomials C(last, i) for i of 1 to `last`."""
    weights = [comb(last, i) for i in range(1, last + 1)]
    count = -(-max(weights).bit_length() // _LIMB_BITS)
    places = range(0, count * _LIMB_BITS, _LIMB_BITS)
    return np.array([[w >> place & 2**_LIMB_BITS - 1 for w in weights] for place in places])


def is_share(share: bytes) -> bool:
    """Return whether `share` is a field element of 33 bytes; others recover nothing."""
    return len(share) == SHARE_BYTES and share < _P_BYTES


def correct_errors(
    shares: Mapping[int, bytes], threshold: int
) -> tuple[bytes, frozenset[int]] | None:
    """Return the secret and the numbers of false shares; None if too many are false.

    A hundred shares take about 30 ms, so use it only when `recover_many` gave a wrong
    secret. More than (m - threshold) / 2 false shares may give another secret.

    Each share must be valid (`is_share`).
    """
    values = {x: int.from_bytes(shares[x], "big") for x in sorted(shares)}
    decoded = decode(P, values, threshold)
    if decoded is None:
        return None
    f, false = decoded
    secret = f[0] if f else 0
    return (secret.to_bytes(32, "big"), false) if secret < 2**256 else None
