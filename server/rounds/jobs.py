"""Jobs of a server: seating a round, summing a cohort, closing a round, deleting message bodies.

A job runs under a lease, which is renewed while it runs and released at its end; another process
repeats the job of a killed one from the same rows. Each job publishes its result in one transaction
that checks the lease. The transaction that publishes an answer also opens the next round.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from random import Random
from secrets import token_hex

import structlog
from opentelemetry.trace import Tracer

from protocol.api.events import FailureCause
from protocol.api.messages import StudyView
from protocol.mechanisms.registry import AnyPlan
from protocol.study_state import StudyState
from secagg.errors import RecoveryError
from secagg.oneshot.opening import OpeningError
from server.db.database_errors import UNAVAILABLE_ERRORS
from server.db.repositories.leases import (
    DELETE_BODIES_JOB,
    Job,
    Lease,
    LeaseRepository,
    StaleLeaseError,
    close_round_job,
    seat_job,
    sum_job,
)
from server.db.repositories.rounds.cohorts import COHORTS_PER_DELETION
from server.db.repositories.rounds.pending_cohorts import PendingCohort
from server.db.repositories.rounds.rounds import ClosedRound
from server.db.store import Store
from server.errors import INTERNAL_FAULT, ProblemError
from server.rounds.cohort_sums import CohortSums, PoisonedSumError, SummedCohort
from server.rounds.decoding import decode_round, plan_next
from server.rounds.one_shot_sums import open_one_shot_sum
from server.telemetry.logs import start_log_fields
from server.telemetry.metrics import Metrics

_log = structlog.get_logger(__name__)
# Not the job's fault, so that it is repeated. A sum that is stored can be read once the process has
# memory again, or files that were replaced are whole.
_TRANSIENT_ERRORS = (*UNAVAILABLE_ERRORS, StaleLeaseError, MemoryError, ImportError, OSError)
_SEATS_PER_TRANSACTION = 2_000  # up to 0.3 s, in which SQLite has no other writer
_RENEWALS_PER_LEASE = 3  # so that two may fail


def process_name() -> str:
    """Return a unique name for this process, which shows people where it runs."""
    return f"{socket.gethostname()[:32]}-{os.getpid()}-{token_hex(4)}"


@dataclass(frozen=True, slots=True)
class LeaseRunner:
    """Runs jobs of the process `name` under leases of `seconds` seconds."""

    leases: LeaseRepository
    name: str
    seconds: float

    async def run(self, job: Job, action: Callable[[Lease], Awaitable[None]]) -> None:
        """Run `action` while this process holds the lease of `job`, if it can claim the lease."""
        lease = await self.leases.claim(job, self.name, self.seconds)
        if lease is None:
            return
        _log.debug("job claimed", job=job.name, version=lease.version)
        tasks = (
            asyncio.ensure_future(_run_unless_stale(action, lease)),
            asyncio.ensure_future(self._renew(lease)),
        )
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with suppress(*UNAVAILABLE_ERRORS):  # the lease expires
                await self.leases.release(lease)

    async def _renew(self, lease: Lease) -> None:
        """Renew `lease` until cancelled; return when another process has claimed the job."""
        while True:
            await asyncio.sleep(self.seconds / _RENEWALS_PER_LEASE)
            renewal = asyncio.ensure_future(self.leases.renew(lease, self.seconds))
            try:
                with suppress(*UNAVAILABLE_ERRORS):  # the next renewal may succeed
                    if not await asyncio.shield(renewal):
                        _log.warning("lease lost", job=lease.job, version=lease.version)
                        return
            except asyncio.CancelledError:
                # Its thread goes on: committed after the release, it would renew the lease again.
                await asyncio.gather(renewal, return_exceptions=True)
                raise


async def _run_unless_stale(action: Callable[[Lease], Awaitable[None]], lease: Lease) -> None:
    try:
        await action(lease)
    except StaleLeaseError:
        _log.warning("result of a stale lease discarded", job=lease.job, version=lease.version)


@dataclass(frozen=True)
class JobRunner:
    """The jobs of one process."""

    store: Store
    rng: Random
    leases: LeaseRunner
    metrics: Metrics
    tracer: Tracer

    @cached_property
    def _sums(self) -> Mapping[str, Callable[[PendingCohort], Awaitable[SummedCohort]]]:
        """Functions that make the sum of a cohort, by the kind of its protocol."""
        pairwise = CohortSums(self.store.messages)
        return {
            "pairwise": lambda cohort: pairwise.unmask(cohort.id),
            "one-shot": partial(open_one_shot_sum, self.store),
        }

    async def seat_round(self, study: str, number: int) -> None:
        """Move joiners to their seats and start sharing, unless another process does."""

        async def seat(_lease: Lease) -> None:  # idempotent, so the lease is not checked
            await self._seat(study, number)

        await self._run(seat_job(study, number), seat, study=study, round=number)

    async def sum_cohort(self, cohort: PendingCohort) -> None:
        """Unmask and store the sum of a cohort, unless another process does."""
        fields = log_fields(cohort)
        await self._run(sum_job(cohort.id), lambda lease: self._sum(cohort, lease), **fields)

    async def close_round(self, study: str, number: int) -> None:
        """Decode a round, store its answer and open the next one, unless another process does."""
        await self._run(
            close_round_job(study, number),
            lambda lease: self._close_round(study, number, lease),
            study=study,
            round=number,
        )

    async def delete_bodies(
        self, cohorts: Collection[int], on_deleted: Callable[[Sequence[int]], None]
    ) -> None:
        """Delete the message bodies of closed cohorts, unless another process deletes bodies.

        `on_deleted` gets those of `cohorts` whose bodies are deleted, by any process.
        """

        async def delete(_lease: Lease) -> None:  # idempotent, so the lease is not checked
            remaining = sorted(cohorts)
            for start in range(0, len(remaining), COHORTS_PER_DELETION):
                some = remaining[start : start + COHORTS_PER_DELETION]
                while await self.store.cohorts.delete_one_shot_bodies(some):
                    pass
            while remaining:
                done = await self.store.cohorts.delete_bodies(remaining)
                on_deleted(done)
                remaining = remaining[len(done) :]

        await self._run(DELETE_BODIES_JOB, delete)

    async def _run(
        self, job: Job, action: Callable[[Lease], Awaitable[None]], **fields: str | int
    ) -> None:
        """Run `action` under a lease; measure and trace it from the claim."""

        async def measured(lease: Lease) -> None:
            with (
                self.metrics.measure_job(job.kind),
                self.tracer.start_as_current_span(job.kind, record_exception=False),
            ):
                start_log_fields(**fields)
                await action(lease)

        await self.leases.run(job, measured)

    async def _seat(self, study: str, number: int) -> None:
        seatings = self.store.seatings
        try:
            seats = await seatings.seats(study, number)
            while seats and await seatings.take_seats(seats, _SEATS_PER_TRANSACTION):
                pass
            cohorts = await seatings.start_sharing(study, number)
        except _TRANSIENT_ERRORS:
            raise
        except Exception:
            _log.exception("round not seated", study=study, round=number)
            await seatings.fail(study, number, INTERNAL_FAULT)
        else:
            if cohorts:
                _log.info("round seated", study=study, round=number, cohorts=len(cohorts))

    async def _sum(self, cohort: PendingCohort, lease: Lease) -> None:
        """Make and store the sum of a cohort, or the reason why it has none."""
        try:
            summed = await self._sums[cohort.phase_status.protocol.kind](cohort)
        except _TRANSIENT_ERRORS:
            raise
        except OpeningError as error:
            await self._fail_sum(cohort, FailureCause.UNRECOVERABLE, str(error), lease)
        except RecoveryError as error:
            await self._blame(cohort, error.blamed, lease)
            await self._fail_sum(cohort, FailureCause.UNRECOVERABLE, str(error), lease)
        except PoisonedSumError as error:
            await self._blame(cohort, error.blamed, lease)
            reason = f"the sum is not a sum of honest vectors: {error}"
            await self._fail_sum(cohort, FailureCause.POISONED, reason, lease)
        except ProblemError:  # meanwhile stopped, and its bodies deleted
            _log.info("cohort closed before its sum was complete", **log_fields(cohort))
        except Exception:
            _log.exception("cohort not summed", **log_fields(cohort))
            await self._fail_sum(cohort, FailureCause.INTERNAL, INTERNAL_FAULT, lease)
        else:
            await self._blame(cohort, summed.blamed, lease)
            if summed.liars:
                _log.warning("false sums of members", members=summed.liars, **log_fields(cohort))
            if await self.store.cohorts.save_sum(cohort, summed.total, lease):
                _log.info("cohort phase changed", phase="summed", **log_fields(cohort))

    async def _blame(
        self, cohort: PendingCohort, culprits: Mapping[int, str], lease: Lease
    ) -> None:
        if culprits:
            _log.warning("false shares", blamed_slots=sorted(culprits), **log_fields(cohort))
            count = await self.store.cohorts.blame(cohort.id, culprits, lease)
            self.metrics.blamed.inc(count)

    async def _fail_sum(
        self, cohort: PendingCohort, cause: FailureCause, reason: str, lease: Lease
    ) -> None:
        if await self.store.cohorts.fail_unmasking(cohort, reason, cause, lease):
            _log.warning("cohort failed", cause=cause.value, reason=reason, **log_fields(cohort))

    async def _close_round(self, study: str, number: int, lease: Lease) -> None:
        view = await self.store.studies.show(study)
        try:
            plan = await self.store.rounds.plan(study, number)
            state = await self.store.answers.study_state(study)
        except _TRANSIENT_ERRORS:
            raise
        except Exception:  # perhaps of another version: without a plan the study cannot continue
            _log.exception("plan or study state unreadable", study=study, round=number)
            await self.store.rounds.close(study, number, ClosedRound("failed"), None, lease)
            return
        try:
            with self.tracer.start_as_current_span("decode", record_exception=False):
                outcome = await decode_round(self.store, study, plan, state)
        except _TRANSIENT_ERRORS:
            raise
        except Exception:
            _log.exception("round not decoded", study=study, round=number)
            outcome = ClosedRound("failed")
        next_plan = await self._plan_next(view, plan, outcome, state)
        try:
            closed = await self.store.rounds.close(study, number, outcome, next_plan, lease)
        except _TRANSIENT_ERRORS:
            raise
        except Exception:  # another attempt would fail too, and the round must close
            _log.exception("answer not stored", study=study, round=number)
            outcome = ClosedRound("failed")
            # The other plan, or the end of the study, follows from the answer that was not stored.
            next_plan = await self._plan_next(view, plan, outcome, state)
            closed = await self.store.rounds.close(study, number, outcome, next_plan, lease)
        if closed is not None:
            _log.info("round closed", study=study, round=number, state=outcome.state)

    async def _plan_next(
        self, study: StudyView, plan: AnyPlan, outcome: ClosedRound, state: StudyState
    ) -> AnyPlan | None:
        """Return the next plan; if that fails, the same plan with a fresh seed.

        None if `outcome` ends the `study`.
        """
        if outcome.end_cause(study, plan.round) is not None:
            return None
        answer = outcome.answer
        try:
            return await plan_next(plan, answer, answer.state if answer else state, self.rng)
        except Exception:
            _log.exception("next plan failed: the last one is repeated", study=plan.study)
            return plan.next_round(self.rng)


def log_fields(cohort: PendingCohort) -> dict[str, str | int]:
    """Return the fields by which the log names a cohort."""
    return {"study": cohort.study, "round": cohort.round, "cohort": cohort.number}
