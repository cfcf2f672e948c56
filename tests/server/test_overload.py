"""Overload: refused requests are retried, and no device drops out."""

import asyncio
from contextlib import ExitStack, suppress

from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import Pool, PoolProxiedConnection

from protocol.api.messages import SlotAssignment
from secagg.roster import Roster
from server.notify.notifier import MAX_RETRY_AFTER_SECONDS
from tests.server.cohort import create_full_cohort, refused
from tests.server.conftest import Serve
from tests.server.harness import STEPS, Served

CROWD = 60


async def one_of(pool: Pool) -> PoolProxiedConnection:
    """Return a connection, once the ticker gives back what it has."""
    async with asyncio.timeout(60):
        while True:
            with suppress(PoolTimeoutError):
                return pool.connect()
            await asyncio.sleep(0.01)


async def test_an_empty_pool_is_unavailable_for_a_while(serve: Serve, database_url: str) -> None:
    """The pool is empty, for example because PostgreSQL has no free connection."""
    async with serve(database_url, database_timeout_seconds=0.1) as served:
        cohort = await create_full_cohort(served)
        device = await cohort.take_steps_but_last_device("share")
        body = await device.compute_shares()
        pool, kept = served.store.database.engine.pool, int(served.store.database.is_sqlite)
        with ExitStack() as held:
            for _ in range(pool.size() + pool._max_overflow - kept):  # the server keeps one
                held.callback((await one_of(pool)).close)
            for answer in (
                await device.put("key-shares", body),
                await served.client.get(f"/v1/studies/{cohort.study}"),
                await served.client.get("/readyz"),
            ):
                refused(answer, 503, "unavailable")
                assert int(answer.headers["retry-after"]) >= 1
                assert "pool" not in answer.text.lower()
            assert (await served.client.get("/healthz")).status_code == 200
            await served.tick()
        async with asyncio.timeout(60):  # without a restart
            while (await served.client.get("/readyz")).status_code != 200:
                await served.tick()
        await device.upload("key-shares", body)
        await cohort.take_steps(*STEPS[1:])
        await cohort.check_exact_sum()


async def test_of_a_reconnect_storm_after_a_restart_each_device_is_answered_with_pace_and_kept(
    serve: Serve, sqlite_url: str
) -> None:
    terms = {"cohort_size": CROWD + 1, "minimum": 40, "corrupt": 0.01, "dropout": 0.1}
    async with serve(sqlite_url) as served:
        study = await served.create(terms=terms)
        devices = await served.join(study, CROWD)
    async with serve(sqlite_url) as again:
        for device in devices:
            device.client = again.client
        again.service.retry_scheduler._rate = CROWD / 3
        answers = await asyncio.gather(*(device.get("roster", wait=0) for device in devices))
        assert {answer.status_code for answer in answers} == {202}
        delays = [int(answer.headers["retry-after"]) for answer in answers]
        assert len(set(delays)) > 2  # not all come again at one moment
        assert max(delays) <= MAX_RETRY_AFTER_SECONDS
        seats = await asyncio.gather(*(device.apply(study, 1) for device in devices))
        assert {answer.status_code for answer in seats} == {200}
        assert [SlotAssignment.model_validate_json(seat.content) for seat in seats] == [
            device.seat for device in devices
        ]
        waiting = [asyncio.create_task(device.get("roster", wait=30)) for device in devices]
        await until_waiting(again, CROWD)
        await again.join(study, 1, first=CROWD)
        rosters = await asyncio.gather(*waiting)
        assert {answer.status_code for answer in rosters} == {200}
        (roster,) = {answer.content for answer in rosters}
        identities = [entry.identity for entry in Roster.unpack(roster, has_registrar=False)]
        assert identities[:CROWD] == [device.identity.public for device in devices]


async def until_waiting(served: Served, count: int) -> None:
    """Wait until `count` requests wait for a channel."""
    async with asyncio.timeout(60):
        while served.service.notifier.waiter_count < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
