"""Readings of a user's file that are likely, where the strict reader asks the user.

A trial on the user's own file may guess, because the report states the reading. For example, the
columns `who,product` with `--column product`: `who` is not a known name of users, but its values
repeat, so they are taken as users. And a spreadsheet saves texts in Windows-1252, not in UTF-8.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from blindtally.datasets.cells import DataError
from blindtally.datasets.columns import UnclearColumnsError, is_attribute, named_columns, role_of
from blindtally.datasets.file_formats import NotUtf8Error, open_unpacked
from blindtally.datasets.reader import Dataset, read_dataset
from blindtally.datasets.reading_report import ReadingReport

SPREADSHEET_ENCODING: Final = "cp1252"
_SAMPLE_BYTES: Final = 2**20
# Western languages have single letters outside of ASCII, others have words of them.
_OTHER_ALPHABET: Final = re.compile(rb"[\x80-\xff]{3}")


def guess_dataset(path: Path, column: str | None = None) -> tuple[Dataset, ReadingReport]:
    """Return the data in the file at `path` by the likely reading, and the report on it.

    Raises:
        DataError: as `read_dataset`; if several columns may hold the items, with an option for
            each.
    """
    try:
        return _guess_columns(path, column, None)
    except NotUtf8Error:
        with open_unpacked(path) as file:
            if _OTHER_ALPHABET.search(file.read(_SAMPLE_BYTES)):
                raise
        dataset, report = _guess_columns(path, column, SPREADSHEET_ENCODING)
        shown = next((item for item in dataset.items if not item.isascii()), None)
        example = f", as in {shown!r}" if shown else ""
        report.notes.append(f"is not UTF-8, so it was read as Windows-1252{example}")
        return dataset, report


def _guess_columns(
    path: Path, column: str | None, encoding: str | None
) -> tuple[Dataset, ReadingReport]:
    try:
        dataset, report = read_dataset(path, column, encoding)
    except DataError as error:
        if not isinstance(error.__cause__, UnclearColumnsError):
            raise
        choices = list(_choices(error.__cause__, column))
        if len(choices) == 1:
            return read_dataset(path, choices[0], encoding)
        if column is not None or not choices:
            raise
        items = [named_columns(choice, [])["item"] for choice in choices]
        raise DataError(path, f"which column has the items? Add {_options(items)}") from None
    if report.heads_one_column:
        name = next(iter(dataset.items))
        advice = "each row is then a device. Users with several rows need a column such as user"
        raise DataError(path, f"has one column only: add {_options([name])}; {advice}")
    return dataset, report


def _choices(unclear: UnclearColumnsError, column: str | None) -> Iterator[str]:
    """Yield the likely values of --column: each column that may hold the items, with its users.

    Users are in the column with a name of users, or in the first one if values in it repeat.
    """
    named = named_columns(column, unclear.header)
    likely = [
        (name, role_of(name) == "user", len(set(cells)) < len(cells))
        for name, cells in zip(unclear.header, unclear.cells, strict=True)
        if name and name != named.get("item") and not is_attribute(name)
    ]
    users = [name for name, is_user, _ in likely if is_user]
    users += [name for name, _, repeats in likely[:1] if repeats]
    user = named.get("user") or next(iter(users), "")
    items = [name for name, is_user, repeats in likely if repeats and not is_user and name != user]
    for name in [named["item"]] if "item" in named else items:
        yield f"item={name},user={user},count={named.get('count', '')}"


def _options(items: Sequence[str]) -> str:
    return " or ".join(f"--column {shlex.quote(item)}" for item in items)
