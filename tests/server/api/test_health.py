"""Health, and the two refusals of the framework itself."""

import asyncio
import sqlite3
from pathlib import Path
from unittest.mock import Mock

import pytest
from sqlalchemy import event, func, select, text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import OperationalError

from server.db.database_errors import UNAVAILABLE_ERRORS
from server.db.schema import IdempotencyKeyRow
from server.db.write_probe import WriteProbe
from tests.server.conftest import Serve
from tests.server.harness import Served, study_request
from tests.server.party import refused


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
    assert response.headers["allow"] == "GET"


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
    assert (await each_served.client.get("/readyz")).status_code == 200  # without a restart


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
    response = await served.client.get("/readyz")
    assert "full" in refused(response, 503, "unavailable")
    assert (await served.client.get("/healthz")).status_code == 200
    pages += 100  # enough for the probe of a megabyte
    assert (await served.client.get("/readyz")).status_code == 200  # without a restart
    assert (await served.client.get("/readyz")).status_code == 200
    left = select(func.count()).select_from(IdempotencyKeyRow)
    assert await store.database.read(lambda s: s.scalar(left)) == 0


async def test_a_service_whose_database_is_locked_is_not_ready_once_a_write_has_failed(
    serve: Serve, sqlite_url: str, tmp_path: Path
) -> None:
    async with serve(sqlite_url, database_timeout_seconds=0.05) as served:
        other = sqlite3.connect(tmp_path / "test.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert (await served.client.get("/readyz")).status_code == 200  # no write has failed yet
        refused(await served.client.post("/v1/studies", json=study_request()), 503, "unavailable")
        refused(await served.client.get("/readyz"), 503, "unavailable")
        other.execute("ROLLBACK")
        other.close()
        assert (await served.client.get("/readyz")).status_code == 200  # without a restart


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
        assert (await served.client.get("/readyz")).status_code == 200  # without a restart


async def test_concurrent_readiness_requests_write_one_probe(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each probe is a megabyte: requests during a probe receive its result."""
    database = served.store.database
    database.refuses_writes = True
    tries, write = Mock(return_value=None), WriteProbe._write_probe
    monkeypatch.setattr(WriteProbe, "_write_probe", lambda *args: tries() or write(*args))
    probe = served.store.write_probe
    answers = await asyncio.gather(*(probe.accepts_writes() for _ in range(20)))
    assert answers == [True] * 20
    tries.assert_called_once()
    assert await probe.accepts_writes()
