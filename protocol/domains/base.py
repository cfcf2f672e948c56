"""Base classes of domains: items have keys of a fixed number of chunks, and keys have items.

Where a key must be a single integer, this is its *value*. Many domains write an item as a row of
digits, and group them into chunks (`Digits`).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, StringConstraints

from protocol.numerics.array_types import DigitRows, ItemValues, Keys
from protocol.printable import check_name
from protocol.public_model import PublicModel, Rows

SEGMENT_SEPARATOR = ":"  # no segment contains it, so the first one of an item ends its segment
MAX_SEGMENTS = 4096
Segment: TypeAlias = Annotated[
    str,
    StringConstraints(min_length=1, max_length=64, pattern=r"^[^:\x00-\x1f]+$"),
    AfterValidator(check_name),
]
_MAX_BASE = 256
CHUNK_LIMIT = 2**24  # leaves a sketch 7 bits of 31 for a hash


def _check_distinct(segments: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(segments)) != len(segments):
        raise ValueError("a segment occurs twice in the list")
    return segments


Segments: TypeAlias = Annotated[
    Rows[Segment],
    Field(min_length=2, max_length=MAX_SEGMENTS, repr=False),
    AfterValidator(_check_distinct),
]


class BaseDomain(PublicModel, ABC):
    """Base of all domains: membership of items, and the shape of keys."""

    kind: str

    @property
    @abstractmethod
    def chunks(self) -> int:
        """Return the number of integers of a key."""

    @property
    @abstractmethod
    def bound(self) -> int:
        """Return the bound that every chunk stays below."""

    @abstractmethod
    def __contains__(self, item: str) -> bool:
        """Return whether `item` has a key."""

    def canonical(self, item: str) -> str | None:
        """Return the item that a device counts for `item`, None if it is outside the domain."""
        return item if item in self else None

    @property
    def key_bit_count(self) -> int:
        """Return the bits of a key in fields of the smallest size."""
        return self.chunks * self.bound.bit_length()

    def segment_of(self, name: str) -> str | None:
        """Return the segment of an item or of its name; None if the domain has no segments."""
        del name
        return None

    def name(self, item: str) -> str:
        """Return the name of `item` in a sum and its answers: by default the item itself."""
        return item

    def is_key(self, name: str) -> bool:
        """Return whether `name` is the name of a key, of an item whose string is not known."""
        del name
        return False

    @abstractmethod
    def keys_of(self, names: Sequence[str]) -> Keys:
        """Return the keys of these names; ValueError if one is not a name."""

    @abstractmethod
    def decode(self, keys: Keys) -> list[str | None]:
        """Return the name of each key; None for a key that no item has."""

    @property
    def value_count(self) -> int:
        """Return the number of integers that are values of keys; some may have no item."""
        return int(self.bound**self.chunks)

    def values_of(self, items: Sequence[str]) -> ItemValues:
        """Return the integer of each item, shape `(len(items),)`; `value_count` is at most 2^64."""
        numbers: ItemValues = np.zeros(len(items), np.uint64)
        for chunk in self.encode(items).T:
            numbers = numbers * np.uint64(self.bound) + chunk
        return numbers

    def names_of(self, values: ItemValues) -> list[str | None]:
        """Return the name of each integer; None if no item has it."""
        keys, rest = np.empty((len(values), self.chunks), np.uint64), values
        for chunk in reversed(range(self.chunks)):
            rest, keys[:, chunk] = np.divmod(rest, np.uint64(self.bound))
        names = self.decode(keys)
        return [
            None if is_too_large else name
            for name, is_too_large in zip(names, rest > 0, strict=True)
        ]

    def encode(self, items: Sequence[str]) -> Keys:
        """Return the keys of `items`, shape `(len(items), chunks)`; ValueError for one outside."""
        for item in items:
            if item not in self:
                raise ValueError(f"{item!r} is outside the domain of kind {self.kind}")
        return self.keys_of([self.name(item) for item in items])


class Digits(BaseDomain):
    """Items that are rows of digits below `base`; an item is its own name."""

    @property
    @abstractmethod
    def base(self) -> int:
        """Return the number of different digits."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Return the number of digits of every item, with the padding of shorter ones."""

    @property
    @abstractmethod
    def _pad_digit(self) -> int:
        """Return the digit that pads the last chunk, beyond `width`."""

    @abstractmethod
    def _digits(self, items: Sequence[str]) -> NDArray[np.uint64]:
        """Return the digits of each item, first to last, padded to whole chunks."""

    @abstractmethod
    def _item(self, digits: NDArray[Any]) -> str:
        """Return the item of a row of digits; ValueError if none has it."""

    @property
    def terminator(self) -> int | None:
        """Return the digit that ends and pads shorter items; None if all have the same length."""
        return self._pad_digit

    def digits_of(self, items: Sequence[str]) -> DigitRows:
        """Return the digits of each item, `(len(items), width)`; the base is at most 256.

        Raises ValueError if an item is outside the domain.
        """
        if self.base > _MAX_BASE:
            raise ValueError(f"rows of digits need a base of at most {_MAX_BASE}, not {self.base}")
        for item in items:
            if item not in self:
                raise ValueError(f"{item!r} is outside the domain of kind {self.kind}")
        if not items:
            return np.zeros((0, self.width), np.uint8)
        rows = self._digits(items).reshape(len(items), self._width)[:, : self.width]
        return np.ascontiguousarray(rows, np.uint8)

    def item_of(self, row: DigitRows) -> str | None:
        """Return the item of `width` digits; None if no item has them."""
        digits = np.full(self._width, self._pad_digit, np.uint8)
        digits[: self.width] = row
        return self._item_or_none(digits)

    def contains_terminator(self, item: str) -> bool:
        """Return whether `item` contains the digit that ends items; False by default."""
        del item
        return False

    @abstractmethod
    def truncate(self, item: str) -> str | None:
        """Return `item`, or the longest part of its beginning that is an item; None if none is."""

    def digits_of_prefix(self, prefix: str) -> DigitRows:
        """Return the common digits of all items that begin with the text `prefix`.

        Raises ValueError if no item can begin with it, or items are not text.
        """
        message = f"items of kind {self.kind} have no prefix {prefix!r}: ask for a range"
        raise ValueError(message)

    @property
    def chunks(self) -> int:
        digits = 1
        while self.base ** (digits + 1) <= CHUNK_LIMIT:
            digits += 1
        return -(-self.width // digits)

    @property
    def bound(self) -> int:
        return int(self.base**self._digits_per_chunk)

    @property
    def _digits_per_chunk(self) -> int:
        return -(-self.width // self.chunks)

    @property
    def _width(self) -> int:
        """Return the number of digits of all chunks."""
        return self.chunks * self._digits_per_chunk

    def keys_of(self, names: Sequence[str]) -> Keys:
        if not names:
            return np.zeros((0, self.chunks), dtype=np.uint64)
        digits = self._digits(names).reshape(len(names), self.chunks, -1)
        keys = np.zeros(digits.shape[:2], dtype=np.uint64)
        for column in range(digits.shape[2]):
            keys = keys * np.uint64(self.base) + digits[:, :, column]
        return keys

    def decode(self, keys: Keys) -> list[str | None]:
        digits, rest = self._split(keys, self._digits_per_chunk)
        fits = (rest == 0).all(axis=1).tolist()
        rows = digits.reshape(len(keys), self._width)
        return [
            self._item_or_none(row) if fit else None for row, fit in zip(rows, fits, strict=True)
        ]

    @property
    def value_count(self) -> int:
        return int(self.base**self.width)

    def values_of(self, items: Sequence[str]) -> ItemValues:
        digits, _ = self._split(self.encode(items), self._digits_per_chunk)
        rows = digits.reshape(len(items), self._width)[:, : self.width]
        values: ItemValues = np.zeros(len(items), np.uint64)
        for column in rows.T:
            values = values * np.uint64(self.base) + column
        return values

    def names_of(self, values: ItemValues) -> list[str | None]:
        digits, rest = self._split(values, self.width)
        rows = np.full((len(values), self._width), self._pad_digit, np.uint64)
        rows[:, : self.width] = digits
        fits = (rest == 0).tolist()
        return [
            self._item_or_none(row) if fit else None for row, fit in zip(rows, fits, strict=True)
        ]

    def _split(
        self, numbers: NDArray[np.uint64], count: int
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Return `count` digits of each number, first to last, and the rest above them."""
        digits, rest = np.zeros((*numbers.shape, count), np.uint64), numbers
        for column in reversed(range(count)):
            rest, digits[..., column] = np.divmod(rest, np.uint64(self.base))
        return digits, rest

    def _item_or_none(self, digits: NDArray[Any]) -> str | None:
        try:
            item = self._item(digits)
        except ValueError:
            return None
        return item if item in self else None


def segments_of(domain: BaseDomain) -> tuple[str, ...]:
    """Return the segments of `domain` in the order of its list; empty if it has none."""
    segments: tuple[str, ...] = getattr(domain, "segments", ())
    return segments
