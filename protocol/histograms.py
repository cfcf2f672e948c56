"""Histograms of many devices as arrays, which encode a million devices in tenths of a second.

A *holding* is one item of one device, with its count. All holdings are in one sequence, in the
order of devices and, within a device, of its items; each has the index of its item in one list of
items. So a function of an item, such as its key, is computed once for all devices and batches, and
holdings are processed by a few operations on whole arrays.

Fleets are processed in batches of some 2^16 holdings, so that memory does not grow with the fleet.
Mechanisms take histograms together with the keys of their items (`KeyedHistograms`).
"""

from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from protocol.domains import Domain
from protocol.numerics.array_types import Flags, Indices, ItemValues, Keys
from protocol.randomness import RandomWords, uniform_integer

_MAX_TOTAL = 2.0**63
BATCH_HOLDINGS = 2**16  # a few arrays of this length fit in the processor's cache

Histogram: TypeAlias = Mapping[str, int]  # items of a device, each with its count, all >= 1
R = TypeVar("R", bound=np.generic)
T = TypeVar("T")


class ItemIndex(Sequence[str]):
    """Distinct items in order, with a cache of functions of all of them, which is not pickled."""

    __slots__ = ("_cache", "_names")

    def __init__(self, items: Iterable[str]) -> None:
        self._names = tuple(sorted(set(items)))
        self._cache: dict[str, tuple[object, Any]] = {}

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[str, ...]: ...
    def __getitem__(self, place: int | slice) -> str | tuple[str, ...]:
        return self._names[place]

    def __reduce__(self) -> tuple[Callable[..., "ItemIndex"], tuple[tuple[str, ...]]]:
        return _unpickle_items, (self._names,)

    @property
    def positions(self) -> dict[str, int]:
        return self.cached(
            "positions", None, lambda: {item: index for index, item in enumerate(self._names)}
        )

    def cached(self, name: str, argument: object, compute: Callable[[], T]) -> T:
        """Return `compute()`, cached under `name` until it is requested for another `argument`."""
        entry = self._cache.get(name)
        if entry is None or not (entry[0] is argument or entry[0] == argument):
            entry = self._cache[name] = argument, compute()
        value: T = entry[1]
        return value


_last_unpickled: ItemIndex | None = None


def _unpickle_items(names: tuple[str, ...]) -> ItemIndex:
    """Return the last unpickled items if they are the same, since these have a cache."""
    global _last_unpickled  # noqa: PLW0603 - one entry, for the process
    items = _last_unpickled
    if items is None or items[:] != names:
        items = _last_unpickled = ItemIndex(names)
    return items


def _rename(
    items: ItemIndex, name_of: Callable[[str], str | None]
) -> tuple[ItemIndex, Indices | None]:
    """Return the items by their names, and the place of each in them, -1 of one without a name.

    The places are None if each item has its own name.
    """
    names = [name_of(item) for item in items]
    removed = [name is None for name in names]
    if not any(removed) and names == list(items):
        return items, None
    if all(name in (None, item) for name, item in zip(names, items, strict=True)):
        return items, np.where(removed, -1, np.arange(len(items)))
    renamed = ItemIndex(name for name in names if name is not None)
    return renamed, np.array([-1 if n is None else renamed.positions[n] for n in names], np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Histograms(Sequence[Mapping[str, int]]):
    """Sequence of histograms, stored as the item indices and counts of all holdings.

    Device d has the holdings from `ends[d - 1]` to before `ends[d]`.
    """

    items: ItemIndex
    item_indices: Indices
    counts: Indices
    ends: Indices

    @classmethod
    def from_mappings(cls, histograms: Iterable[Mapping[str, int]]) -> "Histograms":
        """Return `histograms` as arrays; unchanged if they are already."""
        if isinstance(histograms, Histograms):
            return histograms
        mappings = list(histograms)
        items = ItemIndex(item for histogram in mappings for item in histogram)
        positions = items.positions
        pairs = [(positions[item], counts[item]) for counts in mappings for item in sorted(counts)]
        ends = np.cumsum([len(histogram) for histogram in mappings], dtype=np.int64)
        try:
            item_indices, counts_array = np.array(pairs, np.int64).reshape(-1, 2).T
        except OverflowError:
            raise ValueError("counts must be below 2^63") from None
        return cls(items, item_indices, counts_array, ends)

    @classmethod
    def one_item_each(cls, items: ItemIndex, item_indices: Indices) -> "Histograms":
        """Return devices that hold one item each."""
        devices = len(item_indices)
        return cls(items, item_indices, np.ones(devices, np.int64), np.arange(1, devices + 1))

    @classmethod
    def concatenated(cls, batches: Iterable["Histograms"]) -> "Histograms":
        """Return the devices of several batches that share one `ItemIndex`."""
        parts = list(batches)
        assert all(part.items is parts[0].items for part in parts)  # as in one population
        starts = np.cumsum([0] + [len(part.item_indices) for part in parts])[:-1]
        return cls(
            parts[0].items,
            np.concatenate([part.item_indices for part in parts]),
            np.concatenate([part.counts for part in parts]),
            np.concatenate([part.ends + start for part, start in zip(parts, starts, strict=True)]),
        )

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, device: int) -> dict[str, int]: ...
    @overload
    def __getitem__(self, device: slice) -> "Histograms": ...
    def __getitem__(self, device: int | slice) -> "dict[str, int] | Histograms":
        if isinstance(device, slice):
            return self.take(np.arange(len(self))[device])
        number = range(len(self))[device]
        held = slice(self.ends[number - 1] if number else 0, self.ends[number])
        pairs = zip(self.item_indices[held].tolist(), self.counts[held].tolist(), strict=True)
        return {self.items[index]: count for index, count in pairs}

    def __iter__(self) -> Iterator[dict[str, int]]:
        indices, counts, start = self.item_indices.tolist(), self.counts.tolist(), 0
        for end in self.ends.tolist():
            yield {self.items[indices[at]]: counts[at] for at in range(start, end)}
            start = end

    @property
    def sizes(self) -> Indices:
        return np.diff(self.ends, prepend=0)

    @property
    def devices(self) -> Indices:
        return np.repeat(np.arange(len(self)), self.sizes)

    @property
    def device_totals(self) -> Indices:
        """Return the sum of the counts of each device; all together must be below 2^63."""
        return np.diff(np.append(0, np.cumsum(self.counts))[self.ends], prepend=0)

    def take(self, devices: Indices) -> "Histograms":
        """Return these devices, in this order."""
        sizes = self.sizes[devices]
        ends = np.cumsum(sizes)
        holdings = np.repeat(self.ends[devices] - ends, sizes) + np.arange(sizes.sum())
        return Histograms(self.items, self.item_indices[holdings], self.counts[holdings], ends)

    def with_counts(self, counts: Indices) -> "Histograms":
        """Return the same devices with other `counts`; holdings with a count of 0 are removed."""
        holdings = np.flatnonzero(counts)
        ends = np.append(0, np.cumsum(counts != 0))[self.ends]
        return Histograms(self.items, self.item_indices[holdings], counts[holdings], ends)

    def grouped(self, size: int) -> "Histograms":
        """Return devices that each hold the items of `size` of these, which have one item each."""
        if size == 1:
            return self
        indices = np.sort(self.item_indices.reshape(-1, size), axis=1)
        first = np.ones(indices.shape, np.bool_)
        first[:, 1:] = indices[:, 1:] != indices[:, :-1]
        starts = np.flatnonzero(first)
        counts = np.diff(starts, append=first.size)
        ends = np.cumsum(first.sum(axis=1))
        return Histograms(self.items, indices.reshape(-1)[starts], counts, ends)

    def renamed(self, name_of: Callable[[str], str | None]) -> "Histograms":
        """Return the same devices with each item as `name_of` returns it; None removes the item.

        Items of a device that get the same name are added up.
        """
        items, places = self.items.cached("renamed", name_of, lambda: _rename(self.items, name_of))
        if places is None:
            return self
        kept = self.with_counts(np.where(places[self.item_indices] < 0, 0, self.counts))
        if items is self.items:
            return kept
        numbers = kept.devices * len(items) + places[kept.item_indices]
        distinct, position = np.unique(numbers, return_inverse=True)
        counts = np.zeros(len(distinct), np.int64)
        np.add.at(counts, position, kept.counts)
        ends = np.searchsorted(distinct, np.arange(1, len(self) + 1) * len(items))
        return Histograms(items, distinct % max(1, len(items)), counts, ends)

    def item_totals(self, amounts: Indices) -> Indices:
        """Return the sum of `amounts`, one per holding, for each item."""
        totals = np.zeros(len(self.items), np.int64)
        holdings = np.flatnonzero(amounts)  # few after sampling
        np.add.at(totals, self.item_indices[holdings], amounts[holdings])
        return totals

    def check(self, contribution: int) -> None:
        """Raise ValueError unless counts are positive and add up to `contribution` per device."""
        if len(self.counts) and self.counts.min() < 1:
            count = int(self.counts.min())
            item = self.items[int(self.item_indices[self.counts.argmin()])]
            raise ValueError(f"counts must be 1 or more, got {count} of {item!r}")
        # Single counts are checked first, so that totals cannot wrap.
        is_any_over = (self.counts > contribution).any()
        totals = self.counts if is_any_over else self.device_totals
        if (totals > contribution).any():
            excess = totals[totals > contribution][0]
            raise ValueError(f"a device contributes at most {contribution} items, got {excess}")


def limit_copies(held: Histograms, most: int) -> tuple[Histograms, int]:
    """Return the devices with at most `most` copies of an item, and the number of others."""
    if held.counts.max(initial=0) <= most:
        return held, 0
    limited = held.with_counts(np.minimum(held.counts, most))
    return limited, int(held.counts.sum(dtype=np.float64) - limited.counts.sum())


def clip(histogram: Mapping[str, int], contribution: int, chance: RandomWords) -> dict[str, int]:
    """Return `contribution` tokens of `histogram`, drawn without replacement, or all if fewer.

    Raises:
        ValueError: if counts add up to 2^63 or more.
    """
    items = sorted(histogram)
    ends = list(accumulate(histogram[item] for item in items))
    total = ends[-1] if ends else 0
    if total <= contribution:
        return dict(histogram)
    if total >= _MAX_TOTAL:
        raise ValueError("counts must add up to less than 2^63")
    tokens = set[int]()
    # This is the algorithm of `_draw_without_replacement` for one device.
    for last in range(total - contribution, total):
        token = uniform_integer(chance, last + 1)
        tokens.add(last if token in tokens else token)
    return dict(Counter(items[bisect(ends, token)] for token in sorted(tokens)))


def clip_histograms(held: Histograms, contribution: int, rng: np.random.Generator) -> Histograms:
    """Return for each device what `clip` may return, with one generator for all.

    Raises:
        ValueError: if counts add up to about 2^63 or more, so that their sums would be negative.
    """
    if held.counts.sum(dtype=np.float64) >= _MAX_TOTAL:
        raise ValueError("counts must add up to less than 2^63")
    totals = held.device_totals
    over = np.flatnonzero(totals > contribution)
    if not len(over):
        return held
    clipped = held.take(over)
    tokens = _draw_without_replacement(totals[over], contribution, rng)
    # Number the tokens holding by holding, over all devices.
    tokens += (np.cumsum(totals[over]) - totals[over])[:, np.newaxis]
    holdings = np.searchsorted(np.cumsum(clipped.counts), tokens.reshape(-1), side="right")
    counts = held.counts.copy()
    is_clipped = (totals > contribution)[held.devices]
    counts[is_clipped] = np.bincount(holdings, minlength=len(clipped.counts))
    return held.with_counts(counts)


def _draw_without_replacement(
    totals: NDArray[np.int64], draws: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return, row by row, `draws` < n different numbers below each n of `totals`.

    Floyd's algorithm [BentleyFloyd87]: step j draws a number from 0 to n - draws + j. If this
    number was selected before, by the draw of an earlier step or as its largest number, step j
    selects its largest number instead.
    """
    steps = np.arange(draws)
    last = (totals - draws)[:, np.newaxis] + steps
    drawn = rng.integers(0, last + 1)
    order = np.argsort(drawn, axis=1, kind="stable")
    row = np.take_along_axis(drawn, order, axis=1)
    again = np.zeros(drawn.shape, np.bool_)
    np.put_along_axis(again, order[:, 1:], row[:, 1:] == row[:, :-1], axis=1)
    earlier = drawn - last[:, :1]
    is_last = (earlier >= 0) & (earlier < steps)
    earlier = np.where(is_last, earlier, 0)
    while True:  # each iteration completes one more step of the longest chain
        more = again | (is_last & np.take_along_axis(again, earlier, axis=1))
        if (more == again).all():
            return np.where(again, last, drawn)
        again = more


class ItemTotals:
    """Total count of each item over all devices, added up batch by batch.

    `copies_left_out` counts the copies beyond those that a device counts of one item.
    """

    def __init__(self) -> None:
        self.copies_left_out = 0
        self._items = ItemIndex(())
        self._sums = np.zeros(0, np.int64)
        self._other_counts: Counter[str] = Counter()  # of batches with another `ItemIndex`

    def add(self, held: Histograms) -> None:
        """Add the histograms of a batch of devices."""
        if held.items is not self._items:
            self._other_counts, self._items = Counter(self.counts()), held.items
            self._sums = np.zeros(len(held.items), np.int64)
        self._sums += held.item_totals(held.counts)

    def merge(self, other: "ItemTotals") -> None:
        """Add the totals of other devices; fast if they have the same items."""
        self.copies_left_out += other.copies_left_out
        if self._items[:] == other._items[:]:
            self._sums += other._sums
            self._other_counts.update(other._other_counts)
        else:
            self.add_counts(other.counts())

    def add_counts(self, counts: Mapping[str, int]) -> None:
        self._other_counts.update(counts)

    def counts(self) -> dict[str, int]:
        indices = np.flatnonzero(self._sums)
        pairs = zip(indices.tolist(), self._sums[indices].tolist(), strict=True)
        return dict(self._other_counts + Counter({self._items[at]: total for at, total in pairs}))


@dataclass(frozen=True, slots=True)
class KeyedHistograms:
    """Histograms of devices, with the key of each item, shape `(items, chunks)`."""

    histograms: Histograms
    keys: Keys

    @property
    def counts(self) -> NDArray[np.int64]:
        return self.histograms.counts

    def item_totals(self, amounts: NDArray[np.int64]) -> tuple[Keys, NDArray[np.int64]]:
        """Return the keys whose `amounts`, one per holding, do not sum to 0, and the sums."""
        totals = self.histograms.item_totals(amounts)
        items = np.flatnonzero(totals)
        return self.keys[items], totals[items]


def keyed_histograms(
    domain: Domain, contribution: int, histograms: Iterable[Histogram]
) -> KeyedHistograms:
    """Return the histograms of the devices with the keys of their items.

    Raises ValueError if a histogram is not within the contribution bound and the domain.
    """
    held = Histograms.from_mappings(histograms)
    held.check(contribution)
    keys = _encode_items(domain, held, domain.encode, "keys")
    return KeyedHistograms(held, keys)


def device_values(domain: Domain, histograms: Iterable[Histogram]) -> ItemValues:
    """Return the value of each device's item, or `domain.value_count` if it has no item."""
    return device_rows(
        domain, histograms, domain.values_of, np.uint64(domain.value_count), "values"
    )


def device_rows(
    domain: Domain,
    histograms: Iterable[Histogram],
    encode: Callable[[Sequence[str]], NDArray[R]],
    no_item: ArrayLike,
    cache_key: str,
) -> NDArray[R]:
    """Return a row for each device: `encode` of its item, or `no_item` if it has none.

    The rows of all items are cached under `cache_key`, which names the encoding. Raises ValueError
    if a device holds more than one item, or one outside the domain.
    """
    held = Histograms.from_mappings(histograms)
    held.check(1)
    encoded = _encode_items(domain, held, encode, cache_key)
    rows = np.empty((len(held), *encoded.shape[1:]), encoded.dtype)
    rows[:] = no_item
    rows[held.devices] = encoded[held.item_indices]
    return rows


def _encode_items(
    domain: Domain, held: Histograms, encode: Callable[[Sequence[str]], NDArray[R]], cache_key: str
) -> NDArray[R]:
    """Return `encode` of each item in the domain, zeros for others; ValueError if one is held."""
    inside, encoded = held.items.cached(
        cache_key, domain, lambda: _encode_inside(domain, held.items, encode)
    )
    if not inside.all():
        outside = np.flatnonzero(~inside[held.item_indices])
        if len(outside):
            encode([held.items[held.item_indices[outside[0]]]])  # raises the error
    return encoded


def _encode_inside(
    domain: Domain, items: ItemIndex, encode: Callable[[Sequence[str]], NDArray[R]]
) -> tuple[Flags, NDArray[R]]:
    inside = np.array([item in domain for item in items], np.bool_)
    rows = encode([items[index] for index in np.flatnonzero(inside).tolist()])
    encoded = np.zeros((len(items), *rows.shape[1:]), rows.dtype)
    encoded[inside] = rows
    return inside, encoded
