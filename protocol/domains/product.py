"""Domain of pairs of a segment and an item, such as a region and a word, with one-to-one keys.

`HashedProduct` (`hashed.py`) is that of hashed keys.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from protocol.domains.base import CHUNK_LIMIT, SEGMENT_SEPARATOR, BaseDomain, Segments
from protocol.domains.numeric import NumericInterval
from protocol.domains.strings import Alphabet, Utf8
from protocol.numerics.array_types import ItemValues, Keys


class Product(BaseDomain):
    """Pairs of a public segment and an item of the `inner` domain, written "segment:item".

    The position of the segment is a digit of the key, before those of the item: in the first chunk
    of the key where it fits, and otherwise in its own chunk. An item may contain the separator.
    """

    kind: Literal["product"] = "product"
    segments: Segments
    inner: Annotated[Alphabet | Utf8 | NumericInterval, Field(discriminator="kind")]

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {segment: position for position, segment in enumerate(self.segments)}

    @property
    def _shares_chunk(self) -> bool:
        return len(self.segments) * self.inner.bound <= CHUNK_LIMIT

    @property
    def chunks(self) -> int:
        return self.inner.chunks + (not self._shares_chunk)

    @property
    def bound(self) -> int:
        inner = self.inner.bound
        return len(self.segments) * inner if self._shares_chunk else max(inner, len(self.segments))

    def __contains__(self, item: str) -> bool:
        segment, separator, rest = item.partition(SEGMENT_SEPARATOR)
        return bool(separator) and segment in self._positions and rest in self.inner

    def canonical(self, item: str) -> str | None:
        return self.name(item) if item in self else None

    def name(self, item: str) -> str:
        segment, separator, rest = item.partition(SEGMENT_SEPARATOR)
        return segment + separator + self.inner.name(rest)

    def segment_of(self, name: str) -> str | None:
        return name.partition(SEGMENT_SEPARATOR)[0]

    def keys_of(self, names: Sequence[str]) -> Keys:
        segments, rest = self._split(names)
        inner = self.inner.keys_of(rest)
        if not self._shares_chunk:
            return np.column_stack([segments, inner])
        inner[:, 0] += segments * np.uint64(self.inner.bound)
        return inner

    def decode(self, keys: Keys) -> list[str | None]:
        if self._shares_chunk:
            segments, first = np.divmod(keys[:, 0], np.uint64(self.inner.bound))
            return self._join(segments, self.inner.decode(np.column_stack([first, keys[:, 1:]])))
        return self._join(keys[:, 0], self.inner.decode(keys[:, 1:]))

    @property
    def inner_values(self) -> int:
        """Return the number of values per segment: value v of segment s is s inner_values + v."""
        return int(self.inner.base**self.inner.width)

    @property
    def value_count(self) -> int:
        return len(self.segments) * self.inner_values

    def values_of(self, items: Sequence[str]) -> ItemValues:
        self.encode(items)  # raises the error of an item outside
        segments, rest = self._split(items)
        return segments * np.uint64(self.inner_values) + self.inner.values_of(rest)

    def names_of(self, values: ItemValues) -> list[str | None]:
        segments, rest = np.divmod(values, np.uint64(self.inner_values))
        return self._join(segments, self.inner.names_of(rest))

    def _split(self, items: Sequence[str]) -> tuple[NDArray[np.uint64], list[str]]:
        pairs = [item.partition(SEGMENT_SEPARATOR) for item in items]
        segments = np.array([self._positions[segment] for segment, _, _ in pairs], np.uint64)
        return segments, [rest for _, _, rest in pairs]

    def _join(self, segments: NDArray[np.uint64], rest: Sequence[str | None]) -> list[str | None]:
        return [
            None
            if name is None or segment >= len(self.segments)
            else self.segments[segment] + SEGMENT_SEPARATOR + name
            for segment, name in zip(segments.tolist(), rest, strict=True)
        ]
