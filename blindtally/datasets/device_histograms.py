"""Histograms of many devices in a mapped temporary file, which may be larger than memory.

A holding takes eight bytes of the file: the index of its item and its count. In memory are each
item once and, while a file is read, some 80 bytes per run of rows of one user. Such runs may be
scattered. A user is identified by 64 bits of a hash: among 10^7 users, two are treated as one with
a probability of 1 in 370,000.
"""

import mmap
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate
from tempfile import TemporaryFile
from typing import Any, Final, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from protocol import histograms
from protocol.histograms import Histogram, Histograms, ItemIndex
from protocol.numerics.array_types import Integers
from protocol.simulation.rounds import RoundDevices

BATCH_HOLDINGS: Final = 2**18  # holdings that are processed together
_UINT32_LIMIT: Final = 2**32


class DeviceHistograms(Sequence[Histogram]):
    """Devices with the histogram of each; together they may be larger than memory.

    `holdings` are those of all devices, in order; device d has those from `ends[d - 1]` to before
    `ends[d]`. An item is its index among the sorted `items`.
    """

    def __init__(self, items: Sequence[str], holdings: NDArray[Any], ends: Integers) -> None:
        self.items = tuple(items)  # in order of their first holding
        self._index = ItemIndex(items)
        self._holdings, self._ends = holdings, ends

    @classmethod
    def of(cls, mappings: Iterable[Mapping[str, int]]) -> "DeviceHistograms":
        with closing(HistogramPacker()) as packer:
            for histogram in mappings:
                packer.begin_user(None)
                for item, count in histogram.items():
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
        for devices in _device_batches(self._ends):
            yield from self.take(devices)

    def take(self, devices: Integers) -> Histograms:
        starts = np.where(devices > 0, self._ends[devices - 1], 0)
        rows, ends = _row_indices(starts, self._ends[devices] - starts)
        held = self._holdings[rows]
        items, counts = (held[name].astype(np.int64) for name in ("item", "count"))
        return Histograms(self._index, items, counts, ends)

    def item_totals(self) -> dict[str, int]:
        sums = np.zeros(len(self._index), np.int64)
        for devices in _device_batches(self._ends):
            held = self.take(devices)
            sums += held.item_totals(held.counts)
        return dict(zip(self._index, sums.tolist(), strict=True))

    def devices_per_round(self, rounds: int, wanted: int) -> int:
        """Return `wanted`, or fewer devices if each takes part in one of `rounds` only."""
        return min(wanted, len(self) // rounds)

    def rounds(
        self,
        sizes: Sequence[int],
        contribution: int,
        rng: np.random.Generator,
        batch_holdings: int = histograms.BATCH_HOLDINGS,
        chunk_devices: int | None = None,
    ) -> Iterator[RoundDevices[Histograms]]:
        """Yield rounds of these numbers of devices, in random order and none in two rounds.

        Histograms are not clipped to the `contribution`, which only sets the devices of a batch.
        """
        order, size = rng.permutation(len(self)), max(1, batch_holdings // contribution)
        for devices, end in zip(sizes, accumulate(sizes), strict=True):
            selected = order[end - devices : end]
            length = min(devices, chunk_devices or devices)
            chunks = [
                _DeviceSelection(self, selected[start : start + length], size)
                for start in range(0, devices, length)
            ]
            yield RoundDevices(chunks[0](), chunks[1:])


@dataclass(frozen=True, slots=True)
class _DeviceSelection:
    """Some of the devices, in batches of `batch_devices`; only these devices are pickled."""

    histograms: DeviceHistograms | Histograms
    devices: Integers
    batch_devices: int

    def __call__(self) -> Iterator[Histograms]:
        for start in range(0, len(self.devices), self.batch_devices):
            yield self.histograms.take(self.devices[start : start + self.batch_devices])

    def __reduce__(self) -> tuple[Any, ...]:
        selected = self.histograms.take(self.devices)
        return _DeviceSelection, (selected, np.arange(len(self.devices)), self.batch_devices)


class HistogramPacker:
    """Packs holdings that are added one by one, each run of a user's rows after `begin_user`."""

    def __init__(self) -> None:
        self._item_numbers: dict[str, int] = {}  # in order of their first holding
        self._scratch = HoldingFile(np.int64)
        self._items, self._counts = array("I"), array("q")  # not yet in the file
        self._users, self._starts = array("q"), array("q")  # of each run
        self._rows = 0

    def begin_user(self, user: str | None) -> None:
        """Begin a run of rows of `user`; None is a user of one run."""
        self._users.append(len(self._starts) if user is None else hash(user))
        self._starts.append(self._rows)

    def add_holding(self, item: str, count: int) -> None:
        self._items.append(self._item_numbers.setdefault(item, len(self._item_numbers)))
        self._counts.append(count)
        self._rows += 1
        if len(self._items) == BATCH_HOLDINGS:
            self._flush()

    def build(self) -> DeviceHistograms:
        """Return all devices, in order of their first run."""
        self._flush()
        rows = self._scratch.read()
        items = list(self._item_numbers)
        index_of = np.empty(len(items), np.int64)
        index_of[sorted(range(len(items)), key=items.__getitem__)] = np.arange(len(items))
        starts = np.frombuffer(self._starts, np.int64)
        sizes = np.diff(starts, append=self._rows)
        order, run_ends = _group_runs_by_user(np.frombuffer(self._users, np.int64))
        row_ends = np.cumsum(sizes[order])[run_ends - 1]  # of each device
        total = rows["count"].sum(dtype=np.float64)  # which does not overflow
        with closing(HoldingFile(np.uint32 if total < _UINT32_LIMIT else np.int64)) as file:
            for devices in _device_batches(row_ends):
                last = devices[0] - 1  # device of the batch before
                runs = order[run_ends[last] if devices[0] else 0 : run_ends[devices[-1]]]
                held = rows[_row_indices(starts[runs], sizes[runs])[0]]
                each = np.diff(row_ends[devices], prepend=row_ends[last] if devices[0] else 0)
                file.add_devices(*_merge_duplicates(index_of[held["item"]], held["count"], each))
            return file.build(items)

    def close(self) -> None:
        self._scratch.close()

    def _flush(self) -> None:
        self._scratch.write(np.array(self._items, np.uint32), np.array(self._counts, np.int64))
        self._items, self._counts = array("I"), array("q")


class HoldingFile:
    """Temporary file of holdings, with the number of them that each device has."""

    def __init__(self, count_dtype: DTypeLike) -> None:
        self._dtype = np.dtype([("item", np.uint32), ("count", count_dtype)])
        self._file = TemporaryFile()  # noqa: SIM115 - see `close`
        self._sizes: list[Integers] = []

    def write(self, items: NDArray[Any], counts: NDArray[Any]) -> None:
        holdings = np.empty(len(items), self._dtype)
        holdings["item"], holdings["count"] = items, counts
        self._file.write(holdings.data)

    def add_devices(self, items: NDArray[Any], counts: NDArray[Any], sizes: Integers) -> None:
        self.write(items, counts)
        self._sizes.append(sizes)

    def read(self) -> NDArray[Any]:
        """Return all holdings, which stay mapped after `close`."""
        self._file.flush()
        if not self._file.tell():
            return np.zeros(0, self._dtype)
        mapped = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        return np.frombuffer(mapped, self._dtype)

    def build(self, items: Sequence[str]) -> DeviceHistograms:
        ends = np.cumsum(np.concatenate([np.zeros(0, np.int64), *self._sizes]))
        return DeviceHistograms(items, self.read(), ends)

    def close(self) -> None:
        self._file.close()


def _row_indices(starts: Integers, sizes: Integers) -> tuple[Integers, Integers]:
    """Return the indices of the rows of runs, run after run, and the end of each run in them."""
    ends = np.cumsum(sizes)
    return np.repeat(starts - ends + sizes, sizes) + np.arange(sizes.sum()), ends


def _device_batches(ends: Integers) -> Iterator[Integers]:
    """Yield batches of whole devices with about `BATCH_HOLDINGS` holdings, or one device."""
    start = done = 0
    while start < len(ends):
        end = max(start + 1, int(np.searchsorted(ends, done + BATCH_HOLDINGS, side="right")))
        end = min(end, start + BATCH_HOLDINGS)  # if many hold nothing
        yield np.arange(start, end)
        start, done = end, int(ends[end - 1])


def _group_runs_by_user(users: Integers) -> tuple[Integers, Integers]:
    """Return the runs, user by user in order of their first run, and the end of each user."""
    ordered, runs = np.sort(users), np.arange(len(users))
    if not (ordered[1:] == ordered[:-1]).any():
        return runs, runs + 1
    _, first, user = np.unique(users, return_index=True, return_inverse=True)
    order = np.argsort(first[user], kind="stable")
    return order, np.cumsum(np.bincount(user)[np.argsort(first)])


def _merge_duplicates(
    items: Integers, counts: Integers, sizes: Integers
) -> tuple[Integers, Integers, Integers]:
    """Return the holdings of devices with each item once per device, in order, and new sizes."""
    devices = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((items, devices))
    items, devices = items[order], devices[order]
    is_first = np.ones(len(items), np.bool_)
    is_first[1:] = (items[1:] != items[:-1]) | (devices[1:] != devices[:-1])
    starts = np.flatnonzero(is_first)
    summed = np.add.reduceat(counts[order], starts) if len(starts) else counts
    return items[starts], summed, np.bincount(devices[starts], minlength=len(sizes))
