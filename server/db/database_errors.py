"""Errors of databases: faults of one request, and outages, which make a database unusable.

    a value, a wrong statement, a rule of this  the request's own fault: it alone fails
    program's schema
    conflicts of transactions (class 40)        repeated; then the request may be sent again
    everything else                             an outage: a person must repair something, or wait

For example SQLSTATE 23505 (a key exists) is a fault of one request. The states 42501 (a right was
revoked), 42P01 (a table is gone), 53100 (the disk is full) and 57P01 (the server stops) are
outages, as are SQLITE_CORRUPT, SQLITE_BUSY and an OSError of the database's disk. So is a violated
constraint that is not in `schema.py`: another program added it, and it fails all requests alike. An
unknown error is an outage as well: a service that waits can be repaired, and a round that failed
cannot.

An outage lasts from the first failed transaction until the rounds can go on:

    transactions fail -> the service is not ready, and its rounds wait
                      -> a probe succeeds, and a poll after it -> the service is ready

An outage that returns within seconds (a damaged page that one job reads, for example) ends only
after a time without a failure: otherwise the service would be ready again every second, for a
moment. The log has one line for each cause of an outage, and one for its end.

Source: [PostgreSQL, "Error Codes"]; [SQLite, "Result and Error Codes"].
"""

import errno
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from time import monotonic
from typing import Any, Final

import structlog
from sqlalchemy.exc import DataError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from server.db.schema import StudyRow

_INTEGRITY: Final = "23"  # class of integrity constraints
_CONFLICT: Final = "40"  # class: PostgreSQL rolled the transaction back because of others
_RETRYABLE_SQLSTATES: Final = ("40001", "40P01")  # serialization_failure, deadlock_detected
_PROGRAM_LIMIT_EXCEEDED: Final = "54"  # class, for example for an index key of 3 kB
# Classes of PostgreSQL's codes that a request's values or a wrong statement cause: cardinality,
# data, integrity constraint, WITH CHECK OPTION, program limit.
_OWN_CLASSES: Final = frozenset({"21", "22", "23", "44", _PROGRAM_LIMIT_EXCEEDED})
# syntax_error, undefined_parameter, indeterminate_datatype. The others of class 42 mean that a
# table, a column or a right has been taken away.
_OWN_SQLSTATES: Final = frozenset({"42601", "42P02", "42P18"})
_OWN_SQLITE_CODES: Final = frozenset(
    {
        sqlite3.SQLITE_TOOBIG,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_MISUSE,
        sqlite3.SQLITE_RANGE,
    }
)
# The names that all drivers and SQLAlchemy share [PEP 249], for an error without a code.
_OWN_NAMES: Final = frozenset({"IntegrityError", "DataError", "ProgrammingError"})
# These errors need no new connection: the file is as it was.
_LOCKED_SQLITE_CODES: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
# "cached plan must not change result type", invalid_sql_statement_name
_CONNECTION_SQLSTATES: Final = ("0A000", "25006", "26000", "57014")
# The schema has no rule of these kinds.
_FOREIGN_RULES: Final = ("SQLITE_CONSTRAINT_CHECK", "SQLITE_CONSTRAINT_TRIGGER")
_MAX_NAME_BYTES: Final = 63  # of a name of PostgreSQL
_FULL_CODES: Final = ("SQLITE_FULL", "SQLITE_IOERR_WRITE", "53100", "ENOSPC", "EDQUOT")
_QUIET_SECONDS: Final = 5.0  # without a failure, until an outage that has returned ends


class BusyError(Exception):
    """Other writers took too long, so the transaction was not started."""


class ClockJumpError(BusyError):
    """The database's clock has jumped, so a reading decides nothing; the transaction is undone."""


# The database is unusable for now, or has no free connection: nothing was changed.
UNAVAILABLE_ERRORS = (OperationalError, InterfaceError, PoolTimeoutError, BusyError)


@contextmanager
def classified_errors() -> Iterator[None]:
    """Raise OperationalError for each outage, and DataError for a value beyond a limit.

    Other errors pass. Drivers raise outages as errors of all their classes.
    """
    try:
        yield
    except Exception as error:
        if error_code(error).startswith(_PROGRAM_LIMIT_EXCEEDED):
            raise DataError(None, None, _driver_error(error)) from None
        if is_outage(error) and not isinstance(error, UNAVAILABLE_ERRORS):
            raise OperationalError(None, None, _driver_error(error)) from None
        raise


def is_outage(error: BaseException) -> bool:
    """Return whether a person must repair the database, or wait for it, after `error`.

    Neither a conflict with another transaction nor a queue of this process is an outage.
    """
    driver = _driver_error(error)
    # psycopg raises the latter for a value in a format that it does not read.
    if isinstance(driver, (OSError, NotImplementedError)):
        return True
    if (state := _sqlstate(driver)) is not None:
        is_own = state[:2] in _OWN_CLASSES or state in _OWN_SQLSTATES
        if state.startswith(_INTEGRITY):
            is_own = not _is_foreign_rule(getattr(driver, "diag", None))
        return not is_own and not state.startswith(_CONFLICT)
    if (code := _sqlite_code(driver)) is not None:
        return code not in _OWN_SQLITE_CODES or _is_foreign_rule_of_sqlite(driver)
    if not isinstance(error, (DBAPIError, sqlite3.Error)) and not hasattr(driver, "sqlstate"):
        return False
    names = {each.__name__ for each in type(error).__mro__}
    return names.isdisjoint(_OWN_NAMES)


def is_retryable(error: Exception) -> bool:
    """Return whether PostgreSQL rolled a transaction back because of other transactions."""
    return error_code(error) in _RETRYABLE_SQLSTATES


def is_full(error: Exception) -> bool:
    """Return whether a database may accept small rows but not large ones after `error`."""
    return error_code(error) in _FULL_CODES


def needs_new_connections(error: BaseException) -> bool:
    """Return whether a database may continue to fail on the connections that it has after `error`.

    A connection of SQLite keeps pages that it has read, and stays read-only if it was opened so.
    One of PostgreSQL keeps its prepared statements, and the defaults with which it began: to read
    only, or to end a statement after a time.
    """
    driver = _driver_error(error)
    if (code := _sqlite_code(driver)) is not None:
        return is_outage(error) and code not in _LOCKED_SQLITE_CODES
    return _sqlstate(driver) in _CONNECTION_SQLSTATES


def error_code(error: BaseException) -> str:
    """Return PostgreSQL's SQLSTATE, SQLite's or the system's name of an error, or an empty string.

    For example 42501, SQLITE_CORRUPT or ENOSPC.
    """
    driver = _driver_error(error)
    if isinstance(driver, OSError):
        return errno.errorcode.get(driver.errno or 0, "")
    return _sqlstate(driver) or str(getattr(driver, "sqlite_errorname", ""))


def loggable_reason(error: Exception) -> str:
    """Return the class, the code and the server's message of an error, for the log.

    Only the message of an outage is shown, because other messages may contain values.
    """
    name, driver, code = type(error).__name__, _driver_error(error), error_code(error)
    if isinstance(error, BusyError):
        return f"{name}: {error}"
    if not is_outage(error):
        return name
    message = ""
    if isinstance(driver, OSError):
        message = driver.strerror or ""
    elif code.startswith("SQLITE"):
        message = str(driver)
    elif diagnostic := getattr(driver, "diag", None):
        # Without a connection there is only a text, for example "too many clients already".
        message = diagnostic.message_primary or " ".join(str(driver).split())
    return ": ".join(filter(None, (f"{name} {code}".rstrip(), message)))


def _is_foreign_rule(diagnostic: Any) -> bool:  # noqa: ANN401 - of psycopg
    """Return whether a violated constraint is none of this program's schema."""
    if diagnostic is None:
        return False
    if name := diagnostic.constraint_name:
        return name not in _constraint_names()
    column = diagnostic.column_name
    return column is not None and _is_nullable(diagnostic.table_name, column)


def _is_foreign_rule_of_sqlite(driver: BaseException) -> bool:
    """Return the same for an error of SQLite, whose text names a column."""
    name, (_, _, place) = getattr(driver, "sqlite_errorname", ""), str(driver).partition(": ")
    if name == "SQLITE_CONSTRAINT_NOTNULL" and "." in place:
        return _is_nullable(*place.split(".", 1))
    return name in _FOREIGN_RULES


def _is_nullable(table: str, column: str) -> bool:
    """Return whether a column may be NULL by the schema, or is not in it."""
    known = StudyRow.metadata.tables.get(table)
    return known is None or column not in known.c or bool(known.c[column].nullable)


@cache
def _constraint_names() -> frozenset[str]:
    """Return the names of the schema's constraints, as PostgreSQL cuts them."""
    tables = StudyRow.metadata.tables.values()
    names = {each.name for table in tables for each in table.constraints}
    names |= {each.name for table in tables for each in table.indexes}
    return frozenset(str(name)[:_MAX_NAME_BYTES] for name in names)


def _driver_error(error: BaseException) -> BaseException:
    """Return the error that SQLAlchemy has wrapped, if it has."""
    return (isinstance(error, DBAPIError) and error.orig) or error


def _sqlstate(driver: BaseException) -> str | None:
    state = getattr(driver, "sqlstate", None)
    return str(state) if state else None


def _sqlite_code(driver: BaseException) -> int | None:
    """Return SQLite's primary result code, None for an error of its Python module."""
    code: int | None = getattr(driver, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


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
