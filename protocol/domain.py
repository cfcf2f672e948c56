"""How items become integers and back: the *domain* of a question.

A sketch adds keys in a prime field, so an item becomes `chunks` integers, each below
`bound`, and a sketch has one field element for each. The map is one-to-one: an item is
read off the sum itself, whole, in one round, with no dictionary and no second round to ask
what a hash stood for. The price is linear in the length of the longest item. Hashed keys
(`hashed.py`), whose items are fetched later, cost the same for any length.

    alphabet   strings over a few known characters, up to `length` of them: groups of
               characters are numbers to the base |A|
    utf8       any text of up to `max_bytes` bytes: up to 3 of them are a number to the base 256
    listed     a dictionary that everybody knows: an item is its place in it
    interval   numbers from low to high, as digits (`interval.py`)

Groups are as few as stay below 2^24, which leaves a sketch 7 bits of 31 for a hash, and all of
a length.

An item outside the domain has no number. A device leaves such items out before it counts
(`item in domain`), so that they take no room under its contribution bound.

Source: the finite domain [d] of [Gascon23, section 2]; chunks are ours.
"""

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from protocol.digits import Digits, Rows
from protocol.hashed import Hashed
from protocol.interval import Interval
from protocol.item_space import ItemSpace, Keys
from protocol.public import Text, refuse

_GROUP = 2**24  # the numbers of a group's characters stay below


class Alphabet(Digits):
    """Strings of `length` of the `characters`; up to `length` if one of them is the `pad`.

    The pad fills up shorter items, so an item may not end in it: this keeps the map
    one-to-one. Without a pad every item has exactly `length` characters.
    """

    kind: Literal["alphabet"] = "alphabet"
    characters: str = Field(min_length=2, max_length=4096)
    length: int = Field(ge=1, le=256)  # at most 1,024 bytes, as of utf8
    pad: str = Field(default="", max_length=1)

    @model_validator(mode="after")
    def _is_a_set(self) -> Self:
        faults = []
        if len(set(self.characters)) != len(self.characters):
            faults.append("a character stands twice in the alphabet")
        if self.pad not in self.characters:
            faults.append(f"the pad {self.pad!r} is not one of the characters")
        refuse(faults)
        return self

    @property
    def chunks(self) -> int:
        """Return how many integers an item becomes."""
        most = 1
        while len(self.characters) ** (most + 1) <= _GROUP:
            most += 1
        return -(-self.length // most)

    def __contains__(self, item: str) -> bool:
        """Return whether `item` has a key."""
        if self.pad:
            fits = len(item) <= self.length and not item.endswith(self.pad)
        else:
            fits = len(item) == self.length
        return fits and set(item) <= set(self.characters)

    @property
    def terminator(self) -> int | None:
        """Return the digit of the pad; None if all items are of one length."""
        return self._filler if self.pad else None

    def cut(self, item: str) -> str | None:
        """Return the first `length` characters of `item`; None if they are no item."""
        head = item[: self.length]
        return head if head in self else None

    def ends_within(self, item: str) -> bool:
        """Return whether the pad, which may not end an item, stands inside `item`."""
        return bool(self.pad) and self.pad in item

    def digits_of_prefix(self, prefix: str) -> Rows:
        """Return the places of the prefix's characters; raises as that of all domains."""
        places = [self.characters.find(character) for character in prefix]
        if len(prefix) > self.length or min(places, default=0) < 0 or len(self.characters) > 256:
            raise ValueError(f"no item of {self.length} characters begins with {prefix!r}")
        return np.array(places, np.uint8)

    def prefix_of(self, row: Rows) -> str:
        """Return the characters of some digits, without the pad."""
        text = "".join(self.characters[digit] for digit in row.tolist())
        return text.rstrip(self.pad) if self.pad else text

    @property
    def _base(self) -> int:
        return len(self.characters)

    @property
    def _length(self) -> int:
        return self.length

    @property
    def _filler(self) -> int:
        return self.characters.index(self.pad)  # of no pad, which is empty: 0

    def _digits(self, items: Sequence[str]) -> NDArray[np.uint64]:
        filler = self.characters[self._filler]
        text = "".join(item.ljust(self._width, filler) for item in items)
        points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
        known = np.array([ord(character) for character in self.characters], dtype=np.uint32)
        order = np.argsort(known)
        return order[np.searchsorted(known[order], points)].astype(np.uint64)

    def _item(self, digits: NDArray[Any]) -> str:
        text = "".join(self.characters[digit] for digit in digits)
        if self.pad:
            return text.rstrip(self.pad)
        if text[self.length :].strip(self.characters[0]):
            raise ValueError("the last group is not filled up as an item's is")
        return text[: self.length]


class Utf8(Digits):
    """Any text of at most `max_bytes` bytes of UTF-8, without NUL, which fills up."""

    kind: Literal["utf8"] = "utf8"
    max_bytes: int = Field(ge=1, le=1024)

    @property
    def chunks(self) -> int:
        """Return how many integers an item becomes."""
        return -(-self.max_bytes // 3)

    def __contains__(self, item: str) -> bool:
        """Return whether `item` has a key."""
        try:
            size = len(item.encode())
        except UnicodeEncodeError:  # half of a surrogate pair
            return False
        return size <= self.max_bytes and "\0" not in item

    def cut(self, item: str) -> str | None:
        """Return the characters that are whole within `max_bytes`; None if that is no item."""
        try:
            head = item.encode()[: self.max_bytes].decode(errors="ignore")
        except UnicodeEncodeError:  # half of a surrogate pair
            return None
        return head if head in self else None

    def digits_of_prefix(self, prefix: str) -> Rows:
        """Return the prefix's bytes; raises as that of all domains."""
        if prefix not in self:
            raise ValueError(f"no item of {self.max_bytes} bytes begins with {prefix!r}")
        return np.frombuffer(prefix.encode(), np.uint8)

    def prefix_of(self, row: Rows) -> str:
        """Return the text that some bytes begin; what is no whole character is replaced."""
        return row.tobytes().rstrip(b"\0").decode(errors="replace")

    @property
    def _base(self) -> int:
        return 256

    @property
    def _length(self) -> int:
        return self.max_bytes

    @property
    def _filler(self) -> int:
        return 0

    @property
    def values(self) -> int:
        """Return how many integers stand for keys: no UTF-8 begins with a byte above 244."""
        return int(245 * 256 ** (self.max_bytes - 1))

    def _digits(self, items: Sequence[str]) -> NDArray[np.uint64]:
        raw = b"".join(item.encode().ljust(self._width, b"\0") for item in items)
        return np.frombuffer(raw, dtype=np.uint8).astype(np.uint64)

    def _item(self, digits: NDArray[Any]) -> str:
        return digits.astype(np.uint8).tobytes().rstrip(b"\0").decode()


class Listed(ItemSpace):
    """A dictionary: the `items` and no others, each with its place for a key.

    The list is part of every plan, so each device receives it.
    """

    kind: Literal["listed"] = "listed"
    items: tuple[Text, ...] = Field(min_length=2, max_length=2**20, repr=False)

    @model_validator(mode="after")
    def _is_a_set(self) -> Self:
        if len(self._places) != len(self.items):
            raise ValueError("an item stands twice in the list")
        return self

    @cached_property
    def _places(self) -> dict[str, int]:
        return {item: place for place, item in enumerate(self.items)}

    @property
    def chunks(self) -> int:
        """Return 1."""
        return 1

    @property
    def bound(self) -> int:
        """Return the number of items."""
        return len(self.items)

    def __contains__(self, item: str) -> bool:
        """Return whether `item` is in the list."""
        return item in self._places

    def name(self, item: str) -> str:
        """Return `item`."""
        return item

    def keys_of(self, names: Sequence[str]) -> Keys:
        """Return the places of these items; ValueError if one is not in the list."""
        unknown = [name for name in names if name not in self]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is not in the list")
        return np.array([self._places[name] for name in names], np.uint64).reshape(-1, 1)

    def decode(self, keys: Keys) -> list[str | None]:
        """Return the item of each key; None for a key that no item has."""
        return [self.items[key] if key < self.bound else None for key in keys[:, 0].tolist()]


Domain: TypeAlias = Annotated[
    Alphabet | Utf8 | Hashed | Listed | Interval, Field(discriminator="kind")
]


def strings_of(characters: str, items: Collection[str], length: int | None = None) -> Alphabet:
    """Return the domain of strings of `characters`, up to `length`, or to the longest of `items`.

    Items of other characters do not count. They are filled up where they are not all as long.

    Raises:
        ValueError: if a character stands twice, or there are none, or the length is out of range.
    """
    fitting = [item for item in items if set(item) <= set(characters)]
    longest = length or max(map(len, fitting), default=1)
    pad = "\0" if any(len(item) < longest for item in fitting) else ""
    return Alphabet(characters=pad + characters, length=longest, pad=pad)


def cheapest_domain(items: Collection[str]) -> Alphabet | Utf8:
    """Return the domain with the shortest keys that holds all `items`.

    Only for data that is public anyway, as in a simulation: the domain of a real study is
    chosen before anybody's items are seen.

    Raises:
        ValueError: if there are no items, or no domain holds them all.
    """
    if not items:
        raise ValueError("no items, so no domain")
    candidates: list[Alphabet | Utf8] = []
    longest = max(len(item.encode()) for item in items)
    if longest <= 1024 and not any("\0" in item for item in items):
        candidates.append(Utf8(max_bytes=max(1, longest)))
    characters = "".join(sorted(set().union(*items)))
    lengths = {len(item) for item in items}
    pad = "" if len(lengths) == 1 else "\0"
    if "\0" not in characters and len(characters) <= 256 and 0 < max(lengths) <= 256:
        padded = pad + characters if len(characters) > 1 or pad else characters + "\0"
        candidates.append(Alphabet(characters=padded, length=max(lengths), pad=pad))
    if not candidates:
        raise ValueError("an item holds a NUL character or is longer than 1,024 bytes")
    return min(candidates, key=lambda domain: domain.bits)
