"""The limit of open files of this process, of which each connection takes one."""

import resource
from contextlib import suppress
from typing import Final

MAX_OPEN_FILES: Final = 65_536  # a connection that waits takes about 30 kB


def raise_open_file_limit() -> int:
    """Raise the limit of open files as far as allowed; return it, at most `MAX_OPEN_FILES`."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (MAX_OPEN_FILES if each == resource.RLIM_INFINITY else each for each in limits)
    wanted = min(hard, MAX_OPEN_FILES)
    if soft < wanted:
        with suppress(ValueError, OSError):  # of a sandbox; the present limit stays
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, limits[1]))
            soft = wanted
    return min(soft, MAX_OPEN_FILES)
