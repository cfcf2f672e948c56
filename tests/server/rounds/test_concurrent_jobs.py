"""ConcurrentJobs: a few tasks at a time, and an error of one job ends no other."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from time import monotonic
from typing import Any

import pytest
import structlog
from sqlalchemy import true

from protocol.api.messages import Timeouts
from protocol.api.phases import Phase, PhaseStatus
from protocol.question_and_plan import Terms
from server.db.repositories.leases import Job
from server.db.repositories.rounds.pending_cohorts import PendingCohort
from server.rounds.concurrent_jobs import ConcurrentJobs, sum_batches
from server.telemetry.metrics import Metrics
from tests.server.harness import NOON


class Recorder:
    """Jobs whose start is recorded, and that end when a test lets them."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.ended: list[Sequence[str]] = []
        self.tasks = ConcurrentJobs(self.metrics, self.ended.append)
        self.started: list[str] = []
        self.may_end = asyncio.Event()

    def work(
        self, name: str, error: Exception | None = None
    ) -> Callable[[], Coroutine[Any, Any, None]]:
        async def run() -> None:
            self.started.append(name)
            if error is not None:
                raise error
            await self.may_end.wait()

        return run

    def start(self, *names: str, error: Exception | None = None) -> None:
        works = {job(name): self.work(name) for name in names}
        if error is not None:
            works[job(names[0])] = self.work(names[0], error)
        self.tasks.start(works, *names)

    async def until_ended(self, count: int) -> None:
        self.may_end.set()
        async with asyncio.timeout(10):
            while len(self.ended) < count:  # noqa: ASYNC110  (there is no notification)
                await asyncio.sleep(0)

    @property
    def waiting(self) -> float | None:
        labels = {"job": "sum-cohort", "state": "waiting"}
        return self.metrics.registry.get_sample_value("blindtally_jobs", labels)


def job(name: str) -> Job:
    return Job(f"sum-cohort {name}", true)


def cohort(number: int, enrolled: int) -> PendingCohort:
    hour = timedelta(hours=1)
    status = PhaseStatus(Phase.UNMASKING, 3, 3, 3, NOON, NOON + hour, hour)
    assumptions = Terms(cohort_size=4, minimum=4).assumptions
    return PendingCohort(number, "s", 1, number, status, enrolled, assumptions, Timeouts())


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_jobs_that_start_together_share_a_slot_and_others_wait() -> None:
    recorder = Recorder()
    recorder.start("1", "2", "3")
    recorder.start("4")
    recorder.start("5", "6")
    await settled()
    assert recorder.started == ["1", "2", "3", "4"]
    assert recorder.waiting == 2
    await recorder.until_ended(3)
    assert recorder.started[4:] == ["5", "6"]
    assert recorder.waiting == 0
    assert sorted(recorder.ended) == [("1", "2", "3"), ("4",), ("5", "6")]


async def test_a_job_that_is_running_or_waiting_does_not_start_again() -> None:
    recorder = Recorder()
    recorder.start("1", "2")
    recorder.start("2", "3")
    await settled()
    assert recorder.started == ["1", "2", "3"]
    assert job("2") in recorder.tasks
    await recorder.until_ended(2)
    assert job("2") not in recorder.tasks


async def test_the_error_of_a_job_ends_no_other() -> None:
    recorder = Recorder()
    recorder.start("1", "2", error=ArithmeticError("a fault"))
    await settled()
    assert recorder.started == ["1", "2"]
    assert job("2") in recorder.tasks
    await recorder.until_ended(1)


async def test_a_job_that_fails_is_not_repeated_at_once_and_its_error_is_logged_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("server.rounds.concurrent_jobs._PAUSE_AFTER_FAILURE_SECONDS", 0.1)
    recorder, start = Recorder(), monotonic()
    with structlog.testing.capture_logs() as lines:
        for count in range(1, 4):
            recorder.start("1", error=ArithmeticError("a fault"))
            await recorder.until_ended(count)
    assert monotonic() > start + 0.3
    assert [line["event"] for line in lines] == ["job failed"]


async def test_cancelled_jobs_have_ended_and_leave_nothing() -> None:
    recorder = Recorder()
    recorder.start("1", "2")
    recorder.start("3")
    recorder.start("4")
    await settled()
    await recorder.tasks.cancel()
    assert not any(job(name) in recorder.tasks for name in "1234")
    assert recorder.waiting == 0


@pytest.mark.parametrize(
    ("devices", "batches"),
    [
        ([], []),
        ([3] * 22, [21, 1]),
        ([1000, 1000], [1, 1]),
        ([30, 30, 1000, 30, 34, 1], [2, 1, 2, 1]),
    ],
)
def test_small_cohorts_are_summed_in_batches_and_large_ones_alone(
    devices: list[int], batches: list[int]
) -> None:
    cohorts = [cohort(number, enrolled) for number, enrolled in enumerate(devices)]
    made = list(sum_batches(cohorts))
    assert [len(batch) for batch in made] == batches
    assert [each for batch in made for each in batch] == cohorts
