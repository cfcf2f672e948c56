"""Counter of the statements that a database executes."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import event

from server.db.database import Database


@contextmanager
def statements(database: Database, table: str = "") -> Iterator[list[str]]:
    """Record the statements that name `table`."""
    executed = list[str]()

    def record(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        if table in statement:
            executed.append(statement)

    event.listen(database.engine, "before_cursor_execute", record)
    try:
        yield executed
    finally:
        event.remove(database.engine, "before_cursor_execute", record)
