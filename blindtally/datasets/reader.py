"""Data files: who holds what, in one of three shapes, told apart by what is in them.

    item,count        a CSV file of counts: each device draws its items from them
    user,item,count   a CSV file of users: each user is a device with what it holds
    a b c             baskets: each line is a device, its items separated by blanks

A file whose first line (but for empty ones) has no comma is one of baskets. A CSV file has a
header; a column before the items names users, and the first numeric column after them is the
count. Where nobody says which column the items are in, it is the first, or the second if the
first is called `user` or the second is not a number. Gzip is seen by its magic number. Cells
are taken as they are, blanks and all. The data sets that come with us are files too, which may be
named without their folder and ending: `link_user_domains`, `words`, `short`, `ages`.

A file is read line by line, and may be larger than memory: of counts each different item is kept,
added up; what users hold is packed into a temporary file
(`blindtally/datasets/packed_histograms.py`).
"""

import codecs
import csv
import errno
import gzip
import io
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from itertools import chain
from pathlib import Path
from tempfile import gettempdir
from typing import Any, BinaryIO, Final, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from blindtally.datasets.packed_histograms import HistogramPacker, PackedHistograms
from protocol.histograms import BATCH_HOLDINGS, Histograms, ItemIndex
from protocol.simulation.chunks import RoundDevices, chunk_generator

_BUNDLED = files("blindtally.datasets") / "files"
_BUNDLED_SUFFIX = ".csv.gz"
_GZIP_MAGIC = b"\x1f\x8b"
_MAX_TOTAL_COUNT = 2**62  # what numpy draws from
_MAX_LINE_LENGTH = 2**24  # characters of a line


class DataError(ValueError):
    """A data file cannot be used; the message names the file, and the line if it is one's."""

    def __init__(self, path: Path, what: str, line: int | None = None) -> None:
        super().__init__(f"{path}: {what}" if line is None else f"{path}, line {line}: {what}")


@dataclass(frozen=True, slots=True)
class ItemCounts:
    """Items with their counts; devices are independent draws from them."""

    items: tuple[str, ...]
    counts: NDArray[np.int64]

    def filter_items(self, admits: Callable[[str], bool]) -> "ItemCounts":
        """Return the same without the items that `admits` does not."""
        kept = [number for number, item in enumerate(self.items) if admits(item)]
        return ItemCounts(tuple(self.items[number] for number in kept), self.counts[kept])

    def clients_per_round(self, rounds: int, wanted: int) -> int:
        """Return `wanted`: draws never run out."""
        del rounds
        return wanted

    def rounds(
        self,
        rounds: int,
        clients: int,
        contribution: int,
        rng: np.random.Generator,
        block: int = BATCH_HOLDINGS,
        stretch: int | None = None,
    ) -> Iterator[RoundDevices[Histograms]]:
        """Yield `clients` fresh devices a round, each with `contribution` drawn items.

        A round's come in blocks of at most `block` draws, which are made as they are asked for, and
        in stretches of `stretch` devices: those after the first are drawn by chance of their own.
        """
        table = ItemIndex(self.items)
        places = np.array([table.positions[item] for item in self.items], np.int64)
        draws = _TokenDraws(table, places, self.counts, contribution, max(1, block // contribution))
        first = min(clients, stretch or clients)
        for _ in range(rounds):
            starts = range(first, clients, first)
            seeds = tuple(rng.integers(2**63, size=2).tolist()) if starts else ()
            later = [
                partial(draws.later_chunk, min(first, clients - start), seeds, number)
                for number, start in enumerate(starts, 1)
            ]
            yield RoundDevices(draws.batches(first, rng), later)


@dataclass(frozen=True, slots=True)
class _TokenDraws:
    """Draws `contribution` tokens of `counts` a device, by the `places` of their items."""

    table: ItemIndex
    places: NDArray[np.int64]
    counts: NDArray[np.int64]
    contribution: int
    batch_devices: int  # devices of a block

    def batches(self, count: int, rng: np.random.Generator) -> Iterator[Histograms]:
        """Yield so many devices, block by block."""
        tokens = self.table.cached(
            "tokens", self.counts.tobytes(), lambda: _TokenTable(self.counts)
        )
        for start in range(0, count, self.batch_devices):
            wanted = min(self.batch_devices, count - start) * self.contribution
            held = self.places[tokens.draw(wanted, rng)]
            yield Histograms.one_item_each(self.table, held).grouped(self.contribution)

    def later_chunk(self, count: int, seeds: Sequence[int], stretch: int) -> Iterator[Histograms]:
        """Yield the devices of a stretch that is not the first."""
        return self.batches(count, chunk_generator(seeds, stretch))


class _TokenTable:
    """Tokens in a row, `counts` of each kind, which are drawn by their numbers.

    Numbers are cut into ranges of one size, 16 and more a kind: within most there is one kind only,
    which is known beforehand. The others are searched for, which takes 10 times as long. What is
    known is looked up all over a table, which should fit in the processor's cache.
    """

    def __init__(self, counts: NDArray[np.int64]) -> None:
        self._ends = np.cumsum(counts)
        total = int(self._ends[-1])
        self._range_shift = max(0, total.bit_length() - (16 * len(counts)).bit_length())
        starts = np.arange((total >> self._range_shift) + 2) << self._range_shift
        first = np.searchsorted(self._ends, starts, side="right")
        self._ambiguous = len(counts)  # no kind
        known = np.where(first[1:] == first[:-1], first[:-1], self._ambiguous)
        self._kind_of_range = known.astype(np.min_scalar_type(self._ambiguous))

    def draw(self, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the kinds of `size` tokens, drawn with replacement."""
        drawn = rng.integers(self._ends[-1], size=size)
        kinds: NDArray[np.int64] = self._kind_of_range[drawn >> self._range_shift].astype(np.int64)
        several = np.flatnonzero(kinds == self._ambiguous)
        kinds[several] = np.searchsorted(self._ends, drawn[several], side="right")
        return kinds


class DeviceHistograms:
    """DeviceHistograms with what each holds."""

    def __init__(self, histograms: Iterable[Mapping[str, int]]) -> None:
        packed = (
            histograms
            if isinstance(histograms, PackedHistograms)
            else PackedHistograms.of(histograms)
        )
        self.histograms: PackedHistograms = packed

    @property
    def items(self) -> tuple[str, ...]:
        """Return the items that devices hold, each once."""
        return self.histograms.items

    def filter_items(self, admits: Callable[[str], bool]) -> "DeviceHistograms":
        """Return the same devices without the items that `admits` does not."""
        return DeviceHistograms(self.histograms.filter_items(admits))

    def clients_per_round(self, rounds: int, wanted: int) -> int:
        """Return the clients of each of `rounds`: as `wanted`, or as many as each can have."""
        return min(wanted, len(self.histograms) // rounds)

    def rounds(
        self,
        rounds: int,
        clients: int,
        contribution: int,
        rng: np.random.Generator,
        block: int = BATCH_HOLDINGS,
        stretch: int | None = None,
    ) -> Iterator[RoundDevices[Histograms]]:
        """Yield `clients` devices a round, in random order, none in two rounds, block by block.

        They hold more than `contribution` where they do: whoever asks them clips.
        """
        held, size = self.histograms, max(1, block // contribution)
        order, length = rng.permutation(len(held)), min(clients, stretch or clients)
        for begin in range(0, rounds * clients, clients):
            asked = order[begin : begin + clients]
            parts = [
                _DeviceSelection(held, asked[start : start + length], size)
                for start in range(0, clients, length)
            ]
            yield RoundDevices(parts[0](), parts[1:])


@dataclass(frozen=True, slots=True)
class _DeviceSelection:
    """Some of those that are `held`, to be had in blocks of `size` devices."""

    histograms: PackedHistograms | Histograms
    devices: NDArray[np.int64]
    batch_devices: int

    def __call__(self) -> Iterator[Histograms]:
        for start in range(0, len(self.devices), self.batch_devices):
            yield self.histograms.take(self.devices[start : start + self.batch_devices])

    def __reduce__(self) -> tuple[Any, ...]:  # they alone go to a worker
        return _DeviceSelection, (
            self.histograms.take(self.devices),
            np.arange(len(self.devices)),
            self.batch_devices,
        )


Dataset: TypeAlias = ItemCounts | DeviceHistograms
MIN_ROUND_DEVICES: Final = 3  # devices in a round


def too_few_devices_message(path: Path, devices: int) -> str:
    """Return what to do about a file of so many devices, which are too few for the rounds asked."""
    if devices < MIN_ROUND_DEVICES:
        return f"{path}: holds {devices} devices, and a round takes {MIN_ROUND_DEVICES} at least"
    mend = f"--rounds {devices // MIN_ROUND_DEVICES} is the most"
    return (
        f"{path}: holds {devices} devices, and each is in one round of at least "
        f"{MIN_ROUND_DEVICES}: {mend}"
    )


def bundled_datasets() -> list[str]:
    """Return the names of the data sets that come with us."""
    names = sorted(one.name for one in _BUNDLED.iterdir())
    return [name.removesuffix(_BUNDLED_SUFFIX) for name in names if name.endswith(_BUNDLED_SUFFIX)]


def read_dataset(path: Path, column: str | None = None) -> Dataset:
    """Return what the file at `path` holds, its items taken from `column`.

    Raises:
        DataError: if there is no such file or column, nothing in it, or a line is malformed.
    """
    try:
        # Lines end as csv wants them: a quoted cell may hold one.
        with _open_binary(path) as raw, io.TextIOWrapper(raw, "utf-8-sig", newline="") as text:
            return _parse_dataset(path, _bounded_lines(path, text), column)
    except UnicodeDecodeError:
        line = _first_undecodable_line(path) if path.is_file() else None
        raise DataError(path, "is not UTF-8 text", line) from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise DataError(path, "is cut off or is not a gzip file after all") from None
    except OSError as error:
        if error.errno == errno.ENOSPC:
            told = f"does not fit into {gettempdir()}, unpacked: let TMPDIR name a larger place"
            raise DataError(path, told) from None
        raise DataError(path, (error.strerror or str(error)).lower()) from None


def _parse_dataset(path: Path, lines: Iterator[str], column: str | None) -> Dataset:
    before = list[str]()
    for line in lines:
        before.append(line)
        if line.rstrip("\r\n"):
            break
    else:
        raise DataError(path, "is empty")
    first = before[-1].rstrip("\r\n")
    everything = chain(before, lines)
    if "," in first or first == column:
        return _CsvTable(path, everything, column).parse()
    if column is not None:
        raise DataError(path, f"has no column {column!r}, and no comma in its first line")
    held = DeviceHistograms(_parse_baskets(everything))
    if not held.items:
        raise DataError(path, "is empty")
    return held


def _parse_baskets(lines: Iterable[str]) -> Iterator[Counter[str]]:
    for line in lines:
        yield Counter(line.split())


@contextmanager
def _open_binary(path: Path) -> Iterator[BinaryIO]:
    """Open a file, and its gzip if it is one."""
    is_ours = not path.exists() and str(path) in bundled_datasets()
    with (_BUNDLED / f"{path}{_BUNDLED_SUFFIX}" if is_ours else path).open("rb") as file:
        if (
            cast("io.BufferedReader", file).peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC)
        ):  # a pipe goes once
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield cast("BinaryIO", unpacked)
        else:
            yield cast("BinaryIO", file)


def _bounded_lines(path: Path, text: io.TextIOWrapper) -> Iterator[str]:
    """Yield lines with their ends, unless one is so long that it is none."""
    number = 0
    while line := text.readline(_MAX_LINE_LENGTH + 1):
        number += 1
        if len(line) > _MAX_LINE_LENGTH:
            raise DataError(path, f"is longer than {_MAX_LINE_LENGTH:,} characters", number)
        yield line


def _first_undecodable_line(path: Path) -> int:
    """Return the line of the first bytes that are not UTF-8, which there are."""
    decoder, lines = codecs.getincrementaldecoder("utf-8")(), 1
    with _open_binary(path) as stream:
        while chunk := stream.read(_MAX_LINE_LENGTH):
            try:
                decoder.decode(chunk)
            except UnicodeDecodeError as error:
                return lines + bytes(error.object[: error.start]).count(b"\n")
            lines += chunk.count(b"\n")
    return lines  # cut off in the midst of a character


class _CsvTable:
    """A CSV file with a header, read row by row."""

    def __init__(self, path: Path, lines: Iterable[str], column: str | None) -> None:
        self._path = path
        self._reader = csv.reader(lines, strict=True)
        rows = self._rows()
        self._header = next(rows)[1]
        first = next(rows, None)
        if first is None:
            raise DataError(path, "has a header and no rows")
        self._item = self._item_column(column, first[1])
        self._count = self._count_column(*first)
        self._body = chain([first], rows)

    def parse(self) -> Dataset:
        return self._counts() if self._item == 0 else self._devices()

    def _counts(self) -> ItemCounts:
        totals: dict[str, int] = {}
        for item, count, _ in self._counted_rows():
            totals[item] = totals.get(item, 0) + count
        return ItemCounts(tuple(totals), np.fromiter(totals.values(), np.int64, len(totals)))

    def _devices(self) -> DeviceHistograms:
        column, last = self._item - 1, None
        with closing(HistogramPacker()) as packer:
            for item, count, row in self._counted_rows():
                if row[column] != last:
                    last = row[column]
                    packer.begin_user(last)
                packer.add_holding(item, count)
            return DeviceHistograms(packer.build())

    def _counted_rows(self) -> Iterator[tuple[str, int, list[str]]]:
        """Yield the item and the count of each row, and that."""
        total = 0
        for line, row in self._body:
            count = self._parse_count(line, row)
            total += count
            if total >= _MAX_TOTAL_COUNT:
                raise DataError(self._path, f"counts add up to {_MAX_TOTAL_COUNT} or more")
            yield row[self._item], count, row

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        width = None
        try:
            for row in self._reader:
                if not row:
                    continue  # an empty line, as at the end of some files
                width = width or len(row)
                if len(row) != width:
                    what = f"has {len(row)} cells where the header has {width}"
                    raise DataError(self._path, what, self._reader.line_num)
                yield self._reader.line_num, row
        except csv.Error as error:
            raise DataError(self._path, str(error), self._reader.line_num) from None

    def _item_column(self, column: str | None, first: list[str]) -> int:
        if column is not None:
            if column not in self._header:
                known = ", ".join(self._header)
                raise DataError(self._path, f"has no column {column!r}; it has {known}", 1)
            return self._header.index(column)
        if len(self._header) == 1:
            raise DataError(self._path, "has one column: items and their counts are two", 1)
        return int(self._header[0].lower() == "user" or not first[1].isdecimal())

    def _count_column(self, line: int, row: list[str]) -> int:
        for number in range(self._item + 1, len(row)):
            if row[number].isdecimal():
                return number
        what = f"has no whole number after the item, column {self._header[self._item]!r}"
        raise DataError(self._path, what, line)

    def _parse_count(self, line: int, row: list[str]) -> int:
        cell = row[self._count]
        if not (cell.isascii() and cell.isdecimal() and len(cell) < 20 and int(cell)):
            name = self._header[self._count]
            raise DataError(
                self._path, f"a {name} is a whole number from 1 up, got {cell[:40]!r}", line
            )
        return int(cell)
