"""Engines and transactions: SQLite for one process, PostgreSQL for many.

SQLite runs in WAL mode with 32 kB pages (vectors are large rows). Its writers are told apart
from its readers: a writer begins with BEGIN IMMEDIATE, because a reader that turns writer
cannot wait for another one and fails at once. Inside the process writers queue at a fair
lock, so that the busy timeout is only spent on other processes.

`synchronous` is FULL: every commit reaches the disk before it is acknowledged, so power may
fail. NORMAL, which survives a killed process but not that, saves 0.2 to 0.3 ms a commit
(`docs/data-model.md` has the figures), less than a tenth of what one device costs.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import URL, Connection, make_url
from sqlalchemy.exc import ArgumentError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "sqlite+aiosqlite": "sqlite+aiosqlite",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}
_IMMEDIATE = {"begin": "BEGIN IMMEDIATE"}


class BusyError(Exception):
    """The queue of writers did not move for too long."""


# The database is locked, away, or has no connection left: nothing was done, and it passes.
UNAVAILABLE = (OperationalError, InterfaceError, PoolTimeoutError, BusyError)


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
    """One database, and the two ways to use it: `reading()` and `writing()`."""

    def __init__(self, url: str, busy_timeout: float = 5.0) -> None:
        self.url = parse_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._busy_timeout = busy_timeout
        self._queue = asyncio.Lock()
        arguments: dict[str, Any] = {"pool_pre_ping": True}
        if self.is_sqlite:
            arguments = {"connect_args": {"timeout": busy_timeout}}
        self.engine = create_async_engine(
            self.url, pool_size=10, max_overflow=10, pool_timeout=2 * busy_timeout, **arguments
        )
        self._writer = self.engine
        if self.is_sqlite:
            event.listen(self.engine.sync_engine, "connect", _prepare_sqlite)
            event.listen(self.engine.sync_engine, "begin", _begin_sqlite)
            self._writer = self.engine.execution_options(**_IMMEDIATE)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncSession]:
        """Yield a session whose queries see one state of the database (SQLite)."""
        async with AsyncSession(self.engine, expire_on_commit=False) as session:
            yield session

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncSession]:
        """Yield a session that commits at the end, or takes everything back on an error.

        Raises:
            BusyError: if writers of this process held the database for too long.
        """
        async with (
            self._turn(),
            AsyncSession(self._writer, expire_on_commit=False) as session,
            session.begin(),
        ):
            yield session

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Wait for this process's turn to write: in order, and not for ever."""
        if not self.is_sqlite:
            yield
            return
        try:
            async with asyncio.timeout(2 * self._busy_timeout):
                await self._queue.acquire()
        except TimeoutError:
            raise BusyError("the database is busy with other writers") from None
        try:
            yield
        finally:
            self._queue.release()

    async def close(self) -> None:
        """Close every connection."""
        await self.engine.dispose()


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # transactions begin when we say so
    cursor = connection.cursor()
    for pragma in (
        "page_size = 32768",  # before the first table, or never
        "journal_mode = WAL",
        "synchronous = FULL",
        "foreign_keys = ON",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN"))
