"""Many devices' histograms, packed: what a file of any size holds, in memory that it does not fill.

Each holding is eight bytes, its item's place and its count, in a temporary file that is mapped:
what is looked at comes to memory, and goes when something else needs that. In memory are each item
once, and some 80 bytes a device while it is read, or a run of rows where rows of a user stand
apart. Histograms are made as they are asked for.

    file, row by row -> runs of rows of one user -> devices, with each item once, in its order

Rows of one user need not stand together. A user is known by 64 bits of a hash: among 10^7 users,
two are taken for one with odds of 1 in 370,000, which a simulation would not tell.
"""

import mmap
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from tempfile import TemporaryFile
from typing import Any, Final, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from protocol.histograms import Histogram, Histograms, ItemIndex

BATCH_HOLDINGS: Final = 2**18  # holdings that are looked at together
_UINT32_LIMIT: Final = 2**32


class PackedHistograms(Sequence[Histogram]):
    """Histograms of devices, which may be more than fit into memory."""

    def __init__(
        self,
        items: Sequence[str],
        which: NDArray[np.uint32],
        counts: NDArray[Any],
        ends: NDArray[np.int64],
    ) -> None:
        self.items = tuple(items)  # in the order in which they were met; places are of the sorted
        self._table = ItemIndex(items)
        self._item_places, self._counts, self._ends = which, counts, ends

    @classmethod
    def of(cls, histograms: Iterable[Mapping[str, int]]) -> "PackedHistograms":
        """Return histograms that are in memory, packed."""
        with closing(HistogramPacker()) as packer:
            for one in histograms:
                packer.begin_user(None)
                for item, count in one.items():
                    packer.add_holding(item, count)
            return packer.build()

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, device: int) -> Histogram: ...
    @overload
    def __getitem__(self, device: slice) -> Sequence[Histogram]: ...
    def __getitem__(self, device: int | slice) -> "Histogram | Sequence[Histogram]":
        if isinstance(device, slice):
            return self.take(np.arange(len(self))[device])
        return self.take(np.array([range(len(self))[device]]))[0]

    def __iter__(self) -> Iterator[Histogram]:
        for devices in self._batches():
            yield from self.take(devices)

    def take(self, devices: NDArray[np.int64]) -> Histograms:
        """Return these devices, in this order."""
        starts = np.where(devices > 0, self._ends[devices - 1], 0)
        rows, ends = _row_indices(starts, self._ends[devices] - starts)
        which, counts = (
            column[rows].astype(np.int64) for column in (self._item_places, self._counts)
        )
        return Histograms(self._table, which, counts, ends)

    def filter_items(self, admits: Callable[[str], bool]) -> "PackedHistograms":
        """Return the same devices without the items that `admits` does not."""
        kept = [item for item in self.items if admits(item)]
        if len(kept) == len(self.items):
            return self
        known = set(kept)
        is_kept = np.array([item in known for item in self._table], np.bool_)
        places = np.cumsum(is_kept) - 1  # of the kept among themselves
        with closing(_ScratchColumns(self._counts.dtype)) as columns:
            for devices in self._batches():
                held = self.take(devices)
                some = held.with_counts(np.where(is_kept[held.item_indices], held.counts, 0))
                columns.add_devices(places[some.item_indices], some.counts, some.sizes)
            return columns.build(kept)

    def item_totals(self) -> dict[str, int]:
        """Return how often each item is held, by all."""
        sums = np.zeros(len(self._table), np.int64)
        for devices in self._batches():
            held = self.take(devices)
            sums += held.item_totals(held.counts)
        return dict(zip(self._table, sums.tolist(), strict=True))

    def _batches(self) -> Iterator[NDArray[np.int64]]:
        """Yield all devices, in lines of some `BATCH_HOLDINGS` holdings together, or one device."""
        yield from _device_batches(self._ends)


class HistogramPacker:
    """Takes devices' holdings one by one, a run of a user's after the other, and packs them."""

    def __init__(self) -> None:
        self._item_numbers: dict[str, int] = {}  # of items, as they are met
        self._scratch = _ScratchColumns(np.int64)
        self._which, self._counts = array("I"), array("q")
        self._users, self._starts = array("q"), array("q")  # of each run
        self._rows = 0

    def begin_user(self, user: str | None) -> None:
        """Begin a run of rows of `user`; None is a user of one run."""
        self._users.append(len(self._starts) if user is None else hash(user))
        self._starts.append(self._rows)

    def add_holding(self, item: str, count: int) -> None:
        """Have the user of this run hold `count` more of `item`."""
        self._which.append(self._item_numbers.setdefault(item, len(self._item_numbers)))
        self._counts.append(count)
        self._rows += 1
        if len(self._which) == BATCH_HOLDINGS:
            self._flush()

    def build(self) -> PackedHistograms:
        """Return all devices, in the order in which they were met."""
        self._flush()
        which, counts = self._scratch.as_arrays()
        items = list(self._item_numbers)
        places = np.empty(len(items), np.int64)
        places[sorted(range(len(items)), key=items.__getitem__)] = np.arange(len(items))
        starts = np.frombuffer(self._starts, np.int64)
        sizes = np.diff(starts, append=self._rows)
        order, ends = _group_runs_by_user(np.frombuffer(self._users, np.int64))
        rows_to = np.cumsum(sizes[order])[ends - 1]  # rows up to the end of each device
        with closing(
            _ScratchColumns(np.uint32 if _total_count(counts) < _UINT32_LIMIT else np.int64)
        ) as columns:
            for devices in _device_batches(rows_to):
                before = devices[0] - 1
                runs = order[ends[before] if devices[0] else 0 : ends[devices[-1]]]
                rows, _ = _row_indices(starts[runs], sizes[runs])
                each = np.diff(rows_to[devices], prepend=rows_to[before] if devices[0] else 0)
                columns.add_devices(*_merge_duplicates(places[which[rows]], counts[rows], each))
            return columns.build(items)

    def close(self) -> None:
        """Give up what is not packed."""
        self._scratch.close()

    def _flush(self) -> None:
        self._scratch.write(
            np.frombuffer(self._which, np.uint32), np.frombuffer(self._counts, np.int64)
        )
        self._which, self._counts = array("I"), array("q")


class _ScratchColumns:
    """Places and counts on their way to a file, and how many each device has."""

    def __init__(self, wide: DTypeLike) -> None:
        self._count_dtype = np.dtype(wide)
        self._which = TemporaryFile()  # noqa: SIM115 - see `close`
        self._counts = TemporaryFile()  # noqa: SIM115
        self._sizes: list[NDArray[np.int64]] = []

    def write(self, which: NDArray[Any], counts: NDArray[Any]) -> None:
        """Write holdings."""
        self._which.write(which.astype(np.uint32, copy=False).data)
        self._counts.write(counts.astype(self._count_dtype, copy=False).data)

    def add_devices(
        self, which: NDArray[Any], counts: NDArray[Any], sizes: NDArray[np.int64]
    ) -> None:
        """Write devices, each with so many holdings."""
        self.write(which, counts)
        self._sizes.append(sizes)

    def as_arrays(self) -> tuple[NDArray[np.uint32], NDArray[Any]]:
        """Return what was written."""
        return _memory_map(self._which, np.dtype(np.uint32)), _memory_map(
            self._counts, self._count_dtype
        )

    def close(self) -> None:
        """Close the files; what is mapped stays so."""
        self._which.close()
        self._counts.close()

    def build(self, items: Sequence[str]) -> PackedHistograms:
        """Return the devices, who hold `items`."""
        ends = np.cumsum(np.concatenate([np.zeros(0, np.int64), *self._sizes]))
        return PackedHistograms(items, *self.as_arrays(), ends)


def _memory_map(file: Any, kind: np.dtype[Any]) -> NDArray[Any]:  # noqa: ANN401 (of bytes)
    file.flush()
    if not file.tell():
        return np.zeros(0, kind)
    return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), kind)


def _row_indices(
    starts: NDArray[np.int64], sizes: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of runs, one run after the other, and where each ends among them."""
    ends = np.cumsum(sizes)
    return np.repeat(starts - ends + sizes, sizes) + np.arange(sizes.sum()), ends


def _device_batches(ends: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield batches of whole devices with about `BATCH_HOLDINGS` holdings, or one device."""
    start = done = 0
    while start < len(ends):
        end = max(start + 1, int(np.searchsorted(ends, done + BATCH_HOLDINGS, side="right")))
        end = min(end, start + BATCH_HOLDINGS)  # of such as hold nothing
        yield np.arange(start, end)
        start, done = end, int(ends[end - 1])


def _group_runs_by_user(users: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return runs, those of one user together and in order of the first, and where each ends."""
    some = np.sort(users)
    runs = np.arange(len(users))
    if not (some[1:] == some[:-1]).any():
        return runs, runs + 1
    _, first, user = np.unique(users, return_index=True, return_inverse=True)
    order = np.argsort(first[user], kind="stable")
    return order, np.cumsum(np.bincount(user)[np.argsort(first)])


def _merge_duplicates(
    places: NDArray[np.int64], counts: NDArray[np.int64], sizes: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return holdings of devices that have `sizes` of them, each item once a device, in order."""
    devices = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((places, devices))
    places, devices = places[order], devices[order]
    is_first = np.ones(len(places), np.bool_)
    is_first[1:] = (places[1:] != places[:-1]) | (devices[1:] != devices[:-1])
    starts = np.flatnonzero(is_first)
    summed = np.add.reduceat(counts[order], starts) if len(starts) else counts
    return places[starts], summed, np.bincount(devices[starts], minlength=len(sizes))


def _total_count(counts: NDArray[np.int64]) -> float:
    return float(counts.sum(dtype=np.float64))  # which does not wrap
