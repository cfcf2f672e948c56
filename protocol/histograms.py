"""Histograms of many devices, as arrays: what encodes a million devices in tenths of a second.

A *holding* is one item of one device, with its count. Those of all devices stand in a row, in the
order of devices and within one in that of its items, each as the item's place in one table of
items. So what depends on an item only, its key or whether it is in the domain, is found once for
all devices and blocks, and what is done to holdings are a few operations on whole arrays.

Fleets come in *blocks*, of some 2^16 holdings each: memory does not grow with the fleet.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

BLOCK = 2**16  # holdings: a few arrays of so many fit in the processor's cache

Places = NDArray[np.int64]
T = TypeVar("T")


class Items(Sequence[str]):
    """Distinct items in order, with what was last made of all of them.

    Pickled, they go without that: whoever gets the same ones again has what was made there.
    """

    __slots__ = ("_made", "_names")

    def __init__(self, items: Iterable[str]) -> None:
        self._names = tuple(sorted(set(items)))
        self._made: dict[str, tuple[object, Any]] = {}

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[str, ...]: ...
    def __getitem__(self, place: int | slice) -> str | tuple[str, ...]:
        return self._names[place]

    def __reduce__(self) -> tuple[Callable[..., "Items"], tuple[tuple[str, ...]]]:
        return _again, (self._names,)

    @property
    def places(self) -> dict[str, int]:
        """Return the place of each item."""
        return self.made("places", None, lambda: {item: i for i, item in enumerate(self._names)})

    def made(self, what: str, of: object, make: Callable[[], T]) -> T:
        """Return what `make` returns, kept until it is asked for of something else than `of`."""
        known = self._made.get(what)
        if known is None or not (known[0] is of or known[0] == of):
            known = self._made[what] = of, make()
        made: T = known[1]
        return made


_last: Items | None = None  # that came here pickled


def _again(names: tuple[str, ...]) -> Items:
    """Return items in order as they last came here, if they are the same."""
    global _last  # noqa: PLW0603 - one table a study, which comes with each piece of its work
    known = _last
    if known is None or known[:] != names:
        known = _last = Items(names)
    return known


@dataclass(frozen=True, slots=True, eq=False)
class Histograms(Sequence[Mapping[str, int]]):
    """Devices' histograms: the places of items, and counts, of holdings; where each device ends.

    A sequence of them, too; device d has the holdings from `ends[d - 1]` to before `ends[d]`.
    """

    items: Items
    which: Places
    counts: Places
    ends: Places

    @classmethod
    def of(cls, histograms: Iterable[Mapping[str, int]]) -> "Histograms":
        """Return `histograms` as arrays, those that are already as they are.

        Raises:
            ValueError: if a count does not fit in 63 bits.
        """
        if isinstance(histograms, Histograms):
            return histograms
        several = list(histograms)
        items = Items(item for one in several for item in one)
        places = items.places
        held = [(places[item], one[item]) for one in several for item in sorted(one)]
        ends = np.cumsum([len(one) for one in several], dtype=np.int64)
        try:
            which, counts = np.array(held, np.int64).reshape(-1, 2).T
        except OverflowError:
            raise ValueError("counts are below 2^63") from None
        return cls(items, which, counts, ends)

    @classmethod
    def single(cls, items: Items, which: Places) -> "Histograms":
        """Return devices that hold one item each."""
        return cls(items, which, np.ones(len(which), np.int64), np.arange(1, len(which) + 1))

    @classmethod
    def joined(cls, blocks: Iterable["Histograms"]) -> "Histograms":
        """Return the devices of blocks that have one table of items."""
        some = list(blocks)
        assert all(one.items is some[0].items for one in some)  # as those of one population have
        sizes = np.cumsum([0] + [len(one.which) for one in some])
        ends = [one.ends + size for one, size in zip(some, sizes[:-1], strict=True)]
        which, counts = ([getattr(one, name) for one in some] for name in ("which", "counts"))
        return cls(some[0].items, *map(np.concatenate, (which, counts, ends)))

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
        pairs = zip(self.which[held].tolist(), self.counts[held].tolist(), strict=True)
        return {self.items[place]: count for place, count in pairs}

    def __iter__(self) -> Iterator[dict[str, int]]:
        which, counts, start = self.which.tolist(), self.counts.tolist(), 0
        for end in self.ends.tolist():
            yield {self.items[which[at]]: counts[at] for at in range(start, end)}
            start = end

    @property
    def sizes(self) -> Places:
        """Return how many holdings each device has."""
        return np.diff(self.ends, prepend=0)

    @property
    def devices(self) -> Places:
        """Return the device of each holding."""
        return np.repeat(np.arange(len(self)), self.sizes)

    @property
    def totals(self) -> Places:
        """Return what the counts of each device add up to, which must be below 2^63 in all."""
        return np.diff(np.append(0, np.cumsum(self.counts))[self.ends], prepend=0)

    def take(self, devices: Places) -> "Histograms":
        """Return these devices, in this order."""
        sizes = self.sizes[devices]
        ends = np.cumsum(sizes)
        places = np.repeat(self.ends[devices] - ends, sizes) + np.arange(sizes.sum())
        return Histograms(self.items, self.which[places], self.counts[places], ends)

    def counted(self, counts: Places) -> "Histograms":
        """Return the same devices with other `counts`; what is held 0 times is held no longer."""
        kept = np.flatnonzero(counts)
        ends = np.append(0, np.cumsum(counts != 0))[self.ends]
        return Histograms(self.items, self.which[kept], counts[kept], ends)

    def grouped(self, size: int) -> "Histograms":
        """Return devices of which each holds what `size` of these do, one item each, in turn."""
        if size == 1:
            return self
        which = np.sort(self.which.reshape(-1, size), axis=1)
        first = np.ones(which.shape, np.bool_)
        first[:, 1:] = which[:, 1:] != which[:, :-1]
        starts = np.flatnonzero(first)
        counts = np.diff(starts, append=first.size)
        ends = np.cumsum(first.sum(axis=1))
        return Histograms(self.items, which.reshape(-1)[starts], counts, ends)

    def within(self, admits: Callable[[str], bool]) -> "Histograms":
        """Return the same devices without the items that `admits` does not."""
        items = self.items
        admitted = items.made(
            "admitted", admits, lambda: np.fromiter(map(admits, items), np.bool_, len(items))
        )
        return self.counted(np.where(admitted[self.which], self.counts, 0))

    def sums(self, amounts: Places) -> Places:
        """Return the sum of `amounts`, one a holding, by item."""
        totals = np.zeros(len(self.items), np.int64)
        some = np.flatnonzero(amounts)  # of many devices, sampling leaves few
        np.add.at(totals, self.which[some], amounts[some])
        return totals

    def check(self, most: int) -> None:
        """Raise ValueError unless counts are positive, and a device's add up to `most` at most."""
        if len(self.counts) and self.counts.min() < 1:
            count = int(self.counts.min())
            item = self.items[int(self.which[self.counts.argmin()])]
            raise ValueError(f"counts are 1 or more, got {count} of {item!r}")
        # The largest first, so that totals cannot wrap.
        found = self.counts if (self.counts > most).any() else self.totals
        if (found > most).any():
            raise ValueError(
                f"a device contributes at most {most} items, got {found[found > most][0]}"
            )


class Total:
    """What devices hold together, added up block by block."""

    def __init__(self) -> None:
        self._items = Items(())
        self._sums = np.zeros(0, np.int64)
        self._others: Counter[str] = Counter()  # of blocks with other items

    def add(self, held: Histograms) -> None:
        """Add what the devices of a block hold."""
        if held.items is not self._items:
            self._others, self._items = Counter(self.counts()), held.items
            self._sums = np.zeros(len(held.items), np.int64)
        self._sums += held.sums(held.counts)

    def join(self, other: "Total") -> None:
        """Add what other devices hold together; quickly, if they have the same table of items."""
        if self._items[:] == other._items[:]:
            self._sums += other._sums
            self._others.update(other._others)
        else:
            self.add_counts(other.counts())

    def add_counts(self, counts: Mapping[str, int]) -> None:
        """Add so many of each item."""
        self._others.update(counts)

    def counts(self) -> dict[str, int]:
        """Return how often each item is held."""
        some = np.flatnonzero(self._sums)
        pairs = zip(some.tolist(), self._sums[some].tolist(), strict=True)
        return dict(self._others + Counter({self._items[place]: sum_ for place, sum_ in pairs}))
