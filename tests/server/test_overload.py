"""Overload: refused requests are retried, and no device drops out."""

import asyncio
from contextlib import ExitStack, suppress

from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import Pool, PoolProxiedConnection

from tests.server.conftest import Serve
from tests.server.harness import STEPS
from tests.server.party import gather_party, refused


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
        party = await gather_party(served)
        device = await party.go_but_one("share")
        body = await device.compute_shares()
        pool = served.store.database.engine.pool
        with ExitStack() as held:
            for _ in range(pool.size() + pool._max_overflow):
                held.callback((await one_of(pool)).close)
            for answer in (
                await device.put("key-shares", body),
                await served.client.get(f"/v1/studies/{party.study}"),
                await served.client.get("/readyz"),
            ):
                refused(answer, 503, "unavailable")
                assert int(answer.headers["retry-after"]) >= 1
                assert "pool" not in answer.text.lower()
            assert (await served.client.get("/healthz")).status_code == 200
            await served.tick()
        assert (await served.client.get("/readyz")).status_code == 200  # without a restart
        await device.upload("key-shares", body)
        await party.go(*STEPS[1:])
        await party.end()
