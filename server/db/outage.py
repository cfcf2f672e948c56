"""Outage of a database: from the first failed transaction until the rounds can go on.

    transactions fail -> the service is not ready, and its rounds wait
                      -> a probe succeeds, and a poll after it -> the service is ready

An outage that returns within seconds (a damaged page that one job reads, for example) ends only
after a time without a failure: otherwise the service would be ready again every second, for a
moment. The log has one line for each cause of an outage, and one for its end.
"""

from collections.abc import Callable
from threading import Lock
from time import monotonic
from typing import Final

import structlog

from server.db.database_errors import error_code, is_full, is_outage, loggable_reason

_QUIET_SECONDS: Final = 5.0  # without a failure, until an outage that has returned ends
_log = structlog.get_logger(__name__)


class Outage:
    """State of one database, as the transactions of this process see it.

    Attributes:
        is_open: a transaction has failed, and nothing has shown since that the rounds can go on.
        is_full: the database may accept small rows, but not large ones.
        code: of the last failure, as `error_code` returns it.
    """

    def __init__(self, seconds: Callable[[], float] = monotonic) -> None:
        self._seconds = seconds
        self._lock = Lock()
        self._started = self._last_failure = 0.0
        self._ended = float("-inf")
        self._has_returned = False
        self._failures = 0
        self._logged = set[str]()  # the causes of an outage whose end is not logged
        self.is_open = False
        self.is_full = False
        self.code = ""

    @property
    def description(self) -> str:
        """Return a text for people, without anything of the database's own messages."""
        code = f" ({self.code})" if self.code else ""
        return (
            f"the database cannot be used{code}: it may be out of reach, full, read-only, locked "
            "or damaged, or lack a table or a right; the log of the service has the cause, and the "
            "service continues by itself once it is repaired"
        )

    def on_failure(self, error: Exception) -> None:
        """Record that a transaction failed, if the database is the reason."""
        if not is_outage(error):
            return
        reason, code = loggable_reason(error), error_code(error)
        with self._lock:
            self._last_failure, self._failures = self._seconds(), self._failures + 1
            if not self.is_open:
                was_just_over = self._last_failure < self._ended + 2 * _QUIET_SECONDS
                self._has_returned = was_just_over and code == self.code
                self.is_open, self.is_full = True, False
            self.code, self.is_full = code, self.is_full or is_full(error)
            if not self._logged:
                self._started = self._last_failure
            if (code or reason) not in self._logged:
                self._logged.add(code or reason)
                _log.warning("database unavailable", error=reason)

    def end(self, tried: float) -> bool:
        """End the outage, because all that was tried since `tried` (monotonic seconds) succeeded.

        Returns whether it is over: not if a transaction has failed since, or a moment ago in an
        outage that returned.
        """
        with self._lock:
            now = self._seconds()
            quiet = _QUIET_SECONDS if self._has_returned else 0.0
            if self._last_failure < tried and now >= self._last_failure + quiet:
                self._ended, self.is_open = now, False
            return not self.is_open

    def on_success(self) -> None:
        """Record that a transaction succeeded: the log has the end of an outage that stays away."""
        if not self._logged or self.is_open:
            return
        with self._lock:
            if self._logged and self._seconds() >= self._last_failure + _QUIET_SECONDS:
                seconds, failures = round(self._last_failure - self._started, 1), self._failures
                self._failures = 0
                self._logged.clear()
                _log.warning(
                    "database available again", seconds=seconds, failed_transactions=failures
                )
