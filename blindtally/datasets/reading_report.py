"""Report on a data file: the columns that were used, and the rows that were left out with reasons.

Items and users that may be missing values, such as `None`, are named. Items are compared byte by
byte: the report counts those that look like another item, such as "pêche" with a combining accent
and with one letter, or 1 and 1.0.
"""

import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from blindtally.datasets.cells import PERHAPS_MISSING, DataError
from blindtally.datasets.columns import Role
from protocol.printable import is_hidden

_WHOLE_NUMBER: Final = re.compile(r"^(-?[0-9]+)\.0+$")


@dataclass(slots=True)
class ReadingReport:
    """Facts about the reading of one file, collected while it is read.

    `left_out` has the number of rows and the first line for each reason.
    """

    path: Path
    choice: str | None = None  # of columns, by the caller
    form: str = ""  # such as "a table separated by commas"
    columns: Mapping[Role, str | None] = field(default_factory=dict)
    unused: Sequence[str] = ()
    meaning: str = ""  # of a row
    rows: int = 0
    left_out: dict[str, tuple[int, int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    heads_one_column: bool = False  # the first line may be the name of the only column

    def leave_out(self, reason: str, line: int) -> None:
        count, first = self.left_out.get(reason, (0, line))
        self.left_out[reason] = count + 1, first

    def examine(self, items: Collection[str]) -> None:
        """Add notes about the different items of the data.

        Raises:
            DataError: if there are none.
        """
        if not items:
            reasons = "; ".join(self._reasons())
            fault = f"holds no items: {reasons}" if reasons else "the file is empty"
            raise DataError(self.path, fault)
        unusual = [item for item in items if _is_unusual(item)]
        if twins := _lookalikes(items, unusual):
            first, second = map(ascii, twins[0])
            self.notes.append(
                f"{first} and {second} look alike and count apart (such pairs: {len(twins):,}): "
                "normalise texts to NFC, strip blanks, and write numbers in one way"
            )
        if composed := sum(not unicodedata.is_normalized("NFC", item) for item in unusual):
            self.notes.append(
                f"items that are not in the Unicode form NFC: {composed:,}; devices that normalise "
                "their texts hold others"
            )
        if broken := sum("\n" in item or "\r" in item for item in unusual):
            self.notes.append(f"items with a line break, inside quotation marks: {broken:,}")
        self.name_doubtful(items, "counted as items")

    def name_doubtful(self, texts: Collection[str], reading: str) -> None:
        """Add a note about those of `texts` that may be missing values."""
        if doubtful := [mark for mark in PERHAPS_MISSING if mark in texts]:
            listed = ", ".join(map(repr, doubtful))
            self.notes.append(f"{listed}: {reading}; remove those that are missing values")

    def lines(self) -> Iterator[str]:
        """Yield the facts for a person, in a few lines."""
        used = ", ".join(
            f"{role} {name!r}" for role, name in self.columns.items() if name is not None
        )
        unused = f"; not used: {', '.join(map(repr, self.unused))}" if self.unused else ""
        columns = f" with {used}{unused}" if used else ""
        yield f"{self.path}: read as {self.form}{columns}; {self.meaning}; {_rows(self.rows)}"
        if reasons := list(self._reasons()):
            yield f"{self.path}: left out {'; '.join(reasons)}"
        for note in self.notes:
            yield f"{self.path}: {note}"

    def as_json(self) -> dict[str, Any]:
        return {
            "form": self.form,
            "columns": dict(self.columns),
            "unused_columns": list(self.unused),
            "row": self.meaning,
            "rows": self.rows,
            "left_out": [
                {"reason": reason, "rows": count, "first_line": line}
                for reason, (count, line) in self.left_out.items()
            ],
            "notes": self.notes,
        }

    def _reasons(self) -> Iterator[str]:
        for reason, (count, line) in self.left_out.items():
            yield f"{_rows(count)} {reason} ({'' if count == 1 else 'first '}in line {line})"


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


def _is_unusual(item: str) -> bool:
    """Return whether an item may look like another one, or contains a line break."""
    is_plain = item.isascii() and item.isprintable()
    return (
        not is_plain
        or "  " in item
        or " " in (item[0], item[-1])
        or bool(_WHOLE_NUMBER.match(item))
    )


def _lookalikes(items: Collection[str], unusual: Sequence[str]) -> list[tuple[str, str]]:
    """Return pairs of items that look the same: an item, and an earlier or a plainer one."""
    changed = {item: plain for item in unusual if (plain := _plain(item)) != item}
    if not changed:
        return []
    known = {item: item for item in items}
    pairs = []
    for item, plain in changed.items():
        if plain in known:
            pairs.append((item, known[plain]))
        else:
            known[plain] = item
    return pairs


def _plain(item: str) -> str:
    """Return the item in form NFC, with single blanks, and without what nobody sees or reads."""
    text = _WHOLE_NUMBER.sub(r"\1", " ".join(unicodedata.normalize("NFC", item).split()))
    return text if text.isprintable() else "".join(each for each in text if not is_hidden(each))
