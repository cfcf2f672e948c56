"""One process for one SQLite file: a lock of the operating system beside it.

Two servers on one file would each believe that nobody else hears, and ring their bells for
themselves alone. The lock goes with the process that holds it, however that ends: a crash leaves
the file `NAME.db.lock`, which means nothing by itself. Programs that serve nobody need no lock.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from server.database import Database


class DatabaseInUseError(Exception):
    """Another process serves this SQLite file."""


@contextmanager
def sole_process(database: Database) -> Iterator[None]:
    """Be the one process that serves a SQLite file; PostgreSQL may have many.

    Raises:
        DatabaseInUseError: if there is one.
        OSError: if the lock cannot be made beside the file.
    """
    if not database.is_sqlite:
        yield
        return
    file = Path(database.url.database or "").resolve()  # by whatever links it was named
    if not file.parent.is_dir():  # the lock would make it
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
