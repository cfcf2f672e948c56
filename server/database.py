"""Engines and transactions: SQLite for one process, PostgreSQL for many.

A transaction is one function over a session. It runs whole in a thread of its own, so that
the event loop stays free and pays one change of threads for it, where an asynchronous driver
pays one for each statement, each row set and each commit (half the processor time, measured).

SQLite runs in WAL mode with 32 kB pages (vectors are large rows). A writer begins with BEGIN
IMMEDIATE, because a reader that turns writer cannot wait for another one and fails at once.
This process has one thread that writes, so its writers queue in order, and the busy timeout
is only spent on other processes. One that had to queue for too long gives up before it starts.

The database has the clock: `statement_timestamp()` of PostgreSQL, the same for all its servers,
so that one whose own clock jumps closes nothing early; for SQLite it is that of the one process.
The instant is that at which a statement came, before it waits for a lock.

What PostgreSQL takes back because of other transactions (a deadlock, a serialisation failure)
is done again from the start; a transaction is a function over the session, and no more.

`synchronous` is FULL: every commit reaches the disk before it is acknowledged, so power may
fail. NORMAL, which survives a killed process but not that, saves 0.2 to 0.3 ms a commit
(`docs/data-model.md` has the figures).
"""

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import wraps
from math import ceil
from time import monotonic
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar

import stamina
from sqlalchemy import ColumnElement, create_engine, event, func, literal, select, type_coerce
from sqlalchemy.engine import URL, Connection, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    InterfaceError,
    InternalError,
    OperationalError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session

from protocol.events import Event
from server.metrics import Metrics
from server.schema import Utc

P = ParamSpec("P")
T = TypeVar("T")

_DRIVERS = {
    "sqlite": "sqlite+pysqlite",
    "sqlite+pysqlite": "sqlite+pysqlite",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}
_FIRST_SECONDS = 5.0  # to wait for whoever makes the same database file
_IMMEDIATE = {"begin": "BEGIN IMMEDIATE"}
_TOLD = "told"  # the events of a transaction, in its session
_READERS = 6  # threads; they wait for the database, not for the processor
_WRITERS = 10  # threads for PostgreSQL, whose writers wait for one another's commits
_TRIES = 5  # at a transaction that others make PostgreSQL take back
_TAKEN_BACK = ("40001", "40P01")  # serialization_failure, deadlock_detected
_DISK_FULL = "53100"  # disk_full
_READ_ONLY = "25006"  # read_only_sql_transaction: a standby that is not the primary yet
_GONE_SECONDS = {  # after which a silent server counts as gone, so that no thread waits for good
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,  # milliseconds, as libpq has it
}


class BusyError(Exception):
    """Writers before this one took too long: it was not begun."""


# The database is locked, away, or has no connection left: nothing was done, and it passes.
UNAVAILABLE = (OperationalError, InterfaceError, PoolTimeoutError, BusyError)


def reason(error: Exception) -> str:
    """Return what a log may say of one of `UNAVAILABLE`: a driver's own words may hold anything."""
    name = type(error).__name__
    return f"{name}: {error}" if isinstance(error, BusyError) else name


def parse_url(text: str) -> URL:
    """Return the database URL in `text` with the driver that this program uses.

    Raises:
        ValueError: if it is no URL of a SQLite file or a PostgreSQL database.
    """
    try:
        url = make_url(text)
    except ArgumentError:
        raise ValueError("not a database URL, such as sqlite:///blindtally.db") from None
    if url.drivername not in _DRIVERS:
        raise ValueError(f"sqlite:/// or postgresql:// expected, got {url.drivername}://")
    if url.drivername.startswith("sqlite") and url.database in (None, "", ":memory:"):
        raise ValueError("a SQLite database needs a file: sqlite:///blindtally.db")
    return url.set(drivername=_DRIVERS[url.drivername])


class Database:
    """One database, the two ways to use it, `read` and `write`, and its clock.

    `is_full`: a write was refused for lack of room on the disk, and none of that size was taken
    since (`server/store/room.py`). Tests put a clock of theirs in the place of the database's.
    """

    def __init__(
        self,
        url: str,
        busy_timeout: float = 5.0,
        clock: Callable[[], datetime] | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.url = parse_url(url)
        self.metrics = metrics or Metrics()
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.is_full = False
        self._clock = clock
        if clock is None and self.is_sqlite:
            self._clock = _system_clock
        self._monotonic = clock
        self._patience = 2 * busy_timeout
        self._readers = ThreadPoolExecutor(_READERS, "reader")
        self._writers = ThreadPoolExecutor(1 if self.is_sqlite else _WRITERS, "writer")
        self.connecting: dict[str, Any] = {"timeout": busy_timeout}
        if not self.is_sqlite:
            self.connecting = {"connect_timeout": max(2, ceil(busy_timeout))} | _GONE_SECONDS
        self.engine = create_engine(
            self.url,
            pool_size=_READERS + _WRITERS,
            pool_timeout=self._patience,
            hide_parameters=True,  # bodies with shares, and tickets: not for errors and logs
            pool_pre_ping=not self.is_sqlite,
            connect_args=self.connecting,
        )
        self._writer = self.engine
        if self.is_sqlite:
            event.listen(self.engine, "connect", _prepare_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)
            self._writer = self.engine.execution_options(**_IMMEDIATE)

    def instant(self) -> ColumnElement[datetime]:
        """Return the time as a column of a statement: when that reached the database."""
        if self._clock is not None:
            return literal(self._clock(), Utc())
        return type_coerce(func.statement_timestamp(), Utc())

    def now(self, session: Session) -> datetime:
        """Return the time by the database's clock."""
        if self._clock is not None:
            return self._clock()
        return session.execute(select(self.instant())).scalar_one()

    def seconds(self) -> float:
        """Return seconds of this process that only serve to tell how long something took."""
        return monotonic() if self._monotonic is None else self._monotonic().timestamp()

    async def read(self, question: Callable[[Session], T]) -> T:
        """Return the answer to `question`, asked in one transaction that changes nothing."""

        def ask() -> T:
            with (
                self._counted("read"),
                _passing_errors(),
                Session(self.engine, expire_on_commit=False) as session,
            ):
                return question(session)

        return await asyncio.get_running_loop().run_in_executor(self._readers, ask)

    async def write(self, change: Callable[[Session], T]) -> T:
        """Return what `change` returns, once it is committed; an error takes it all back.

        Raises:
            BusyError: if other writers of this process took too long; nothing was done.
            DataError: if the database cannot keep such a value, now or ever.
        """
        last = monotonic() + self._patience

        def commit() -> T:
            for attempt in stamina.retry_context(on=_is_taken_back, attempts=_TRIES, wait_max=1.0):
                with attempt, self._counted("write"), _passing_errors():
                    if monotonic() > last:
                        raise BusyError(f"writers before it took {self._patience:g} s")
                    with self._begin() as session:
                        answer = change(session)
            for told in session.info.get(_TOLD, ()):  # only by the attempt that was committed
                self.metrics.count(told)
            return answer

        return await asyncio.get_running_loop().run_in_executor(self._writers, commit)

    @contextmanager
    def _begin(self) -> Iterator[Session]:
        with Session(self._writer, expire_on_commit=False) as session, session.begin():
            yield session

    @contextmanager
    def _counted(self, mode: Literal["read", "write"]) -> Iterator[None]:
        """Count a transaction, and its error if the database has one."""
        with self.metrics.transactions.labels(mode).time():
            try:
                yield
            except (SQLAlchemyError, BusyError) as error:
                self.is_full = self.is_full or _has_no_room(error)
                self.metrics.database_errors.labels(type(error).__name__).inc()
                raise

    async def close(self) -> None:
        """Finish what was begun, and close every connection."""
        for threads in (self._readers, self._writers):
            await asyncio.to_thread(threads.shutdown, wait=True, cancel_futures=True)
        self.engine.dispose()


def once_committed(session: Session, event: Event) -> None:
    """Have `event` counted once the transaction is committed; never if it is taken back."""
    session.info.setdefault(_TOLD, []).append(event)


class _Book(Protocol):
    """Whoever has a database to keep its rows in."""

    @property
    def database(self) -> Database: ...


B = TypeVar("B", bound=_Book)
_Method = Callable[Concatenate[B, Session, P], T]
_Asked = Callable[Concatenate[B, P], Coroutine[Any, Any, T]]


def reading(method: _Method[B, P, T]) -> _Asked[B, P, T]:
    """Make of a method over a session one that is awaited: one transaction, reading."""

    @wraps(method)
    async def ask(self: B, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.database.read(lambda session: method(self, session, *args, **kwargs))

    return ask


def writing(method: _Method[B, P, T]) -> _Asked[B, P, T]:
    """Make of a method over a session one that is awaited: one transaction, committed."""

    @wraps(method)
    async def commit(self: B, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.database.write(lambda session: method(self, session, *args, **kwargs))

    return commit


def _system_clock() -> datetime:
    return datetime.now(UTC)


@contextmanager
def _passing_errors() -> Iterator[None]:
    """Sort errors into those that pass, UNAVAILABLE, and those that will not."""
    try:
        yield
    except OperationalError as error:
        if _state(error).startswith("54"):  # "program limit exceeded", as for a key of 3 kB
            raise DataError(error.statement, None, error.orig or error) from None
        raise
    except InternalError as error:
        if _state(error) == _READ_ONLY:
            raise OperationalError(error.statement, None, error.orig or error) from None
        raise


def _state(error: Exception) -> str:
    """Return PostgreSQL's code of an error, empty if it has none."""
    return str(getattr(getattr(error, "orig", None), "sqlstate", None) or "")


def _is_taken_back(error: Exception) -> bool:
    return isinstance(error, DBAPIError) and _state(error) in _TAKEN_BACK


def _has_no_room(error: Exception) -> bool:
    code = getattr(getattr(error, "orig", None), "sqlite_errorcode", None)
    return code == sqlite3.SQLITE_FULL or _state(error) == _DISK_FULL


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # transactions begin when we say so
    cursor = connection.cursor()
    for pragma in (
        "page_size = 32768",  # before the first table, or never
        "journal_mode = WAL",
        "synchronous = FULL",
        "foreign_keys = ON",
    ):
        # Two processes that make one file wait for each other here without SQLite's timeout.
        for attempt in stamina.retry_context(on=sqlite3.OperationalError, timeout=_FIRST_SECONDS):
            with attempt:
                cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN"))
