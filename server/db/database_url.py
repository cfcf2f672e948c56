"""Place of a database: its URL, how little of it is shown, and the files of SQLite.

Of `postgresql://me:secret@db.test:5432/counts?sslmode=require`, errors and logs show the driver,
the host, the port and the name of the database. Any other part may be a password: libpq also reads
`?password=secret`, and a person who forgets the host writes `postgresql://me:secret/counts`.

A server that has the files of a SQLite database open does not notice that they were deleted or
replaced: it goes on in files that no other program finds, and that end with it. So before each
commit it compares them by device and inode number with those that it opened. It only asks for their
status: to open and close one would end SQLite's locks. It also leaves their `checksum` in the
database (`PRAGMA user_version`), so that another program can see whether it has opened the same
files. If the number is gone, the content was replaced, of which SQLite's connections may keep old
pages. So nothing is committed any more, and the number is read from the file, too, which stays open
for this.
"""

import errno
import os
import re
from contextlib import suppress
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from sqlalchemy import Engine, event
from sqlalchemy.engine import URL, Dialect, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError

_DRIVERS: Final = {
    "sqlite": "sqlite+pysqlite",
    "sqlite+pysqlite": "sqlite+pysqlite",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}
_SHOWN_OPTIONS: Final = ("host", "port", "dbname")
_SUFFIXES = ("", "-wal", "-shm")
_VERSION_OFFSET: Final = 60  # of `user_version` in a file of SQLite


def parse_url(text: str) -> URL:
    """Return the database URL in `text` with our driver.

    Raises:
        ValueError: if it is not usable. The error shows no part of `text` but its driver.
    """
    url = None
    with suppress(ArgumentError, ValueError):  # the second one quotes what is not a port
        url = make_url(text)
    if url is None:
        raise ValueError("not a database URL, such as sqlite:///blindtally.db")
    if url.drivername not in _DRIVERS:
        raise ValueError(f"sqlite:/// or postgresql:// expected, got {url.drivername}://")
    is_sqlite = url.drivername.startswith("sqlite")
    if is_sqlite and (url.host or url.database in (None, "", ":memory:")):
        raise ValueError("a SQLite database needs a file: sqlite:///blindtally.db")
    # A part of the password, which would be shown as the host or the name of the database.
    if not is_sqlite and "@" in f"{url.host}{url.database}":
        raise ValueError("write @ in a user or password of the database URL as %40")
    return url.set(drivername=_DRIVERS[url.drivername])


def shown_url(url: URL) -> str:
    """Return the driver, host, port and name of a database."""
    shown = URL.create(url.drivername, host=url.host, port=url.port, database=url.database)
    return shown.render_as_string()


def hide_url_in_errors(engine: Engine) -> None:
    """Remove from the errors of `engine`'s connections what `shown_url` does not show.

    A driver quotes a user that a server refuses, and an option that it does not know.
    """
    event.listen(engine, "do_connect", partial(_connect, engine.url))


def _connect(
    url: URL, dialect: Dialect, _record: object, arguments: list[Any], options: dict[str, Any]
) -> DBAPIConnection:
    try:
        return dialect.connect(*arguments, **options)
    except dialect.loaded_dbapi.Error as error:
        hidden = [
            values for name, values in url.normalized_query.items() if name not in _SHOWN_OPTIONS
        ]
        for part in filter(None, (url.username, url.password, *chain(*hidden))):
            text = re.sub(rf"(?<!\w){re.escape(part)}(?!\w)", "...", str(error))
            if text != str(error):
                error.args = (text,)
        raise


def file_identity(path: Path) -> tuple[int, int] | None:
    """Return the device and the number of a file, None if it does not exist."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


class FileIdentities:
    """Identities of a database `file` and of the two files next to it, from now on."""

    def __init__(self, file: Path) -> None:
        paths = [file.with_name(file.name + suffix) for suffix in _SUFFIXES]
        self._identities = {path: file_identity(path) for path in paths}
        self._file, self._descriptor, self._is_replaced = file, -1, False

    @cached_property
    def checksum(self) -> int:
        """Return a positive number of 31 bits for the inodes of the two files next to the database.

        Device numbers differ between containers that share a volume.
        """
        inodes = [identity and identity[1] for identity in self._identities.values()]
        return crc32(repr(inodes[1:]).encode()) & 0x7FFFFFFF | 1

    def open(self) -> None:
        """Open the database, in whose first page the checksum is, until `close`."""
        self._descriptor = os.open(self._file, os.O_RDONLY | getattr(os, "O_BINARY", 0))

    def close(self) -> None:
        """Close the database, after SQLite has, whose locks this ends."""
        os.close(self._descriptor)

    def check(self, checksum: int) -> None:
        """Raise OSError if a file was deleted or replaced, or the database's `checksum` is other.

        Then another program has written the content of a backup into the file.
        """
        os.lseek(self._descriptor, _VERSION_OFFSET, os.SEEK_SET)
        stored = int.from_bytes(os.read(self._descriptor, 4), "big")
        self._is_replaced |= {checksum, stored} != {self.checksum}
        if self._is_replaced:
            raise OSError(
                errno.ESTALE,
                "the content of the database was replaced while it was served: stop the service, "
                "and restore a backup",
            )
        for path, identity in self._identities.items():
            if file_identity(path) != identity:
                raise OSError(
                    errno.ESTALE,
                    f"{path.name} was deleted or replaced while it was served: move it back, or "
                    "stop the service and restore a backup",
                )
