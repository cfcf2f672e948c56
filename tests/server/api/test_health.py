"""Health, and the two refusals of the framework itself."""

import asyncio
import os
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any
from unittest.mock import Mock

import psycopg
import pytest
from sqlalchemy import event, func, select, text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import OperationalError

from server.db import readiness
from server.db.database_errors import UNAVAILABLE_ERRORS
from server.db.readiness import WRITE_TEMPORARY_FILE, Readiness
from server.db.schema import IdempotencyKeyRow
from tests.server.cohort import refused
from tests.server.conftest import Serve
from tests.server.harness import Served, study_request


async def until_ready(served: Served) -> None:
    """Wait until a poll has ended an outage: without a restart."""
    late = monotonic() + 20
    while (await served.client.get("/readyz")).status_code != 200:
        assert monotonic() < late
        await served.service.orchestrator.step()


@pytest.fixture
def pass_second(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function after which the last probe and the last write were over a second ago."""
    passed = [0.0]
    monkeypatch.setattr(readiness, "monotonic", lambda: monotonic() + sum(passed))
    return lambda: passed.append(1.1)


async def test_a_service_is_alive_and_ready(each_served: Served) -> None:
    for path in ("/healthz", "/readyz"):
        response = await each_served.client.get(path)
        assert (response.status_code, response.json()) == (200, {"status": "ok"})


async def test_a_service_with_another_schema_is_alive_but_not_ready(served: Served) -> None:
    change = text("UPDATE alembic_version SET version_num = '0000'")
    await served.store.database.write(lambda session: session.execute(change))
    assert (await served.client.get("/healthz")).status_code == 200
    response = await served.client.get("/readyz")
    assert "0000" in refused(response, 503, "unavailable")


async def test_an_unknown_path_and_a_wrong_method_are_refused(served: Served) -> None:
    refused(await served.client.get("/v1/nothing"), 404, "not-found")
    response = await served.client.delete("/healthz")
    refused(response, 405, "method-not-allowed")
    assert response.headers["allow"] == "GET, HEAD"
    response = await served.client.delete("/v1/studies")
    assert response.headers["allow"] == "GET, HEAD, POST"


async def test_a_service_without_its_database_is_alive_but_not_ready(
    each_served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = each_served.store.database
    away = OperationalError("", None, Exception("connection refused"))
    with monkeypatch.context() as patch:
        patch.setattr(database.engine, "connect", Mock(side_effect=away))
        patch.setattr(database.engine, "raw_connection", Mock(side_effect=away))
        assert (await each_served.client.get("/healthz")).status_code == 200
        response = await each_served.client.get("/readyz")
        refused(response, 503, "unavailable")
        assert response.headers["retry-after"]
        assert "refused" not in response.text
    await until_ready(each_served)


async def test_a_service_whose_disk_is_full_is_alive_but_not_ready_until_there_is_room(
    served: Served,
) -> None:
    store = served.store
    pages = await store.database.read(lambda s: s.scalar(text("PRAGMA page_count")))

    def fill(connection: Connection) -> None:
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")

    event.listen(store.database.engine, "begin", fill)
    assert (await served.client.get("/readyz")).status_code == 200  # no write has failed yet
    large = text("INSERT INTO events VALUES ('x', 1, 'x', 'x', zeroblob(1000000))")
    with pytest.raises(UNAVAILABLE_ERRORS):
        await store.database.write(lambda session: session.execute(large))
    for _ in range(20):  # small rows fit
        await served.tick()
        response = await served.client.get("/readyz")
        assert "SQLITE_FULL" in refused(response, 503, "unavailable")
    assert (await served.client.get("/healthz")).status_code == 200
    pages += 100  # enough for the probe of a megabyte
    await until_ready(served)
    left = select(func.count()).select_from(IdempotencyKeyRow)
    counts = [1]
    for _ in range(200):  # another probe may have its row just now
        counts.append(await store.database.read(lambda s: s.scalar(left)) or 0)
        if not counts[-1]:
            break
        await asyncio.sleep(0.02)
    assert counts[-1] == 0


async def test_an_idle_service_whose_disk_is_full_is_not_ready(
    served: Served, monkeypatch: pytest.MonkeyPatch, pass_second: Callable[[], None]
) -> None:
    """No write was refused yet, and small ones would not be."""
    assert (await served.client.get("/readyz")).status_code == 200
    disk = os.statvfs("/")
    full = Mock(f_frsize=disk.f_frsize, f_bavail=2**20 // disk.f_frsize - 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", lambda _folder: full)
        pass_second()
        assert "ENOSPC" in refused(await served.client.get("/readyz"), 503, "unavailable")
        await served.tick()
        assert (await served.client.get("/readyz")).status_code == 503
    await until_ready(served)


async def test_an_idle_service_whose_postgresql_has_a_full_disk_is_not_ready(
    serve: Serve, postgres_url: str, pass_second: Callable[[], None]
) -> None:
    """The probe needs a megabyte of PostgreSQL's disk, and an error there is an outage."""
    async with serve(postgres_url) as served:
        await until_ready(served)
        engine, is_full = served.store.database.engine, True
        memory, select_numbers = WRITE_TEMPORARY_FILE.split(";")
        with engine.begin() as connection:
            connection.exec_driver_sql(memory)
            explain = f"EXPLAIN (ANALYZE, BUFFERS) {select_numbers}"
            plan = connection.exec_driver_sql(explain).scalars().all()
        pages = re.search(r"temp read=\d+ written=(\d+)", "\n".join(plan))
        assert pages
        assert int(pages[1]) * 8192 >= 2**20

        def refuse(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
            if is_full and statement == WRITE_TEMPORARY_FILE:
                raise psycopg.errors.DiskFull("could not write to file")

        event.listen(engine, "before_cursor_execute", refuse)
        pass_second()
        assert "53100" in refused(await served.client.get("/readyz"), 503, "unavailable")
        is_full = False
        await until_ready(served)


async def test_an_idle_service_whose_database_is_locked_is_not_ready(
    serve: Serve, sqlite_url: str, tmp_path: Path, pass_second: Callable[[], None]
) -> None:
    """No client sends anything, and the service writes nothing."""
    async with serve(sqlite_url, database_timeout_seconds=0.05) as served:
        other = sqlite3.connect(tmp_path / "test.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        pass_second()  # a service that has just written is not idle
        response = await served.client.get("/readyz")
        assert "SQLITE_BUSY" in refused(response, 503, "unavailable")
        refused(await served.client.post("/v1/studies", json=study_request()), 503, "unavailable")
        other.execute("ROLLBACK")
        other.close()
        await until_ready(served)


_FAULTS_AND_REPAIRS = {
    "42P01": ("ALTER TABLE reports RENAME TO x", "ALTER TABLE x RENAME TO reports"),
    "42703": (
        "ALTER TABLE cohorts RENAME poisoned TO x",
        "ALTER TABLE cohorts RENAME x TO poisoned",
    ),
    "42501": (
        "REVOKE UPDATE ON event_counters FROM blindtally",
        "GRANT UPDATE ON event_counters TO blindtally",
    ),
    "55P03": ("BEGIN; LOCK TABLE devices", "ROLLBACK"),
}


async def test_an_idle_service_that_lacks_a_table_a_column_or_a_right_is_not_ready(
    serve: Serve, role_url: str, owner: psycopg.Connection[Any], pass_second: Callable[[], None]
) -> None:
    """PostgreSQL's names of these faults are in the answer, and the last one is a locked table."""
    async with serve(role_url, database_timeout_seconds=0.3) as served:
        for code, (fault, repair) in _FAULTS_AND_REPAIRS.items():
            await until_ready(served)
            owner.execute(fault)
            pass_second()
            response = await served.client.get("/readyz")
            assert code in refused(response, 503, "unavailable")
            owner.execute(repair)
        await until_ready(served)


async def test_a_replica_whose_postgresql_became_read_only_is_not_ready(
    serve: Serve, postgres_url: str
) -> None:
    """The connections lead to a standby, after a failover. No client sends anything."""
    async with serve(postgres_url) as served:
        database = served.store.database
        read_only = []

        def standby(connection: Connection) -> None:
            if read_only:
                connection.exec_driver_sql("SET TRANSACTION READ ONLY")

        event.listen(database.engine, "begin", standby)
        read_only.append(True)
        for _ in range(100):  # the next heartbeat is refused
            if (await served.client.get("/readyz")).status_code == 503:
                break
            await asyncio.sleep(0.05)
        refused(await served.client.get("/readyz"), 503, "unavailable")
        read_only.clear()
        await until_ready(served)


async def test_readiness_requests_probe_an_idle_database_once_a_second_without_a_change(
    served: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pass_second: Callable[[], None]
) -> None:
    pass_second()  # a service that has just written is not idle
    files = tmp_path / "test.db", tmp_path / "test.db-wal"
    before = [(file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    tries, begin = Mock(return_value=None), Readiness.write_nothing
    monkeypatch.setattr(Readiness, "write_nothing", lambda *args: tries() or begin(*args))
    for _ in range(3):
        await asyncio.gather(*(served.client.get("/readyz") for _ in range(20)))
    tries.assert_called_once()
    pass_second()
    await served.client.get("/readyz")
    assert tries.call_count == 2
    assert [(file.stat().st_size, file.stat().st_mtime_ns) for file in files] == before
