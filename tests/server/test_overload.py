"""More at once than there is room for: told to come again, and nobody is lost."""

import asyncio
from contextlib import ExitStack, suppress

from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import Pool, PoolProxiedConnection

from tests.server.conftest import Serve
from tests.server.harness import STEPS
from tests.server.party import Party, refused


async def one_of(pool: Pool) -> PoolProxiedConnection:
    """Return a connection, once the ticker gives back what it has."""
    async with asyncio.timeout(60):
        while True:
            with suppress(PoolTimeoutError):
                return pool.connect()
            await asyncio.sleep(0.01)


async def test_a_pool_without_a_connection_left_is_unavailable_until_there_is_one_again(
    serve: Serve, database_url: str
) -> None:
    """As with a leak, or a PostgreSQL that has no connections to spare."""
    async with serve(database_url, busy_timeout=0.02) as served:
        study = await served.create()
        party = Party(served, study, await served.join(study, 6))
        device = await party.go_but_one("share")
        body = await device.compute_shares()
        pool = served.app.state.service.store.database.engine.pool
        with ExitStack() as held:
            for _ in range(pool.size() + pool._max_overflow):
                held.callback((await one_of(pool)).close)
            for answer in (
                await device.put("shares", body),
                await served.client.get(f"/v1/studies/{study}"),
                await served.client.get("/readyz"),
            ):
                refused(answer, 503, "unavailable")
                assert int(answer.headers["retry-after"]) >= 1
                assert "pool" not in answer.text.lower()
            assert (await served.client.get("/healthz")).status_code == 200
            await served.tick()
        assert (await served.client.get("/readyz")).status_code == 200  # without a restart
        await device.say("shares", body)
        await party.go(*STEPS[1:])
        await party.end()
