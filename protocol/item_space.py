"""What all domains share: items have keys of a fixed number of chunks, and keys have items.

Where a key must be a single integer, it is its *value*.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from protocol.public import Public

Keys: TypeAlias = NDArray[np.uint64]  # shape (items, chunks)
Values: TypeAlias = NDArray[np.uint64]  # shape (items,)


class ItemSpace(Public, ABC):
    """What the domains share: `item in domain`, and the shape of a key."""

    kind: str

    @property
    @abstractmethod
    def chunks(self) -> int:
        """Return how many integers an item becomes."""

    @property
    @abstractmethod
    def bound(self) -> int:
        """Return the number that every chunk stays below."""

    @abstractmethod
    def __contains__(self, item: str) -> bool:
        """Return whether `item` has a key."""

    def admit(self, item: str) -> str | None:
        """Return what a device counts of `item`: itself, or None if it is outside the domain.

        Of items that the domain does not tell apart, it is one.
        """
        return item if item in self else None

    @property
    def bits(self) -> int:
        """Return the bits of a key as fields of the fewest bits would hold it."""
        return self.chunks * self.bound.bit_length()

    @abstractmethod
    def name(self, item: str) -> str:
        """Return what stands for `item` in a sum and its answers.

        Itself, unless it is hashed or a number.
        """

    @abstractmethod
    def keys_of(self, names: Sequence[str]) -> Keys:
        """Return the keys of what goes by these names; ValueError if one is no name."""

    @abstractmethod
    def decode(self, keys: Keys) -> list[str | None]:
        """Return the name of each key; None for a key that no item has."""

    @property
    def values(self) -> int:
        """Return how many integers stand for keys, one each; some may have no item."""
        return int(self.bound**self.chunks)

    def values_of(self, items: Sequence[str]) -> Values:
        """Return the integer of each item, shape `(len(items),)`; `values` is 2^64 at most.

        Raises:
            ValueError: if an item is outside the domain; names it.
        """
        numbers: Values = np.zeros(len(items), np.uint64)
        for chunk in self.encode(items).T:
            numbers = numbers * np.uint64(self.bound) + chunk
        return numbers

    def names_of(self, values: Values) -> list[str | None]:
        """Return the name of each integer; None for one that is no item's."""
        keys, rest = np.empty((len(values), self.chunks), np.uint64), values
        for chunk in reversed(range(self.chunks)):
            rest, keys[:, chunk] = np.divmod(rest, np.uint64(self.bound))
        names = self.decode(keys)
        return [None if over else name for name, over in zip(names, rest > 0, strict=True)]

    def encode(self, items: Sequence[str]) -> Keys:
        """Return the keys of `items`, shape `(len(items), chunks)`.

        Raises:
            ValueError: if an item is outside the domain; names it.
        """
        for item in items:
            if item not in self:
                raise ValueError(f"{item!r} is outside the domain of kind {self.kind}")
        return self.keys_of([self.name(item) for item in items])
