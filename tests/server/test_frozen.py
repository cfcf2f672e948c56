"""What never changes is read once, for all who ask, and forgotten in order."""

import asyncio

import pytest

from server.frozen import Once


async def test_many_who_ask_together_cost_one_reading() -> None:
    reads: list[int] = []

    async def read(key: int) -> int:
        reads.append(key)
        await asyncio.sleep(0.01)
        return key * 10

    once = Once(read, 2)
    assert await asyncio.gather(*(once(1) for _ in range(50))) == [10] * 50
    await once(2)
    await once(3)  # 1 is forgotten
    await once(2)
    await once(1)
    assert reads == [1, 2, 3, 1]


async def test_an_error_is_raised_and_not_kept() -> None:
    answers = iter([ValueError("not yet"), "now"])

    async def read(_key: int) -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    once = Once(read, 2)
    with pytest.raises(ValueError, match="not yet"):
        await once(1)
    assert await once(1) == "now"


async def test_one_who_leaves_takes_nothing_from_the_others() -> None:
    async def read(key: int) -> int:
        await asyncio.sleep(0.02)
        return key

    once = Once(read, 2)
    leaving, staying = asyncio.create_task(once(1)), asyncio.create_task(once(1))
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying == 1


async def test_errors_take_no_room_from_what_is_kept() -> None:
    reads: list[int] = []

    async def read(key: int) -> int:
        reads.append(key)
        if key < 0:
            raise ValueError("there is none")
        return key

    once = Once(read, 2)
    await once(1)
    for key in (-1, -2, -3):
        with pytest.raises(ValueError, match="none"):
            await once(key)
    await once(1)
    assert reads == [1, -1, -2, -3]
