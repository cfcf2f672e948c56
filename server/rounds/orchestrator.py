"""Orchestrator of rounds: checks pending cohorts, and closes the phases that are due.

    read a snapshot -> settle each cohort (protocol/api/phases.py) -> move, fail or sum it
                    -> close the rounds whose cohorts are all closed

It keeps no state that rows do not have, and each move names the phase that it read, so it can be
killed at any line and run in several processes. It polls when this process accepts a message that
may end a phase, or any process reports a change, at each deadline, and at least every
`poll_seconds`. A poll reads the cohorts with news or a deadline
(`server/rounds/cohorts_to_poll.py`). Sums and decoding run as tasks under leases
(`server/rounds/jobs.py`). An error in one cohort fails that cohort; an unavailable database fails
none. After a poll that failed the next one waits regardless of the news, up to `poll_seconds`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from random import Random
from time import monotonic
from typing import Final

import structlog
from opentelemetry.trace import NoOpTracer, Tracer

from protocol.api.events import FailureCause
from protocol.api.phases import JOINING_PHASES, Phase, PhaseStatus, settle
from secagg.errors import InfeasibleError
from secagg.oneshot.opening import OpeningError
from secagg.parameters import choose_parameters
from server.db.channels import cohort_channel, study_channel
from server.db.database_errors import UNAVAILABLE_ERRORS, ClockJumpError, loggable_reason
from server.db.group_commit import MAX_GROUP_WRITES
from server.db.repositories.leases import DELETE_BODIES_JOB, Job, close_round_job, seat_job, sum_job
from server.db.repositories.rounds.pending_cohorts import PendingCohort, PendingSnapshot
from server.db.store import Store
from server.errors import INTERNAL_FAULT, ProblemError
from server.notify.notifier import Notifier
from server.rounds.cohort_sums import check_shares
from server.rounds.cohorts_to_poll import CohortChange, PendingCohorts, Round
from server.rounds.concurrent_jobs import ConcurrentJobs, sum_batches
from server.rounds.heartbeat import Heartbeat
from server.rounds.jobs import JobRunner, LeaseRunner, log_fields, process_name
from server.rounds.one_shot_sums import check_messages
from server.settings import DEFAULT_PACE, Pace
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
    Phase.CONVENING: "registered keys for the committee",
    Phase.COLLECTING: "sent their messages",
    Phase.AGREEING: "members signed the set of messages",
    Phase.RELEASING: "members sent the sums of their shares",
}
_NOT_SEATED_REASONS = {
    phase: (
        f"the study's registrar did not {action} in time: it must run "
        "`blindtally registrar serve` with its key and the URL of this service"
    )
    for phase, action in (
        (Phase.SEATING, "divide the joiners into cohorts"),
        (Phase.DRAWING, "draw the committee from the volunteers"),
    )
}
_CHECKS: Final = {"pairwise": check_shares, "one-shot": check_messages}
_FULL_READ_SECONDS = 300.0  # between two reads of all pending cohorts
# If other processes use the database, one may accept the last message of a phase, and die. Devices
# wait for a phase that has begun, so such cohorts are read more often than those that enrol.
_SHARED_FULL_READ_SECONDS = 30.0
_SHARED_READ = timedelta(seconds=5)
_FIRST_PAUSE_SECONDS = 0.05  # after a poll that failed; it doubles with each further one
_MAX_LOGGED_PAIRS = 20  # complaints in one log line


@dataclass
class Orchestrator:
    """The orchestrator of one process."""

    store: Store
    notifier: Notifier
    rng: Random
    pace: Pace = DEFAULT_PACE
    metrics: Metrics = field(default_factory=Metrics)
    tracer: Tracer = field(default_factory=NoOpTracer)
    on_bodies_deleted: Callable[[Collection[int]], None] = lambda _: None
    heartbeat: Heartbeat = field(init=False)
    lease_runner: LeaseRunner = field(init=False)
    _jobs: JobRunner = field(init=False)
    _concurrent_jobs: ConcurrentJobs = field(init=False)
    poll_lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _wake_event: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _pending: PendingCohorts = field(default_factory=PendingCohorts, init=False)
    closing_rounds: set[Round] = field(default_factory=set, init=False)  # perhaps ready to close
    _next_full_read: float = field(default=0.0, init=False)  # monotonic seconds
    _finished_cohorts: set[int] = field(default_factory=set, init=False)  # may have bodies left
    _due_sums: list[PendingCohort] = field(default_factory=list, init=False)  # not started yet
    _failures: int = field(default=0, init=False)  # polls since the last one that succeeded

    def __post_init__(self) -> None:
        name = process_name()
        self.heartbeat = Heartbeat(self.store, name)
        self.lease_runner = LeaseRunner(self.store.leases, name, self.pace.lease_seconds)
        self._jobs = JobRunner(self.store, self.rng, self.lease_runner, self.metrics, self.tracer)
        self._concurrent_jobs = ConcurrentJobs(self.metrics, self.on_notification)
        self.metrics.reset_pending()

    def check(self, *channels: str) -> None:
        """Check the cohorts of `channels` soon, because a message has arrived."""
        self.on_notification(channels)

    def on_message(self, cohort: int, phase: Phase, received: int) -> None:
        """Check a cohort soon, if this number of messages of `phase` may decide when it ends.

        Other joins are counted at the next poll, so that metrics show the devices that joined.
        """
        if self._pending.may_decide(cohort, phase, received):
            self.check(cohort_channel(cohort))
        elif phase in JOINING_PHASES:
            self._pending.report((cohort_channel(cohort),))

    def on_notification(self, channels: Collection[str] | None) -> None:
        """Check the cohorts of `channels`, or all if None, because they have changed."""
        self._pending.report(channels)
        self.wake()

    def wake(self) -> None:
        """Poll again soon."""
        self._wake_event.set()

    async def resume(self) -> None:
        """Give pending cohorts the time back in which no server could receive: call this first."""
        await self.heartbeat.start()
        self._finished_cohorts.update(await self.store.cohorts.finished_with_bodies())

    async def run(self) -> None:
        """Poll until cancelled; then cancel the jobs, which are repeated from the rows."""
        try:
            while True:
                await self._sleep(await self.step())
        finally:
            await self._concurrent_jobs.cancel()

    async def step(self) -> float | None:
        database, tried = self.store.database, monotonic()
        try:
            if database.outage.is_open:
                await self.store.readiness.try_again()
            if self.heartbeat.is_disconnected:
                await self.resume()
            with self.tracer.start_as_current_span("poll", record_exception=False):
                seconds = await self.poll()
        except UNAVAILABLE_ERRORS as error:
            database.has_lost_time = True
            _log.debug("database unavailable", error=loggable_reason(error))
        except Exception:
            if not self._failures:
                _log.exception("poll failed")
        else:
            self._failures = 0
            self._end_outage(tried)
            return seconds
        self._failures += 1
        self._pending.report(None)  # the news of this poll may not have been acted on
        return None

    def _end_outage(self, tried: float) -> None:
        """End an outage of the database, because everything since `tried` has succeeded."""
        outage = self.store.database.outage
        if outage.is_open and outage.end(tried):
            # A transaction whose commit was not confirmed may have changed what waiters read.
            self.notifier.notify_all()

    async def _sleep(self, seconds: float | None) -> None:
        """Sleep until woken, at most `seconds`, within the limits of the pace."""
        longest = self.pace.poll_seconds
        pause = _FIRST_PAUSE_SECONDS * 2 ** min(self._failures, 10) if self._failures else 0.0
        await asyncio.sleep(max(min(pause, longest), self.pace.min_poll_seconds))
        seconds = longest if seconds is None else min(seconds, longest)
        with suppress(TimeoutError):  # Python 3.11's wait_for may lose a cancellation
            async with asyncio.timeout(seconds):
                await self._wake_event.wait()
        self._wake_event.clear()

    async def poll(self) -> float | None:
        """Close what is due; return the seconds until the next phase or lease ends."""
        async with self.poll_lock:  # each poll takes the news
            return await self._poll()

    async def _poll(self) -> float | None:
        jumps = self.heartbeat.handled_jumps
        self._request_full_read()
        select = partial(self._pending.select, self._pending.take_news())
        snapshot = await self.store.cohorts.snapshot(select)
        if self.store.database.clock_jumps.count > jumps:
            raise ClockJumpError("another reading showed a jump of the database's clock")
        changes = self._pending.update(snapshot.selection, snapshot.cohorts)
        self._record_changes(changes)
        if snapshot.selection is None and not snapshot.cohorts:
            self.store.database.resync_clock()
        snapshot = replace(snapshot, cohorts=tuple(self._effective_cohorts(snapshot)))
        if any(_ends_early(cohort.phase_status, snapshot.now) for cohort in snapshot.cohorts):
            # Their phase would end before messages that arrived in time, but wait for a commit.
            await self.store.settle_arrivals(self.store.database.max_wait_seconds)
        try:
            await self._check_all(snapshot)
        finally:  # after the sums that wait
            if self._finished_cohorts and not self._is_claimed(snapshot, DELETE_BODIES_JOB):
                finished = frozenset(self._finished_cohorts)
                delete = partial(self._jobs.delete_bodies, finished, self._forget)
                self._concurrent_jobs.start({DELETE_BODIES_JOB: delete})
        await self._close_rounds(snapshot)
        self.metrics.last_poll.set(snapshot.now.timestamp())
        ends = [*snapshot.claimed.values()]
        if (due := self._pending.next_due()) is not None:
            ends.append(due)
        return max((min(ends) - snapshot.now).total_seconds(), 0.0) if ends else None

    def _forget(self, cohorts: Collection[int]) -> None:
        self._finished_cohorts.difference_update(cohorts)
        self.on_bodies_deleted(cohorts)

    def _request_full_read(self) -> None:
        """Read all pending cohorts if changes may have been missed, and once in a while."""
        seconds = self.store.database.monotonic_seconds()
        if not self.notifier.is_complete or seconds >= self._next_full_read:
            is_alone = self.store.database.is_sqlite
            pause = _FULL_READ_SECONDS if is_alone else _SHARED_FULL_READ_SECONDS
            self._next_full_read = seconds + pause
            self._pending.report(None)

    async def _check_all(self, snapshot: PendingSnapshot) -> None:
        """Check the cohorts of `snapshot`, in groups whose moves share transactions.

        A cohort that cannot even fail holds up no other one; its error is raised at the end.
        """
        fault: Exception | None = None
        for start in range(0, len(snapshot.cohorts), MAX_GROUP_WRITES):
            group = snapshot.cohorts[start : start + MAX_GROUP_WRITES]
            checks = (self._check(snapshot, cohort) for cohort in group)
            try:
                errors = await asyncio.gather(*checks, return_exceptions=True)
            finally:
                self._start_sums()
            for error in filter(None, errors):
                if not isinstance(error, Exception) or isinstance(error, UNAVAILABLE_ERRORS):
                    raise error
                fault = fault or error
        if fault is not None:
            raise fault

    async def _check(self, snapshot: PendingSnapshot, cohort: PendingCohort) -> None:
        """Settle a cohort, unless a job is working on it; note when it must be read again."""
        job = _job_of(cohort)
        if job in self._concurrent_jobs:
            return  # its end reports the cohort
        if job.name in snapshot.claimed:
            self._pending.schedule(cohort.id, snapshot.claimed[job.name])
            return
        status, due = cohort.phase_status, cohort.phase_status.closes_at
        if not self.store.database.is_sqlite and status.phase not in JOINING_PHASES:
            due = min(due, snapshot.now + _SHARED_READ)
        self._pending.schedule(cohort.id, due)
        await self._settle_safely(cohort, snapshot.now)

    async def _close_rounds(self, snapshot: PendingSnapshot) -> None:
        """Start the jobs that close rounds whose cohorts are all closed."""
        known = self.closing_rounds.copy()
        if snapshot.selection is None or known:
            asked = None if snapshot.selection is None else known
            ready = set(await self.store.rounds.ready_to_close(asked))
            self.closing_rounds = ready | self.closing_rounds - known  # some may be added meanwhile
        for study, number in self.closing_rounds:
            job = close_round_job(study, number)
            if not self._is_claimed(snapshot, job):
                close = partial(self._jobs.close_round, study, number)
                self._concurrent_jobs.start({job: close})

    def _is_claimed(self, snapshot: PendingSnapshot, job: Job) -> bool:
        """Return whether this process or another one does the job already."""
        return job in self._concurrent_jobs or job.name in snapshot.claimed

    def _effective_cohorts(self, snapshot: PendingSnapshot) -> Iterator[PendingCohort]:
        """Yield the cohorts of `snapshot`; patience only counts while a server could receive."""
        since = [
            at
            for at in (snapshot.receiving_since, self.heartbeat.receiving_since)
            if at is not None
        ]
        start = min(since, default=snapshot.now)
        for cohort in snapshot.cohorts:
            status = cohort.phase_status
            status = replace(status, last_received=max(status.last_received, start))
            yield replace(cohort, phase_status=status)

    def _record_changes(self, changes: Sequence[CohortChange]) -> None:
        """Count pending cohorts, and notify the channels of those in another phase than before."""
        for change in changes:
            cohort, before, after = change.cohort, change.before, change.after
            self.metrics.replace_pending(
                before.phase_status if before else None, after.phase_status if after else None
            )
            if change.is_new_phase and not self.notifier.is_complete:
                self.notifier.notify(cohort_channel(cohort.id), study_channel(cohort.study))
            if after is None:  # closed, so its message bodies are no longer needed
                self._finished_cohorts.add(cohort.id)
                if not self._pending.has_pending(cohort.study, cohort.round):
                    self.closing_rounds.add((cohort.study, cohort.round))

    def _start_sums(self) -> None:
        """Start the sums that are due, those of small cohorts together."""
        sums, self._due_sums = self._due_sums, []
        for batch in sum_batches(sums):
            works = {_job_of(each): partial(self._jobs.sum_cohort, each) for each in batch}
            self._concurrent_jobs.start(works, *(cohort_channel(each.id) for each in batch))

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
        next_phase = settle(status, now)
        if next_phase is status.phase:
            return
        if next_phase is Phase.FAILED:
            await self._fail_late(cohort)
        else:
            await self._ends.get(status.phase, self._move)(cohort)

    @cached_property
    def _ends(self) -> Mapping[Phase, Callable[[PendingCohort], Awaitable[None]]]:
        """Functions that end the phases after which more happens than a move to the next one."""
        return {
            Phase.ENROLLING: self._close_enrolling,
            Phase.SEATING: self._start_seating,
            Phase.CONVENING: self._close_convening,
            Phase.COLLECTING: self._fix_devices,
            Phase.CHECKING: self._close_checking,
            Phase.UNMASKING: self._add_sum,
            Phase.RELEASING: self._add_sum,
        }

    async def _move(self, cohort: PendingCohort) -> None:
        next_phase = cohort.phase_status.next_phase
        self._after_move(cohort, next_phase, await self.store.cohorts.move(cohort, next_phase))

    async def _fail_late(self, cohort: PendingCohort) -> None:
        """Fail a cohort whose phase had too few messages at its end."""
        status = cohort.phase_status
        reason = _NOT_SEATED_REASONS.get(status.phase)
        if reason is not None:
            await self._fail(cohort, FailureCause.NOT_SEATED, reason, status.received)
            return
        reason = (
            f"{status.received} of {status.expected} {_ACTION_OF_PHASE[status.phase]} in time, "
            f"where {status.quorum} are needed"
        )
        await self._fail(cohort, FailureCause.TOO_FEW, reason, status.received)

    async def _start_seating(self, cohort: PendingCohort) -> None:
        seat = partial(self._jobs.seat_round, cohort.study, cohort.round)
        self._concurrent_jobs.start({_job_of(cohort): seat}, cohort_channel(cohort.id))

    async def _add_sum(self, cohort: PendingCohort) -> None:
        self._due_sums.append(cohort)

    async def _close_convening(self, cohort: PendingCohort) -> None:
        """Fix the committee of operators; volunteers wait for the draw of their registrar."""
        if cohort.phase_status.next_phase is not Phase.COLLECTING:
            await self._move(cohort)
            return
        self._after_move(cohort, Phase.COLLECTING, await self.store.cohorts.convene(cohort))

    async def _fix_devices(self, cohort: PendingCohort) -> None:
        next_phase = cohort.phase_status.next_phase
        self._after_move(cohort, next_phase, await self.store.cohorts.fix_devices(cohort))

    def _after_move(self, cohort: PendingCohort, phase: Phase, moved: bool) -> None:
        if moved:
            _log.info("cohort phase changed", phase=phase.value, **log_fields(cohort))
        self.check(cohort_channel(cohort.id))  # perhaps the next phase expects no messages

    async def _close_enrolling(self, cohort: PendingCohort) -> None:
        """Fix the joiners; if a device joins meanwhile, the next poll tries again."""
        try:
            for size in cohort.sum_sizes:
                await asyncio.to_thread(choose_parameters, size, cohort.assumptions)
        except InfeasibleError as error:
            received = cohort.phase_status.received
            await self._fail(cohort, FailureCause.INFEASIBLE, str(error), received)
            return
        await self._fix_devices(cohort)

    async def _close_checking(self, cohort: PendingCohort) -> None:
        """Continue as the complaints want; if one arrives meanwhile, the next poll repeats."""
        try:
            checked = await _CHECKS[cohort.phase_status.protocol.kind](self.store, cohort)
        except OpeningError as error:
            received = cohort.phase_status.received
            await self._fail(cohort, FailureCause.TOO_FEW, str(error), received)
            return
        except ProblemError:  # meanwhile stopped, and its bodies deleted
            return
        moved = await self.store.cohorts.close_checking(cohort, checked)
        if checked.accusations and moved:
            _log.warning(
                "complaints about shares",
                pairs=len(checked.accusations),
                dealers_holders=checked.accusations[:_MAX_LOGGED_PAIRS],
                **log_fields(cohort),
            )
        self._after_move(cohort, checked.to, moved)

    async def _fail(
        self, cohort: PendingCohort, cause: FailureCause, reason: str, received: int | None = None
    ) -> None:
        if await self.store.cohorts.fail(cohort, reason, received, cause):
            _log.warning("cohort failed", cause=cause.value, reason=reason, **log_fields(cohort))
        self.check(cohort_channel(cohort.id))


def _ends_early(status: PhaseStatus, now: datetime) -> bool:
    """Return whether a phase is due at `now`, and not all have sent their message."""
    return status.received < status.expected and now >= status.closes_at


def _job_of(cohort: PendingCohort) -> Job:
    """Return the job that ends the phase of a cohort that is seating or unmasking."""
    if cohort.phase_status.phase is Phase.SEATING:
        return seat_job(cohort.study, cohort.round)
    return sum_job(cohort.id)
