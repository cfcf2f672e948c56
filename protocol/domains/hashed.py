"""Domains of hashed items: keys of one size, independent of the length of an item.

A key is the first 40 bits of SHA-256 over the question's salt and the item, in 2 chunks; or 24 in
one, 32, 48, or 72 in 3. Two items with the same key are counted together, and while devices hold
both, no string is recovered. Only held items matter, not the number of possible items: N tokens of
other items add N / 2^b to a count on average. They spoil a string only in the round that fetches
it, if they are in that round. For n devices with at most m tokens each, a piece of a string is lost
with probability at most n m / 2^b (and fetched again, and lost again if the other item is held in
every round).

With few bits cells are small. With 24 bits one piece in 400 is lost for up to 41,943 tokens
(`min_key_bits`); with 40 bits the probability is 1e-8 for 10,000 tokens. But 2^24 hashes find an
item with a given key, and a device that holds it can spoil or falsify the string: where devices may
be malicious, take 72 bits.

A round recovers only a key, from which the item cannot be computed; `tracked` then fetches the
items of heavy keys (`mechanisms/tracked/string_fetching.py`). A party that guesses an item can hash
it and look for its key: hashing only hides items that cannot be guessed.

The *name* of a key replaces its item until the item is known: `#` and the key in hexadecimal. A
text with the form of a name is not an item.

Source: keys by hash are as in [GoodrichMitzenmacher11]; names and fetching are ours.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from hashlib import sha256
from typing import Literal, Self, get_args

import numpy as np
from pydantic import Field, model_validator

from protocol.domains.base import SEGMENT_SEPARATOR, BaseDomain, Segments
from protocol.numerics.array_types import Keys

_MAX_CHUNK_BITS = 24
# The distance from 2^b down to a prime, so that a chunk needs no more bits in its lane.
_PRIME_GAPS = {16: 15, 20: 3, 24: 3}
_KEY_NAME_PREFIX = "#"
_HEX_PATTERN = re.compile(r"[0-9a-f]+")


KeyBits = Literal[24, 32, 40, 48, 72]
_MIN_HASH_BITS = 20  # of a key with a segment
_MAX_PIECE_LOSS = 1 / 400  # probability for a piece of a string


class Hashed(BaseDomain):
    """Text of at most `max_bytes` bytes of UTF-8, without NUL; `salt` distinguishes studies."""

    kind: Literal["hashed"] = "hashed"
    max_bytes: int = Field(ge=1, le=4096)
    key_bits: KeyBits = 40
    salt: str = Field(default="", max_length=16, pattern=r"^[ -~]*$")

    @property
    def chunks(self) -> int:
        return -(-self.key_bits // _MAX_CHUNK_BITS)

    @property
    def bound(self) -> int:
        return (1 << self._chunk_bits) - _PRIME_GAPS[self._chunk_bits]

    def __contains__(self, item: str) -> bool:
        try:
            size = len(item.encode())
        except UnicodeEncodeError:  # half of a surrogate pair
            return False
        return size <= self.max_bytes and "\0" not in item and not self.is_key(item)

    def is_key(self, name: str) -> bool:
        digits = name.removeprefix(_KEY_NAME_PREFIX)
        is_marked = name.startswith(_KEY_NAME_PREFIX) and len(digits) == self._hex_digits
        return is_marked and _HEX_PATTERN.fullmatch(digits) is not None

    def name(self, item: str) -> str:
        return self._name(self._chunks([self._number(item)])[0])

    def _number(self, item: str) -> int:
        """Return the bits of the key of `item`, before its chunks are reduced."""
        salted = f"{self.salt}\0{item}".encode()  # neither contains NUL
        digest = sha256(b"blindtally item v1\0" + salted).digest()
        return int.from_bytes(digest[: self.key_bits // 8], "big")

    def keys_of(self, names: Sequence[str]) -> Keys:
        rows = self._chunks(int(name.removeprefix(_KEY_NAME_PREFIX), 16) for name in names)
        return np.array(rows, dtype=np.uint64).reshape(-1, self.chunks)

    def decode(self, keys: Keys) -> list[str | None]:
        return [self._name(row) for row in keys.tolist()]

    @property
    def _hex_digits(self) -> int:
        """Return the hexadecimal digits of a name."""
        return self.key_bits // 4

    @property
    def _chunk_bits(self) -> int:
        return self.key_bits // self.chunks

    def _chunks(self, numbers: Iterable[int]) -> list[list[int]]:
        """Return the chunks of each number, its lowest bits first, modulo the prime bound."""
        bits, bound = self._chunk_bits, self.bound
        shifts, low = range(0, self.key_bits, bits), (1 << bits) - 1
        return [[(number >> shift & low) % bound for shift in shifts] for number in numbers]

    def _name(self, chunks: Sequence[int]) -> str:
        number = sum(c << self._chunk_bits * place for place, c in enumerate(chunks))
        return f"{_KEY_NAME_PREFIX}{number:0{self._hex_digits}x}"


class HashedProduct(Hashed):
    """Pairs of a public segment and a text, written "segment:item", with one key for the pair.

    The highest bits of a key are the position of the segment, so that it is known before the text
    is, and the others are of the hash of the pair. `max_bytes` bounds the pair.
    """

    kind: Literal["hashed-product"] = "hashed-product"  # type: ignore[assignment]
    segments: Segments

    @model_validator(mode="after")
    def _has_bits_for_hashes(self) -> Self:
        if self._hash_bits < _MIN_HASH_BITS:
            raise ValueError(
                f"keys of {self.key_bits} bits are too short for {len(self.segments):,} segments: "
                "use more key_bits"
            )
        return self

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {segment: position for position, segment in enumerate(self.segments)}

    @property
    def _hash_bits(self) -> int:
        # One position more than there are segments, as a prime bound wraps the highest numbers.
        return self.key_bits - len(self.segments).bit_length()

    def __contains__(self, item: str) -> bool:
        segment, separator, _ = item.partition(SEGMENT_SEPARATOR)
        return bool(separator) and segment in self._positions and super().__contains__(item)

    def _number(self, item: str) -> int:
        segment = self._positions[item.partition(SEGMENT_SEPARATOR)[0]]
        return segment << self._hash_bits | super()._number(item) & (1 << self._hash_bits) - 1

    def segment_of(self, name: str) -> str | None:
        if SEGMENT_SEPARATOR in name:  # no name of a key contains it
            return name.partition(SEGMENT_SEPARATOR)[0]
        position = int(name.removeprefix(_KEY_NAME_PREFIX), 16) >> self._hash_bits
        return self.segments[position] if position < len(self.segments) else None

    def decode(self, keys: Keys) -> list[str | None]:
        names = [self._name(row) for row in keys.tolist()]
        return [None if self.segment_of(name) is None else name for name in names]


def min_key_bits(tokens: int) -> KeyBits:
    """Return the smallest size of keys for rounds of `tokens` tokens.

    Another item spoils a piece of a heavy item's string with probability at most 1/400.
    """
    sizes: tuple[KeyBits, ...] = get_args(KeyBits)
    return next((bits for bits in sizes if tokens <= _MAX_PIECE_LOSS * 2**bits), sizes[-1])
