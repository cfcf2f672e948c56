"""Engines and transactions: SQLite for one process, PostgreSQL for many.

A transaction is one function of a session, which runs completely in one thread: an asynchronous
driver would switch threads for each statement (half of the processor time, as measured). SQLite
runs in WAL mode with 32 kB pages, because vectors are large rows. Its writers begin with BEGIN
IMMEDIATE, because a reader that becomes a writer fails at once, and queue in one thread, so the
timeout is only spent on other processes. `synchronous` is FULL: every commit is on the disk before
it is acknowledged (`docs/data-model.md` has the cost).

PostgreSQL has the clock, the same for all servers, so a server whose own clock jumps closes
nothing early. The time is that at which a statement arrived, before it waits for a lock. The one
process on SQLite has a clock that does not jump while a round is open.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Collection, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial, wraps
from math import ceil
from pathlib import Path
from time import monotonic
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import stamina
import structlog
from sqlalchemy import ColumnElement, create_engine, event, func, literal, select, type_coerce
from sqlalchemy.engine import URL, Connection, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.orm import Session

from protocol.api.events import Event
from server.db.channels import announced_channels, send_notifications
from server.db.columns import UtcDateTime
from server.db.database_errors import (
    UNAVAILABLE_ERRORS,
    BusyError,
    OutageLog,
    classified_errors,
    is_retryable,
    is_write_refusal,
)
from server.telemetry.metrics import Metrics

_log = structlog.get_logger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

_DRIVERS = {
    "sqlite": "sqlite+pysqlite",
    "sqlite+pysqlite": "sqlite+pysqlite",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}
_CREATE_TIMEOUT_SECONDS = 5.0  # to wait for another process that creates the same file
_BEGIN_IMMEDIATE = {"begin": "BEGIN IMMEDIATE"}
_EVENTS_KEY = "events"  # in the `info` of a session
_MAX_IDLE_WAL_BYTES = 1000 * 32 * 2**10  # what SQLite collects before it moves pages back
_READER_THREADS = 6  # they wait for the database, not for the processor
_WRITER_THREADS = 10  # for PostgreSQL, whose writers wait for the commits of others
# Of a transaction that PostgreSQL rolls back because of others.
_RETRYING = stamina.RetryingCaller(attempts=5, wait_max=1.0).on(is_retryable)
_SIZE_SECONDS = 60.0  # between two measurements of the database
# After these times a silent server counts as dead, so that no thread waits forever.
_KEEPALIVE_OPTIONS = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,  # milliseconds, as libpq has it
}


def parse_url(text: str) -> URL:
    """Return the database URL in `text` with our driver; raises ValueError if it is not usable."""
    try:
        url = make_url(text)
    except ArgumentError:
        raise ValueError("not a database URL, such as sqlite:///blindtally.db") from None
    if url.drivername not in _DRIVERS:
        raise ValueError(f"sqlite:/// or postgresql:// expected, got {url.drivername}://")
    if url.drivername.startswith("sqlite") and url.database in (None, "", ":memory:"):
        raise ValueError("a SQLite database needs a file: sqlite:///blindtally.db")
    return url.set(drivername=_DRIVERS[url.drivername])


class SteadyClock:
    """Clock that starts at the system's time, and then follows the monotonic clock.

    So a jump of the system's clock ends no phase early and stalls none. A jump of a minute or more
    is logged. `resync` follows the system's clock again, which is for when no round is open.
    """

    _MAX_DIFFERENCE = timedelta(minutes=1)

    def __init__(
        self,
        system: Callable[[], datetime] = lambda: datetime.now(UTC),
        seconds: Callable[[], float] = monotonic,
    ) -> None:
        self._system, self._seconds = system, seconds
        self._logged = timedelta()  # the last difference that was logged
        self.resync()

    def __call__(self) -> datetime:
        start, started = self._origin  # read at once: another thread may replace it
        now = start + timedelta(seconds=self._seconds() - started)
        difference = self._system() - now
        if abs(difference - self._logged) >= self._MAX_DIFFERENCE:
            self._logged = difference
            _log.warning("system clock jumped", seconds=round(difference.total_seconds()))
        return now

    def resync(self) -> None:
        """Continue at the system's time."""
        self._origin, self._logged = (self._system(), self._seconds()), timedelta()


class Database:
    """A database with its transactions, `read` and `write`, and its clock.

    `before_announcement` is called in the thread of a transaction, before its commit, with the
    channels that it announces, and `on_announcement` in the event loop afterwards.
    `refuses_writes`: the database has refused a write, and no probe has succeeded since
    (`server/db/write_probe.py`). `has_lost_time`: devices may have been refused since deadlines
    were last extended (`server/rounds/heartbeat.py`). Tests replace the clock by `clock`.
    """

    def __init__(
        self,
        url: str,
        timeout_seconds: float = 5.0,
        clock: Callable[[], datetime] | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.url = parse_url(url)
        self.metrics = metrics or Metrics()
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.refuses_writes = False
        self.has_lost_time = True
        self.metrics.refuses_writes.set_function(lambda: self.refuses_writes)
        self._outages = OutageLog()
        self.before_announcement: Callable[[Collection[str]], None] = lambda _channels: None
        self.on_announcement: Callable[[Collection[str]], None] = lambda _channels: None
        self._clock = clock
        if clock is None and self.is_sqlite:
            self._clock = SteadyClock()
        self._monotonic = clock
        self._max_wait_seconds = 2 * timeout_seconds
        self._readers = ThreadPoolExecutor(_READER_THREADS, "reader")
        self._writers = ThreadPoolExecutor(1 if self.is_sqlite else _WRITER_THREADS, "writer")
        self.connect_args: dict[str, Any] = {"timeout": timeout_seconds}
        if not self.is_sqlite:
            self.connect_args = {
                "connect_timeout": max(2, ceil(timeout_seconds))
            } | _KEEPALIVE_OPTIONS
        self.engine = create_engine(
            self.url,
            pool_size=_READER_THREADS + _WRITER_THREADS,
            pool_timeout=self._max_wait_seconds,
            hide_parameters=True,  # errors and logs must not contain bodies and credentials
            pool_pre_ping=not self.is_sqlite,
            connect_args=self.connect_args,
        )
        self._writer = self.engine
        if self.is_sqlite:
            event.listen(self.engine, "connect", _prepare_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)
            self._writer = self.engine.execution_options(**_BEGIN_IMMEDIATE)

    def now_column(self) -> ColumnElement[datetime]:
        """Return a column with the time at which its statement reached the database."""
        if self._clock is not None:
            return literal(self._clock(), UtcDateTime())
        return type_coerce(func.statement_timestamp(), UtcDateTime())

    def now(self, session: Session) -> datetime:
        if self._clock is not None:
            return self._clock()
        return session.execute(select(self.now_column())).scalar_one()

    def resync_clock(self) -> None:
        """Follow the system's clock again, because no round is open."""
        if isinstance(self._clock, SteadyClock):
            self._clock.resync()

    async def read_now(self) -> datetime:
        return await self.read(self.now)

    def monotonic_seconds(self) -> float:
        """Return seconds on a clock of this process, to measure durations."""
        return monotonic() if self._monotonic is None else self._monotonic().timestamp()

    async def read(self, query: Callable[[Session], T]) -> T:
        """Return the result of `query`, in one transaction that changes nothing."""

        def run() -> T:
            with (
                self._measured("read"),
                classified_errors(),
                Session(self.engine, expire_on_commit=False) as session,
            ):
                return query(session)

        return await asyncio.get_running_loop().run_in_executor(self._readers, run)

    async def write(self, change: Callable[[Session], T], *, checks_foreign_keys: bool = True) -> T:
        """Return the result of `change` after its commit; an error rolls it back.

        SQLite can replace a table that others refer to only if it checks no foreign keys.

        Raises:
            BusyError: if other writers of this process took too long; nothing was changed.
            DataError: if the database cannot store such a value.
        """
        deadline = monotonic() + self._max_wait_seconds
        loop, writer = asyncio.get_running_loop(), self._writer
        is_unchecked = self.is_sqlite and not checks_foreign_keys
        if is_unchecked:
            writer = writer.execution_options(foreign_keys="OFF")

        def commit() -> T:
            with self._measured("write"), classified_errors():
                if monotonic() > deadline:
                    raise BusyError(f"other writers took {self._max_wait_seconds:g} s")
                with Session(writer, expire_on_commit=False) as session:
                    result = self._commit(session, change, loop)
            for committed in session.info.get(_EVENTS_KEY, ()):  # of the successful attempt
                self.metrics.count_event(committed)
            return result

        # Only PostgreSQL rolls transactions back because of others.
        run = commit if self.is_sqlite else partial(_RETRYING, commit)
        try:
            return await loop.run_in_executor(self._writers, run)
        finally:
            if is_unchecked:
                self.engine.dispose()  # the next connections check them

    def _commit(
        self, session: Session, change: Callable[[Session], T], loop: asyncio.AbstractEventLoop
    ) -> T:
        """Return the result of `change` after its commit, with the announcements around it.

        They are made in this thread, because the caller may be cancelled meanwhile. An announcement
        after a failed commit does no harm.
        """
        try:
            with session.begin():
                result = change(session)
                send_notifications(session)
                self.before_announcement(announced_channels(session))
        finally:
            if channels := announced_channels(session):
                loop.call_soon_threadsafe(self.on_announcement, channels)
        return result

    @contextmanager
    def _measured(self, mode: Literal["read", "write"]) -> Iterator[None]:
        with self.metrics.transactions.labels(mode).time():
            try:
                yield
            except (SQLAlchemyError, BusyError) as error:
                if isinstance(error, UNAVAILABLE_ERRORS) and not is_retryable(error):
                    self._outages.on_failure(error)
                if mode == "write" and is_write_refusal(error):
                    self.refuses_writes = self.has_lost_time = True
                self.metrics.database_errors.labels(type(error).__name__).inc()
                raise
            self._outages.on_success()

    async def measure_size(self) -> None:
        """Record the size of the database, once a minute until cancelled."""
        while True:
            with suppress(SQLAlchemyError, OSError):  # an outage: the last size stays
                self.metrics.database_bytes.set(await self._size_bytes())
            await asyncio.sleep(_SIZE_SECONDS)

    async def _size_bytes(self) -> int:
        if self.is_sqlite:
            files = (Path(f"{self.url.database}{suffix}") for suffix in ("", "-wal"))
            return sum(file.stat().st_size for file in files if file.exists())
        size = select(func.pg_database_size(func.current_database()))
        return await self.read(lambda session: session.execute(size).scalar_one())

    async def close(self) -> None:
        """Finish running transactions, and close all connections."""
        for threads in (self._readers, self._writers):
            await asyncio.to_thread(threads.shutdown, wait=True, cancel_futures=True)
        self.engine.dispose()


def count_on_commit(session: Session, event: Event) -> None:
    """Count `event` after the commit of the transaction, and not at all if it is rolled back."""
    session.info.setdefault(_EVENTS_KEY, []).append(event)


@dataclass(frozen=True, slots=True)
class Repository:
    """Transactions on one database."""

    database: Database


B = TypeVar("B", bound=Repository)
_Method = Callable[Concatenate[B, Session, P], T]
_AsyncMethod = Callable[Concatenate[B, P], Coroutine[Any, Any, T]]


def read_transaction(method: _Method[B, P, T]) -> _AsyncMethod[B, P, T]:
    """Turn a method of a session into a coroutine that runs it in one reading transaction."""

    @wraps(method)
    async def run(self: B, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.database.read(lambda session: method(self, session, *args, **kwargs))

    return run


def write_transaction(method: _Method[B, P, T]) -> _AsyncMethod[B, P, T]:
    """Turn a method of a session into a coroutine that runs it in one committed transaction."""

    @wraps(method)
    async def run(self: B, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.database.write(lambda session: method(self, session, *args, **kwargs))

    return run


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # `_begin_sqlite` starts the transactions
    cursor = connection.cursor()
    for pragma in (
        "page_size = 32768",  # only effective before the first table
        "journal_mode = WAL",
        "synchronous = FULL",
        f"journal_size_limit = {_MAX_IDLE_WAL_BYTES}",
        "foreign_keys = ON",
    ):
        # If two processes create one file, SQLite's timeout does not apply here.
        for attempt in stamina.retry_context(
            on=sqlite3.OperationalError, timeout=_CREATE_TIMEOUT_SECONDS
        ):
            with attempt:
                cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    options = connection.get_execution_options()
    if "foreign_keys" in options:
        connection.exec_driver_sql(f"PRAGMA foreign_keys = {options['foreign_keys']}")
    connection.exec_driver_sql(options.get("begin", "BEGIN"))
