"""Lock that lets one server process at a time use a SQLite file.

Two servers on one file could not notify each other. The operating system releases the lock when its
process ends, in any way; the file `NAME.db.lock` that a crash leaves has no effect.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from server.db.database import Database


class DatabaseInUseError(Exception):
    """Another process serves this SQLite file."""


@contextmanager
def sqlite_process_lock(database: Database) -> Iterator[None]:
    """Hold the lock of a SQLite file; PostgreSQL needs none.

    Raises:
        DatabaseInUseError: if another process holds it.
        OSError: if the lock file cannot be created next to the database.
    """
    if not database.is_sqlite:
        yield
        return
    file = Path(database.url.database or "").resolve()  # the same file for all links to it
    if not file.parent.is_dir():  # which the lock would create
        raise FileNotFoundError(f"there is no folder {file.parent}")
    lock = FileLock(f"{file}.lock", timeout=0, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        raise DatabaseInUseError(
            f"another blindtally serves {file}, and SQLite serves one process: stop that one, or "
            "use PostgreSQL for several (--database postgresql://USER:PASSWORD@HOST/NAME)"
        ) from None
    try:
        yield
    finally:
        lock.release()
