"""Reader of data files, for every command: items with counts, users with items, or baskets.

    item,count        each row is an item: the items of devices are drawn by their counts
    user,item,count   each user is a device; without a count, each row is one item
    item              each row is a device with one item
    a b c             baskets: each line is a device, its items separated by blanks

All but baskets are tables: CSV with commas, semicolons, tabs or vertical bars, JSON Lines, or
Parquet. `columns` finds the columns, and the report states which columns and rows were used.
Files are read line by line, never held whole. JSON Lines are read twice, through a temporary file,
because any line may have a name that no line before it has.
"""

import errno
import lzma
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import chain, islice, pairwise
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import Final, TypeAlias

import numpy as np

from blindtally.datasets.cells import (
    MAX_TOTAL_COUNT,
    MISSING_MARKS,
    PERHAPS_MISSING,
    DataError,
    item_fault,
    may_be_count,
    parse_count,
)
from blindtally.datasets.columns import named_columns, role_of
from blindtally.datasets.device_histograms import DeviceHistograms, HistogramPacker
from blindtally.datasets.file_formats import is_parquet, open_unpacked, text_lines
from blindtally.datasets.item_counts import ItemCounts
from blindtally.datasets.reading_report import ReadingReport
from blindtally.datasets.tables import (
    Table,
    csv_table,
    delimiter_of,
    json_table,
    looks_like_header,
    parquet_table,
)

Dataset: TypeAlias = ItemCounts | DeviceHistograms
MIN_ROUND_DEVICES: Final = 3
_HEADER_SEARCH_LINES: Final = 20
_SAMPLE_LINES: Final = 100
_MIN_SUMMED_ROWS: Final = 3  # above a row with their total
# Other lines than baskets: an item and a number, points of a list, and sparse vectors.
_NO_BASKET: Final = re.compile(
    r"[^:=]+[:=]\s*[\d.,]+|[-*•]\s.*|.*::.*|.*\s[\"\[].*|\[.*\].*|\S+(\s\d+:[\d.]+)+"
)
# Log lines have a date or a time of day, or begin with a level or with KEY=VALUE.
_TIME: Final = (
    r"\d{4}[-/.]\d\d?[-/.]\d\d?|\d\d?[-/.](\d\d?|[A-Z][a-z]{2})[-/.]\d{4}(:\S+)?"
    r"|\d\d:\d\d|\d\d?:\d\d:\d\d|1\d{9}\.\d+"
)
_LEVEL: Final = "TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERR|ERROR|SEVERE|FATAL|CRITICAL"
_LOG: Final = re.compile(
    rf"(?=.*\s)(.*?(?<![^\s\[(<\"=])({_TIME})(?![^\sT\])\",.])|\W*({_LEVEL})\b)|[A-Za-z][\w.-]*=\S"
)
_NUMBERS: Final = re.compile(r"[-+]?\d+(\.\d+)?(\s+[-+]?\d+(\.\d+)?){2,}")
_JSON_START: Final = re.compile(r"\s*(\{|\[\s*($|[\[{\"]))")
# Excel writes this line to name the separator.
_SEPARATOR_LINE: Final = re.compile(r'"?sep=(.)"?', re.IGNORECASE)


def too_few_devices_message(path: Path, devices: int) -> str:
    """Return advice on a file whose devices are too few for the number of rounds."""
    if devices < MIN_ROUND_DEVICES:
        return f"{path}: holds {devices} devices, and a round takes {MIN_ROUND_DEVICES} at least"
    return (
        f"{path}: holds {devices} devices, and each is in one round of at least "
        f"{MIN_ROUND_DEVICES}: --rounds {devices // MIN_ROUND_DEVICES} is the most"
    )


def read_dataset(
    path: Path, column: str | None = None, encoding: str | None = None
) -> tuple[Dataset, ReadingReport]:
    """Return the data in the file at `path`, and a report on its reading.

    `column` names the column of items, or several columns (`columns.named_columns`). Without an
    `encoding` it is recognised.

    Raises:
        DataError: if the file or a column does not exist, no item is in it, a line is malformed, or
            the meaning of the columns is not clear.
    """
    report = ReadingReport(path, column)
    try:
        with open_unpacked(path) as file:
            if is_parquet(file):
                dataset = _read_table(parquet_table(path, file, column), report)
            else:
                with closing(text_lines(path, file, encoding)) as lines:
                    dataset = read_text(lines, report)
    except (EOFError, zlib.error, lzma.LZMAError):
        raise DataError(path, "is compressed, and is cut off or damaged") from None
    except OSError as error:
        if error.errno == errno.ENOSPC:
            fault = f"does not fit into {gettempdir()}, unpacked: let TMPDIR name a larger place"
            raise DataError(path, fault) from None
        reason = " ".join(str(error).split())
        fault = error.strerror.lower() if error.strerror else f"is cut off or damaged: {reason}"
        raise DataError(path, fault) from None
    report.examine(dataset.items)
    return dataset, report


def read_text(lines: Iterator[str], report: ReadingReport) -> Dataset:
    path, choice, before, delimiter = report.path, report.choice, list[str](), None
    for line in lines:
        first = line.strip("\r\n")
        if separator := _SEPARATOR_LINE.fullmatch(first):
            delimiter, line, first = separator[1], "\n", ""  # noqa: PLW2901 - keeps line numbers
        before.append(line)
        if first:
            break
    else:
        raise DataError(path, "the file is empty")
    whole = chain(before, lines)
    if _JSON_START.match(first):
        with TemporaryFile("w+", encoding="utf-8", newline="") as copy:
            return _read_table(json_table(path, whole, copy, choice), report)
    delimiter = delimiter or delimiter_of(first, choice)
    name = first.strip().strip('"')
    is_quoted, chosen = name != first.strip(), named_columns(choice, [name]).values()
    if delimiter is None and (is_quoted or name in chosen):
        delimiter = ","  # of a table with one column
    if delimiter is not None:
        return _read_table(csv_table(path, whole, delimiter, report), report)
    if choice is not None:
        raise DataError(
            path, f"has no column {choice!r}, and no delimiter of columns in its first line"
        )
    return _read_baskets(whole, report)


def _read_baskets(lines: Iterator[str], report: ReadingReport) -> DeviceHistograms:
    start = list(islice(lines, _SAMPLE_LINES))
    for number, line in enumerate(start[:_HEADER_SEARCH_LINES], 1):
        if looks_like_header(line):
            fault = (
                f"{line.strip()[:60]!r} looks like a header: a table has it in its first line, and "
                "commas, semicolons, tabs or vertical bars between its cells"
            )
            raise DataError(report.path, fault, number)
    _refuse_other_lines(report.path, start)
    report.form = "baskets without a header"
    report.meaning = "each line is a device, its items separated by blanks"
    name = start[0].strip()
    if role_of(name) is not None:
        report.heads_one_column = True
        advice = f"if it is a header, add --column {name}"
        report.notes.append(f"{name!r} in line 1 counts as an item: {advice}")
    return DeviceHistograms.of(_baskets(chain(start, lines), report))


def _refuse_other_lines(path: Path, lines: Sequence[str]) -> None:
    """Refuse lines of which a share has another form, by which they may not be baskets."""
    texts = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    widths = [len(line.split()) for _, line in texts]
    width = max(widths, key=widths.count, default=0)
    pairs = [line.split() for _, line in texts]
    first, second = ([pair[place] for pair in pairs if len(pair) == 2] for place in (0, 1))
    is_all = len(first) == len(pairs) and set(first).isdisjoint(second)
    has_users = is_all and 1 < len(set(first)) < len(first)
    for form, is_form, share in (
        ("a user and an item", lambda _: has_users, 0),
        ("a line of a log", _LOG.match, 0.5),  # errors take several lines
        ("an item and its count", _has_count, 0.9),
        ("a row of a table", delimiter_of, 0.1),
        ("a row of a table", _NO_BASKET.fullmatch, 0.9),
        ("a row of numbers", partial(_is_row_of_numbers, width=width), 0.9),
    ):
        doubtful = [(number, line) for number, line in texts if is_form(line)]
        if len(doubtful) > share * len(texts):
            number, line = doubtful[0]
            fault = (
                f"{' '.join(line.split())[:60]!r} may be {form}, or items of a device: write a "
                "table with commas, which begins with the line item,count or user,item"
            )
            raise DataError(path, fault, number)


def _has_count(line: str) -> bool:
    """Return whether a whole number is the first or last word, and a word is none."""
    words = line.split()
    is_pair = len(words) == 2 or (len(words) > 1 and not all(map(may_be_count, words)))
    return is_pair and (may_be_count(words[0]) or may_be_count(words[-1]))


def _is_row_of_numbers(line: str, *, width: int) -> bool:
    """Return whether a line has `width` numbers; five rising numbers or more are a sorted set."""
    words = line.split()
    return (
        len(words) == width
        and _NUMBERS.fullmatch(line) is not None
        and (width < 5 or any(float(low) >= float(high) for low, high in pairwise(words)))
    )


def _baskets(lines: Iterable[str], report: ReadingReport) -> Iterator[Counter[str]]:
    for number, line in enumerate(lines, 1):
        report.rows = number
        basket = Counter(line.split())
        for item in [item for item in basket if item in MISSING_MARKS or not item.isprintable()]:
            if fault := item_fault(item):
                report.leave_out(fault, number)
                del basket[item]
        yield basket


def _read_table(table: Table, report: ReadingReport) -> Dataset:
    columns, header = table.columns, table.header
    report.form, report.columns = table.form, columns.of(header)
    report.unused = [
        name or f"column {place + 1}, which has no name"
        for place, name in enumerate(header)
        if place not in columns.used
    ]
    is_user, is_counted = columns.user is not None, columns.count is not None
    if is_user or not is_counted:
        report.meaning = (
            "each user is a device" if is_user else "each row is a device with one item"
        )
        if is_user and not is_counted:
            report.meaning += ", each row one item"
        return _read_devices(table, report)
    report.meaning = "items are drawn by their counts"
    totals: dict[str, int] = {}
    for line, _, item, count in _holdings(table, report):
        if item in totals and columns.others:
            named = ", ".join(repr(header[place]) for place in columns.others)
            fault = (
                f"item {item[:40]!r} comes again: if one of the columns {named} names users, add "
                "user=NAME to --column; otherwise add user= and the counts are added up"
            )
            raise DataError(report.path, fault, line)
        totals[item] = totals.get(item, 0) + count
    _refuse_total(report.path, totals)
    return ItemCounts(tuple(totals), np.fromiter(totals.values(), np.int64, len(totals)))


def _refuse_total(path: Path, totals: Mapping[str, int]) -> None:
    """Refuse a first or last row with the sum of all others, as spreadsheets have it."""
    rows = [*totals.items()] if len(totals) > _MIN_SUMMED_ROWS else []
    for place, (item, count) in zip(("first", "last"), (rows[:1] + rows[-1:]), strict=False):
        if 2 * count == sum(totals.values()):
            fault = (
                f"the count of the {place} item, {item[:40]!r}, is the sum of all others: delete "
                "its row if it is their total"
            )
            raise DataError(path, fault)


def _read_devices(table: Table, report: ReadingReport) -> DeviceHistograms:
    last, doubtful = None, set[str]()
    with closing(HistogramPacker()) as packer:
        for _, user, item, count in _holdings(table, report):
            if user is None or user != last:
                packer.begin_user(user)
                last = user
                if user in PERHAPS_MISSING:
                    doubtful.add(user)
            packer.add_holding(item, count)
        report.name_doubtful(doubtful, "counted as one user each")
        return packer.build()


def _holdings(table: Table, report: ReadingReport) -> Iterator[tuple[int, str | None, str, int]]:
    """Yield line, user, item and count of each row; rows with missing values are left out."""
    columns, total, rows = table.columns, 0, 0
    item_place, user_place, count_place = columns.item, columns.user, columns.count
    user, count = None, 1
    for line, row in table.rows:
        rows += 1
        item = row[item_place]
        # Most items pass these fast checks.
        is_suspect = item in MISSING_MARKS or not item.isprintable() or item.isspace()
        if is_suspect and (fault := item_fault(item)):
            report.leave_out(fault, line)
            continue
        if user_place is not None:
            user = row[user_place]
            if user in MISSING_MARKS or user.isspace():
                report.leave_out("without a user", line)
                continue
        if count_place is not None:
            try:
                counted = parse_count(row[count_place])
            except ValueError as error:
                fault = f"column {table.header[count_place]!r}: {error}"
                raise DataError(report.path, fault, line) from None
            if not counted:
                report.leave_out("whose count is 0" if counted == 0 else "without a count", line)
                continue
            count = counted
        total += count
        if total >= MAX_TOTAL_COUNT:
            raise DataError(report.path, f"counts add up to {MAX_TOTAL_COUNT} or more", line)
        yield line, user, item, count
    report.rows = rows
