"""Reader of data files: items with counts, users with items, or baskets.

    item,count        CSV file of counts: the items of devices are drawn from them
    user,item,count   CSV file of users: each user is a device; without a count, each row is one
    a b c             baskets: each line is a device, its items separated by blanks

A file without a comma, semicolon or tab in its first line is one of baskets. A CSV file has a
header with the delimiter of its cells; the column `user`, or otherwise the one before the items,
names users, and the first numeric column after the items is the count. Unless the item column is
named, it is the one after `user`; without such a column the first of two; of more the first, or
the second if that is not a number.
Gzip is recognised by its magic number. Files are read line by line, never held whole.
"""

import codecs
import csv
import errno
import gzip
import io
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from importlib.resources import files
from itertools import chain
from pathlib import Path
from tempfile import gettempdir
from typing import BinaryIO, Final, TypeAlias, cast

import numpy as np

from blindtally.datasets.device_histograms import DeviceHistograms, HistogramPacker
from blindtally.datasets.item_counts import ItemCounts

Dataset: TypeAlias = ItemCounts | DeviceHistograms
MIN_ROUND_DEVICES: Final = 3
_BUNDLED = files("blindtally.datasets") / "files"
_BUNDLED_SUFFIX = ".csv.gz"
# Of cells; spreadsheets export semicolons where decimals have commas.
_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs"}
_GZIP_MAGIC = b"\x1f\x8b"
_MAX_TOTAL_COUNT = 2**62  # numpy draws from such counts
_MAX_LINE_LENGTH = 2**24  # characters
_NUMBER = re.compile(r"[-+]?[\d.,' ]*\d")  # in any country's format


class DataError(ValueError):
    """A data file cannot be used; the message names the file, and the line if one is at fault."""

    def __init__(self, path: Path, fault: str, line: int | None = None) -> None:
        super().__init__(f"{path}: {fault}" if line is None else f"{path}, line {line}: {fault}")


def too_few_devices_message(path: Path, devices: int) -> str:
    """Return advice on a file whose devices are too few for the number of rounds."""
    if devices < MIN_ROUND_DEVICES:
        return f"{path}: holds {devices} devices, and a round takes {MIN_ROUND_DEVICES} at least"
    return (
        f"{path}: holds {devices} devices, and each is in one round of at least "
        f"{MIN_ROUND_DEVICES}: --rounds {devices // MIN_ROUND_DEVICES} is the most"
    )


def bundled_datasets() -> list[str]:
    names = sorted(file.name for file in _BUNDLED.iterdir())
    return [name.removesuffix(_BUNDLED_SUFFIX) for name in names if name.endswith(_BUNDLED_SUFFIX)]


def read_dataset(path: Path, column: str | None = None) -> Dataset:
    """Return the data in the file at `path`, its items from `column`.

    Raises:
        DataError: if the file or column does not exist, nothing is in it, or a line is malformed.
    """
    try:
        # The csv module needs the ends of lines: a quoted cell may contain one.
        with _open_binary(path) as raw, io.TextIOWrapper(raw, "utf-8-sig", newline="") as text:
            return _parse_dataset(path, _bounded_lines(path, text), column)
    except UnicodeDecodeError:
        line = _first_undecodable_line(path) if path.is_file() else None
        raise DataError(path, "is not UTF-8 text", line) from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise DataError(path, "is cut off or is not a gzip file after all") from None
    except OSError as error:
        if error.errno == errno.ENOSPC:
            fault = f"does not fit into {gettempdir()}, unpacked: let TMPDIR name a larger place"
            raise DataError(path, fault) from None
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
    all_lines = chain(before, lines)
    delimiter = _delimiter_of(first)
    if delimiter is not None or first == column:
        return _CsvTable(path, all_lines, column, delimiter or ",").parse()
    if column is not None:
        fault = f"has no column {column!r}, and no comma, semicolon or tab in its first line"
        raise DataError(path, fault)
    devices = DeviceHistograms.of(Counter(line.split()) for line in all_lines)
    if not devices.items:
        raise DataError(path, "is empty")
    return devices


def _delimiter_of(header: str) -> str | None:
    """Return the most frequent delimiter, outside of quotes if it has any there; None without."""
    unquoted = re.sub(r'"[^"]*"?', "", header)
    for text in (unquoted, header):
        delimiter = max(_DELIMITERS, key=text.count)
        if delimiter in text:
            return delimiter
    return None


@contextmanager
def _open_binary(path: Path) -> Iterator[BinaryIO]:
    is_bundled = not path.exists() and str(path) in bundled_datasets()
    with (_BUNDLED / f"{path}{_BUNDLED_SUFFIX}" if is_bundled else path).open("rb") as file:
        start = cast("io.BufferedReader", file).peek(len(_GZIP_MAGIC))  # a pipe cannot go back
        if start.startswith(_GZIP_MAGIC):
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield cast("BinaryIO", unpacked)
        else:
            yield cast("BinaryIO", file)


def _bounded_lines(path: Path, text: io.TextIOWrapper) -> Iterator[str]:
    """Yield lines with their ends; raise DataError if one is too long to be a line."""
    number = 0
    while line := text.readline(_MAX_LINE_LENGTH + 1):
        number += 1
        if len(line) > _MAX_LINE_LENGTH:
            raise DataError(path, f"is longer than {_MAX_LINE_LENGTH:,} characters", number)
        yield line


def _first_undecodable_line(path: Path) -> int:
    """Return the line of the first bytes that are not UTF-8, in a file that has such bytes."""
    decoder, lines = codecs.getincrementaldecoder("utf-8")(), 1
    with _open_binary(path) as stream:
        while chunk := stream.read(_MAX_LINE_LENGTH):
            try:
                decoder.decode(chunk)
            except UnicodeDecodeError as error:
                return lines + bytes(error.object[: error.start]).count(b"\n")
            lines += chunk.count(b"\n")
    return lines  # cut off in the middle of a character


class _CsvTable:
    """A CSV file with a header, read row by row."""

    def __init__(
        self, path: Path, lines: Iterable[str], column: str | None, delimiter: str
    ) -> None:
        self._path = path
        self._reader = csv.reader(lines, delimiter=delimiter, strict=True)
        rows = self._rows()
        self._header = next(rows)[1]
        first = next(rows, None)
        if first is None:
            raise DataError(path, "has a header and no rows")
        self._item = self._item_column(column, first[1])
        self._count = self._count_column(*first)
        self._body = chain([first], rows)

    def parse(self) -> Dataset:
        if self._item > 0:
            return self._parse_users()
        totals: dict[str, int] = {}
        for item, count, _ in self._counted_rows():
            totals[item] = totals.get(item, 0) + count
        return ItemCounts(tuple(totals), np.fromiter(totals.values(), np.int64, len(totals)))

    def _parse_users(self) -> DeviceHistograms:
        column, last = self._user_column(), None
        with closing(HistogramPacker()) as packer:
            for item, count, row in self._counted_rows():
                if row[column] != last:
                    last = row[column]
                    packer.begin_user(last)
                packer.add_holding(item, count)
            return packer.build()

    def _user_column(self) -> int:
        named = self._named_user_column(self._header[: self._item])
        return self._item - 1 if named is None else named

    @staticmethod
    def _named_user_column(header: list[str]) -> int | None:
        names = [name.lower() for name in header]
        return names.index("user") if "user" in names else None

    def _counted_rows(self) -> Iterator[tuple[str, int, list[str]]]:
        """Yield the item and the count of each row, and the row."""
        total = 0
        for line, row in self._body:
            count = self._parse_count(line, row)
            total += count
            if total >= _MAX_TOTAL_COUNT:
                raise DataError(self._path, f"counts add up to {_MAX_TOTAL_COUNT} or more")
            yield row[self._item], count, row

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        width, start = None, 1  # the line where the next row begins
        try:
            for row in self._reader:
                start = self._reader.line_num + 1
                if not row:
                    continue  # an empty line, as at the end of some files
                width = width or len(row)
                if len(row) != width:
                    delimiters = _DELIMITERS[self._reader.dialect.delimiter]
                    fault = (
                        f"has {len(row)} cells where the header has {width}, separated by "
                        f"{delimiters}"
                    )
                    raise DataError(self._path, fault, self._reader.line_num)
                yield self._reader.line_num, row
        except csv.Error as error:
            raise self._syntax_error(str(error), start) from None

    def _syntax_error(self, fault: str, start: int) -> DataError:
        """Return the error of a row that begins in line `start`, as the csv module reports it."""
        if fault == "unexpected end of data":
            return DataError(self._path, "a quotation mark opens a cell, and none closes it", start)
        if fault.startswith("field larger than"):
            long = f"has a cell of more than {csv.field_size_limit():,} characters"
            quote = "perhaps a quotation mark opens it, and none closes it"
            return DataError(self._path, f"{long}: {quote}", start)
        return DataError(self._path, fault, self._reader.line_num)

    def _item_column(self, column: str | None, first: list[str]) -> int:
        if column is not None:
            if column not in self._header:
                known = ", ".join(self._header)
                raise DataError(self._path, f"has no column {column!r}; it has {known}", 1)
            return self._header.index(column)
        if len(self._header) == 1:
            raise DataError(self._path, "has one column: items and their counts are two", 1)
        user = self._named_user_column(self._header[:-1])
        if user is not None:
            return user + 1
        return int(len(self._header) > 2 and not first[1].isdecimal())

    def _count_column(self, line: int, row: list[str]) -> int | None:
        """Return the column of counts; None for users whose rows are one item each."""
        has_user = self._named_user_column(self._header[: self._item]) is not None
        if has_user and self._item == len(row) - 1:
            return None
        after = range(self._item + 1, len(row))
        for is_count in (str.isdecimal, _NUMBER.fullmatch):  # the second one for its error
            for number in after:
                if is_count(row[number]):
                    return number
        fault = (
            f"has no count, a whole number, after the item in column {self._header[self._item]!r}: "
            "the columns are item,count or user,item,count or user,item; --column names the items "
            "of other files"
        )
        raise DataError(self._path, fault, line)

    def _parse_count(self, line: int, row: list[str]) -> int:
        if self._count is None:
            return 1
        cell = row[self._count]
        if cell.isascii() and cell.isdecimal() and len(cell) < 20 and int(cell):
            return int(cell)
        name = self._header[self._count]
        fault = f"column {name!r}: a count is a whole number from 1 up, got {cell[:40]!r}"
        raise DataError(self._path, fault, line)
