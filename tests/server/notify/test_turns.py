"""Tasks that become ready together take turns, so that other work is not held up by all of them."""

import asyncio
from random import Random

import pytest
from fastapi import Response

from server.notify.notifier import TASKS_PER_ITERATION, Notifier, Turns
from server.rounds.caches import AsyncCache
from tests.server.harness import Served

TASKS = 10 * TASKS_PER_ITERATION
MAX_TOGETHER = 2 * TASKS_PER_ITERATION  # a turn may begin before the last one has ended


async def largest_crowd(ended: list[int], tasks: list[asyncio.Task[None]]) -> int:
    """Return the largest number of tasks that went on in one iteration of the event loop."""
    largest, before = 0, len(ended)
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        largest, before = max(largest, len(ended) - before), len(ended)
    return largest


async def test_waiters_of_one_channel_go_on_in_turns_and_in_order() -> None:
    notifier, ended, is_over = Notifier(), list[int](), list[bool]()

    async def query() -> bool | None:
        return True if is_over else None

    async def wait(number: int) -> None:
        await notifier.wait_for("channel", query, 30)
        ended.append(number)

    tasks = [asyncio.create_task(wait(number)) for number in range(TASKS)]
    await asyncio.sleep(0.01)
    is_over.append(True)
    notifier.notify("channel")
    assert await largest_crowd(ended, tasks) <= MAX_TOGETHER
    assert sorted(ended) == [*range(TASKS)]


async def test_callers_that_share_a_read_go_on_in_turns() -> None:
    started, ended = asyncio.Event(), list[int]()

    async def read(_key: str) -> int:
        await started.wait()
        return 1

    cache = AsyncCache(read, 10)

    async def ask(number: int) -> None:
        assert await cache("key") == 1
        ended.append(number)

    tasks = [asyncio.create_task(ask(number)) for number in range(TASKS)]
    await asyncio.sleep(0.01)
    started.set()
    assert await largest_crowd(ended, tasks) <= MAX_TOGETHER
    assert ended == [*range(TASKS)]


async def test_a_cancelled_task_takes_no_turn_and_holds_up_no_other() -> None:
    turns = Turns()
    tasks = [asyncio.create_task(turns.wait()) for _ in range(TASKS)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert results[1::2] == [None] * (TASKS // 2)


@pytest.mark.parametrize("nbytes", [0, 2**16, 2**16 + 1, 5 * 2**16 + 3])
async def test_a_large_response_is_sent_in_pieces_and_complete(served: Served, nbytes: int) -> None:
    content, pieces = Random(nbytes).randbytes(nbytes), list[bytes]()

    async def send(message: dict[str, object]) -> None:
        if message["type"] == "http.response.body":
            body = message.get("body", b"")
            assert isinstance(body, (bytes, memoryview))
            pieces.append(bytes(body))
            assert message.get("more_body", False) is (sum(map(len, pieces)) < nbytes)

    @served.app.get("/v1/large")
    async def large() -> Response:
        return Response(content, media_type="application/octet-stream")

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/v1/large",
        "headers": [],
        "query_string": b"",
    }
    scope |= {"scheme": "http", "client": ("127.0.0.1", 1), "query_string": b""}

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b""}

    await served.app(scope, receive, send)  # type: ignore[arg-type]
    assert b"".join(pieces) == content
    assert max(map(len, pieces)) <= 2**16
