"""Bells: nobody misses one, and nobody is held."""

import asyncio
from time import monotonic

from server.listener import _notices
from server.watch import Watch, cohort_bell


async def test_a_change_between_the_look_and_the_wait_is_heard() -> None:
    watch, looks = Watch(), 0

    async def ask() -> str | None:
        nonlocal looks
        looks += 1
        if looks == 1:
            watch.ring("x")  # while the first look is still under way
            return None
        return "moved"

    assert await asyncio.wait_for(watch.until("x", ask, 30), 1) == "moved"


async def test_an_answer_that_is_there_is_given_at_once() -> None:
    async def ask() -> str | None:
        return "there"

    assert await Watch().until("x", ask, 0) == "there"


async def test_the_wait_ends_with_a_last_look() -> None:
    answers = iter([None, "late"])

    async def ask() -> str | None:
        return next(answers)

    assert await Watch().until("x", ask, 0.02) == "late"


async def test_other_bells_wake_nobody_and_release_wakes_all() -> None:
    watch = Watch()

    async def ask() -> str | None:
        return None

    started = monotonic()
    waiting = [asyncio.create_task(watch.until(name, ask, 30)) for name in "xxy"]
    await asyncio.sleep(0.02)
    watch.ring("z")
    await asyncio.sleep(0.02)
    assert not any(task.done() for task in waiting)
    watch.release()
    assert await asyncio.gather(*waiting) == [None, None, None]
    assert await watch.until("x", ask, 30) is None  # and nobody waits any more
    assert monotonic() - started < 5


def test_notices_of_many_bells_are_as_large_as_postgresql_takes() -> None:
    bells = tuple(cohort_bell(number) for number in range(2000))
    notices = list(_notices(bells))
    assert tuple("\n".join(notices).split("\n")) == bells
    assert 1 < len(notices) < 10
    assert max(len(notice.encode()) for notice in notices) < 8000
    assert list(_notices(())) == []


async def test_a_bell_that_nobody_waits_for_is_taken_down() -> None:
    watch = Watch()

    async def ask() -> str | None:
        return None

    await asyncio.gather(*(watch.until("x", ask, 0.01) for _ in range(3)))
    assert not watch._bells
