"""Orchestrator of rounds: checks all pending cohorts, and closes the phases that are due.

    read a snapshot -> settle each cohort (protocol/api/phases.py) -> move, fail or sum it
                    -> close the rounds whose cohorts are all closed

It keeps no state that rows do not have, and each move names the phase that it read, so it can be
killed at any line and run in several processes. It polls when this process accepts a message or
another process reports a change, at each deadline, and at least every `poll_seconds`. Sums and
decoding run as tasks under leases (`server/rounds/jobs.py`). An error in one cohort fails that
cohort; an unavailable database fails none.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from random import Random
from typing import Any

import structlog
from opentelemetry.trace import NoOpTracer, Tracer

from protocol.api.events import FailureCause
from protocol.api.phases import Phase, PhaseStatus, settle
from secagg.aggregator import complaints_by_dealer
from secagg.errors import InfeasibleError
from secagg.parameters import choose_parameters
from server.db.channels import cohort_channel, study_channel
from server.db.database_errors import UNAVAILABLE_ERRORS, loggable_reason
from server.db.repositories.cohort_phases import PendingCohort, PendingSnapshot
from server.db.repositories.leases import (
    Job,
    close_round_job,
    delete_bodies_job,
    seat_job,
    sum_job,
)
from server.db.store import Store
from server.errors import INTERNAL_FAULT, ProblemError
from server.notify.notifier import Notifier
from server.rounds.cohort_messages import read_complaints
from server.rounds.heartbeat import Heartbeat
from server.rounds.jobs import JobRunner, LeaseRunner, log_fields, process_name
from server.settings import Settings
from server.telemetry.metrics import Metrics

_log = structlog.get_logger(__name__)
_ACTION_OF_PHASE = {
    Phase.ENROLLING: "enrolled",
    Phase.SHARING: "shared their secrets",
    Phase.CHECKING: "checked their shares",
    Phase.ANSWERING: "answered complaints",
    Phase.MASKING: "sent their vectors",
    Phase.CONFIRMING: "confirmed the survivors",
    Phase.UNMASKING: "gave their shares",
    Phase.REPORTING: "reported",
}
_NOT_SEATED_REASON = (
    "the study's registrar did not divide the joiners into cohorts in time: it must run "
    "`blindtally seat` with its key and the URL of this service"
)
_MAX_CONCURRENT_JOBS = 2
_MAX_LOGGED_PAIRS = 20  # complaints in one log line


@dataclass
class Orchestrator:
    """The orchestrator of one process."""

    store: Store
    notifier: Notifier
    rng: Random
    settings: Settings = field(default_factory=Settings)
    metrics: Metrics = field(default_factory=Metrics)
    tracer: Tracer = field(default_factory=NoOpTracer)
    heartbeat: Heartbeat = field(init=False)
    _jobs: JobRunner = field(init=False)
    _wake_event: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _running: dict[str, asyncio.Task[None]] = field(default_factory=dict, init=False)
    _last_phases: dict[int, tuple[str, Phase]] = field(default_factory=dict, init=False)
    _finished_cohorts: set[int] = field(default_factory=set, init=False)  # may have bodies left
    _job_slots: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(_MAX_CONCURRENT_JOBS), init=False
    )

    def __post_init__(self) -> None:
        name = process_name()
        self.heartbeat = Heartbeat(self.store, name)
        leases = LeaseRunner(self.store.leases, name, self.settings.lease_seconds)
        self._jobs = JobRunner(
            self.store, self.notifier, self.rng, leases, self.metrics, self.tracer
        )

    def last_phase(self, cohort: int) -> Phase | None:
        """Return the phase of `cohort` at the last poll, None if it was not pending."""
        return self._last_phases.get(cohort, (None, None))[1]

    def wake(self) -> None:
        """Poll again soon, because a message has arrived."""
        self._wake_event.set()

    async def resume(self) -> None:
        """Give pending cohorts the time back in which no server could receive: call this first."""
        await self.heartbeat.start()
        self._finished_cohorts.update(await self.store.cohorts.finished_with_bodies())

    async def run(self) -> None:
        """Poll until cancelled; then cancel the jobs, which are repeated from the rows."""
        try:
            while True:
                await self._sleep(await self._try_poll())
        finally:
            tasks = list(self._running.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _try_poll(self) -> float | None:
        try:
            if self.heartbeat.is_disconnected:
                await self.resume()
            with self.tracer.start_as_current_span("poll", record_exception=False):
                return await self.poll()
        except UNAVAILABLE_ERRORS as error:
            self.heartbeat.is_disconnected = True
            _log.warning("database unavailable", error=loggable_reason(error))
        except Exception:
            _log.exception("poll failed")
        return None

    async def _sleep(self, seconds: float | None) -> None:
        """Sleep until woken, at most `seconds`, within the limits of the settings."""
        await asyncio.sleep(self.settings.min_poll_seconds)
        longest = self.settings.poll_seconds
        seconds = longest if seconds is None else min(seconds, longest)
        with suppress(TimeoutError):  # Python 3.11's wait_for may lose a cancellation
            async with asyncio.timeout(seconds):
                await self._wake_event.wait()
        self._wake_event.clear()

    async def poll(self) -> float | None:
        """Close what is due; return the seconds until the next phase or lease ends."""
        snapshot = await self.store.cohorts.snapshot()
        self._notify_changes(snapshot.cohorts)
        for finished in self._finished_cohorts:
            job = delete_bodies_job(finished)
            if not self._is_claimed(snapshot, job):
                self._start_job(job, self._delete_bodies, finished)
        ends = list(snapshot.claimed.values())
        for cohort in snapshot.cohorts:
            status = self._effective_status(snapshot, cohort)
            if not self._is_claimed(snapshot, _job_of(cohort)):
                await self._settle_safely(replace(cohort, phase_status=status), snapshot.now)
                ends.append(status.closes_at)
        for study, number in await self.store.rounds.ready_to_close():
            job = close_round_job(study, number)
            if not self._is_claimed(snapshot, job):
                self._start_job(job, self._jobs.close_round, study, number)
        statuses = (cohort.phase_status for cohort in snapshot.cohorts)
        self.metrics.set_pending(statuses, snapshot.now.timestamp())
        return max((min(ends) - snapshot.now).total_seconds(), 0.0) if ends else None

    def _is_claimed(self, snapshot: PendingSnapshot, job: Job) -> bool:
        """Return whether this process or another one does the job already."""
        return job.name in self._running or job.name in snapshot.claimed

    def _effective_status(self, snapshot: PendingSnapshot, cohort: PendingCohort) -> PhaseStatus:
        """Return the status of a cohort; patience only counts while a server could receive."""
        since = [
            at
            for at in (snapshot.receiving_since, self.heartbeat.receiving_since)
            if at is not None
        ]
        start = min(since, default=snapshot.now)
        status = cohort.phase_status
        return replace(status, last_received=max(status.last_received, start))

    def _notify_changes(self, pending: tuple[PendingCohort, ...]) -> None:
        """Notify the channels of cohorts that changed since the last poll, in any process."""
        now = {cohort.id: (cohort.study, cohort.phase_status.phase) for cohort in pending}
        for cohort in self._last_phases.keys() | now.keys():
            before, after = self._last_phases.get(cohort), now.get(cohort)
            if before != after:
                study, _ = before or after or ("", None)
                self.notifier.notify(cohort_channel(cohort), study_channel(study))
            if after is None:  # closed, so its message bodies are no longer needed
                self._finished_cohorts.add(cohort)
        self._last_phases = now

    async def _delete_bodies(self, cohort: int) -> None:
        """Remember a closed cohort until any process has deleted its message bodies."""
        if await self._jobs.delete_bodies(cohort):
            self._finished_cohorts.discard(cohort)

    def _start_job(
        self, job: Job, function: Callable[..., Coroutine[Any, Any, None]], *args: object
    ) -> None:
        if job.name not in self._running:
            self._running[job.name] = asyncio.create_task(self._run_job(job, function, *args))

    async def _run_job(
        self, job: Job, function: Callable[..., Coroutine[Any, Any, None]], *args: object
    ) -> None:
        try:
            # Before the job is claimed, because another process may have a free slot.
            with self.metrics.jobs.labels(job.kind, "waiting").track_inprogress():
                await self._job_slots.acquire()
            try:
                await function(*args)
            finally:
                self._job_slots.release()
        except UNAVAILABLE_ERRORS as error:
            _log.warning("database unavailable", error=loggable_reason(error))
        except Exception:
            _log.exception("job failed", job=job.name)
        finally:
            del self._running[job.name]
        self.wake()

    async def _settle_safely(self, cohort: PendingCohort, now: datetime) -> None:
        try:
            await self._settle(cohort, now)
        except UNAVAILABLE_ERRORS:
            raise
        except Exception:
            _log.exception("cohort failed", **log_fields(cohort))
            await self._fail(cohort, FailureCause.INTERNAL, INTERNAL_FAULT)

    async def _settle(self, cohort: PendingCohort, now: datetime) -> None:
        status = cohort.phase_status
        phase, next_phase = status.phase, settle(status, now)
        if next_phase is phase:
            return
        if next_phase is Phase.FAILED and phase is Phase.SEATING:
            await self._fail(cohort, FailureCause.NOT_SEATED, _NOT_SEATED_REASON, status.received)
        elif next_phase is Phase.FAILED:
            reason = (
                f"{status.received} of {status.expected} {_ACTION_OF_PHASE[phase]} in time, "
                f"where {status.quorum} are needed"
            )
            await self._fail(cohort, FailureCause.TOO_FEW, reason, status.received)
        elif phase is Phase.SEATING:
            study, number = cohort.study, cohort.round
            self._start_job(_job_of(cohort), self._jobs.seat_round, study, number)
        elif phase is Phase.ENROLLING:
            await self._close_enrolling(cohort)
        elif phase is Phase.CHECKING:
            await self._close_checking(cohort)
        elif phase is Phase.UNMASKING:
            self._start_job(_job_of(cohort), self._jobs.sum_cohort, cohort)
        else:
            moved = await self.store.cohorts.move(cohort, next_phase)
            self._after_move(cohort, next_phase, moved)

    def _after_move(self, cohort: PendingCohort, phase: Phase, moved: bool) -> None:
        if moved:
            _log.info("cohort phase changed", phase=phase.value, **log_fields(cohort))
            self.notifier.notify(cohort_channel(cohort.id))
        self.wake()  # perhaps the next phase expects no messages

    async def _close_enrolling(self, cohort: PendingCohort) -> None:
        """Fix the joiners; if a device joins meanwhile, the next poll tries again."""
        try:
            for size in cohort.sum_sizes:
                await asyncio.to_thread(choose_parameters, size, cohort.assumptions)
        except InfeasibleError as error:
            received = cohort.phase_status.received
            await self._fail(cohort, FailureCause.INFEASIBLE, str(error), received)
            return
        moved = await self.store.cohorts.close_enrolling(cohort)
        self._after_move(cohort, cohort.phase_status.next_phase, moved)

    async def _close_checking(self, cohort: PendingCohort) -> None:
        """Let the accused dealers answer; if a message arrives meanwhile, the next poll repeats."""
        try:
            complaints = complaints_by_dealer(await read_complaints(self.store.messages, cohort.id))
        except ProblemError:  # meanwhile stopped, and its bodies deleted
            return
        moved = await self.store.cohorts.close_checking(cohort, sorted(complaints))
        if complaints and moved:
            pairs = sorted(
                (dealer, holder) for dealer in complaints for holder in complaints[dealer]
            )
            _log.warning(
                "complaints about shares",
                pairs=len(pairs),
                dealers_holders=pairs[:_MAX_LOGGED_PAIRS],
                **log_fields(cohort),
            )
        self._after_move(cohort, Phase.ANSWERING if complaints else Phase.MASKING, moved)

    async def _fail(
        self, cohort: PendingCohort, cause: FailureCause, reason: str, received: int | None = None
    ) -> None:
        if await self.store.cohorts.fail(cohort, reason, received, cause):
            _log.warning("cohort failed", cause=cause.value, reason=reason, **log_fields(cohort))
            self.notifier.notify(cohort_channel(cohort.id), study_channel(cohort.study))
        self.wake()


def _job_of(cohort: PendingCohort) -> Job:
    """Return the job that ends the phase of a cohort that is seating or unmasking."""
    if cohort.phase_status.phase is Phase.SEATING:
        return seat_job(cohort.study, cohort.round)
    return sum_job(cohort.id)
