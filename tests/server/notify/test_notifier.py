"""Channels: no waiter misses a notification, and none waits for too long."""

import asyncio
from time import monotonic

from server.notify.notifier import Notifier


async def test_a_change_between_the_query_and_the_wait_is_noticed() -> None:
    watch, looks = Notifier(), 0

    async def ask() -> str | None:
        nonlocal looks
        looks += 1
        if looks == 1:
            watch.notify("x")  # while the first look is still under way
            return None
        return "moved"

    assert await asyncio.wait_for(watch.wait_for("x", ask, 30), 1) == "moved"


async def test_an_existing_result_is_returned_at_once() -> None:
    async def ask() -> str | None:
        return "there"

    assert await Notifier().wait_for("x", ask, 0) == "there"


async def test_the_wait_ends_with_a_last_look() -> None:
    answers = iter([None, "late"])

    async def ask() -> str | None:
        return next(answers)

    assert await Notifier().wait_for("x", ask, 0.02) == "late"


async def test_other_channels_wake_no_waiter_and_a_shutdown_wakes_all() -> None:
    watch = Notifier()

    async def ask() -> str | None:
        return None

    started = monotonic()
    waiting = [asyncio.create_task(watch.wait_for(name, ask, 30)) for name in "xxy"]
    await asyncio.sleep(0.02)
    watch.notify("z")
    await asyncio.sleep(0.02)
    assert not any(task.done() for task in waiting)
    watch.shut_down()
    assert await asyncio.gather(*waiting) == [None, None, None]
    assert await watch.wait_for("x", ask, 30) is None  # and nobody waits any more
    assert monotonic() - started < 5


async def test_a_channel_without_waiters_is_removed() -> None:
    watch = Notifier()

    async def ask() -> str | None:
        return None

    await asyncio.gather(*(watch.wait_for("x", ask, 0.01) for _ in range(3)))
    assert watch.waiter_count == 0
