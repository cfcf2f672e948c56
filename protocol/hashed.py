"""Domains of hashed items: keys of one size, whatever the length of an item.

A key is 40 bits of BLAKE2b over the item, salted by the question, in 2 chunks; or 24 in one, 32,
48, or 72 in 3. Two items with one key are counted together, and while both are held no string is
found. What counts is what is held, and not how many items there may be: N tokens of others add
N / 2^b to a count on average, and spoil a string only in the round that fetches it, if they
are of that round. So whoever knows no more than how many tokens a round has, n devices with m,
knows that a piece of a string is lost with odds of n m / 2^b at most (and fetched again, to be
lost again where the other is held in every round). With few bits cells are small, and with 24
that is one piece in 400 up to 41,943 tokens (`fewest_bits`); with 40 it is 1e-8 for 10,000. But
2^24 hashes find an item with a given key, and a device that holds it can spoil the string, or lie
for one: where devices may mean harm, take 72.

What is found is at first a key only, which nobody can turn into an item; a mechanism that knows how
fetches the items of the keys that are heavy (`mechanisms/strings.py`). Whoever guesses an item
can hash it and look for its key: hashing hides what cannot be guessed, no more.

The *name* of a key stands for its item until that is known: `#` and the key in hexadecimal. What
has the shape of a name is no item.

Source: keys by hash are as in [GoodrichMitzenmacher11]; names and fetching are ours.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

import numpy as np
from pydantic import Field

from protocol.item_space import ItemSpace, Keys

_MOST_BITS = 24  # of a chunk
_BELOW = {
    16: 15,
    20: 3,
    24: 3,
}  # what primes are below 2^b: a chunk takes no bit more in their lane
MARK = "#"
_HEX = re.compile(r"[0-9a-f]+")


KeyBits = Literal[24, 32, 40, 48, 72]
_LOST = 1 / 400  # of pieces of strings, by `fewest_bits`


class Hashed(ItemSpace):
    """Any text of at most `max_bytes` bytes of UTF-8, without NUL; `salt` tells studies apart."""

    kind: Literal["hashed"] = "hashed"
    max_bytes: int = Field(ge=1, le=4096)
    key_bits: KeyBits = 40
    salt: str = Field(default="", max_length=16, pattern=r"^[ -~]*$")

    @property
    def chunks(self) -> int:
        """Return how many integers an item becomes."""
        return -(-self.key_bits // _MOST_BITS)

    @property
    def bound(self) -> int:
        """Return the number that every chunk stays below."""
        return (1 << self._chunk_bits) - _BELOW[self._chunk_bits]

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
        return self._name(self._chunks([number])[0])

    def keys_of(self, names: Sequence[str]) -> Keys:
        """Return the keys of these names; ValueError if one is no name."""
        rows = self._chunks(int(name.removeprefix(MARK), 16) for name in names)
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

    def _chunks(self, numbers: Iterable[int]) -> list[list[int]]:
        """Return the chunks of each number, its lowest bits first, modulo the prime below them."""
        bits, bound = self._chunk_bits, self.bound
        shifts, low = range(0, self.key_bits, bits), (1 << bits) - 1
        return [[(number >> shift & low) % bound for shift in shifts] for number in numbers]

    def _name(self, chunks: Sequence[int]) -> str:
        number = sum(c << self._chunk_bits * place for place, c in enumerate(chunks))
        return f"{MARK}{number:0{self._hex}x}"


def fewest_bits(tokens: int) -> KeyBits:
    """Return the fewest bits of keys for rounds of so many tokens, whatever items there are.

    A piece of a heavy item's string is spoiled by another item with odds of 1/400 at most.
    """
    sizes: tuple[KeyBits, ...] = get_args(KeyBits)
    return next((bits for bits in sizes if tokens <= _LOST * 2**bits), sizes[-1])
