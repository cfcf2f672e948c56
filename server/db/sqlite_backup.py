"""Backups of a SQLite database, while it is served, and their restoration.

SQLite copies the pages of one moment (its online backup), and writes a copy in one transaction: a
killed command leaves the old content or the new one. A backup is one file without `-wal`, which
only its owner may read. It has all acknowledged messages, because the copy is made through SQLite,
which knows the latest changes in `NAME-wal`.

If files next to the database of a running server were deleted, another program makes new ones, and
does not find the latest changes. So their checksum in the database must be that of the files.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from server.db.database_url import FileIdentities
from server.db.migrations import head_revision
from server.db.sqlite_lock import check_files_beside, hold_lock, is_locked

_DAMAGED = sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB  # codes of errors
_WAIT_SECONDS = 5.0  # for SQLite's lock, which other programs hold for moments


class BackupError(Exception):
    """A backup cannot be made or restored; the message states why, and what to do."""


@dataclass(frozen=True, slots=True)
class BackupContent:
    """Numbers of studies and rounds in a backup, and its size in bytes."""

    studies: int
    rounds: int
    nbytes: int


def back_up(database: Path, backup: Path) -> BackupContent:
    """Copy a SQLite database to the new file `backup`; return its content.

    Raises:
        BackupError: if there is no database of this program, its server has other files, or the
            backup cannot be written.
    """
    if not database.is_file():
        raise BackupError(f"there is no database {database}")
    with _reported(database, backup):
        is_served = is_locked(database)
        os.close(os.open(backup, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            with closing(_connect(database)) as source, closing(_connect(backup)) as copy:
                _check_schema(source, database)
                if is_served:
                    _check_files(source, database)
                source.backup(copy)
                copy.execute("PRAGMA journal_mode = DELETE")
                copy.execute("PRAGMA user_version = 0")  # which no server has
                return _content(copy, backup)
        except BaseException:
            backup.unlink()
            raise


def restore(backup: Path, database: Path, *, replaces: bool) -> BackupContent:
    """Write the content of a backup into a SQLite database that no server has; return it.

    Raises:
        BackupError: if the backup is damaged or of another version, a server has the database, or
            there is one and the backup does not replace it.
    """
    if not backup.is_file():
        raise BackupError(f"there is no backup {backup}")
    if database.exists() and database.samefile(backup):
        raise BackupError(f"{backup} is the database itself: name a backup of it")
    if database.exists() and database.stat().st_size and not replaces:
        raise BackupError(f"{database} exists: --replace overwrites it")
    with _reported(database, backup), closing(_connect(backup)) as source:
        _check_schema(source, backup)
        _content(source, backup)
        with hold_lock(database):
            try:
                return _write(source, database)
            except sqlite3.DatabaseError as error:
                if error.sqlite_errorcode & 0xFF not in _DAMAGED:
                    raise
            # SQLite cannot open the damaged file, which the operator wants replaced.
            os.truncate(database, 0)
            for suffix in ("-wal", "-shm"):
                database.with_name(database.name + suffix).unlink(missing_ok=True)
            return _write(source, database)


def _write(source: sqlite3.Connection, database: Path) -> BackupContent:
    with closing(_connect(database)) as target:
        source.backup(target)
        return _content(target, database)


def _connect(file: Path) -> sqlite3.Connection:
    """Open a file that exists; to read SQLite's latest changes it must be able to write."""
    check_files_beside(file)
    address = f"file:{quote(str(file.resolve()))}?mode=rw"
    return sqlite3.connect(address, uri=True, timeout=_WAIT_SECONDS, isolation_level=None)


@contextmanager
def _reported(database: Path, backup: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError:
        raise BackupError(f"{backup} exists, and is not overwritten: name another file") from None
    except (OSError, sqlite3.Error) as error:
        raise BackupError(f"cannot copy between {database} and {backup}: {error}") from None


def _check_schema(connection: sqlite3.Connection, file: Path) -> None:
    query = "SELECT count(*) FROM sqlite_schema WHERE name = 'alembic_version'"
    revision = "none"
    if connection.execute(query).fetchone()[0]:
        revision = connection.execute("SELECT version_num FROM alembic_version").fetchone()[0]
    if revision != head_revision():
        raise BackupError(
            f"{file} has schema {revision}, not {head_revision()}: it is empty, or of another "
            "version of blindtally"
        )


def _check_files(connection: sqlite3.Connection, database: Path) -> None:
    """Check that the server has opened the files that `connection` has opened."""
    noted = connection.execute("PRAGMA user_version").fetchone()[0]
    if noted != FileIdentities(database.resolve()).checksum:
        raise BackupError(
            f"the server of {database} has other files open: {database.name}-wal or -shm was "
            "deleted or replaced. /readyz has the reason. Stop the server to save what is left"
        )


def _content(connection: sqlite3.Connection, file: Path) -> BackupContent:
    """Check the pages of a database, and return its content."""
    fault = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if fault != "ok":
        raise BackupError(f"{file} is damaged: {fault}")
    studies, rounds = (
        connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608 - constants
        for table in ("studies", "rounds")
    )
    return BackupContent(studies, rounds, file.stat().st_size)
