"""Tables of answers as files for other programs: CSV, one JSON object per line, or Parquet."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from blindtally.console.errors import exit_with_error
from blindtally.console.output_files import TableFormat, atomic_write, write_csv
from client.analyst.result_table import ResultTable, plain_cell
from protocol.api.messages import csv_text

_BY_SUFFIX: Final[Mapping[str, TableFormat]] = {
    ".csv": "csv",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".parquet": "parquet",
}


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file at `path`, or standard output if that is `-`, in one format."""

    path: str
    form: TableFormat

    @classmethod
    def at(cls, path: str | None, form: TableFormat | None) -> "TableFile | None":
        """Return the file at `path` in the format `form`, or in that of its suffix.

        Raises:
            typer.Exit: if there is no format, or a format without a path.
        """
        if path is None:
            if form is not None:
                raise exit_with_error("--format is that of --out: pass --out PATH, too")
            return None
        form = form or _BY_SUFFIX.get(Path(path).suffix.lower())
        if form is None:
            raise exit_with_error(f"--out {path}: end it with {', '.join(_BY_SUFFIX)}, or --format")
        return cls(path, form)

    def write(self, table: ResultTable[Any], unlisted: Mapping[str, Mapping[str, Any]]) -> None:
        """Write a table, and a row for each option that it does not list.

        Raises:
            typer.Exit: if the file cannot be written.
        """
        columns = [*table.columns, *(["unlisted"] if unlisted else [])]
        key = table.columns[0]
        rows = [{name: plain_cell(getattr(row, name)) for name in table.columns} for row in table]
        rows += [{key: option, **cells} for option, cells in unlisted.items()]
        if self.form == "parquet":
            self._write_parquet(table, columns, rows)
        elif self.form == "csv":
            cells = [[_csv_cell(row.get(name)) for name in columns] for row in rows]
            write_csv(self.path, [columns, *cells])
        else:
            text = "".join(json.dumps({name: r.get(name) for name in columns}) + "\n" for r in rows)
            self._write_bytes(text.encode())

    def _write_parquet(
        self, table: ResultTable[Any], columns: Sequence[str], rows: list[dict[str, Any]]
    ) -> None:
        try:
            schema = table.to_arrow().schema
        except ImportError as error:  # it names the command that installs pyarrow
            raise exit_with_error(str(error), code=1) from None
        import pyarrow as pa  # noqa: PLC0415 - pyarrow is optional
        from pyarrow import parquet  # noqa: PLC0415

        schema = pa.schema([*schema, *((name, pa.string()) for name in columns[len(schema) :])])
        buffer = pa.BufferOutputStream()
        parquet.write_table(pa.Table.from_pylist(rows, schema), buffer)
        self._write_bytes(buffer.getvalue().to_pybytes())

    def _write_bytes(self, content: bytes) -> None:
        if self.path == "-":
            sys.stdout.flush()
            sys.stdout.buffer.write(content)
            return
        with atomic_write(Path(self.path)) as file:
            file.write_bytes(content)


def _csv_cell(cell: object) -> object:
    if isinstance(cell, list):
        return json.dumps(cell)
    return csv_text(cell) if isinstance(cell, str) else "" if cell is None else cell
