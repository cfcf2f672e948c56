"""One plan is computed at a time, and the queue is short."""

import asyncio
from threading import Event

import pytest

from server.errors import ProblemError
from server.first_plan import MAX_JOBS, PlanningQueue


async def test_one_job_runs_at_a_time_and_a_full_queue_refuses() -> None:
    planning_queue, is_released, running = PlanningQueue(), Event(), 0
    peaks = []

    def job() -> None:
        nonlocal running
        running += 1
        peaks.append(running)
        is_released.wait()
        running -= 1

    jobs = [asyncio.create_task(planning_queue.run(job)) for _ in range(MAX_JOBS)]
    await asyncio.sleep(0)
    with pytest.raises(ProblemError, match="too many studies are being planned"):
        await planning_queue.run(job)  # while the event loop runs
    is_released.set()
    await asyncio.gather(*jobs)
    assert peaks == [1] * MAX_JOBS
    await planning_queue.run(job)  # accepted again


async def test_a_job_that_fails_leaves_the_queue() -> None:
    planning_queue = PlanningQueue()
    for _ in range(MAX_JOBS + 1):
        with pytest.raises(ZeroDivisionError):
            await planning_queue.run(lambda: 1 // 0)
