"""Private files, which only their owner may read, and the limit of files that are open.

Windows has neither POSIX's modes of files nor that limit.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

_MAX_OPEN_FILES: Final = 65_536  # a connection that waits takes about 30 kB
# Libraries that are loaded later, and the event loop, have some open.
_OTHER_OPEN_FILES: Final = 50
_BINARY: Final[int] = getattr(os, "O_BINARY", 0)  # Windows would change the ends of lines
# A parent sets it for a child that ends with the parent, also if SIGKILL ends that one.
PARENT_VARIABLE: Final = "_BLINDTALLY_ENDS_WITH_STDIN"


def open_private_file(path: str | os.PathLike[str], flags: int = 0) -> int:
    """Return the descriptor of a file to read and write, which is made if it is missing.

    Raises:
        OSError: if the file cannot be opened, or made with the `flags`.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT | _BINARY | flags, 0o600)


def make_private_file(path: str | os.PathLike[str]) -> None:
    """Make an empty file for SQLite, whose other files get its mode; leave a file that exists.

    Raises:
        OSError: if the file cannot be made.
    """
    with suppress(FileExistsError):
        os.close(open_private_file(path, os.O_EXCL))


def sync_folder(folder: Path) -> None:
    """Write the names of the files in `folder` to the disk, where folders can be opened."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class OpenFilesError(ValueError):
    """A process may not open a connection for each of its devices."""


def raise_open_file_limit() -> int:
    """Raise the limit of open files as far as allowed; return it, at most `_MAX_OPEN_FILES`."""
    try:
        import resource  # noqa: PLC0415 - only POSIX has it
    except ImportError:
        return _MAX_OPEN_FILES
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (_MAX_OPEN_FILES if each == resource.RLIM_INFINITY else each for each in limits)
    wanted = min(hard, _MAX_OPEN_FILES)
    if soft < wanted:
        with suppress(ValueError, OSError):  # of a sandbox; the present limit stays
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, limits[1]))
            soft = wanted
    return min(soft, _MAX_OPEN_FILES)


def check_open_files(devices: int) -> None:
    """Raise the limit; raises OpenFilesError if `devices` connections would exceed it."""
    files, needed = raise_open_file_limit(), devices + _OTHER_OPEN_FILES
    if files < needed:
        raise OpenFilesError(
            f"{devices} devices in one process need {needed} open files, and it may have {files}: "
            "raise the limit by `ulimit -n`, or run fewer devices in more processes"
        )
