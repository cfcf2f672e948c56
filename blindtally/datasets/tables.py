"""Tables in data files, row by row: CSV, JSON Lines and Parquet.

CSV is read by Python's own module, because it reads any encoding and delimiter, in bounded memory,
and knows the line of each fault. Dataframe libraries take 50 to 200 MB for less exact errors.
"""

import csv
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TextIO, TypeAlias

from blindtally.datasets.cells import DataError
from blindtally.datasets.columns import ColumnError, Columns, find_columns, named_columns, role_of
from blindtally.datasets.reading_report import ReadingReport
from client.device.encoding import item_text
from client.extras_installation import install_command

if TYPE_CHECKING:
    from _csv import Reader

Rows: TypeAlias = Iterator[tuple[int, list[str]]]  # the line, and the cells
# Of cells; spreadsheets export semicolons where decimals have commas.
_DELIMITERS: Final = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_SAMPLE_ROWS: Final = 100
# The line below the header of a table for people.
_RULER: Final = re.compile(r"(?=.*---)[-+:=\s]*", re.DOTALL)
# Spreadsheets write texts that look like numbers as formulas, and shorten long numbers.
_TEXT_FORMULA: Final = re.compile(r'="([^"]*)"')
_SHORTENED_NUMBER: Final = re.compile(r"\d[.,]\d+E\+\d+")
_MAX_RAGGED_SHARE: Final = 0.1
_BATCH_ROWS: Final = 2**14
_MAX_JSON_NAMES: Final = 1000


@dataclass(frozen=True, slots=True)
class Table:
    """The names of all columns, the places of those that are used, and the rows below."""

    form: str
    header: list[str]
    columns: Columns
    rows: Rows


def delimiter_of(header: str, choice: str | None = None) -> str | None:
    """Return the delimiter of a header, None without one.

    It is the one that gives the most columns with known names. Of several, it is the most frequent,
    outside of quotes if it has any there.
    """
    unquoted = re.sub(r'"[^"]*"?', "", header)
    for text in (unquoted, header):
        present = [delimiter for delimiter in _DELIMITERS if delimiter in text]
        if present:
            ranks = {
                each: (_known_names(header, each, choice), text.count(each)) for each in present
            }
            return max(ranks, key=ranks.__getitem__)
    return None


def _known_names(header: str, delimiter: str, choice: str | None) -> int:
    names = [name.strip() for name in next(csv.reader([header], delimiter=delimiter))]
    chosen = named_columns(choice, names).values()
    roles = {role_of(name) for name in names} - {None}
    return len(roles) + sum(name in names for name in chosen)


def csv_table(path: Path, lines: Iterable[str], delimiter: str, report: ReadingReport) -> Table:
    """Return the table in `lines`, whose first one with text is the header.

    Raises:
        DataError: if there are no rows, or the columns are unclear.
    """
    start = list(islice(lines, _SAMPLE_ROWS))
    # Without it, a quotation mark after a blank opens no cell.
    is_padded = any(f'{delimiter} "' in line for line in start)
    reader = csv.reader(
        chain(start, lines), delimiter=delimiter, strict=True, skipinitialspace=is_padded
    )
    header: list[str] = []
    try:
        while not header:
            header = next(reader)
    except csv.Error as error:
        raise _syntax_error(path, str(error), 1, reader.line_num) from None
    form = f"a table separated by {_DELIMITERS.get(delimiter, repr(delimiter))}"
    names, line = [name.strip() for name in header], reader.line_num
    rows = _even_rows(reader, header, form, report)
    first = list(islice(rows, _SAMPLE_ROWS))
    sample = list(zip(*(cells for _, cells in first), strict=True))
    columns = _find_columns(path, names, sample, report.choice, line)
    if columns.user is not None and any(map(_SHORTENED_NUMBER.fullmatch, sample[columns.user])):
        fault = f"column {names[columns.user]!r} has numbers that a spreadsheet shortened, so that "
        raise DataError(path, fault + "several users look like one: save it with all digits")
    used, item = columns.used - {columns.count}, columns.item
    lengths, of_texts = (
        {len(each) for each in cells} for cells in (sample[item], map(str.strip, sample[item]))
    )
    if len(lengths) == 1 and lengths < of_texts and header[item] == names[item]:
        report.notes.append("blanks that fill items up to one length were kept")
        used.remove(item)
    return Table(form, names, columns, _without_blanks(chain(first, rows), used, report))


def _without_blanks(rows: Rows, places: Iterable[int], report: ReadingReport) -> Rows:
    """Yield rows without blanks around the cells at `places`, and note the number of such cells."""
    changed = 0
    for line, row in rows:
        for place in places:
            if row[place] != (text := row[place].strip()):
                changed += text != ""
                row[place] = text
            if formula := _TEXT_FORMULA.fullmatch(text):
                row[place] = formula[1]
        yield line, row
    if changed:
        report.notes.append(f"blanks around {changed:,} cell{'s' * (changed > 1)} were left out")


def _find_columns(
    path: Path,
    header: list[str],
    sample: Sequence[Sequence[str]],
    choice: str | None,
    line: int | None = None,
) -> Columns:
    """Return the columns, given their names and some cells of each."""
    if not any(sample):
        raise DataError(path, "has a header and no rows")
    try:
        return find_columns(header, sample, choice)
    except ColumnError as error:
        raise DataError(path, str(error), line) from error


def _even_rows(reader: "Reader", header: list[str], form: str, report: ReadingReport) -> Rows:
    """Yield rows whose number of cells is that of the header, and leave out a few others."""
    width, ragged, rows, fault = len(header), 0, 0, None
    start = reader.line_num + 1  # the line where the next row begins
    try:
        for row in reader:
            line, start = start, reader.line_num + 1
            if not rows and width > 1 and _RULER.fullmatch("".join(row)):
                form = "is a ruler, as psql and Markdown have: save the table as CSV (psql --csv)"
                raise DataError(report.path, form, line)
            if len(row) == width and row != header:
                rows += 1
                yield line, row
            elif row == header:
                report.leave_out("equal to the header", line)
            elif row and len(row) > width and not any(row[width:]):
                yield line, row[:width]
            elif row:  # not an empty line, as at the end of some files
                ragged += 1
                cells = f"has {len(row)} cells where the header has {width}, in {form}"
                fault = fault or DataError(report.path, cells, line)
                report.leave_out("with another number of cells than the header", line)
    except csv.Error as error:
        raise _syntax_error(report.path, str(error), start, reader.line_num) from None
    if fault is not None and ragged > _MAX_RAGGED_SHARE * rows:
        raise fault


def _syntax_error(path: Path, fault: str, start: int, line: int) -> DataError:
    """Return the error of a row that begins in line `start`, as the csv module reports it."""
    if fault == "unexpected end of data" or fault.startswith("field larger than"):
        return DataError(path, "a quotation mark opens a cell, and none closes it", start)
    if "expected after" in fault:
        return DataError(path, "a quotation mark inside a cell must be doubled", line)
    return DataError(path, fault, line)


def json_table(path: Path, lines: Iterable[str], copy: TextIO, choice: str | None) -> Table:
    """Return the table of JSON objects, one per line; its columns are the names in all of them.

    The lines are written to `copy`, an empty file, and read again there.
    """
    cells: dict[str, list[str]] = {}
    for line, record in _json_records(path, _copied(lines, copy)):
        for name, value in record.items():
            sample = cells.setdefault(name, [])
            if len(sample) < _SAMPLE_ROWS:
                sample.append(_text(value) or "")
        if len(cells) > _MAX_JSON_NAMES:
            fault = f"has more than {_MAX_JSON_NAMES:,} different names: write items as values"
            raise DataError(path, fault, line)
    header = list(cells)
    columns = _find_columns(path, header, list(cells.values()), choice)
    copy.seek(0)
    return Table("JSON Lines", header, columns, _json_rows(path, copy, header, columns))


def _copied(lines: Iterable[str], copy: TextIO) -> Iterator[str]:
    for line in lines:
        copy.write(line)
        yield line


def _json_rows(path: Path, lines: Iterable[str], header: list[str], columns: Columns) -> Rows:
    used = [(place, header[place]) for place in columns.used]
    for line, record in _json_records(path, lines):
        row = [""] * len(header)
        for place, name in used:
            row[place] = _known_text(path, line, record.get(name))
        yield line, row


def _json_records(path: Path, lines: Iterable[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line, object_pairs_hook=_with_unique_names)
        except json.JSONDecodeError:
            record = None
        except KeyError:
            raise DataError(path, "has a name twice in one object", number) from None
        except (ValueError, RecursionError):
            fault = "has a number of too many digits, or too many brackets inside each other"
            raise DataError(path, fault, number) from None
        if not isinstance(record, dict):
            advice = "write one object per line, as jq -c '.[]' does with an array"
            raise DataError(path, f"is not a JSON object: {advice}", number)
        yield number, record


def _with_unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        raise KeyError
    return record


def parquet_table(path: Path, file: BinaryIO, choice: str | None) -> Table:
    """Return the table of a Parquet file, whose rows count as lines.

    Raises:
        DataError: if the file is damaged or a pipe, or pyarrow is not installed.
    """
    try:
        from pyarrow.parquet import ParquetFile  # noqa: PLC0415 - pyarrow is optional
    except ImportError:
        advice = f"write it as CSV, or install pyarrow: {install_command('arrow')}"
        raise DataError(path, f"is a Parquet file: {advice}") from None
    if not file.seekable():
        raise DataError(path, "is a Parquet file, which cannot be read from a pipe")
    try:
        parquet = ParquetFile(file)
    except (ValueError, OSError) as error:
        raise DataError(path, f"is a damaged Parquet file: {error}") from None
    header = parquet.schema_arrow.names
    first = next(parquet.iter_batches(_SAMPLE_ROWS), None)
    sample = [
        [_text(value) or "" for value in _values(path, column, 1)]
        for column in ([] if first is None else first.columns)
    ]
    columns = _find_columns(path, header, sample, choice)
    return Table("Parquet", header, columns, _parquet_rows(path, parquet, header, columns))


def _parquet_rows(path: Path, parquet: Any, header: list[str], columns: Columns) -> Rows:  # noqa: ANN401 - pyarrow has no types
    used, read = [header[place] for place in sorted(columns.used)], 0
    for batch in parquet.iter_batches(_BATCH_ROWS, columns=used):
        lists = [
            _values(path, batch.column(name), read + 1) if name in used else [None] * len(batch)
            for name in header
        ]
        for line, values in enumerate(zip(*lists, strict=True), read + 1):
            yield line, [_known_text(path, line, value) for value in values]
        read += len(batch)


def _values(path: Path, column: Any, first_line: int) -> list[object]:  # noqa: ANN401 - pyarrow has no types
    """Return the values of a column, whose texts may not be UTF-8, and its times far off."""
    with suppress(ValueError, OverflowError, LookupError):
        values: list[object] = column.to_pylist()
        return values
    for line, cell in enumerate(column, first_line):
        try:
            cell.as_py()
        except (ValueError, OverflowError, LookupError) as error:
            raise DataError(path, f"has a value that cannot be read: {error}", line) from None
    raise AssertionError("a column has a fault, and none of its cells has one")


def _known_text(path: Path, line: int, value: object) -> str:
    text = _text(value)
    if isinstance(value, bytes):
        raise DataError(path, f"{value!r:.40} is bytes, not text: cast the column to strings", line)
    if text is None:
        raise DataError(
            path, f"{value!r:.40} is neither text nor number: write a row for each item", line
        )
    return text


def _text(value: object) -> str | None:
    """Return the text of a value as on a device, empty if it is missing, None if it has no text."""
    if value is None or value != value:  # noqa: PLR0124 - NaN
        return ""
    if isinstance(value, list | dict | bytes):
        return None
    if isinstance(value, Decimal) and value == value.to_integral_value():
        value = int(value)
    return item_text(value) if isinstance(value, str | bool | int | float) else str(value)


def looks_like_header(line: str) -> bool:
    """Return whether words of `line` are names of at least two of users, items and counts."""
    return len({role_of(word) for word in re.split(r"[^\w-]+", line) if word} - {None}) > 1
