"""Jumps of the database's clock, which the monotonic clock of this process does not show.

A reading of PostgreSQL's clock takes a time: it was made between two monotonic times. So the
difference between the two clocks is known up to this time. For example, if the request was sent at
10 s and answered at 12 s of the monotonic clock, and the database's clock showed 100 s, then the
database is 88 to 90 s ahead. A later difference outside of these limits by more than
`MAX_SECONDS` is a jump. Slow corrections of a clock, as of NTP, are followed.
"""

from datetime import datetime
from threading import Lock
from typing import Final

import structlog

MAX_SECONDS: Final = 5.0
_log = structlog.get_logger(__name__)


class ClockJumps:
    """Number of jumps that readings of the database's clock have shown; threads share it."""

    def __init__(self) -> None:
        self.count = 0
        self._least: float | None = None  # difference of the two clocks in seconds
        self._most = 0.0
        self._access = Lock()

    def has_jumped(self, now: datetime, sent: float, answered: float) -> bool:
        """Return whether the clock has jumped since the last reading, and count the jump.

        The reading `now` was made between the monotonic times `sent` and `answered`.
        """
        least, most = now.timestamp() - answered, now.timestamp() - sent
        with self._access:
            seconds = 0.0
            if self._least is not None:
                seconds = max(least - self._most, 0.0) or min(most - self._least, 0.0)
            self._least, self._most = least, most
            if abs(seconds) <= MAX_SECONDS:
                return False
            self.count += 1
        _log.warning("database clock jumped", seconds=round(seconds))
        return True
