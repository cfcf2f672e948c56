"""Files of a SQLite database as they were when a server opened it.

A server that has files open does not notice that they were deleted or replaced: it goes on in files
that no other program finds, and that end with it. So it compares them by device and inode number
before each commit. It only asks for their status: to open and close one would end SQLite's locks.

It also leaves their `checksum` in the database (`PRAGMA user_version`), so that another program can
see whether it has opened the same files.
"""

import errno
from functools import cached_property
from pathlib import Path
from zlib import crc32

_SUFFIXES = ("", "-wal", "-shm")


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

    @cached_property
    def checksum(self) -> int:
        """Return a positive number of 31 bits for the inodes of the two files next to the database.

        Device numbers differ between containers that share a volume.
        """
        inodes = [identity and identity[1] for identity in self._identities.values()]
        return crc32(repr(inodes[1:]).encode()) & 0x7FFFFFFF | 1

    def check(self, checksum: int) -> None:
        """Raise OSError if a file was deleted or replaced, or the database's `checksum` is other.

        Then another program has written the content of a backup into the file.
        """
        if checksum != self.checksum:
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
