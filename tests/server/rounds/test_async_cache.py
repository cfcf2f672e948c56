"""Cache of one read for all calls: its weight, its age limit and its errors."""

import asyncio
import weakref

from server.rounds.caches import AsyncCache


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
