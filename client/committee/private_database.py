"""A SQLite file that only its owner may read, open as long as the object that uses it."""

import os
import sqlite3
import weakref

from client.process_files import make_private_file


def open_private_database(
    user: object, path: str | os.PathLike[str] | None, schema: str
) -> sqlite3.Connection:
    """Return a connection to the file at `path` (None: in memory), closed when `user` is freed.

    Raises:
        OSError, sqlite3.Error: if the file cannot be used.
    """
    if path is not None:
        make_private_file(path)
    connection = sqlite3.connect(
        ":memory:" if path is None else path, isolation_level=None, check_same_thread=False
    )
    weakref.finalize(user, connection.close)
    connection.executescript(schema)
    return connection
