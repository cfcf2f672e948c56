"""Domains of strings and of listed items, whose keys are one-to-one.

A sketch adds keys in a prime field, so an item becomes `chunks` integers, each below
`bound`, and a sketch has one field element for each. The map is one-to-one: an item is
read from the sum itself, whole, in one round, without a dictionary and without a second round to
look up a hash. The cost is linear in the length of the longest item. Hashed keys
(`hashed.py`), whose items are fetched later, cost the same for any length.

An item outside the domain has no number. A device leaves such items out before it counts
(`item in domain`), so that they take no room under its contribution bound.

Source: the finite domain [d] of [Gascon23, section 2]; chunks are ours.
"""

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from protocol.domains.base import BaseDomain, Digits
from protocol.numerics.array_types import DigitRows, Keys
from protocol.public_model import Rows, Text, invalid


class Alphabet(Digits):
    """Strings of `length` of the `characters`; up to `length` if one of them is the `pad`.

    The pad follows shorter items, so an item may not end in it, which keeps the map one-to-one.
    Without a pad every item has exactly `length` characters.
    """

    kind: Literal["alphabet"] = "alphabet"
    characters: str = Field(min_length=2, max_length=4096)
    length: int = Field(ge=1, le=256)  # at most 1,024 bytes, as of utf8
    pad: str = Field(default="", max_length=1)

    @model_validator(mode="after")
    def _is_a_set(self) -> Self:
        faults = []
        if len(set(self.characters)) != len(self.characters):
            faults.append("a character occurs twice in the alphabet")
        if self.pad not in self.characters:
            faults.append(f"the pad {self.pad!r} is not one of the characters")
        if faults:
            raise invalid(faults)
        return self

    def __contains__(self, item: str) -> bool:
        if self.pad:
            fits = len(item) <= self.length and not item.endswith(self.pad)
        else:
            fits = len(item) == self.length
        return fits and self._character_set.issuperset(item)

    @cached_property
    def _character_set(self) -> frozenset[str]:
        return frozenset(self.characters)

    @property
    def terminator(self) -> int | None:
        return self._pad_digit if self.pad else None

    def truncate(self, item: str) -> str | None:
        head = item[: self.length]
        return head if head in self else None

    def contains_terminator(self, item: str) -> bool:
        return bool(self.pad) and self.pad in item

    def digits_of_prefix(self, prefix: str) -> DigitRows:
        digits = [self.characters.find(character) for character in prefix]
        if len(prefix) > self.length or min(digits, default=0) < 0 or len(self.characters) > 256:
            raise ValueError(f"no item of {self.length} characters begins with {prefix!r}")
        return np.array(digits, np.uint8)

    @property
    def base(self) -> int:
        return len(self.characters)

    @property
    def width(self) -> int:
        return self.length

    @property
    def _pad_digit(self) -> int:
        return self.characters.index(self.pad)  # 0 without a pad, which is the empty string

    def _digits(self, items: Sequence[str]) -> NDArray[np.uint64]:
        filler, width = self.characters[self._pad_digit], self._width
        text = "".join(item.ljust(width, filler) for item in items)
        points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
        known = np.array([ord(character) for character in self.characters], dtype=np.uint32)
        order = np.argsort(known)
        return order[np.searchsorted(known[order], points)].astype(np.uint64)

    def _item(self, digits: NDArray[Any]) -> str:
        text = "".join(self.characters[digit] for digit in digits)
        if self.pad:
            return text.rstrip(self.pad)
        if text[self.length :].strip(self.characters[0]):
            raise ValueError("the last group is not padded as that of an item")
        return text[: self.length]


class Utf8(Digits):
    """Text of at most `max_bytes` bytes of UTF-8, without NUL, which is the padding."""

    base: ClassVar[int] = 256
    _pad_digit: ClassVar[int] = 0
    kind: Literal["utf8"] = "utf8"
    max_bytes: int = Field(ge=1, le=1024)

    def __contains__(self, item: str) -> bool:
        try:
            size = len(item.encode())
        except UnicodeEncodeError:  # half of a surrogate pair
            return False
        return size <= self.max_bytes and "\0" not in item

    def truncate(self, item: str) -> str | None:
        try:
            head = item.encode()[: self.max_bytes].decode(errors="ignore")
        except UnicodeEncodeError:  # half of a surrogate pair
            return None
        return head if head in self else None

    def digits_of_prefix(self, prefix: str) -> DigitRows:
        if prefix not in self:
            raise ValueError(f"no item of {self.max_bytes} bytes begins with {prefix!r}")
        return np.frombuffer(prefix.encode(), np.uint8)

    @property
    def width(self) -> int:
        return self.max_bytes

    @property
    def value_count(self) -> int:
        return int(245 * 256 ** (self.max_bytes - 1))

    def _digits(self, items: Sequence[str]) -> NDArray[np.uint64]:
        width = self._width
        raw = b"".join(item.encode().ljust(width, b"\0") for item in items)
        return np.frombuffer(raw, dtype=np.uint8).astype(np.uint64)

    def _item(self, digits: NDArray[Any]) -> str:
        return digits.astype(np.uint8).tobytes().rstrip(b"\0").decode()


class Listed(BaseDomain):
    """A dictionary: the listed `items`; the key of an item is its position.

    The list is part of every plan, so each device receives it.
    """

    chunks: ClassVar[int] = 1
    kind: Literal["listed"] = "listed"
    items: Rows[Text] = Field(min_length=2, max_length=2**20, repr=False)

    @model_validator(mode="after")
    def _is_a_set(self) -> Self:
        if len(self._positions) != len(self.items):
            raise ValueError("an item occurs twice in the list")
        return self

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {item: position for position, item in enumerate(self.items)}

    @property
    def bound(self) -> int:
        return len(self.items)

    def __contains__(self, item: str) -> bool:
        return item in self._positions

    def keys_of(self, names: Sequence[str]) -> Keys:
        unknown = [name for name in names if name not in self]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is not in the list")
        return np.array([self._positions[name] for name in names], np.uint64).reshape(-1, 1)

    def decode(self, keys: Keys) -> list[str | None]:
        return [self.items[key] if key < self.bound else None for key in keys[:, 0].tolist()]


def alphabet_of(characters: str, items: Collection[str], length: int | None = None) -> Alphabet:
    """Return the domain of strings of `characters`, up to `length`, or to the longest of `items`.

    Items with other characters are ignored. Items of different lengths are padded.
    """
    fitting = [item for item in items if set(item) <= set(characters)]
    longest = length or max(map(len, fitting), default=1)
    pad = "\0" if any(len(item) < longest for item in fitting) else ""
    return Alphabet(characters=pad + characters, length=longest, pad=pad)


def smallest_domain(items: Collection[str]) -> Alphabet | Utf8:
    """Return the domain with the shortest keys that contains all `items`; ValueError if none does.

    Only for public data, as in a simulation: the domain of a real study is chosen without the
    items of any device.
    """
    if not items:
        raise ValueError("items are empty: a domain needs one or more")
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
        raise ValueError("an item contains a NUL character or is longer than 1,024 bytes")
    return min(candidates, key=lambda domain: domain.key_bit_count)
