"""Files that only their owner may read, from their first byte."""

import os
from contextlib import suppress


def make_private_file(path: str | os.PathLike[str]) -> None:
    """Make an empty file for SQLite, whose other files get its mode; leave a file that exists.

    Raises:
        OSError: if the file cannot be made.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with suppress(FileExistsError):
        os.close(os.open(path, flags, 0o600))
