"""Tasks of the jobs of one process: a few run at a time, and the others wait for a free slot.

Jobs that are started together share a slot and run concurrently, so that their transactions are
shared as well (`server/db/group_commit.py`). The error of one job is logged once and ends no other.
A job that failed counts as running for another second, so that it is not repeated at once.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import structlog

from server.db.database_errors import UNAVAILABLE_ERRORS, loggable_reason
from server.db.repositories.leases import Job
from server.db.repositories.rounds.pending_cohorts import PendingCohort
from server.telemetry.metrics import Metrics

Work: TypeAlias = Callable[[], Coroutine[Any, Any, object]]
_MAX_RUNNING = 2  # tasks
_PAUSE_AFTER_FAILURE_SECONDS = 1.0
_MAX_BATCH_DEVICES = 64  # in small cohorts that are summed together, perhaps with a vector each
_log = structlog.get_logger(__name__)


class ConcurrentJobs:
    """Tasks of jobs; `on_end` is called with the channels of each task that ends."""

    def __init__(self, metrics: Metrics, on_end: Callable[[Sequence[str]], None]) -> None:
        self._metrics, self._on_end = metrics, on_end
        self._slots = asyncio.Semaphore(_MAX_RUNNING)
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by the name of each job
        self._failed = set[str]()  # the names of jobs whose last error is logged

    def __contains__(self, job: Job) -> bool:
        """Return whether `job` is running or waiting for a free slot."""
        return job.name in self._tasks

    def start(self, works: Mapping[Job, Work], *channels: str) -> None:
        """Start the work of jobs that are not running, in one task; `channels` are for its end."""
        works = {job: work for job, work in works.items() if job not in self}
        if works:
            task = asyncio.create_task(self._run(works, channels))
            self._tasks |= dict.fromkeys((job.name for job in works), task)

    async def cancel(self) -> None:
        """Cancel all tasks, and wait for their end."""
        tasks = set(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, works: Mapping[Job, Work], channels: Sequence[str]) -> None:
        waiting = self._metrics.jobs.labels(next(iter(works)).kind, "waiting")
        try:
            # Before the jobs are claimed, because another process may have a free slot.
            waiting.inc(len(works))
            try:
                await self._slots.acquire()
            finally:
                waiting.dec(len(works))
            try:
                runs = (self._run_job(job, work) for job, work in works.items())
                have_succeeded = await asyncio.gather(*runs)
            finally:
                self._slots.release()
            if not all(have_succeeded):
                await asyncio.sleep(_PAUSE_AFTER_FAILURE_SECONDS)
        finally:
            for job in works:
                del self._tasks[job.name]
        self._on_end(channels)

    async def _run_job(self, job: Job, work: Work) -> bool:
        """Return whether a job has succeeded."""
        try:
            await work()
        except UNAVAILABLE_ERRORS as error:
            _log.debug("database unavailable", error=loggable_reason(error))
        except Exception:
            if job.name not in self._failed:
                _log.exception("job failed", job=job.name)
            self._failed.add(job.name)
        else:
            self._failed.discard(job.name)
            return True
        return False


def sum_batches(cohorts: Sequence[PendingCohort]) -> Iterator[list[PendingCohort]]:
    """Yield cohorts whose sums share a slot: of at most `_MAX_BATCH_DEVICES` devices, or one."""
    batch, devices = list[PendingCohort](), 0
    for cohort in cohorts:
        if batch and devices + cohort.enrolled > _MAX_BATCH_DEVICES:
            yield batch
            batch, devices = [], 0
        batch.append(cohort)
        devices += cohort.enrolled
    if batch:
        yield batch
