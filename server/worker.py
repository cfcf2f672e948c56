"""What takes long: summing a cohort, closing a round, forgetting what was said.

Each is done under a lease (`server/leases.py`), so by one process at a time, and each ends in
one transaction that checks the lease: a process that dies in between costs the time of doing
the work again from the same rows, and one that comes too late publishes nothing. An answer is
published once, and with it the next round is opened. What the process that has the lease does
is measured, and makes a span: one that claims in vain does nothing.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from random import Random

import structlog
from opentelemetry.trace import Tracer

from protocol.events import Cause
from protocol.mechanisms import AnyPlan
from protocol.tally import Tally
from secagg.errors import RecoveryError
from server.database import UNAVAILABLE
from server.decoding import PoisonedError, decode_round, plan_next, unmask_cohort
from server.leases import Holder
from server.logs import concerning
from server.metrics import Metrics
from server.refusals import Refusal
from server.store import Store
from server.store.due import Due
from server.store.leases import Lease, StaleLeaseError, Work, closing, forgetting, summing
from server.store.rounds import Outcome
from server.watch import Watch, cohort_bell, study_bell

_log = structlog.get_logger(__name__)
INTERNAL = "a fault of the service; it was logged"
_PASSING = (*UNAVAILABLE, StaleLeaseError)  # no fault of the work: it is done again


@dataclass(frozen=True, slots=True)
class Worker:
    """One process's hands."""

    store: Store
    watch: Watch
    rng: Random
    holder: Holder
    metrics: Metrics
    tracer: Tracer

    async def sum(self, due: Due) -> None:
        """Take the masks off a cohort's sum and keep it, unless another process does."""
        work = summing(due.id)
        await self._do(work, "sum", lambda lease: self._sum(due, lease), **names(due))

    async def close_round(self, study: str, number: int) -> None:
        """Decode a round, keep the answer and open the next, unless another process does."""
        work = closing(study, number)
        await self._do(
            work,
            "answer",
            lambda lease: self._close_round(study, number, lease),
            study=study,
            round=number,
        )

    async def forget(self, cohort: int) -> bool:
        """Drop the bodies of a cohort that is over, unless another process does.

        Returns whether they are gone: a process that claimed this may die before they are.
        """

        async def forget(_lease: Lease) -> None:  # done twice is done once: there is no fence
            await self.store.cohorts.forget(cohort)

        await self._do(forgetting(cohort), "forget", forget)
        return await self.store.cohorts.is_forgotten(cohort)

    async def _do(
        self, work: Work, kind: str, action: Callable[[Lease], Awaitable[None]], **names: str | int
    ) -> None:
        """Do `action` under a lease, measured and traced from the claim on, if there is one."""

        async def measured(lease: Lease) -> None:
            with (
                self.metrics.working(kind),
                self.tracer.start_as_current_span(kind, record_exception=False),
            ):
                concerning(**names)
                await action(lease)

        await self.holder.do(work, measured)

    async def _sum(self, due: Due, lease: Lease) -> None:
        try:
            found = await unmask_cohort(self.store.messages, due.id)
        except _PASSING:
            raise
        except RecoveryError as error:
            await self._blame(due, error.blamed, lease)
            await self._give_up(due, Cause.UNRECOVERABLE, str(error), lease)
        except PoisonedError as error:
            await self._blame(due, error.blamed, lease)
            reason = f"its sum is not one of honest vectors: {error}"
            await self._give_up(due, Cause.POISONED, reason, lease)
        except Refusal:  # stopped meanwhile: bodies are gone already
            _log.info("cohort over before its sum was made", **names(due))
        except Exception:
            _log.exception("cohort not summed", **names(due))
            await self._give_up(due, Cause.INTERNAL, INTERNAL, lease)
        else:
            await self._blame(due, found.blamed, lease)
            if await self.store.cohorts.finish(due.id, found.total, lease):
                _log.info("cohort moved", phase="summed", **names(due))
                self.watch.ring(cohort_bell(due.id))

    async def _blame(self, due: Due, culprits: Mapping[int, str], lease: Lease) -> None:
        if culprits:
            _log.warning("false shares", slots=sorted(culprits), **names(due))
            count = await self.store.cohorts.blame(due.id, culprits, lease)
            self.metrics.blamed.inc(count)

    async def _give_up(self, due: Due, cause: Cause, reason: str, lease: Lease) -> None:
        if await self.store.cohorts.give_up(due.id, reason, cause, lease):
            _log.warning("cohort failed", cause=cause.value, reason=reason, **names(due))
            self.watch.ring(cohort_bell(due.id), study_bell(due.study))

    async def _close_round(self, study: str, number: int, lease: Lease) -> None:
        view = await self.store.studies.show(study)
        try:
            plan = await self.store.rounds.plan(study, number)
            tally = await self.store.answers.tally(study)
        except _PASSING:
            raise
        except Exception:  # of another version, perhaps: without a plan there is no going on
            _log.exception("plan or tally not read: the study stops", study=study, round=number)
            await self.store.rounds.close(study, number, Outcome("failed"), None, lease)
            self.watch.ring(study_bell(study))
            return
        try:
            with self.tracer.start_as_current_span("decode", record_exception=False):
                outcome = await decode_round(self.store, study, plan, tally)
        except _PASSING:
            raise
        except Exception:
            _log.exception("round not decoded", study=study, round=number)
            outcome = Outcome("failed")
        following = None
        if number < view.rounds and not outcome.is_last:
            following = await self._plan_next(plan, outcome, tally)
        try:
            closed = await self.store.rounds.close(study, number, outcome, following, lease)
        except _PASSING:
            raise
        except Exception:  # the next look would find the same: better no answer than no end
            _log.exception("answer not kept", study=study, round=number)
            outcome = Outcome("failed")
            if following is not None:  # made from what was not kept
                following = await self._plan_next(plan, outcome, tally)
            closed = await self.store.rounds.close(study, number, outcome, following, lease)
        if closed is not None:
            _log.info("round closed", study=study, round=number, state=outcome.state)
        self.watch.ring(study_bell(study))

    async def _plan_next(self, plan: AnyPlan, outcome: Outcome, tally: Tally) -> AnyPlan:
        """Return the next plan; the same again, with a fresh seed, if there is a fault in it."""
        answer = outcome.answer
        try:
            return await plan_next(plan, answer, answer.tally if answer else tally, self.rng)
        except Exception:
            _log.exception("no next plan: the last goes on", study=plan.study, round=plan.round)
            return plan.following(self.rng)


def names(due: Due) -> dict[str, str | int]:
    """Return what the log calls a cohort."""
    return {"study": due.study, "round": due.round, "cohort": due.number}
