"""The cache of closed phases: one read for all requests, and no value before its phase closes."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from protocol.api.phases import MessageKind
from secagg.aggregator import route_shares
from secagg.messages import Complaints, KeyShares
from server.db.repositories.messages.sum_messages import MessageRepository
from server.errors import ProblemError
from server.rounds.caches import AsyncCache
from server.rounds.cohort_cache import CohortCache
from server.rounds.cohort_messages import read_messages
from tests.server.cohort import Cohort
from tests.server.harness import STEPS, Served


async def test_nothing_is_derived_from_bodies_that_are_forgotten(cohort: Cohort) -> None:
    """A process that did not look while they were there finds that the cohort is over."""
    await cohort.take_steps(*STEPS)
    await cohort.check_exact_sum()
    service = cohort.served.service
    await service.store.cohorts.delete_bodies([1])
    fresh = CohortCache(service.store)
    for ask in (
        partial(fresh.received_shares, slot=0),
        fresh.complaints,
        fresh.transcript,
        fresh.share_commitments,
        fresh.signed_inputs,
        fresh.unmasking_request,
        fresh.confirmations,
    ):
        for _ in range(2):
            with pytest.raises(ProblemError, match="the cohort is summed"):
                await ask(1)
    assert await fresh.survivors(1) == frozenset(range(6))  # which needs no bodies


async def test_facts_of_a_cohort_that_is_over_leave_the_memory(cohort: Cohort) -> None:
    """A process that plays many small rounds would otherwise grow with each of them."""
    cache = cohort.served.service.cohort_cache
    await cohort.take_steps(*STEPS)
    facts = [each for each in vars(cache).values() if isinstance(each, AsyncCache)]
    assert sum(1 in each for each in facts) > 5
    await cohort.check_exact_sum()
    for _ in range(200):
        if not any(1 in each for each in facts):
            return
        await asyncio.sleep(0.02)
    raise AssertionError("facts of a cohort that is over are still there")


async def test_a_list_deleted_meanwhile_is_not_kept(
    cohort: Cohort, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two batches the study is stopped, and its bodies go."""
    await cohort.take_steps("share", "check")
    await cohort.served.until_phase(cohort.study, "masking")
    service = cohort.served.service
    fresh, batch = CohortCache(service.store), type(service.store.messages).batch_of_bodies

    async def stop_behind(
        messages: MessageRepository, number: int, kind: str, last: int, size: int
    ) -> object:
        rows = await batch(messages, number, kind, last, size)
        if last < 0:
            await cohort.served.client.post(f"/v1/studies/{cohort.study}/stop")
            await service.store.cohorts.delete_bodies([1])
        return rows

    monkeypatch.setattr("server.db.repositories.messages.sum_messages._VECTORS_PER_BATCH", 2)
    monkeypatch.setattr("server.db.repositories.messages.sum_messages._BATCH_BYTES", 1)
    monkeypatch.setattr(type(service.store.messages), "batch_of_bodies", stop_behind)
    for _ in range(2):
        with pytest.raises(ProblemError, match="the study was stopped"):
            await fresh.transcript(1)


async def test_batches_of_bodies_of_equal_size_are_limited_in_bytes(
    cohort: Cohort, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cohort.take_steps("share")
    messages, n = cohort.served.service.store.messages, len(cohort.devices)
    size = len(await messages.body(1, MessageKind.KEY_SHARES, 0) or b"")

    async def batches() -> list[int]:
        return [len(batch) async for batch in messages.bodies(1, MessageKind.KEY_SHARES)]

    monkeypatch.setattr("server.db.repositories.messages.sum_messages._VECTORS_PER_BATCH", 2)
    assert await batches() == [2, n - 2]
    monkeypatch.setattr("server.db.repositories.messages.sum_messages._BATCH_BYTES", 4 * size - 1)
    assert await batches() == [2, *(min(3, n - start) for start in range(2, n, 3))]


@pytest.mark.parametrize("name", ["complaints", "complaints_by_dealer"])
async def test_complaints_weigh_as_much_as_their_signatures(
    served: Served, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    reads: list[int] = []

    async def read(_messages: MessageRepository, cohort: int) -> dict[int, Complaints]:
        reads.append(cohort)
        accused = {0: Complaints(dict.fromkeys(range(1, 9), bytes(64)))}
        return accused | {slot: Complaints({}) for slot in range(1, 9)}

    monkeypatch.setattr("server.rounds.cohort_cache.read_complaints", read)
    monkeypatch.setattr("server.rounds.cohort_cache._MAX_CACHED_PARTICIPANTS", 30)
    cached = getattr(CohortCache(served.store), name)
    for cohort in (1, 1, 2, 1):  # 17 each, so 30 is enough for one of them
        await cached(cohort)
    assert reads == [1, 2, 1]


async def test_a_cohort_that_was_evicted_is_read_for_one_holder_at_a_time(
    each_served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each device has 10 holders of 28, so 3 misses read the number of bodies of the cohort."""
    terms = {"cohort_size": 28, "minimum": 28, "corrupt": 0.01, "dropout": 0}
    study = await each_served.create(terms=terms)
    await Cohort(each_served, study, await each_served.join(study, 28)).take_steps("share")
    await each_served.until_phase(study, "checking")
    messages, bodies_read = each_served.store.messages, 0
    session = (await messages.enrolled_cohort(1)).session
    assert (session.n, session.parameters.holders) == (28, 10)
    kind = MessageKind.KEY_SHARES
    routed = route_shares(session, await read_messages(messages, 1, kind, KeyShares.unpack))

    def counted(read: Callable[..., Awaitable[list[Any]]]) -> Callable[..., Awaitable[list[Any]]]:
        async def run(*arguments: object) -> list[Any]:
            nonlocal bodies_read
            rows = await read(*arguments)
            bodies_read += len(rows)
            return rows

        return run

    monkeypatch.setattr("server.rounds.cohort_cache._SINGLE_READS", 1)
    for name in ("batch_of_bodies", "bodies_of"):
        monkeypatch.setattr(type(messages), name, counted(getattr(type(messages), name)))
    fresh = CohortCache(each_served.store)

    async def read(slot: int) -> int:
        """Return the number of bodies that one request reads."""
        before = bodies_read
        assert (await fresh.received_shares(1, slot)).pack() == routed[slot].pack()
        return bodies_read - before

    assert [await read(slot) for slot in range(28)] == [28, *[0] * 27]
    for _ in range(2):
        fresh.all_received_shares.forget(1)
        fresh.received_shares_by_slot.forget_all()
        assert [await read(slot) for slot in range(3)] == [len(routed[s]) for s in range(3)]
        assert [await read(slot) for slot in range(2)] == [0, 0]
        assert [await read(slot) for slot in range(3, 28)] == [28, *[0] * 24]


async def test_no_answer_before_its_phase_is_over_is_kept(cohort: Cohort) -> None:
    """A request that comes too early is refused before any row is read."""
    device = cohort.devices[0]
    for step, what in zip(
        STEPS[:-1], ("encrypted-shares", "complaints", "survivors", "signed-inputs"), strict=True
    ):
        *some, last = cohort.devices
        await asyncio.gather(*(getattr(other, step)() for other in some))
        assert (await device.get(what, wait=0)).status_code == 202
        cache = cohort.served.service.cohort_cache
        cached = {
            "encrypted-shares": cache.all_received_shares,
            "complaints": cache.complaints,
            "survivors": cache.survivors,
            "signed-inputs": cache.signed_inputs,
        }[what]
        assert 1 not in cached
        await getattr(last, step)()
        assert (await device.get(what)).status_code == 200
        assert 1 in cached
    await cohort.take_steps("reveal")
    await cohort.check_exact_sum()
