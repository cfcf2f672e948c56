"""Errors of databases: temporary ones, retryable ones, and a full disk."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DataError, DBAPIError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

_RETRYABLE_SQLSTATES = ("40001", "40P01")  # serialization_failure, deadlock_detected
_DISK_FULL = "53100"  # disk_full
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


def is_disk_full(error: Exception) -> bool:
    """Return whether the disk of the database is full."""
    code = getattr(getattr(error, "orig", None), "sqlite_errorcode", None)
    return code == sqlite3.SQLITE_FULL or _sqlstate(error) == _DISK_FULL


def _sqlstate(error: Exception) -> str:
    """Return PostgreSQL's error code, or an empty string."""
    return str(getattr(getattr(error, "orig", None), "sqlstate", None) or "")
