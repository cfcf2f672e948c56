"""Engines and transactions: SQLite for one process, PostgreSQL for many.

A transaction is one function of a session, which runs completely in one thread: an asynchronous
driver would switch threads for each statement (half of the processor time, as measured). SQLite
runs in WAL mode with 32 kB pages, because vectors are large rows. Its writers begin with BEGIN
IMMEDIATE, because a reader that becomes a writer fails at once, and queue in one thread, so the
timeout is only spent on other processes. `synchronous` is FULL: every commit is on the disk before
it is acknowledged.

PostgreSQL has the clock, the same for all servers, so a server whose own clock jumps closes
nothing early. A jump of the database's clock counts as lost time (`server/db/clock_jumps.py`). The
time is that at which a statement arrived, before it waits for a lock. The one
process on SQLite has a clock that does not jump while a round is open.
"""

import asyncio
import math
import sqlite3
from collections.abc import Callable, Collection, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial, wraps
from pathlib import Path
from time import monotonic
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import stamina
import structlog
from sqlalchemy import ColumnElement, create_engine, event, func, literal, select, type_coerce
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

from protocol.api.events import Event
from server.db.channels import announced_channels, send_notifications
from server.db.clock_jumps import ClockJumps
from server.db.columns import UtcDateTime
from server.db.database_errors import (
    BusyError,
    ClockJumpError,
    Outage,
    classified_errors,
    is_outage,
    is_retryable,
    needs_new_connections,
)
from server.db.database_url import FileIdentities, hide_url_in_errors, parse_url
from server.telemetry.metrics import Metrics

_log = structlog.get_logger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

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
    channels that it will announce. Then either `on_announcement` is called in the event loop, after
    the commit, or `on_rollback` in the thread. `has_lost_time`: devices may have been refused since
    deadlines were last extended (`server/rounds/heartbeat.py`). `last_commit` is the time of
    the last write, in monotonic seconds. Tests replace the clock by `clock`.
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
        self.outage = Outage()
        self.has_lost_time = True
        self.last_commit = -math.inf
        self.metrics.database_unusable.set_function(lambda: self.outage.is_open)
        self.before_announcement: Callable[[Collection[str]], None] = lambda _channels: None
        self.on_announcement: Callable[[Collection[str]], None] = lambda _channels: None
        self.on_rollback: Callable[[Collection[str]], None] = lambda _channels: None
        self.clock = clock
        if clock is None and self.is_sqlite:
            self.clock = SteadyClock()
        self._monotonic = clock
        self.clock_jumps = ClockJumps()
        self.max_wait_seconds = 2 * timeout_seconds
        self._readers = ThreadPoolExecutor(_READER_THREADS, "reader")
        self._writers = ThreadPoolExecutor(1 if self.is_sqlite else _WRITER_THREADS, "writer")
        self.connect_args: dict[str, Any] = {"timeout": timeout_seconds}
        if not self.is_sqlite:
            self.connect_args = {
                "connect_timeout": max(2, math.ceil(timeout_seconds))
            } | _KEEPALIVE_OPTIONS
        self.engine = create_engine(
            self.url,
            pool_size=_READER_THREADS + _WRITER_THREADS,
            pool_timeout=self.max_wait_seconds,
            hide_parameters=True,  # errors and logs must not contain bodies and credentials
            pool_pre_ping=not self.is_sqlite,
            connect_args=self.connect_args,
        )
        hide_url_in_errors(self.engine)
        _close_after_disposal(self.engine)
        self._writer = self.engine
        self._files: FileIdentities | None = None
        if not self.is_sqlite:
            event.listen(self.engine, "connect", partial(_prepare_postgres, self.max_wait_seconds))
        else:
            event.listen(self.engine, "connect", _prepare_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)
            self._writer = self.engine.execution_options(**_BEGIN_IMMEDIATE)

    def now_column(self) -> ColumnElement[datetime]:
        """Return a column with the time at which its statement reached the database."""
        if self.clock is not None:
            return literal(self.clock(), UtcDateTime())
        return type_coerce(func.statement_timestamp(), UtcDateTime())

    def now(self, session: Session) -> datetime:
        """Return the time at which this statement reached the database.

        Raises:
            ClockJumpError: if the database's clock has jumped, after which time was lost.
        """
        if self.is_sqlite and self.clock is not None:
            return self.clock()
        sent = self.monotonic_seconds()
        now = session.execute(select(self.now_column())).scalar_one()
        if self.clock_jumps.has_jumped(now, sent, self.monotonic_seconds()):
            self.has_lost_time = True
            raise ClockJumpError("the database's clock has jumped")
        return now

    def resync_clock(self) -> None:
        """Follow the system's clock again, because no round is open."""
        if isinstance(self.clock, SteadyClock):
            self.clock.resync()

    async def hold_files(self) -> None:
        """Refuse to commit from now on if a file of SQLite was deleted or replaced.

        One connection stays open, or SQLite would itself delete and create the files next to the
        database.
        """
        if self.is_sqlite:
            await asyncio.get_running_loop().run_in_executor(self._writers, self._hold_files)

    def _hold_files(self) -> None:
        self._open_files = self._writer.connect()
        with self._open_files.begin():
            files = FileIdentities(Path(self.url.database or "").absolute())
            self._open_files.exec_driver_sql(f"PRAGMA user_version = {files.checksum}")
        self._checkpoint()  # so that the number is found without `-wal`, too
        files.open()
        self._files = files

    async def read_now(self) -> datetime:
        return await self.read(self.now)

    def monotonic_seconds(self) -> float:
        """Return seconds on a clock of this process, to measure durations."""
        return monotonic() if self._monotonic is None else self._monotonic().timestamp()

    async def read(self, query: Callable[[Session], T]) -> T:
        """Return the result of `query`, in one transaction that changes nothing."""

        def run() -> T:
            with self._measured("read"), Session(self.engine, expire_on_commit=False) as session:
                return query(session)

        return await asyncio.get_running_loop().run_in_executor(self._readers, run)

    async def write(self, change: Callable[[Session], T]) -> T:
        """Return the result of `change` after its commit; an error rolls it back.

        Raises:
            BusyError: if other writers of this process took too long; nothing was changed.
            DataError: if the database cannot store such a value.
        """
        deadline = monotonic() + self.max_wait_seconds
        loop = asyncio.get_running_loop()

        def commit() -> T:
            with self._measured("write"):
                if monotonic() > deadline:
                    raise BusyError(f"other writers took {self.max_wait_seconds:g} s")
                with Session(self._writer, expire_on_commit=False) as session:
                    result = self._commit(session, change, loop)
            for committed in session.info.get(_EVENTS_KEY, ()):  # of the successful attempt
                self.metrics.count_event(committed)
            return result

        # Only PostgreSQL rolls transactions back because of others.
        run = commit if self.is_sqlite else partial(_RETRYING, commit)
        return await loop.run_in_executor(self._writers, run)

    def _commit(
        self, session: Session, change: Callable[[Session], T], loop: asyncio.AbstractEventLoop
    ) -> T:
        """Return the result of `change` after its commit, and announce the commit.

        This is done in this thread, because the caller may be cancelled meanwhile.
        """
        channels: Collection[str] = ()
        try:
            with session.begin():
                result = change(session)
                send_notifications(session)
                channels = announced_channels(session)
                self.before_announcement(channels)
                if self._files is not None:
                    version = session.connection().exec_driver_sql("PRAGMA user_version")
                    self._files.check(checksum=version.scalar_one())
        except BaseException:
            self.on_rollback(channels)
            raise
        if channels:
            loop.call_soon_threadsafe(self.on_announcement, channels)
        return result

    @contextmanager
    def _measured(self, mode: Literal["read", "write"]) -> Iterator[None]:
        with self.metrics.transactions.labels(mode).time():
            try:
                with classified_errors():
                    yield
            except (SQLAlchemyError, BusyError) as error:
                if is_outage(error):
                    self.has_lost_time = True
                    self.outage.on_failure(error)
                if needs_new_connections(error):
                    self.engine.dispose()
                self.metrics.database_errors.labels(type(error).__name__).inc()
                raise
            self.outage.on_success()
            if mode == "write":
                self.last_commit = monotonic()

    async def measure_size(self) -> None:
        """Record the size of the database, once a minute until cancelled.

        Before, SQLite moves the changes from the file ending in `-wal` to the database. It waits
        for no other transaction, and none waits for it.
        """
        while True:
            with suppress(SQLAlchemyError, OSError):  # an outage: the last size stays
                if self.is_sqlite:
                    loop = asyncio.get_running_loop()
                    await loop.run_in_executor(self._readers, self._checkpoint)
                self.metrics.database_bytes.set(await self._size_bytes())
            await asyncio.sleep(_SIZE_SECONDS)

    def _checkpoint(self) -> None:
        """Move changes from `-wal` to the database, or try again later."""
        with (
            suppress(sqlite3.Error, SQLAlchemyError),
            closing(self.engine.raw_connection()) as connection,
        ):
            connection.cursor().execute("PRAGMA wal_checkpoint(PASSIVE)")

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
        if self._files is not None:
            self._open_files.close()
        self.engine.dispose()
        if self._files is not None:
            self._files.close()


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


def _close_after_disposal(engine: Engine) -> None:
    """Close connections of a pool that was disposed of while they were in use."""

    def keep_pool(_connection: object, record: ConnectionPoolEntry) -> None:
        record.info["pool"] = engine.pool

    def close(connection: DBAPIConnection | None, record: ConnectionPoolEntry) -> None:
        if connection is not None and record.info["pool"] is not engine.pool:
            connection.close()

    event.listen(engine, "connect", keep_pool)
    event.listen(engine, "checkin", close)


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


def _prepare_postgres(seconds: float, connection: Any, _record: object) -> None:  # noqa: ANN401
    """Make settings of a connection, regardless of those of its database or role.

    A statement that waits for a lock for too long ends, as on SQLite. A policy on rows that another
    program made is an error: hidden rows would look like a round that is gone. The driver cannot
    read other formats of times and bytes.
    """
    settings = {
        "lock_timeout": round(1000 * seconds),
        "row_security": "off",
        "datestyle": "ISO",
        "timezone": "'UTC'",
        "bytea_output": "hex",
        "client_encoding": "'UTF8'",
    }
    connection.execute("; ".join(f"SET {name} = {value}" for name, value in settings.items()))
    connection.commit()


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN"))
