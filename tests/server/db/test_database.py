"""Accepted database URLs, the set-up of SQLite, and the order of its writers."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from pathlib import Path
from threading import Barrier
from time import sleep
from typing import Any

import pytest
import structlog
from sqlalchemy import select, text
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.orm import Session

from server.db.database import Database, SteadyClock, parse_url
from server.db.database_errors import (
    UNAVAILABLE_ERRORS,
    BusyError,
    OutageLog,
    loggable_reason,
)
from tests.server.harness import NOON


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
    database = Database(sqlite_url, timeout_seconds=0.05)
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
async def test_sqlite_keeps_what_it_acknowledges(
    sqlite: Database, pragma: str, value: object
) -> None:
    assert await sqlite.read(run(f"PRAGMA {pragma}")) == value


async def test_a_writer_that_queued_for_too_long_does_nothing(sqlite: Database) -> None:
    await sqlite.write(run("CREATE TABLE t (x INTEGER)"))

    def dawdle(_session: Session) -> None:
        sleep(0.2)

    slow = asyncio.create_task(sqlite.write(dawdle))
    late = asyncio.create_task(sqlite.write(run("INSERT INTO t VALUES (1)")))
    await slow
    with pytest.raises(BusyError) as busy:
        await late
    assert loggable_reason(busy.value).startswith("BusyError: other writers took ")
    assert (
        loggable_reason(OperationalError("secret", {}, Exception("secret"))) == "OperationalError"
    )
    await sqlite.write(run("INSERT INTO t VALUES (2)"))  # and the next one is served
    assert await sqlite.read(run("SELECT sum(x) FROM t")) == 2


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


async def test_a_transaction_rolled_back_because_of_others_is_repeated(postgres_url: str) -> None:
    """Two lock two rows in opposite order: PostgreSQL ends one of them, and both are done."""
    database = Database(postgres_url)
    await database.write(run("CREATE TABLE t (x INTEGER, n INTEGER)"))
    await database.write(run("INSERT INTO t VALUES (1, 0), (2, 0)"))
    update = text("UPDATE t SET n = n + 1 WHERE x = :x")
    both, tries = Barrier(2, timeout=10), []

    def crossing(first: int, second: int) -> Callable[[Session], None]:
        def change(session: Session) -> None:
            tries.append(first)
            session.execute(text("SET LOCAL deadlock_timeout = '20ms'"))
            session.execute(update, {"x": first})
            if tries.count(first) == 1:
                both.wait()
            session.execute(update, {"x": second})

        return change

    await asyncio.gather(database.write(crossing(1, 2)), database.write(crossing(2, 1)))
    assert len(tries) == 3
    assert await database.read(run("SELECT sum(n) FROM t")) == 4
    await database.close()


async def test_a_conflict_that_does_not_end_is_an_unavailable_database(postgres_url: str) -> None:
    database = Database(postgres_url)
    tries = []

    def conflict(session: Session) -> None:
        tries.append(1)
        failure = "RAISE EXCEPTION USING ERRCODE = 'serialization_failure'"
        session.execute(text(f"DO $$ BEGIN {failure}; END $$"))

    with pytest.raises(UNAVAILABLE_ERRORS):
        await database.write(conflict)
    assert len(tries) == 5
    await database.close()


async def test_a_standby_is_an_unavailable_database(postgres_url: str) -> None:
    database = Database(postgres_url)
    await database.write(run("CREATE TABLE t (x INTEGER)"))

    def write_to_a_standby(session: Session) -> None:
        session.execute(text("SET TRANSACTION READ ONLY"))
        session.execute(text("INSERT INTO t VALUES (1)"))

    with pytest.raises(UNAVAILABLE_ERRORS):
        await database.write(write_to_a_standby)
    await database.close()


async def test_a_database_notices_that_it_refuses_writes(postgres_url: str) -> None:
    """A conflict with another transaction, or a refused value, is not a refusal of all writes."""
    for state, refuses in (("40001", False), ("23505", False), ("53100", True), ("25006", True)):
        database = Database(postgres_url)
        raising = f"DO $$ BEGIN RAISE SQLSTATE '{state}'; END $$"
        with pytest.raises(SQLAlchemyError):
            await database.write(run(raising))
        assert database.refuses_writes is refuses
        await database.close()


async def test_the_clock_is_that_of_the_database(postgres_url: str, sqlite_url: str) -> None:
    """PostgreSQL returns the time at which a statement arrived, without the wait for a lock."""
    database = Database(postgres_url)

    def wait(session: Session) -> tuple[datetime, datetime, datetime]:
        before = database.now(session)
        session.execute(text("SELECT pg_sleep(0.05)"))
        row = session.execute(select(database.now_column(), text("pg_sleep(0.05)"))).one()
        return before, row[0], database.now(session)

    before, at, after = await database.read(wait)
    assert before + timedelta(seconds=0.05) <= at <= after - timedelta(seconds=0.05)
    assert before.tzinfo is not None
    await database.close()
    for url in (postgres_url, sqlite_url):
        faked = Database(url, clock=lambda: NOON)
        assert await faked.read(faked.now) == NOON
        column = await faked.read(lambda session, of=faked: session.scalar(select(of.now_column())))
        assert column == NOON
        await faked.close()


def test_an_outage_is_logged_at_its_start_and_at_its_end() -> None:
    """Also if it comes and goes: 1,000 transactions fail, and each tenth succeeds."""
    now = 0.0
    outages = OutageLog(lambda: now)
    with structlog.testing.capture_logs() as lines:
        outages.on_success()
        for number in range(1000):
            now = number * 0.06
            if number % 10:
                outages.on_failure(OperationalError("", None, Exception("password=secret")))
            else:
                outages.on_success()
        now += 5.1
        outages.on_success()
        outages.on_success()
    assert [line["event"] for line in lines] == ["database unavailable", "database available again"]
    assert (lines[1]["seconds"], lines[1]["failed_transactions"]) == (59.9, 900)
    assert "secret" not in str(lines)


async def test_a_database_logs_its_outage_once(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'x.db'}", timeout_seconds=0.1)
    await database.write(run("CREATE TABLE t (x INTEGER)"))
    other = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            with pytest.raises(UNAVAILABLE_ERRORS):
                await database.write(run("INSERT INTO t VALUES (1)"))
    other.close()
    assert [line["event"] for line in lines] == ["database unavailable"]
    await database.close()


@pytest.mark.parametrize("hours", [1, -2])
def test_a_jump_of_the_system_clock_is_logged_and_not_followed(hours: int) -> None:
    system, seconds = NOON, 100.0
    clock = SteadyClock(lambda: system, lambda: seconds)
    with structlog.testing.capture_logs() as lines:
        system, seconds = system + timedelta(seconds=9), seconds + 10  # drift is not a jump
        assert clock() == NOON + timedelta(seconds=10)
        system, seconds = system + timedelta(hours=hours, seconds=10), seconds + 10
        for _ in range(3):
            assert clock() == NOON + timedelta(seconds=20)
    assert [line["seconds"] for line in lines] == [hours * 3600 - 1]
    clock.resync()
    assert clock() == system


async def test_the_file_of_sqlites_latest_changes_shrinks_after_a_long_read(
    sqlite: Database, tmp_path: Path
) -> None:
    await sqlite.write(run("CREATE TABLE bodies (body BLOB)"))
    file = tmp_path / "test.db-wal"
    with sqlite.engine.connect() as reader:
        reader.execute(text("SELECT count(*) FROM bodies"))
        await sqlite.write(run("INSERT INTO bodies VALUES (zeroblob(40 * 1000000))"))
        await sqlite.write(run("INSERT INTO bodies VALUES (NULL)"))
        assert file.stat().st_size > 40e6
    for _ in range(2):  # the first moves the pages back
        await sqlite.write(run("INSERT INTO bodies VALUES (NULL)"))
    assert file.stat().st_size <= 33e6
