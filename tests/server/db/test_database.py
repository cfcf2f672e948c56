"""Accepted database URLs, the set-up of SQLite, and the order of its writers."""

import asyncio
import errno
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from threading import Barrier
from time import sleep
from typing import Any

import pytest
import structlog
from sqlalchemy import event, select, text
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.orm import Session

from server.db.channels import notify_on_commit
from server.db.database import Database, SteadyClock
from server.db.database_errors import UNAVAILABLE_ERRORS, BusyError, loggable_reason
from tests.server.harness import NOON


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


async def test_only_a_commit_is_announced(sqlite: Database) -> None:
    """A transaction may fail in its statements, or in its commit after all of them."""
    announced, open_changes = list[str](), Counter[str]()
    sqlite.before_announcement = open_changes.update
    sqlite.on_announcement = announced.extend
    sqlite.on_rollback = open_changes.subtract

    def change(session: Session, fault: str = "") -> None:
        session.execute(text("CREATE TABLE IF NOT EXISTS t (x INTEGER)"))
        notify_on_commit(session, "cohort 1")
        if fault == "statement":
            raise ArithmeticError
        if fault == "commit":
            event.listen(sqlite.engine, "commit", refuse, once=True)

    def refuse(_connection: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    for fault in ("statement", "commit"):
        with pytest.raises((ArithmeticError, *UNAVAILABLE_ERRORS)):
            await sqlite.write(partial(change, fault=fault))
        await asyncio.sleep(0.01)
        assert announced == []
        assert not +open_changes
    await sqlite.write(change)
    await asyncio.sleep(0)
    assert announced == ["cohort 1"]


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


async def test_settings_of_the_database_change_no_value(postgres_url: str) -> None:
    """The driver cannot read a time in the German format, or escaped bytes."""
    database = Database(postgres_url)
    name = postgres_url.partition("?")[0].rpartition("/")[2]
    for setting in (
        "datestyle = 'German, DMY'",
        "bytea_output = 'escape'",
        "timezone = 'Asia/Tokyo'",
    ):
        await database.write(run(f"ALTER DATABASE {name} SET {setting}"))
    await database.close()
    database = Database(postgres_url)
    query = "SELECT timestamptz '2026-05-01 12:00:00Z', bytea '\\xff'"
    moment, content = await database.read(lambda session: session.execute(text(query)).one())
    assert (moment.isoformat(), content) == ("2026-05-01T12:00:00+00:00", b"\xff")
    await database.close()


async def test_a_connection_in_use_is_closed_after_its_pool(sqlite: Database) -> None:
    """Python 3.13 warns otherwise."""
    with sqlite.engine.connect() as used:
        connection = used.connection.dbapi_connection
        sqlite.engine.dispose()
        used.execute(text("SELECT 1"))
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")
