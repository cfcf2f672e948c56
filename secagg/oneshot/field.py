"""Prime fields GF(p): primes, exact matrix products, interpolation, and packed bytes.

An array of elements has type uint64, and all elements are below p < 2^26. Products are exact:

    elements   p < 2^32: a product fits in uint64; larger p: integers of Python
    matrices   in float64, whose integers are exact up to 2^53. Both factors are split into limbs of
               w bits, so that a sum of products of limbs stays below 2^53; p up to 2^21 or so has
               one limb

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

from secagg.ring import Ring

Elements: TypeAlias = NDArray[np.uint64]
Bytes: TypeAlias = NDArray[np.uint8]

MAX_PRIME: Final = 2**26
_FLOAT_BITS = 53
_WORD_BITS = 64
_PRODUCT_BOUND = 2**32  # below it the product of two elements fits in uint64
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


def check_prime_lanes(ring: Ring, points: int) -> None:
    """Check that each lane is a prime field with `points` points other than 0.

    Raises:
        ValueError: if a modulus is not a prime, or too small, or too large.
    """
    for number, lane in enumerate(ring.lanes):
        if not (points < lane.q < MAX_PRIME and is_prime(lane.q)):
            raise ValueError(
                f"lane {number}: a prime from {points + 1} to 2^26 expected, got {lane.q}"
            )


class FieldMatrix:
    """A matrix over GF(p), prepared as the left factor of exact products.

    `rows` is n x k, and the right factor k x c. If a limb of the left matrix has index a, and one
    of the right index b, the product is the sum of 2^(w a) L_a R over all a, where L_a has side by
    side the limbs a of 2^(w b) times the left matrix, and R has the limbs b of the right one.
    """

    def __init__(self, p: int, rows: Elements) -> None:
        self.p = p
        self.rows = rows
        bits = (p - 1).bit_length()
        self._bits = _limb_bits(bits, rows.shape[1])
        self._count = -(-bits // self._bits)
        shifted = [rows]
        for _ in range(1, self._count):
            shifted.append(self._shift(shifted[-1]))
        self._limbs = [np.hstack(row) for row in zip(*map(self._split, shifted), strict=True)]

    def __matmul__(self, right: Elements) -> Elements:
        """Return the product with `right`, modulo p."""
        p = np.uint64(self.p)
        stacked = np.vstack(self._split(right))
        product = _residues(self._limbs[-1] @ stacked, p)
        for limb in reversed(self._limbs[:-1]):
            product = (self._shift(product) + _residues(limb @ stacked, p)) % p
        return product

    def _split(self, elements: Elements) -> list[NDArray[np.float64]]:
        if self._count == 1:
            return [elements.astype(np.float64)]
        mask = np.uint64(2**self._bits - 1)
        places = (np.uint64(limb * self._bits) for limb in range(self._count))
        return [((elements >> place) & mask).astype(np.float64) for place in places]

    def _shift(self, elements: Elements) -> Elements:
        """Return the elements times 2^w modulo p."""
        remaining, room = self._bits, _WORD_BITS - self.p.bit_length()
        while remaining:
            step = min(remaining, room)
            elements = (elements << np.uint64(step)) % np.uint64(self.p)
            remaining -= step
        return elements


def _limb_bits(bits: int, inner: int) -> int:
    """Return the largest w with `inner` products of each pair of limbs below 2^53 in total."""
    for width in range(bits, 0, -1):
        if inner * -(-bits // width) * 2 ** (2 * width) <= 2**_FLOAT_BITS:
            return width
    raise ValueError(f"a product over {inner} elements is too long to be exact")


def _residues(sums: NDArray[np.float64], p: np.uint64) -> Elements:
    return sums.astype(np.uint64) % p  # float64 `%` would take ten times as long


def multiply(p: int, first: Elements, second: Elements) -> Elements:
    """Return the products of elements modulo p, shapes as numpy broadcasts them."""
    if p <= _PRODUCT_BOUND:
        small: Elements = first * second % np.uint64(p)
        return small
    exact = first.astype(object) * second.astype(object) % p
    large: Elements = exact.astype(np.uint64)
    return large


def sum_products(p: int, first: Elements, second: Elements) -> Elements:
    """Return the sum over k of first[i, k] second[i, k, j] modulo p, shape i x j."""
    products = multiply(p, first[:, :, np.newaxis], second)
    return sum_elements(p, products, axis=1)


def sum_elements(p: int, elements: Elements, axis: int) -> Elements:
    """Return sums of at most 2^31 elements modulo p along `axis`."""
    low = elements & np.uint64(2**32 - 1)
    total: Elements = low.sum(axis=axis, dtype=np.uint64) % np.uint64(p)
    if p <= _PRODUCT_BOUND:
        return total
    high = (elements >> np.uint64(32)).sum(axis=axis, dtype=np.uint64) % np.uint64(p)
    for _ in range(16):  # 2^2 at a time: p is below 2^62
        high = (high << np.uint64(2)) % np.uint64(p)
    total += high
    total %= np.uint64(p)
    return total


def lagrange_matrix(p: int, nodes: Sequence[int], points: Sequence[int]) -> Elements:
    """Return the matrix that maps values at `nodes` to those at `points`, one row per point.

    Nodes are distinct, and all differences of nodes and points are below p.
    """
    at, to = np.array(nodes, np.int64), np.array(points, np.int64)
    inverses = _small_inverses(p, int(np.ptp(np.concatenate([at, to]))))

    def inverse(gaps: NDArray[np.int64]) -> Elements:
        """Return 1 / gap, and 1 for a gap of 0."""
        positive = inverses[np.abs(gaps)]
        return np.where(gaps < 0, np.uint64(p) - positive, positive)

    weights = _product(p, inverse(at[:, np.newaxis] - at))
    gaps = to[:, np.newaxis] - at
    is_node = gaps == 0
    factors = np.where(is_node, 1, gaps) % p
    terms = multiply(p, inverse(gaps), weights[np.newaxis])
    matrix = multiply(p, _product(p, factors.astype(np.uint64))[:, np.newaxis], terms)
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
        product = multiply(p, product, rows[:, column])
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
