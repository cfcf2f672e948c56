"""Base class of domains: items have keys of a fixed number of chunks, and keys have items.

Where a key must be a single integer, this is its *value*.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from protocol.arrays import ItemValues, Keys
from protocol.model import PublicModel


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

    def name(self, item: str) -> str:
        """Return the name of `item` in a sum and its answers: by default the item itself."""
        return item

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
