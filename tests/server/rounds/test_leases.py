"""LeaseRepository: one holder at a time, and of all who ever held one only the last publishes."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import event, false, true, update

from server.db import migrations
from server.db.database import Database
from server.db.repositories.leases import (
    Job,
    Lease,
    LeaseRepository,
    StaleLeaseError,
    check_lease,
    claimed_jobs,
)
from server.db.schema import LeaseRow as Row
from server.rounds.jobs import LeaseRunner
from tests.server.harness import Clock

WORK = Job("sum-cohort 1", true)


@pytest.fixture
async def leases(database_url: str, clock: Clock) -> AsyncIterator[LeaseRepository]:
    database = Database(database_url, clock=clock)
    await migrations.upgrade(database)
    yield LeaseRepository(database)
    await database.close()


async def claimed(leases: LeaseRepository, holder: str, seconds: float = 15) -> Lease:
    lease = await leases.claim(WORK, holder, seconds)
    assert lease is not None
    return lease


async def publish(leases: LeaseRepository, lease: Lease) -> None:
    await leases.database.write(lambda session: check_lease(session, lease))


async def is_taken(leases: LeaseRepository) -> bool:
    now = leases.database.now
    return bool(await leases.database.read(lambda session: claimed_jobs(session, now(session))))


async def test_of_many_who_claim_at_once_one_has_the_work(leases: LeaseRepository) -> None:
    errors = list[object]()  # PostgreSQL would log them
    event.listen(leases.database.engine, "handle_error", errors.append)
    claimed = await asyncio.gather(*(leases.claim(WORK, f"{n}", 15) for n in range(8)))
    assert errors == []
    (lease,) = (lease for lease in claimed if lease is not None)
    assert lease.version == 1
    assert await leases.claim(WORK, "late", 15) is None
    assert {lease.job: lease.version for lease in await leases.latest(1000)} == {"sum-cohort 1": 1}


async def test_work_that_is_done_is_claimed_by_nobody(leases: LeaseRepository) -> None:
    assert await leases.claim(Job("sum-cohort 2", false), "one", 15) is None
    assert {lease.job: lease.version for lease in await leases.latest(1000)} == {}


async def test_a_lease_runs_out_and_its_holder_publishes_nothing_once_another_has_it(
    leases: LeaseRepository, clock: Clock
) -> None:
    old = await claimed(leases, "one")
    await publish(leases, old)
    clock.advance(15)
    await publish(leases, old)  # late, but nobody else took it up
    new = await claimed(leases, "two")
    assert (old.version, new.version) == (1, 2)
    with pytest.raises(StaleLeaseError, match="after version 1"):
        await publish(leases, old)
    assert not await leases.renew(old, 15)
    await leases.release(old)
    assert await is_taken(leases)
    await publish(leases, new)


async def test_a_lease_that_is_renewed_lasts(leases: LeaseRepository, clock: Clock) -> None:
    lease = await claimed(leases, "one")
    for _ in range(3):
        clock.advance(14)
        assert await leases.claim(WORK, "two", 15) is None
        assert await leases.renew(lease, 15)
    clock.advance(14)
    await leases.release(lease)
    assert (await claimed(leases, "two")).version == 2


async def test_only_leases_of_processes_that_are_gone_are_free(leases: LeaseRepository) -> None:
    await claimed(leases, "one")
    await leases.release_others("one")
    assert await leases.claim(WORK, "two", 15) is None
    await leases.release_others("two")
    assert (await claimed(leases, "two")).version == 2


async def test_a_long_job_renews_and_releases_its_lease(
    leases: LeaseRepository, clock: Clock
) -> None:
    begun = asyncio.Event()

    async def work(_lease: Lease) -> None:
        begun.set()
        await asyncio.Event().wait()

    doing = asyncio.create_task(LeaseRunner(leases, "one", 0.03).run(WORK, work))
    await begun.wait()
    for _ in range(3):
        clock.advance(1)
        for _ in range(1000):
            if await is_taken(leases):
                break
            await asyncio.sleep(0.005)
        else:
            raise AssertionError("the lease is not renewed")
    doing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doing
    assert not await is_taken(leases)
    assert (await claimed(leases, "two")).version == 2


async def test_work_ends_when_its_lease_is_lost(leases: LeaseRepository) -> None:
    """A process that was frozen finds that another one took over."""
    begun, ended = asyncio.Event(), []

    async def work(lease: Lease) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(lease.version)

    doing = asyncio.create_task(LeaseRunner(leases, "one", 0.03).run(WORK, work))
    await begun.wait()
    other = update(Row).values(version=2, holder="two")  # who saw that it had run out
    await leases.database.write(lambda session: session.execute(other))
    await doing
    assert ended == [1]
    assert await is_taken(leases)


async def test_a_fault_of_the_work_is_the_callers(leases: LeaseRepository) -> None:
    async def work(_lease: Lease) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await LeaseRunner(leases, "one", 15).run(WORK, work)
    assert not await is_taken(leases)
