"""Several servers on one PostgreSQL give the same answers as one, and lose nothing together."""

import asyncio
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta, tzinfo
from random import Random
from typing import Any, Self
from unittest.mock import AsyncMock

import psycopg
import pytest
import structlog

from server.app import create_app
from server.notify import pg_listener
from server.settings import Settings
from tests.server.conftest import Serve
from tests.server.harness import NOON, STEPS, Clock, Served, serving, sum_of, together

LISTENING = "listener connected"
TERMS = {"cohort_size": 4, "minimum": 4, "cohorts": 3, "corrupt": 0, "dropout": 0}


@pytest.fixture
async def two(serve: Serve, postgres_url: str) -> AsyncIterator[tuple[Served, Served]]:
    async with serve(postgres_url) as first, serve(postgres_url) as second:
        yield first, second


async def until(condition: Callable[[], object]) -> None:
    for _ in range(3000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("what is waited for does not come")


def events(logs: list[Any]) -> Counter[str]:
    return Counter(entry["event"] for entry in logs)


async def claims(served: Served, kind: str) -> dict[str, int]:
    leases = await served.store.leases.latest(1000)
    versions = {lease.job: lease.version for lease in leases}
    return {work: version for work, version in versions.items() if work.startswith(kind)}


async def test_devices_of_two_servers_are_each_in_one_sum(two: tuple[Served, Served]) -> None:
    """The first listens to the devices of even number, the second to the others."""
    study = await two[0].create(terms=TERMS)
    devices = []
    for number in range(12):
        devices += await two[number % 2].join(study, 1, first=number)
    await together(devices, *STEPS)
    view = await two[1].until_closed(study)
    assert (view.state, view.participants) == ("decoded", 12)
    for cohort in view.cohorts:
        mine = [device for device in devices if device.seat.cohort == cohort.number]
        path = f"/v1/studies/{study}/rounds/1/cohorts/{cohort.number}/sum"
        assert (await two[0].client.get(path)).content == sum_of(mine)
    assert await claims(two[0], "sum-cohort") == {f"sum-cohort {n}": 1 for n in (1, 2, 3)}
    assert await claims(two[0], "close-round") == {f"close-round {study} 1": 1}


async def test_a_long_poll_gets_changes_of_another_server(serve: Serve, postgres_url: str) -> None:
    """Both poll once per minute only, and the request would end before without a result."""
    pace = {"poll_seconds": 60, "min_poll_seconds": 0}
    async with serve(postgres_url, **pace) as closed, serve(postgres_url, **pace) as other:
        study = await closed.create(rounds=2)
        (first,) = await other.join(study, 1)
        waiting = asyncio.create_task(first.get("roster", wait=25))
        await until(lambda: other.service.notifier.waiter_count)
        rest = await closed.join(study, 5, first=1)
        assert (await waiting).status_code == 200
        waiting = asyncio.create_task(other.open_round(study, after=1))
        devices = [first, *rest]
        await together(devices, *STEPS)
        assert (await waiting).number == 2
        assert await other.read_sum(study) == sum_of(devices)


async def see_the_end_of_a_phase(closed: Served, other: Served) -> None:
    """Let `closed` end a phase for which a device waits at the server `other`."""
    study = await closed.create()
    (device,) = await other.join(study, 1)
    waiting = asyncio.create_task(device.get("roster", wait=25))
    await until(lambda: other.service.notifier.waiter_count)
    await closed.join(study, 5, first=1)
    assert (await waiting).status_code == 200


async def test_a_disconnected_listener_listens_again(serve: Serve, postgres_url: str) -> None:
    pace = {"poll_seconds": 60, "min_poll_seconds": 0}
    with structlog.testing.capture_logs() as logs:
        async with serve(postgres_url, **pace) as closed, serve(postgres_url, **pace) as other:
            await until(lambda: events(logs)[LISTENING] == 2)
            with psycopg.connect(postgres_url, autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND query LIKE 'LISTEN%'"
                )
            await until(lambda: events(logs)[LISTENING] == 4)
            assert events(logs)["listener disconnected"] == 2
            await see_the_end_of_a_phase(closed, other)


async def test_without_notifications_phases_are_polled(
    serve: Serve, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PgBouncer, by transaction, answers LISTEN and delivers nothing."""
    execute = psycopg.AsyncConnection.execute

    async def ignore_listen(self: Any, query: str, *rest: Any, **options: Any) -> Any:
        return await execute(self, query.replace("LISTEN", "SELECT 1 AS"), *rest, **options)

    monkeypatch.setattr(psycopg.AsyncConnection, "execute", ignore_listen)
    monkeypatch.setattr(pg_listener, "_CHECK_SECONDS", 0.1)
    pace = {"poll_seconds": 0.2, "min_poll_seconds": 0}
    with structlog.testing.capture_logs() as logs:
        async with serve(postgres_url, **pace) as closed, serve(postgres_url, **pace) as other:
            warning = "no notifications arrive: what other processes change is polled"
            await until(lambda: events(logs)[warning] == 2)
            await see_the_end_of_a_phase(closed, other)
        assert LISTENING not in events(logs)


async def test_no_server_clock_counts(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's clock jumps ten years ahead; only the database's clock counts."""

    class Jumped(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return super().now(tz) + timedelta(days=3650)

    for name, module in list(sys.modules.items()):
        if name.startswith("server.") and getattr(module, "datetime", None) is datetime:
            monkeypatch.setattr(module, "datetime", Jumped)
    app = create_app(Settings(database_url=postgres_url, open=True), None, Random(os.getpid()))
    async with serving(app, Clock()) as served:
        study = await served.create()
        devices = await served.join(study, 6)
        await together(devices, "share", "check")
        await together(devices[:5], "mask")
        await served.service.orchestrator.poll()
        await served.until_phase(study, "masking")
        look = await served.store.cohorts.snapshot()
        assert look.cohorts[0].phase_status.deadline - look.now < timedelta(seconds=61)
        await together(devices[5:], "mask")
        await together(devices, *STEPS[3:])
        assert (await served.until_closed(study)).participants == 6


async def test_a_server_that_starts_extends_no_phase_that_another_one_receives(
    serve: Serve, postgres_url: str, clock: Clock
) -> None:
    async with serve(postgres_url) as closed:
        study = await closed.create()
        clock.advance(598)
        store = closed.store
        beats = await store.processes.other_heartbeats("nobody")
        while not beats:  # the next heartbeat shows that it is alive
            await asyncio.sleep(0.01)
            beats = await store.processes.other_heartbeats("nobody")
        async with serve(postgres_url) as other:
            look = await store.cohorts.snapshot()
            assert look.cohorts[0].phase_status.deadline == NOON + timedelta(seconds=600)
            assert look.receiving_since == NOON
            assert other.service.orchestrator.heartbeat.receiving_since > clock()
            clock.advance(2)
            assert (await other.until_closed(study)).state == "failed"
    async with serve(postgres_url) as again:
        assert set(await again.store.processes.other_heartbeats("nobody")) == {name_of(again)}


async def test_a_server_that_was_killed_a_moment_ago_receives_nothing(
    serve: Serve, postgres_url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row is as fresh as that of a living process, but is not written again."""
    async with serve(postgres_url) as served:
        await served.create(timeouts={"enrolling": 6, "idle": 5})
        monkeypatch.setattr(type(served.store.processes), "remove", AsyncMock())
        name = name_of(served)
    clock.advance(2)
    monkeypatch.setattr("server.rounds.heartbeat.ALIVE_WITHIN", timedelta(seconds=0.3))
    async with serve(postgres_url) as again:
        assert name in await again.store.processes.other_heartbeats(name_of(again))
        (due,) = await again.store.cohorts.pending()
        assert due.phase_status.deadline == clock() + timedelta(seconds=5)


def name_of(served: Served) -> str:
    return served.service.orchestrator.heartbeat.name
