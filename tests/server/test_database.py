"""Databases: which are accepted, how SQLite is set up, and who waits for whom."""

import asyncio
from collections.abc import AsyncIterator, Callable
from time import sleep
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from server.database import BusyError, Database, parse_url


@pytest.mark.parametrize(
    ("given", "driver"),
    [
        ("sqlite:///x.db", "sqlite+pysqlite"),
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


def run(statement: str) -> Callable[[Session], Any]:
    """Return the transaction of one statement, which gives its first value if it has any."""

    def transaction(session: Session) -> Any:
        result = session.execute(text(statement))
        return result.scalar() if result.returns_rows else None

    return transaction


@pytest.mark.parametrize(
    ("pragma", "value"),
    [("page_size", 32768), ("journal_mode", "wal"), ("synchronous", 2), ("foreign_keys", 1)],
)
async def test_sqlite_is_set_up_to_keep_what_it_acknowledges(
    sqlite: Database, pragma: str, value: object
) -> None:
    assert await sqlite.read(run(f"PRAGMA {pragma}")) == value


async def test_an_error_takes_everything_back(sqlite: Database) -> None:
    await sqlite.write(run("CREATE TABLE t (x INTEGER)"))

    def insert_and_fail(session: Session) -> None:
        session.execute(text("INSERT INTO t VALUES (1)"))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await sqlite.write(insert_and_fail)
    assert await sqlite.read(run("SELECT count(*) FROM t")) == 0


async def test_a_writer_that_queued_for_too_long_does_nothing(sqlite: Database) -> None:
    await sqlite.write(run("CREATE TABLE t (x INTEGER)"))

    def dawdle(_session: Session) -> None:
        sleep(0.2)

    slow = asyncio.create_task(sqlite.write(dawdle))
    late = asyncio.create_task(sqlite.write(run("INSERT INTO t VALUES (1)")))
    await slow
    with pytest.raises(BusyError):
        await late
    await sqlite.write(run("INSERT INTO t VALUES (2)"))  # and the next one is served
    assert await sqlite.read(run("SELECT sum(x) FROM t")) == 2


async def test_writers_never_lose_an_update(database_url: str) -> None:
    database = Database(database_url)
    await database.write(run("CREATE TABLE t (x INTEGER)"))
    await database.write(run("INSERT INTO t VALUES (0)"))
    await asyncio.gather(*(database.write(run("UPDATE t SET x = x + 1")) for _ in range(100)))
    assert await database.read(run("SELECT x FROM t")) == 100
    await database.close()


async def test_a_reader_does_not_wait_for_a_writer(sqlite: Database) -> None:
    await sqlite.write(run("CREATE TABLE t (x INTEGER)"))

    def read_meanwhile(session: Session) -> int:
        session.execute(text("INSERT INTO t VALUES (1)"))
        future = asyncio.run_coroutine_threadsafe(sqlite.read(run("SELECT count(*) FROM t")), loop)
        return int(future.result(5))

    loop = asyncio.get_running_loop()
    assert await sqlite.write(read_meanwhile) == 0


async def test_an_error_of_the_database_shows_no_value(database_url: str) -> None:
    """A message's body may hold shares; errors are logged."""
    database = Database(database_url)
    share = "c0ffee" * 8
    statement = text("INSERT INTO nowhere VALUES (:body)").bindparams(body=share)
    with pytest.raises(SQLAlchemyError) as caught:
        await database.write(lambda session: session.execute(statement))
    assert "nowhere" in str(caught.value)
    assert share not in str(caught.value)
    await database.close()
