"""Databases: which are accepted, how SQLite is set up, and who waits for whom."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import text

from server.database import BusyError, Database, parse_url


@pytest.mark.parametrize(
    ("given", "driver"),
    [
        ("sqlite:///x.db", "sqlite+aiosqlite"),
        ("postgresql://u:p@h/x", "postgresql+psycopg"),
        ("postgres://u:p@h/x", "postgresql+psycopg"),
        ("postgresql+psycopg://u:p@h/x", "postgresql+psycopg"),
    ],
)
def test_a_url_is_given_the_driver_that_is_used(given: str, driver: str) -> None:
    assert parse_url(given).drivername == driver


@pytest.mark.parametrize("given", ["", "x.db", "mysql://h/x", "sqlite://", "sqlite:///:memory:"])
def test_a_url_of_no_usable_database_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match=r"expected|file|database URL"):
        parse_url(given)


@pytest.fixture
async def sqlite(sqlite_url: str) -> AsyncIterator[Database]:
    database = Database(sqlite_url, busy_timeout=0.05)
    yield database
    await database.close()


@pytest.mark.parametrize(
    ("pragma", "value"),
    [("page_size", 32768), ("journal_mode", "wal"), ("synchronous", 2), ("foreign_keys", 1)],
)
async def test_sqlite_is_set_up_to_keep_what_it_acknowledges(
    sqlite: Database, pragma: str, value: object
) -> None:
    async with sqlite.reading() as session:
        assert await session.scalar(text(f"PRAGMA {pragma}")) == value


async def test_an_error_takes_everything_back(sqlite: Database) -> None:
    async with sqlite.writing() as session:
        await session.execute(text("CREATE TABLE t (x INTEGER)"))

    async def insert_and_fail() -> None:
        async with sqlite.writing() as session:
            await session.execute(text("INSERT INTO t VALUES (1)"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await insert_and_fail()
    async with sqlite.reading() as session:
        assert await session.scalar(text("SELECT count(*) FROM t")) == 0


async def test_writers_of_one_process_take_turns_and_wait_no_longer_than_they_may(
    sqlite: Database,
) -> None:
    async with sqlite.writing():
        with pytest.raises(BusyError):
            async with sqlite.writing():
                pass
    async with sqlite.writing():
        pass  # the turn was given back


async def test_a_cancelled_writer_gives_its_turn_back(sqlite: Database) -> None:
    async def write() -> None:
        async with sqlite.writing():
            await asyncio.sleep(10)

    task = asyncio.create_task(write())
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with sqlite.writing():
        pass
