"""INSERT statements that are compiled once, for the tables with a row for each message or device.

For each row that it inserts SQLAlchemy takes several times as long as SQLite. Here only the types
of the columns convert the values, and the driver gets all rows at once.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

from sqlalchemy import Connection, Dialect, Table, insert

_Convert: TypeAlias = Callable[[Any], Any]


class PreparedInsert:
    """INSERT into the table of `row_class`, with a value for each of its columns."""

    def __init__(self, row_class: Any) -> None:  # noqa: ANN401 - a class of the schema
        self._table = cast("Table", row_class.__table__)
        self._compiled: dict[str, tuple[str, list[str], dict[str, _Convert]]] = {}  # by dialect

    def __call__(self, connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
        """Insert `rows`; raises IntegrityError if one of them exists.

        The transaction must then be rolled back.
        """
        dialect = connection.dialect
        if dialect.name not in self._compiled:
            self._compiled[dialect.name] = self._compile(dialect)
        statement, names, conversions = self._compiled[dialect.name]
        converted = [
            row | {name: convert(row[name]) for name, convert in conversions.items()}
            for row in rows
        ]
        if dialect.positional:
            tuples = [tuple(map(row.__getitem__, names)) for row in converted]
            connection.exec_driver_sql(statement, tuples)
        else:
            connection.exec_driver_sql(statement, converted)

    def _compile(self, dialect: Dialect) -> tuple[str, list[str], dict[str, _Convert]]:
        columns = self._table.columns
        names = columns.keys()
        compiled = insert(self._table).compile(dialect=dialect, column_keys=names)
        conversions: dict[str, _Convert] = {
            column.key: convert
            for column in columns
            if (convert := column.type.dialect_impl(dialect).bind_processor(dialect)) is not None
        }
        return str(compiled), names, conversions
