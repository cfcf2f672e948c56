"""Private files, which only their owner may read, and the limit of files that are open."""

import os
from contextlib import suppress
from typing import Final

_MAX_OPEN_FILES: Final = 65_536  # a connection that waits takes about 30 kB
# Libraries that are loaded later, and the event loop, have some open.
_OTHER_OPEN_FILES: Final = 50


def make_private_file(path: str | os.PathLike[str]) -> None:
    """Make an empty file for SQLite, whose other files get its mode; leave a file that exists.

    Raises:
        OSError: if the file cannot be made.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with suppress(FileExistsError):
        os.close(os.open(path, flags, 0o600))


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
