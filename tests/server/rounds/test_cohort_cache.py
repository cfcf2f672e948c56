"""The cache of closed phases: one read for all requests, and no value before its phase closes."""

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from protocol.api.phases import MessageKind
from secagg.aggregator import route_shares
from secagg.messages import Complaints, KeyShares
from server.db.channels import cohort_channel
from server.db.repositories.messages import MessageRepository
from server.errors import ProblemError
from server.rounds.cohort_cache import AsyncCache, CohortCache
from server.rounds.cohort_messages import read_messages
from tests.server.harness import STEPS, Served
from tests.server.party import Party


async def test_many_who_ask_together_cost_one_reading() -> None:
    reads: list[int] = []

    async def read(key: int) -> int:
        reads.append(key)
        await asyncio.sleep(0.01)
        return key * 10

    once = AsyncCache(read, 2)
    assert await asyncio.gather(*(once(1) for _ in range(50))) == [10] * 50
    await once(2)
    await once(3)  # 1 is forgotten
    await once(2)
    await once(1)
    assert reads == [1, 2, 3, 1]


async def test_a_value_with_an_age_limit_is_read_again() -> None:
    reads: list[int] = []

    async def read(key: int) -> None:
        reads.append(key)

    cache = AsyncCache(read, 2, seconds=0.05)
    await cache(1)
    await cache(1)
    assert reads == [1]
    await asyncio.sleep(0.06)
    await cache(1)
    assert reads == [1, 1]


async def test_an_error_is_raised_and_not_kept() -> None:
    answers = iter([ValueError("not yet"), "now"])

    async def read(_key: int) -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    once = AsyncCache(read, 2)
    with pytest.raises(ValueError, match="not yet"):
        await once(1)
    assert await once(1) == "now"


async def test_one_who_leaves_takes_nothing_from_the_others() -> None:
    async def read(key: int) -> int:
        await asyncio.sleep(0.02)
        return key

    once = AsyncCache(read, 2)
    leaving, staying = asyncio.create_task(once(1)), asyncio.create_task(once(1))
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying == 1


async def test_what_weighs_more_makes_more_room_but_the_last_is_always_kept() -> None:
    reads: list[int] = []

    async def read(weight: int) -> int:
        reads.append(weight)
        return weight

    once = AsyncCache(read, 10, lambda weight: weight)
    for weight in (1, 2, 3, 4):
        await once(weight)
    await once(1)  # all four are kept, and 2 is the oldest now
    await once(5)  # 2 and 3 make room
    for weight in (1, 4, 5):
        await once(weight)
    await once(99)  # nothing else is left
    await once(99)
    await once(1)
    assert reads == [1, 2, 3, 4, 5, 99, 1]


async def test_nothing_is_derived_from_bodies_that_are_forgotten(party: Party) -> None:
    """A process that did not look while they were there finds that the cohort is over."""
    await party.go(*STEPS)
    await party.end()
    service = party.served.service
    await service.store.cohorts.delete_bodies([1])
    fresh = CohortCache(service.store, service.notifier)
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


async def test_a_list_deleted_meanwhile_is_not_kept(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two batches the study is stopped, and its bodies go."""
    await party.go("share", "check")
    await party.served.until_phase(party.study, "masking")
    service = party.served.service
    fresh, batch = CohortCache(service.store, service.notifier), type(service.store.messages)._batch

    async def stop_behind(
        messages: MessageRepository, cohort: int, kind: str, last: int, size: int
    ) -> object:
        rows = await batch(messages, cohort, kind, last, size)
        if last < 0:
            await party.served.client.post(f"/v1/studies/{party.study}/stop")
            await service.store.cohorts.delete_bodies([1])
        return rows

    monkeypatch.setattr("server.db.repositories.messages._VECTORS_PER_BATCH", 2)
    monkeypatch.setattr("server.db.repositories.messages._BATCH_BYTES", 1)
    monkeypatch.setattr(type(service.store.messages), "_batch", stop_behind)
    for _ in range(2):
        with pytest.raises(ProblemError, match="the study was stopped"):
            await fresh.transcript(1)


async def test_batches_of_bodies_of_equal_size_are_limited_in_bytes(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    await party.go("share")
    messages, n = party.served.service.store.messages, len(party.devices)
    size = len(await messages.body(1, MessageKind.KEY_SHARES, 0) or b"")

    async def batches() -> list[int]:
        return [len(batch) async for batch in messages.bodies(1, MessageKind.KEY_SHARES)]

    monkeypatch.setattr("server.db.repositories.messages._VECTORS_PER_BATCH", 2)
    assert await batches() == [2, n - 2]
    monkeypatch.setattr("server.db.repositories.messages._BATCH_BYTES", 4 * size - 1)
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
    cached = getattr(CohortCache(served.store, served.service.notifier), name)
    for cohort in (1, 1, 2, 1):  # 17 each, so 30 is enough for one of them
        await cached(cohort)
    assert reads == [1, 2, 1]


async def test_a_cohort_that_was_evicted_is_read_for_one_holder_at_a_time(
    each_served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each device has 10 holders of 28, so 3 misses read the number of bodies of the cohort."""
    terms = {"cohort_size": 28, "minimum": 28, "corrupt": 0.01, "dropout": 0}
    study = await each_served.create(terms=terms)
    await Party(each_served, study, await each_served.join(study, 28)).go("share")
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
    for name in ("_batch", "bodies_of"):
        monkeypatch.setattr(type(messages), name, counted(getattr(type(messages), name)))
    fresh = CohortCache(each_served.store, each_served.service.notifier)

    async def read(slot: int) -> int:
        """Return the number of bodies that one request reads."""
        before = bodies_read
        assert (await fresh.received_shares(1, slot)).pack() == routed[slot].pack()
        return bodies_read - before

    assert [await read(slot) for slot in range(28)] == [28, *[0] * 27]
    for _ in range(2):
        fresh._all_received_shares.forget(1)
        fresh._received_shares._values.clear()
        assert [await read(slot) for slot in range(3)] == [len(routed[s]) for s in range(3)]
        assert [await read(slot) for slot in range(2)] == [0, 0]
        assert [await read(slot) for slot in range(3, 28)] == [28, *[0] * 24]


async def test_no_answer_before_its_phase_is_over_is_kept(party: Party) -> None:
    """A request that comes too early is refused before any row is read."""
    device = party.devices[0]
    for step, what in zip(
        STEPS[:-1],
        ("encrypted-shares", "complaints", "survivors", "signed-inputs"),
        strict=True,
    ):
        *some, last = party.devices
        await asyncio.gather(*(getattr(other, step)() for other in some))
        assert (await device.get(what, wait=0)).status_code == 202
        cache = party.served.service.cohort_cache
        cached = {
            "encrypted-shares": cache._all_received_shares,
            "complaints": cache.complaints,
            "survivors": cache.survivors,
            "signed-inputs": cache.signed_inputs,
        }[what]
        assert not cached._reads
        assert not cached._values
        await getattr(last, step)()
        assert (await device.get(what)).status_code == 200
        assert list(cached._values) == [1]
    await party.go("reveal")
    await party.end()


class Page:
    """A value to which a weak reference is possible."""


async def test_an_expired_value_leaves_the_memory_without_further_reads() -> None:
    pages = list[weakref.ref[Page]]()

    async def read(_: str) -> Page:
        page = Page()
        pages.append(weakref.ref(page))
        return page

    cache = AsyncCache(read, 10, seconds=0.05)
    await cache("a")
    assert pages[0]() is not None
    async with asyncio.timeout(20):
        while pages[0]() is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_no_cached_status_is_used_while_a_cohort_changes(served: Served) -> None:
    """Between the commit of a change and its notification the cached status is out of date."""
    await served.join(await served.create(), 1)  # the others are missing, so its phase stays
    service, cohort = served.service, 1
    cache = CohortCache(service.store, service.notifier)
    before = await cache.status(cohort)
    cache._statuses.remember(cohort, replace(before, failure="out of date"))
    assert (await cache.status(cohort)).failure == "out of date"
    cache.on_change([cohort_channel(cohort)])
    assert await cache.status(cohort) == before
    cache.after_change([cohort_channel(cohort)])
    service.notifier.notify(cohort_channel(cohort))
    assert await cache.status(cohort) == before
