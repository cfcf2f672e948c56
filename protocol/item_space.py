"""What all domains share: items have keys of a fixed number of chunks, and keys have items."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from protocol.public import Public

Keys: TypeAlias = NDArray[np.uint64]  # shape (items, chunks)


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

    @abstractmethod
    def _digits(self, items: Sequence[str]) -> NDArray[np.uint64]:
        """Return each item's digits, first to last, filled up to whole chunks."""

    @abstractmethod
    def _item(self, digits: NDArray[Any]) -> str:
        """Return the item of a row of digits; ValueError if none has it."""

    @property
    @abstractmethod
    def _base(self) -> int:
        """Return what every digit stays below."""

    @property
    def bits(self) -> int:
        """Return the bits of a key as fields of the fewest bits would hold it."""
        return self.chunks * self.bound.bit_length()

    def name(self, item: str) -> str:
        """Return what stands for `item` in a sum and its answers: itself, unless it is hashed."""
        return item

    def keys_of(self, names: Sequence[str]) -> Keys:
        """Return the keys of what goes by these names."""
        return self.encode(names)

    def encode(self, items: Sequence[str]) -> Keys:
        """Return the keys of `items`, shape `(len(items), chunks)`.

        Raises:
            ValueError: if an item is outside the domain; names it.
        """
        for item in items:
            if item not in self:
                raise ValueError(f"{item!r} is outside the domain of kind {self.kind}")
        if not items:
            return np.zeros((0, self.chunks), dtype=np.uint64)
        digits = self._digits(items).reshape(len(items), self.chunks, -1)
        keys = np.zeros(digits.shape[:2], dtype=np.uint64)
        for column in range(digits.shape[2]):
            keys = keys * np.uint64(self._base) + digits[:, :, column]
        return keys

    def decode(self, keys: Keys) -> list[str | None]:
        """Return the item of each key; None for a key that no item has."""
        group = self._digits_per_chunk
        digits = np.zeros((*keys.shape, group), dtype=np.uint64)
        rest = keys.copy()
        for column in reversed(range(group)):
            rest, digits[:, :, column] = np.divmod(rest, np.uint64(self._base))
        fits = (rest == 0).all(axis=1).tolist()
        rows = digits.reshape(len(keys), self.chunks * group)
        return [self._checked(row) if fit else None for row, fit in zip(rows, fits, strict=True)]

    @property
    @abstractmethod
    def _digits_per_chunk(self) -> int:
        """Return how many digits make a chunk."""

    def _checked(self, digits: NDArray[Any]) -> str | None:
        try:
            item = self._item(digits)
        except ValueError:
            return None
        return item if item in self else None
