"""Lock that lets one server process at a time use a SQLite file.

Two servers on one file could not notify each other. On Linux the lock is `flock` on the database
itself. So it is found through every name of the file (a link, another path, the volume of another
container), no file next to the database can be deleted to get around it, and the kernel releases it
with its process, however that ends. SQLite's own locks are of another kind, and do not conflict.
They are lost when the process closes the file, so the file is opened before SQLite opens it, and is
closed after SQLite. On other systems they may conflict: there the lock is on `NAME.lock`.

SQLite keeps the latest changes in `NAME-wal`, by the name. A file with a second name (hard link) is
refused, because a server that opens the other one after a crash would lose them. If the database
was moved while it was served, a program that opens another file under its name would delete them.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout, lock_descriptor

from server.db.database_url import file_identity

if TYPE_CHECKING:
    from server.db.database import Database

# Of this process, which must not open such a file again: to close it would end SQLite's locks.
_held = set[Path | tuple[int, int] | None]()
_SHM_BYTE, _DATABASE_BYTE = 128, 0x40000002  # which SQLite keeps locked while it has a file open


class DatabaseInUseError(Exception):
    """Another process serves this SQLite file, or could do so through another name."""


@contextmanager
def sqlite_process_lock(database: "Database") -> Iterator[None]:
    """Hold the lock of a SQLite file while `database` is open; PostgreSQL needs none.

    The file is made if it is missing, and only its owner may read it.

    Raises:
        DatabaseInUseError: if another process holds the lock, or the file has several names.
        OSError: if the file cannot be opened or created, or as `check_files_beside` does.
    """
    if not database.is_sqlite:
        yield
        return
    with hold_lock(Path(database.url.database or "")):
        yield


def hold_lock(file: Path) -> ExitStack:
    """Return the lock of a SQLite file, which ends when it is closed.

    Raises:
        DatabaseInUseError, OSError: as `sqlite_process_lock` does.
    """
    file = Path(os.path.realpath(file))
    if not file.parent.is_dir():  # which the lock would create
        raise FileNotFoundError(f"there is no folder {file.parent}")
    if file.exists() and not file.is_file():
        raise OSError(f"{file} is a folder, a pipe or a device: name a file for the database")
    in_use = DatabaseInUseError(
        f"another blindtally serves {file}, and SQLite serves one process: stop that one, or "
        "use PostgreSQL for several (--database postgresql://USER:PASSWORD@HOST/NAME)"
    )
    if _held & {file, file_identity(file)}:
        raise in_use
    check_files_beside(file)
    with ExitStack() as stack:
        opened = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        stack.callback(os.close, opened)
        if not _lock(file, opened, stack):
            raise in_use
        if os.fstat(opened).st_nlink != 1:
            raise DatabaseInUseError(
                f"{file} has several names (hard links), and SQLite keeps the latest changes by "
                "one of them: delete the others, and serve the name that was served before"
            )
        names = {file, file_identity(file)}
        _held.update(names)
        stack.callback(_held.difference_update, names)
        return stack.pop_all()


def is_locked(file: Path) -> bool:
    """Return whether a server has a SQLite file, which this process has not opened."""
    try:
        hold_lock(file).close()
    except DatabaseInUseError:
        return True
    return False


def check_files_beside(file: Path) -> None:
    """Raise OSError if a process has `-wal` and `-shm` of this name open, but another database.

    SQLite would write their changes into `file`, and delete them: call this before it opens `file`.
    """
    file = Path(os.path.realpath(file))
    if (
        _held.isdisjoint({file, file_identity(file)})
        and _is_in_use(file.with_name(f"{file.name}-shm"), _SHM_BYTE)
        and not _is_in_use(file, _DATABASE_BYTE)
    ):
        raise OSError(
            f"the server of {file} has other files open: its database was moved or replaced. Move "
            "it back, or stop the server and restore a backup"
        )


def _is_in_use(file: Path, byte: int) -> bool:
    """Return whether another process has locked this byte; without POSIX nothing is known."""
    with suppress(ImportError, FileNotFoundError), file.open("r+b") as opened:
        import fcntl  # noqa: PLC0415 - not on every system

        try:
            fcntl.lockf(opened, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        except (BlockingIOError, PermissionError):
            return True
    return False


def _lock(file: Path, opened: int, stack: ExitStack) -> bool:
    if sys.platform == "linux":
        return lock_descriptor(opened, blocking=False)
    try:
        stack.enter_context(FileLock(f"{file}.lock", timeout=0, thread_local=False))
    except Timeout:
        return False
    return True
