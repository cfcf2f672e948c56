"""Domains of hashed items: keys of one size, whatever the length of an item.

A key is 40 bits of BLAKE2b over the item, salted by the question, in 2 chunks; or 48, or 72 in 3.
An item shares its key with another of N with odds of N / 2^40: one of a thousand heavy items among
a million with odds of 0.1%, and then it is the two's sum that is counted, and no string is found.
With 48 bits it is 4e-6, with 72 2e-13. What is found is at first a key only, which nobody can turn
into an item; a mechanism that knows how fetches the items of the keys that are heavy
(`mechanisms/strings.py`). Whoever guesses an item can hash it and look for its key: hashing
hides what cannot be guessed, no more.

The *name* of a key stands for its item until that is known: `#` and the key in hexadecimal. What
has the shape of a name is no item.

Source: keys by hash are as in [GoodrichMitzenmacher11]; names and fetching are ours.
"""

import hashlib
import re
from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from protocol.item_space import ItemSpace, Keys

_MOST_BITS = 24  # of a chunk
_BELOW = 3  # 2^20 - 3 and 2^24 - 3 are primes, so that a chunk takes no bit more in a prime lane
MARK = "#"
_HEX = re.compile(r"[0-9a-f]+")


class Hashed(ItemSpace):
    """Any text of at most `max_bytes` bytes of UTF-8, without NUL; `salt` tells studies apart."""

    kind: Literal["hashed"] = "hashed"
    max_bytes: int = Field(ge=1, le=4096)
    key_bits: Literal[40, 48, 72] = 40
    salt: str = Field(default="", max_length=16, pattern=r"^[ -~]*$")

    @property
    def chunks(self) -> int:
        """Return how many integers an item becomes."""
        return -(-self.key_bits // _MOST_BITS)

    @property
    def bound(self) -> int:
        """Return the number that every chunk stays below."""
        return (1 << self._chunk_bits) - _BELOW

    def __contains__(self, item: str) -> bool:
        """Return whether `item` has a key."""
        try:
            size = len(item.encode())
        except UnicodeEncodeError:  # half of a surrogate pair
            return False
        if len(item) == 1 + self._hex and item[0] == MARK and _HEX.fullmatch(item[1:]):
            return False  # it would be taken for a key whose item is not known
        return size <= self.max_bytes and "\0" not in item

    def name(self, item: str) -> str:
        """Return the name of the key of `item`."""
        salt = self.salt.encode()
        digest = hashlib.blake2b(item.encode(), digest_size=self.key_bits // 8, salt=salt)
        number = int.from_bytes(digest.digest(), "big")
        return self._name(self._chunks(number))

    def keys_of(self, names: Sequence[str]) -> Keys:
        """Return the keys of these names; ValueError if one is no name."""
        rows = [self._chunks(int(name.removeprefix(MARK), 16)) for name in names]
        return np.array(rows, dtype=np.uint64).reshape(-1, self.chunks)

    def decode(self, keys: Keys) -> list[str | None]:
        """Return the name of each key."""
        return [self._name(row) for row in keys.tolist()]

    @property
    def _hex(self) -> int:
        """Return the hexadecimal digits of a name."""
        return self.key_bits // 4

    @property
    def _chunk_bits(self) -> int:
        return self.key_bits // self.chunks

    def _chunks(self, number: int) -> list[int]:
        """Return the chunks of a number, its lowest bits first: one in 2^18 is taken modulo p."""
        bits, low = self._chunk_bits, (1 << self._chunk_bits) - 1
        return [(number >> bits * chunk & low) % self.bound for chunk in range(self.chunks)]

    def _name(self, chunks: Sequence[int]) -> str:
        number = sum(c << self._chunk_bits * place for place, c in enumerate(chunks))
        return f"{MARK}{number:0{self._hex}x}"
