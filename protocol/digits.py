"""Domains whose keys are their items: digits to a base, some of them to a chunk."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from protocol.item_space import ItemSpace, Keys, Values

Rows: TypeAlias = NDArray[np.uint8]  # digits: the last axis is of them, first to last
_MOST_BASE = 256


class Digits(ItemSpace):
    """Items that are rows of digits below `_base`, and stand for themselves."""

    @property
    @abstractmethod
    def _base(self) -> int:
        """Return what every digit stays below."""

    @property
    @abstractmethod
    def _length(self) -> int:
        """Return the digits of the longest item."""

    @property
    @abstractmethod
    def _filler(self) -> int:
        """Return the digit that fills up the last chunk, beyond `_length`."""

    @abstractmethod
    def _digits(self, items: Sequence[str]) -> NDArray[np.uint64]:
        """Return each item's digits, first to last, filled up to whole chunks."""

    @abstractmethod
    def _item(self, digits: NDArray[Any]) -> str:
        """Return the item of a row of digits; ValueError if none has it."""

    @property
    def base(self) -> int:
        """Return how many digits there are."""
        return self._base

    @property
    def width(self) -> int:
        """Return the digits of every item, those that fill up shorter ones included."""
        return self._length

    @property
    def terminator(self) -> int | None:
        """Return the digit that fills up shorter items and ends them; None if all are as long."""
        return self._filler

    def rows_of(self, items: Sequence[str]) -> Rows:
        """Return the digits of each item, `(len(items), width)`; the base is 256 at most.

        Raises:
            ValueError: if an item is outside the domain, or the base is above 256.
        """
        if self._base > _MOST_BASE:
            raise ValueError(
                f"digits to a base of {_MOST_BASE} at most make rows, not {self._base}"
            )
        for item in items:
            if item not in self:
                raise ValueError(f"{item!r} is outside the domain of kind {self.kind}")
        if not items:
            return np.zeros((0, self._length), np.uint8)
        rows = self._digits(items).reshape(len(items), self._width)[:, : self._length]
        return np.ascontiguousarray(rows, np.uint8)

    def item_of(self, row: Rows) -> str | None:
        """Return the item of `width` digits; None if no item has them."""
        filled = np.full(self._width, self._filler, np.uint8)
        filled[: self._length] = row
        return self._checked(filled)

    def ends_within(self, item: str) -> bool:
        """Return whether the digit that ends items stands inside `item`; here it stands in none."""
        del item
        return False

    @abstractmethod
    def cut(self, item: str) -> str | None:
        """Return `item`, or as much of its beginning as is an item; None if nothing is."""

    def digits_of_prefix(self, prefix: str) -> Rows:
        """Return the digits that all items have which begin with the text `prefix`.

        Raises:
            ValueError: if no item can, or items are no text.
        """
        what = f"items of kind {self.kind} have no beginnings as {prefix!r}: ask for a range"
        raise ValueError(what)

    def prefix_of(self, row: Rows) -> str:
        """Return what the first digits of some items say, as text for people."""
        return f"{row.tobytes().hex()}..."

    @property
    def bound(self) -> int:
        """Return the number that every chunk stays below."""
        return int(self._base**self._digits_per_chunk)

    @property
    def _digits_per_chunk(self) -> int:
        return -(-self._length // self.chunks)

    @property
    def _width(self) -> int:
        """Return the digits of all chunks."""
        return self.chunks * self._digits_per_chunk

    def name(self, item: str) -> str:
        """Return `item`."""
        return item

    def keys_of(self, names: Sequence[str]) -> Keys:
        """Return the keys of these items, all within the domain."""
        if not names:
            return np.zeros((0, self.chunks), dtype=np.uint64)
        digits = self._digits(names).reshape(len(names), self.chunks, -1)
        keys = np.zeros(digits.shape[:2], dtype=np.uint64)
        for column in range(digits.shape[2]):
            keys = keys * np.uint64(self._base) + digits[:, :, column]
        return keys

    def decode(self, keys: Keys) -> list[str | None]:
        """Return the item of each key; None for a key that no item has."""
        digits, rest = self._split(keys, self._digits_per_chunk)
        fits = (rest == 0).all(axis=1).tolist()
        rows = digits.reshape(len(keys), self._width)
        return [self._checked(row) if fit else None for row, fit in zip(rows, fits, strict=True)]

    @property
    def values(self) -> int:
        """Return how many rows of digits there are; what fills up the last chunk is left out."""
        return int(self._base**self._length)

    def values_of(self, items: Sequence[str]) -> Values:
        """Return each item's digits as one integer; raises as that of all domains."""
        digits, _ = self._split(self.encode(items), self._digits_per_chunk)
        rows = digits.reshape(len(items), self._width)[:, : self._length]
        values: Values = np.zeros(len(items), np.uint64)
        for column in rows.T:
            values = values * np.uint64(self._base) + column
        return values

    def names_of(self, values: Values) -> list[str | None]:
        """Return the item of each integer; None for one that is no item's."""
        digits, rest = self._split(values, self._length)
        rows = np.full((len(values), self._width), self._filler, np.uint64)
        rows[:, : self._length] = digits
        fits = (rest == 0).tolist()
        return [self._checked(row) if fit else None for row, fit in zip(rows, fits, strict=True)]

    def _split(
        self, numbers: NDArray[np.uint64], count: int
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Return `count` digits of each number, first to last, and what is above them."""
        digits, rest = np.zeros((*numbers.shape, count), np.uint64), numbers
        for column in reversed(range(count)):
            rest, digits[..., column] = np.divmod(rest, np.uint64(self._base))
        return digits, rest

    def _checked(self, digits: NDArray[Any]) -> str | None:
        try:
            item = self._item(digits)
        except ValueError:
            return None
        return item if item in self else None
