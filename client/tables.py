"""What a study answers, as rows: plain data, in tables that become data frames.

for row in study.heavy_hitters():
    print(row.item, row.estimate, row.low, row.high)
frame = study.heavy_hitters().to_pandas()
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar, overload

from client.extras import install

if TYPE_CHECKING:
    from pandas import DataFrame

ROUND: Final = ("number", "state", "participants", "distinct", "opened", "closed")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HeavyHitter:
    """An item whose estimated count reaches the study's threshold.

    `low` and `high` are the ends of its 95% interval.
    """

    item: str
    estimate: float
    standard_error: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Told:
    """What a study says `at` a rank, value, range or prefix: a `value`, and an interval of it."""

    at: float | str
    value: float | str
    low: float | str
    high: float | str


class Table(Sequence[T]):
    """Rows in order; `columns` are the attributes of a row that a data frame shows."""

    def __init__(self, rows: Iterable[T], columns: Sequence[str]) -> None:
        self._rows = tuple(rows)
        self.columns = tuple(columns)

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> "Table[T]": ...
    def __getitem__(self, place: int | slice) -> "T | Table[T]":
        """Return the row at `place`, or the table of the rows in a slice."""
        if isinstance(place, slice):
            return Table(self._rows[place], self.columns)
        return self._rows[place]

    def __len__(self) -> int:
        """Return how many rows there are."""
        return len(self._rows)

    def __eq__(self, other: object) -> bool:
        """Return whether `other` is a table of the same rows."""
        return isinstance(other, Table) and self._rows == other._rows

    def __hash__(self) -> int:
        """Return the hash of the rows."""
        return hash(self._rows)

    def __repr__(self) -> str:
        """Return the rows, one a line."""
        return "\n".join(map(repr, self._rows)) or "no rows"

    def to_pandas(self) -> "DataFrame":
        """Return the rows as a data frame, a row each.

        Raises:
            ImportError: if pandas is not installed; says how to.
        """
        try:
            from pandas import DataFrame  # noqa: PLC0415 - whoever wants no frames needs none
        except ImportError as error:
            raise ImportError(f"data frames take pandas: {install('pandas')}") from error
        records = [[getattr(row, column) for column in self.columns] for row in self._rows]
        return DataFrame(records, columns=list(self.columns))
