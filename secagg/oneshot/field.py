"""Prime fields GF(p): primes, exact matrix products, interpolation, and packed bytes.

An array of elements has type uint64, and all elements are below p < 2^26, so that a product of two
fits in it. Matrices are multiplied in float64, whose integers are exact up to 2^53: the left factor
is split into limbs, if needed, so that a sum of products of a limb and an element stays below.

Rows of elements are packed in base p: g elements become one integer below p^g, of b bits, where b
is at most 53 and b / g is smallest. A language whose numbers are float64 can then join them, too.
So p = 65,537 takes 16.33 bits per element, where 17 would be needed one by one. The integers follow
each other in little-endian order of bits; the last of a row may have fewer elements and bits; a row
ends on a whole byte, padded with zero bits.

Source: interpolation by Lagrange; limbs and the packing are additions of blindtally.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Elements: TypeAlias = NDArray[np.uint64]
Bytes: TypeAlias = NDArray[np.uint8]

MAX_PRIME: Final = 2**26
_FLOAT_BITS = 53
_WORD_BITS = 64
_MILLER_RABIN_BASES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)  # certain below 2^64


@lru_cache(maxsize=1024)
def is_prime(n: int) -> bool:
    """Return whether `n`, below 2^64, is prime."""
    if n < 2 or any(n % base == 0 for base in _MILLER_RABIN_BASES):
        return n in _MILLER_RABIN_BASES
    twos = ((n - 1) & (1 - n)).bit_length() - 1
    return not any(_proves_composite(base, n, twos) for base in _MILLER_RABIN_BASES)


def _proves_composite(base: int, n: int, twos: int) -> bool:
    x = pow(base, n - 1 >> twos, n)
    if x in (1, n - 1):
        return False
    for _ in range(twos - 1):
        x = x * x % n
        if x == n - 1:
            return False
    return True


@lru_cache(maxsize=1024)
def suitable_prime(least: int) -> int:
    """Return the smallest prime p of `least` or more with p = 1 modulo 12 or 20.

    Proofs that inputs are in range, which are planned, need a field of p^e elements for such e as
    4, 6, 8 or 9, and X^e - g is irreducible only if p - 1 has the prime factors of e, and 4 if e
    has it. So 521 and 661 are suitable, and 509 is not.

    Raises:
        ValueError: if it is not below `MAX_PRIME`.
    """
    p = max(least, 2)
    while not (is_prime(p) and 1 in (p % 12, p % 20)):
        p += 1
    if p >= MAX_PRIME:
        raise ValueError(
            f"one-shot sums count to less than 2^26, not to {least:,}: use fewer devices, a "
            "smaller contribution or a larger epsilon"
        )
    return p


def check_prime(q: int, points: int) -> None:
    """Check that GF(q) is a field of this module with `points` points other than 0.

    Raises:
        ValueError: if the modulus `q` is not a prime, or too small, or too large.
    """
    if not (points < q < MAX_PRIME and is_prime(q)):
        raise ValueError(f"a prime from {points + 1} to 2^26 expected, got {q}")


class FieldMatrix:
    """A matrix over GF(p), prepared as the left factor of exact products.

    `rows` is n x k, and the right factor k x c. The product is the sum of 2^(w a) L_a R over all a,
    where L_a has the limbs of w bits with index a.

    Raises:
        ValueError: if k is so large that no limb has a bit.
    """

    def __init__(self, p: int, rows: Elements) -> None:
        bits, inner = (p - 1).bit_length(), rows.shape[1]
        width = min(bits, _FLOAT_BITS - bits - (inner - 1).bit_length())
        if width < 1:
            raise ValueError(f"a product over {inner} elements is too long to be exact")
        self._p, self._width = p, np.uint64(width)
        places, mask = np.arange(0, bits, width, dtype=np.uint64), np.uint64(2**width - 1)
        self._limbs = [((rows >> place) & mask).astype(np.float64) for place in places]

    def __matmul__(self, right: Elements) -> Elements:
        """Return the product with `right`, modulo p."""
        factor = right.astype(np.float64)
        product = np.zeros((), np.uint64)
        for limb in reversed(self._limbs):
            # float64 `%` would take ten times as long
            product = ((product << self._width) + (limb @ factor).astype(np.uint64)) % self._p
        return product


def lagrange_matrix(p: int, nodes: Sequence[int], points: Sequence[int]) -> Elements:
    """Return the matrix that maps values at `nodes` to those at `points`, one row per point.

    Nodes are distinct, and all differences of nodes and points are below p.
    """
    at, to = np.array(nodes, np.int64), np.array(points, np.int64)
    inverses = _small_inverses(p, int(np.ptp(np.concatenate([at, to]))))

    def inverse(gaps: NDArray[np.int64]) -> Elements:
        """Return 1 / gap, and 1 for a gap of 0."""
        positive = inverses[np.abs(gaps)]
        return np.where(gaps < 0, p - positive, positive)

    weights = _product(p, inverse(at[:, np.newaxis] - at))
    gaps = to[:, np.newaxis] - at
    is_node = gaps == 0
    factors = np.where(is_node, 1, gaps) % p
    terms = inverse(gaps) * weights % p
    matrix = _product(p, factors.astype(np.uint64))[:, np.newaxis] * terms % p
    return np.where(is_node.any(axis=1)[:, np.newaxis], is_node.astype(np.uint64), matrix)


def _small_inverses(p: int, last: int) -> Elements:
    """Return the inverses of 0 to `last` modulo p, where the entry of 0 is 1."""
    inverses = [1, 1]
    for number in range(2, last + 1):
        inverses.append((p - p // number) * inverses[p % number] % p)
    return np.array(inverses[: last + 1], np.uint64)


def _product(p: int, rows: Elements) -> Elements:
    """Return the product of each row modulo p."""
    product = rows[:, 0]
    for column in range(1, rows.shape[1]):
        product = product * rows[:, column] % p
    return product


@dataclass(frozen=True, slots=True)
class PackedRows:
    """The packing of rows of `length` elements of GF(p): g elements in b bits."""

    p: int
    length: int
    group: int
    bits: int
    nbytes: int

    @classmethod
    @lru_cache(maxsize=1024)
    def of(cls, p: int, length: int) -> "PackedRows":
        """Return the packing with the fewest bits per element."""
        groups = [g for g in range(1, _FLOAT_BITS) if _digit_bits(p, g) <= _FLOAT_BITS]
        group = min(groups, key=lambda g: (_digit_bits(p, g) / g, g))
        bits = _digit_bits(p, group)
        full, rest = divmod(length, group)
        return cls(p, length, group, bits, (full * bits + _digit_bits(p, rest) + 7) // 8)

    def pack(self, rows: Elements) -> Bytes:
        """Return the packed bytes of each of `rows`, one row each."""
        full = self.length // self.group * self.group
        parts = [_to_bits(self._join(rows[:, :full].reshape(len(rows), -1, self.group)), self.bits)]
        if full < self.length:
            rest = self._join(rows[:, np.newaxis, full:])
            parts.append(_to_bits(rest, _digit_bits(self.p, self.length - full)))
        return np.packbits(np.hstack(parts), axis=1, bitorder="little")

    def unpack(self, packed: Bytes) -> tuple[Elements, NDArray[np.bool_]]:
        """Return the rows in `packed`, rows x `nbytes`, and whether each is a valid packing.

        A row is not valid if an integer is too large, or a padding bit is set.
        """
        integers, last, is_valid = self._integers(packed)
        parts = [self._divide(integers, self.group)]
        if last is not None:
            parts.append(self._divide(last, self.length % self.group))
        return np.hstack(parts), is_valid

    def is_valid(self, packed: bytes) -> bool:
        """Return whether a row of `nbytes` is a valid packing; for one row `unpack` is slow."""
        full, rest = divmod(self.length, self.group)
        content, mask = int.from_bytes(packed, "little"), 2**self.bits - 1
        for _ in range(full):
            if content & mask >= self.p**self.group:
                return False
            content >>= self.bits
        return content < int(self.p**rest)  # larger if a padding bit is set

    def _integers(self, packed: Bytes) -> tuple[Elements, Elements | None, NDArray[np.bool_]]:
        """Return the integers of full groups, that of the rest, and whether rows are valid."""
        bits = np.unpackbits(packed, axis=1, bitorder="little")
        full, rest = divmod(self.length, self.group)
        used, last = full * self.bits, None
        integers = _from_bits(bits[:, :used], full)
        is_valid = (integers <= np.uint64(self.p**self.group - 1)).all(axis=1)
        if rest:
            start, used = used, used + _digit_bits(self.p, rest)
            last = _from_bits(bits[:, start:used], 1)
            is_valid = is_valid & (last < np.uint64(self.p**rest)).all(axis=1)
        is_padded = ~bits[:, used:].any(axis=1)
        return integers, last, np.logical_and(is_valid, is_padded)

    def _join(self, digits: Elements) -> Elements:
        """Return the integers of digits in base p, the lowest first along the last axis."""
        integers = digits[:, :, -1]
        for place in range(digits.shape[2] - 2, -1, -1):
            integers = integers * np.uint64(self.p) + digits[:, :, place]
        return integers

    def _divide(self, integers: Elements, count: int) -> Elements:
        """Return the `count` digits of each integer; the last of a too large one is reduced."""
        digits = np.empty((*integers.shape, count), np.uint64)
        for place in range(count):
            digits[:, :, place] = integers % np.uint64(self.p)
            integers = integers // np.uint64(self.p)
        return digits.reshape(len(integers), -1)


def _digit_bits(p: int, count: int) -> int:
    return int(p**count - 1).bit_length()


def _to_bits(integers: Elements, bits: int) -> Bytes:
    """Return the low `bits` of each integer, lowest first, and the integers of a row in order."""
    octets = np.ascontiguousarray(integers.astype("<u8")).view(np.uint8)
    expanded = np.unpackbits(octets.reshape(*integers.shape, 8), axis=2, bitorder="little")
    return expanded[:, :, :bits].reshape(len(integers), -1)


def _from_bits(bits: Bytes, count: int) -> Elements:
    """Return the `count` integers of each row of `bits`."""
    width = bits.shape[1] // count if count else 0
    padded = np.zeros((len(bits), count, _WORD_BITS), np.uint8)
    padded[:, :, :width] = bits.reshape(len(bits), count, width)
    octets = np.packbits(padded, axis=2, bitorder="little")
    return octets.reshape(len(bits), -1).view("<u8").astype(np.uint64)
