"""Table of result rows, which is also text, a data frame, an Arrow stream, HTML and a bar chart."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    overload,
)

from pydantic import BaseModel

from client.extras_installation import install_command
from protocol.printable import cell_text, one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame
    from pyarrow import DataType, Table

_MAX_SHOWN_ROWS: Final = 100  # as text and in HTML
_DEFAULT_BARS: Final = 20

T = TypeVar("T")


class ResultTable(Sequence[T]):
    """Rows in order; `columns` are the attributes of a row that a data frame shows.

    `threshold` is the count from which a row of heavy hitters is listed, None in other tables.
    `row_type` is the model of the rows, whose fields have the types of the columns.
    """

    def __init__(
        self,
        rows: Iterable[T],
        columns: Iterable[str],
        threshold: float | None = None,
        row_type: type[BaseModel] | None = None,
    ) -> None:
        self._rows = tuple(rows)
        self.columns = tuple(columns)
        self.threshold = threshold
        self._row_type = row_type

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> "ResultTable[T]": ...
    def __getitem__(self, index: int | slice) -> "T | ResultTable[T]":
        if isinstance(index, slice):
            return ResultTable(self._rows[index], self.columns, self.threshold, self._row_type)
        if isinstance(index, str):
            raise TypeError(f"a table has rows: its column is to_pandas()[{index!r}]")
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ResultTable) and self._rows == other._rows

    def __hash__(self) -> int:
        return hash(self._rows)

    def __repr__(self) -> str:
        """Return the first rows as aligned text, with numbers to the right."""
        if not self._rows:
            return "no rows"
        shown = self._shown()
        records = shown._records
        is_number = [isinstance(cell, int | float) for cell in records[0]]
        texts = [shown.columns, *([one_line(cell) for cell in record] for record in records)]
        widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
        lines = (
            "  ".join(
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(line, widths, is_number, strict=True)
            ).rstrip()
            for line in texts
        )
        hidden = len(self) - len(records)
        return "\n".join([*lines, f"{hidden:,} more rows"] if hidden > 0 else lines)

    def _repr_html_(self) -> str:
        """Return the first rows as HTML, for notebooks."""
        shown = self._shown()
        head = "".join(f"<th>{escape(column)}</th>" for column in shown.columns)
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(cell_text(cell))}</td>" for cell in record) + "</tr>"
            for record in shown._records
        )
        hidden = len(self) - _MAX_SHOWN_ROWS
        more = f"<p>{hidden:,} more rows</p>" if hidden > 0 else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{more}"

    def _shown(self) -> "ResultTable[T]":
        """Return the first rows, without the columns that are empty in all of them."""
        rows = self[:_MAX_SHOWN_ROWS]
        used = [
            each for each in self.columns if any(getattr(row, each) is not None for row in rows)
        ]
        return ResultTable(rows, used)

    @property
    def _records(self) -> list[list[object]]:
        return [[getattr(row, column) for column in self.columns] for row in self._rows]

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return an Arrow stream of the rows, as the interface PyCapsule of Arrow asks for."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> "Table":
        """Return an Arrow table, whose types do not depend on the values if the rows are a model's.

        Raises:
            ImportError: if pyarrow is not installed; names the command that installs it.
        """
        try:
            import pyarrow as pa  # noqa: PLC0415 - pyarrow is optional
        except ImportError as error:
            command = install_command("arrow")
            raise ImportError(f"Arrow tables need pyarrow: {command}") from error
        cells = zip(*self._records, strict=True) if self._rows else ((),) * len(self.columns)
        return pa.table(
            {
                column: pa.array([plain_cell(cell) for cell in values], self._arrow_type(column))
                for column, values in zip(self.columns, cells, strict=True)
            }
        )

    def _arrow_type(self, column: str) -> "DataType | None":
        """Return the type of a column, None if it depends on the values."""
        fields = {} if self._row_type is None else self._row_type.model_fields
        return arrow_type(fields[column].annotation) if column in fields else None

    def to_pandas(self) -> "DataFrame":
        """Return a data frame; raises ImportError with the command that installs pandas."""
        try:
            from pandas import DataFrame  # noqa: PLC0415 - pandas is optional
        except ImportError as error:
            raise ImportError(f"data frames need pandas: {install_command('pandas')}") from error
        return DataFrame(self._records, columns=list(self.columns))

    def plot(self, top: int = _DEFAULT_BARS, *, axes: "Axes | None" = None) -> "Axes":
        """Draw the first `top` rows as horizontal bars with 95% whiskers, and the threshold.

        The chart is drawn on `axes`, by default those of a new figure of pyplot.

        Raises:
            ImportError: if matplotlib is not installed; names the command that installs it.
            ValueError: if the rows have no numbers with intervals.
        """
        from client.analyst.bar_chart import draw_bars  # noqa: PLC0415 - matplotlib is optional

        return draw_bars(self[:top]._records, self.columns, self.threshold, axes)


def arrow_type(annotation: Any) -> "DataType | None":  # noqa: ANN401 - any annotation
    """Return the Arrow type of a field's values, None if they are of several types.

    None of Python is a null of any type.
    """
    import pyarrow as pa  # noqa: PLC0415 - pyarrow is optional

    members = [each for each in get_args(annotation) if each not in (NoneType, Ellipsis)]
    origin = get_origin(annotation)
    if origin is tuple:
        inner = arrow_type(members[0])
        return None if inner is None else pa.list_(inner)
    if origin is Annotated or (origin in (Union, UnionType) and len(members) == 1):
        return arrow_type(members[0])
    kind = type(members[0]) if origin is Literal else annotation
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        fields = {name: arrow_type(field.annotation) for name, field in kind.model_fields.items()}
        return None if None in fields.values() else pa.struct(fields)
    simple_types = {  # a bool is also an int
        bool: pa.bool_(),
        int: pa.int64(),
        float: pa.float64(),
        str: pa.string(),
        datetime: pa.timestamp("us", "UTC"),
    }
    kinds = [each for each in simple_types if isinstance(kind, type) and issubclass(kind, each)]
    return simple_types[kinds[0]] if kinds else None


def plain_cell(cell: object) -> object:
    """Return a cell with dictionaries and lists instead of documents and tuples."""
    if isinstance(cell, BaseModel):
        return cell.model_dump()
    return [plain_cell(each) for each in cell] if isinstance(cell, tuple) else cell
