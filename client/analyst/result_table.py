"""Table of result rows, which is also a data frame."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar, overload

from client.extras_installation import install_command

if TYPE_CHECKING:
    from pandas import DataFrame

T = TypeVar("T")


class ResultTable(Sequence[T]):
    """Rows in order; `columns` are the attributes of a row that a data frame shows."""

    def __init__(self, rows: Iterable[T], columns: Iterable[str]) -> None:
        self._rows = tuple(rows)
        self.columns = tuple(columns)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> "ResultTable[T]": ...
    def __getitem__(self, index: int | slice) -> "T | ResultTable[T]":
        if isinstance(index, slice):
            return ResultTable(self._rows[index], self.columns)
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ResultTable) and self._rows == other._rows

    def __hash__(self) -> int:
        return hash(self._rows)

    def __repr__(self) -> str:
        return "\n".join(map(repr, self._rows)) or "no rows"

    def to_pandas(self) -> "DataFrame":
        """Return a data frame; raises ImportError with the command that installs pandas."""
        try:
            from pandas import DataFrame  # noqa: PLC0415 - pandas is optional
        except ImportError as error:
            raise ImportError(f"data frames need pandas: {install_command('pandas')}") from error
        records = [[getattr(row, column) for column in self.columns] for row in self._rows]
        return DataFrame(records, columns=list(self.columns))
