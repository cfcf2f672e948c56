"""Fetching the items of hashed keys: a string is the sum of its bytes over those who hold it.

Once a key is tracked its holders are counted exactly, and if it is to be heavy its item is
*fetched*, a piece of some bytes a round: each holder adds its count times the piece's
numbers (3 bytes each) modulo a prime p, and the sums, divided by the count, are the numbers. A
piece that ends in NUL is the last. The whole must hash to the key it was fetched for: what
somebody spoiled does not, and is fetched again from the start.

So the server learns the items of keys that are about to be heavy, and of no others.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from protocol.hashed import Hashed
from protocol.public import Public
from protocol.sketches.primes import widest_prime
from protocol.tally import Tally
from secagg.ring import Array, Lane

NUMBER_BYTES = 3  # of a number
_LEAST_NUMBERS = 3  # of a piece: most words and their end
_STRINGS = "strings"  # an array of the tally: JSON of what is known of each name, in hexadecimal
_ENDED = "."  # behind what is whole


class Fetch(Public):
    """A piece to fetch: of which name, and which of its pieces, from 0."""

    name: str
    piece: int = Field(ge=0, le=4096 // NUMBER_BYTES)


@dataclass(frozen=True)
class Fetches:
    """The pieces of `numbers` that a round fetches; no sum of counts reaches `most`."""

    wanted: tuple[Fetch, ...]
    most: int
    numbers: int

    @property
    def lane(self) -> Lane:
        """Return the lane of the pieces, one number after the other."""
        p = widest_prime(max(self.most, 2 ** (8 * NUMBER_BYTES) - 1))
        return Lane(p, max(1, self.numbers * len(self.wanted)))

    @cached_property
    def rows(self) -> Mapping[str, int]:
        """Return the place of each name."""
        return {fetch.name: row for row, fetch in enumerate(self.wanted)}

    def fitting(self, nbytes: int) -> int:
        """Return how many of the pieces fit in `nbytes`."""
        return min(len(self.wanted), 8 * nbytes // (self.numbers * self.lane.bits))

    def encode(self, held: Iterable[tuple[str, str, int]]) -> Array:
        """Return the sum of what holders of (name, item, count) add."""
        numbers = np.zeros((len(self.wanted), self.numbers), dtype=np.uint64)
        p = np.uint64(self.lane.q)
        for name, item, count in held:
            row = self.rows.get(name)
            if row is not None:
                numbers[row] += np.uint64(count) * self._piece(item, self.wanted[row].piece) % p
                numbers[row] %= p
        return numbers.reshape(-1).astype(self.lane.dtype)

    def _piece(self, item: str, piece: int) -> NDArray[np.uint64]:
        size = self.numbers * NUMBER_BYTES
        raw = item.encode()[piece * size :][:size].ljust(size, b"\0")
        starts = range(0, size, NUMBER_BYTES)
        return np.array(
            [int.from_bytes(raw[s : s + NUMBER_BYTES], "big") for s in starts], np.uint64
        )

    def decode(self, sums: Array, counts: Mapping[str, int]) -> dict[str, bytes]:
        """Return the pieces of those names that somebody holds, and whose sums make bytes."""
        found, p = {}, self.lane.q
        for fetch, row in zip(self.wanted, sums.reshape(-1, self.numbers).tolist(), strict=True):
            count = counts.get(fetch.name, 0) % p
            if count:
                inverse = pow(count, -1, p)
                numbers = [number * inverse % p for number in row]
                if max(numbers) < 2 ** (8 * NUMBER_BYTES):
                    found[fetch.name] = b"".join(n.to_bytes(NUMBER_BYTES, "big") for n in numbers)
        return found


def numbers_for(domain: Hashed, rounds: int) -> int:
    """Return the numbers of a piece with which a third of the rounds fetch the longest item."""
    return max(_LEAST_NUMBERS, -(-domain.max_bytes // (NUMBER_BYTES * max(1, rounds // 3))))


@dataclass(frozen=True)
class Strings:
    """What is known of the items behind names: whole ones, and beginnings."""

    domain: Hashed
    whole: dict[str, str] = field(default_factory=dict)
    begun: dict[str, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, domain: Hashed, tally: Tally) -> "Strings":
        """Return what `tally` keeps."""
        kept = tally.arrays.get(_STRINGS)
        known: dict[str, str] = {} if kept is None else json.loads(kept.tobytes())
        ended = {name: raw for name, raw in known.items() if raw.endswith(_ENDED)}
        whole = {name: bytes.fromhex(raw[:-1]).decode() for name, raw in ended.items()}
        begun = {n: bytes.fromhex(raw) for n, raw in known.items() if n not in ended}
        return cls(domain, whole, begun)

    def keep(self, tally: Tally) -> Tally:
        """Return `tally` with what is known."""
        known = {name: raw.hex() for name, raw in self.begun.items()}
        known |= {name: item.encode().hex() + _ENDED for name, item in self.whole.items()}
        return tally.keep(_STRINGS, np.frombuffer(json.dumps(known).encode(), np.uint8))

    def next_piece(self, name: str, numbers: int) -> Fetch:
        """Return the piece of so many numbers to fetch next of a name that has no item yet."""
        return Fetch(name=name, piece=len(self.begun.get(name, b"")) // (NUMBER_BYTES * numbers))

    def pieces(self, numbers: int) -> float:
        """Return the pieces of so many numbers that an item takes, as those known did."""
        size = NUMBER_BYTES * numbers
        known = [len(item.encode()) // size + 1 for item in self.whole.values()]
        return sum(known) / len(known) if known else -(-self.domain.max_bytes // size)

    def add(self, pieces: Mapping[str, bytes]) -> "Strings":
        """Return what is known with `pieces`, each the next of its name."""
        whole, begun = dict(self.whole), dict(self.begun)
        for name, piece in pieces.items():
            raw = begun.pop(name, b"") + piece
            if piece.endswith(b"\0") or len(raw) >= self.domain.max_bytes:
                item = self._verified(name, raw.rstrip(b"\0"))
                if item is not None:
                    whole[name] = item
            else:
                begun[name] = raw
        return Strings(self.domain, whole, begun)

    def _verified(self, name: str, raw: bytes) -> str | None:
        try:
            item = raw.decode()
        except UnicodeDecodeError:
            return None
        return item if item in self.domain and self.domain.name(item) == name else None
