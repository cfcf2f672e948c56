"""Errors of databases: temporary and retryable ones, refusals of writes, and outages in the log."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from time import monotonic

import structlog
from sqlalchemy.exc import DataError, DBAPIError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

_log = structlog.get_logger(__name__)
_RETRYABLE_SQLSTATES = ("40001", "40P01")  # serialization_failure, deadlock_detected
_READ_ONLY = "25006"  # read_only_sql_transaction: a standby that is not yet the primary
_PROGRAM_LIMIT_EXCEEDED = "54"  # a class of codes, for example for an index key of 3 kB


class BusyError(Exception):
    """Other writers took too long, so the transaction was not started."""


# The database is locked, unreachable, or has no free connection: nothing was changed.
UNAVAILABLE_ERRORS = (OperationalError, InterfaceError, PoolTimeoutError, BusyError)


def loggable_reason(error: Exception) -> str:
    """Return a description for the log; a driver's message may contain data."""
    name = type(error).__name__
    return f"{name}: {error}" if isinstance(error, BusyError) else name


@contextmanager
def classified_errors() -> Iterator[None]:
    """Raise OperationalError for temporary errors, and DataError for permanent ones."""
    try:
        yield
    except OperationalError as error:
        if _sqlstate(error).startswith(_PROGRAM_LIMIT_EXCEEDED):
            raise DataError(error.statement, None, error.orig or error) from None
        raise
    except InternalError as error:
        if _sqlstate(error) == _READ_ONLY:
            raise OperationalError(error.statement, None, error.orig or error) from None
        raise


def is_retryable(error: Exception) -> bool:
    """Return whether PostgreSQL rolled a transaction back because of other transactions."""
    return isinstance(error, DBAPIError) and _sqlstate(error) in _RETRYABLE_SQLSTATES


def is_write_refusal(error: Exception) -> bool:
    """Return whether the database refuses writes for now: it is full, locked, read-only or away.

    Neither a conflict with another transaction nor a queue of this process is a refusal.
    """
    return isinstance(error, (OperationalError, InterfaceError)) and not is_retryable(error)


def _sqlstate(error: Exception) -> str:
    """Return PostgreSQL's error code, or an empty string."""
    return str(getattr(getattr(error, "orig", None), "sqlstate", None) or "")


class OutageLog:
    """Log of the outages of a database: one line at the start and one at the end.

    An outage ends with a transaction that succeeds `_QUIET_SECONDS` or more after the last failure,
    so that one which comes and goes is one outage.
    """

    _QUIET_SECONDS = 5.0

    def __init__(self, seconds: Callable[[], float] = monotonic) -> None:
        self._seconds = seconds
        self._lock = Lock()
        self._started: float | None = None
        self._last_failure = 0.0
        self._failures = 0

    def on_failure(self, error: Exception) -> None:
        """Record that a transaction failed with one of `UNAVAILABLE_ERRORS`."""
        with self._lock:
            self._last_failure, self._failures = self._seconds(), self._failures + 1
            if self._started is None:
                self._started = self._last_failure
                _log.warning("database unavailable", error=loggable_reason(error))

    def on_success(self) -> None:
        """Record that a transaction succeeded."""
        if self._started is None:
            return
        with self._lock:
            now = self._seconds()
            if self._started is None or now < self._last_failure + self._QUIET_SECONDS:
                return
            seconds, failures = round(self._last_failure - self._started, 1), self._failures
            self._started, self._failures = None, 0
            _log.warning("database available again", seconds=seconds, failed_transactions=failures)
