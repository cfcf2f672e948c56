"""The ticker: looks at every cohort that waits, and moves those that are due.

    look -> settle each (protocol/round.py) -> move, fail, sum -> close rounds that are over

It keeps nothing of its own: each look reads rows, each move names the phase it saw, so it
may be killed at any line and started anywhere, also twice. A message accepted here wakes it
at once, a deadline when it comes, and every `poll` seconds it looks in any case, for what
other processes did. Sums and answers take long and run beside it, one task each; until
one is done its cohort is left alone. An error in one cohort fails that cohort; a database
that is locked or away fails nobody: it is tried again, and then, as after a restart, cohorts
get the time back in which nobody could be heard.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import Random

import structlog
from opentelemetry.trace import NoOpTracer, Tracer

from protocol.events import Cause
from protocol.mechanisms import AnyPlan
from protocol.messages import RETRY_SECONDS
from protocol.round import Phase, Waiting, settle
from protocol.tally import Tally
from secagg.errors import InfeasibleError, RecoveryError
from secagg.parameters import parameters
from server.database import UNAVAILABLE
from server.decoding import PoisonedError, decode_round, plan_next, unmask_cohort
from server.logs import concerning
from server.metrics import Metrics
from server.refusals import Refusal
from server.store import Store
from server.store.cohorts import Due
from server.store.rounds import Outcome
from server.watch import Watch, cohort_bell, study_bell

_log = structlog.get_logger(__name__)
_FALSE_DEALER = "dealt shares that do not open, or not the secret that it committed to"
_INTERNAL = "a fault of the service; it was logged"
_WHAT = {
    Phase.ENROLLING: "enrolled",
    Phase.SHARING: "shared their secrets",
    Phase.MASKING: "sent their vectors",
    Phase.CONFIRMING: "confirmed the survivors",
    Phase.UNMASKING: "gave their shares",
    Phase.REPORTING: "reported",
}
_HEAVY = 2  # sums and answers made at the same time


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds between two looks: at least `rest`, at most `poll`."""

    poll: float = 1.0
    rest: float = 0.05


@dataclass
class Orchestrator:
    """One ticker over one store."""

    store: Store
    watch: Watch
    now: Callable[[], datetime]
    rng: Random
    pace: Pace = Pace()
    metrics: Metrics = field(default_factory=Metrics)
    tracer: Tracer = field(default_factory=NoOpTracer)
    _since: datetime = field(init=False)
    _was_deaf: bool = field(default=False, init=False)  # no database, so nobody was heard
    _woken: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _busy: dict[object, asyncio.Task[None]] = field(default_factory=dict, init=False)
    _seen: dict[int, tuple[str, Phase]] = field(default_factory=dict, init=False)
    _room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_HEAVY), init=False)

    def __post_init__(self) -> None:
        self._since = self.now()

    def wake(self) -> None:
        """Look again soon: something was said."""
        self._woken.set()

    async def resume(self) -> None:
        """Give running cohorts back the time in which nobody was heard: do this first."""
        resumed = await self.store.cohorts.resume()
        if await self.store.cohorts.waiting():
            # Devices that found no service come back within this time: that is no silence.
            self._since = self.now() + timedelta(seconds=RETRY_SECONDS)
        for cohort in await self.store.cohorts.over():
            await self.store.cohorts.forget(cohort)
        _log.info("orchestrator resumes", resumed=resumed)

    async def run(self) -> None:
        """Tick until cancelled; what runs beside is cancelled too, and done again from rows."""
        try:
            while True:
                await self._rest(await self._try_tick())
        finally:
            tasks = list(self._busy.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _try_tick(self) -> datetime | None:
        try:
            if self._was_deaf:
                await self.resume()
                self._was_deaf = False
            with self.tracer.start_as_current_span("tick", record_exception=False):
                return await self.tick()
        except UNAVAILABLE as error:
            self._was_deaf = True
            _log.warning("database unavailable", error=type(error).__name__)
        except Exception:
            _log.exception("tick failed")
        return None

    async def _rest(self, deadline: datetime | None) -> None:
        """Sleep until woken, `deadline`, or the poll; never shorter than the pace allows."""
        await asyncio.sleep(self.pace.rest)
        left = self.pace.poll
        if deadline is not None:
            left = min(left, max((deadline - self.now()).total_seconds(), 0.0))
        with suppress(TimeoutError):  # Python 3.11's wait_for may lose a cancellation
            async with asyncio.timeout(left):
                await self._woken.wait()
        self._woken.clear()

    async def tick(self) -> datetime | None:
        """Move what is due; return the next deadline of those that wait on."""
        waiting = await self.store.cohorts.waiting()
        self._notice(waiting)
        deadlines = []
        for due in waiting:
            if due.id not in self._busy:
                await self._settle_safely(due)
                deadlines.append(self._waiting(due).closing)
        for study, number in await self.store.rounds.complete():
            names: dict[str, str | int] = {"study": study, "round": number}
            self._beside((study, number), "answer", self._close_round(study, number), names)
        self.metrics.look((due.waiting for due in waiting), self.now().timestamp())
        return min(deadlines, default=None)

    def _notice(self, waiting: tuple[Due, ...]) -> None:
        """Ring for every cohort that is not where it was seen last, whoever moved it."""
        now = {due.id: (due.study, due.waiting.phase) for due in waiting}
        for cohort in self._seen.keys() | now.keys():
            before, after = self._seen.get(cohort), now.get(cohort)
            if before != after:
                study, _ = before or after or ("", None)
                self.watch.ring(cohort_bell(cohort), study_bell(study))
            if after is None:  # it is over, so what was said in it is needed no more
                self._beside(("forget", cohort), "forget", self.store.cohorts.forget(cohort))
        self._seen = now

    def _beside(
        self,
        key: object,
        kind: str,
        work: Coroutine[object, object, None],
        names: Mapping[str, str | int] | None = None,
    ) -> None:
        if key in self._busy:
            work.close()
            return
        task = asyncio.create_task(self._guarded(key, kind, work, names or {}))
        self._busy[key] = task

    async def _guarded(
        self,
        key: object,
        kind: str,
        work: Coroutine[object, object, None],
        names: Mapping[str, str | int],
    ) -> None:
        try:
            with self.metrics.work.labels(kind, "waiting").track_inprogress():
                await self._room.acquire()
            try:
                with (
                    self.metrics.working(kind),
                    self.tracer.start_as_current_span(kind, record_exception=False),
                ):
                    concerning(**names)
                    await work
            finally:
                self._room.release()
            self.wake()
        except UNAVAILABLE as error:
            _log.warning("database unavailable", error=type(error).__name__)
        except Exception:
            _log.exception("work failed", work=str(key))
        finally:
            work.close()
            del self._busy[key]

    async def _settle_safely(self, due: Due) -> None:
        try:
            await self._settle(due)
        except UNAVAILABLE:
            raise
        except Exception:
            _log.exception("cohort failed", **_names(due))
            await self._fail(due, Cause.INTERNAL, _INTERNAL)

    async def _settle(self, due: Due) -> None:
        """Do with one cohort what the table of phases says."""
        waiting = self._waiting(due)
        phase, settled = waiting.phase, settle(waiting, self.now())
        if settled is phase:
            return
        if settled is Phase.FAILED:
            reason = (
                f"{waiting.heard} of {waiting.expected} {_WHAT[phase]} in time, "
                f"where {waiting.quorum} are needed"
            )
            await self._fail(due, Cause.TOO_FEW, reason, waiting.heard)
        elif phase is Phase.ENROLLING:
            await self._close_enrolling(due)
        elif phase is Phase.UNMASKING:
            self._beside(due.id, "sum", self._sum(due), _names(due))
        else:
            moved = await self.store.cohorts.move(
                due.id, phase, settled, self._deadline(due, settled)
            )
            self._moved(due, settled, moved)

    def _waiting(self, due: Due) -> Waiting:
        """Return what the cohort waits for; silence counts only while we were here to hear."""
        return replace(due.waiting, last=max(due.waiting.last, self._since))

    def _deadline(self, due: Due, phase: Phase) -> datetime:
        if phase.is_over:
            return due.waiting.deadline
        return self.now() + timedelta(seconds=getattr(due.timeouts, phase.value))

    def _moved(self, due: Due, phase: Phase, moved: bool) -> None:
        if moved:
            _log.info("cohort moved", phase=phase.value, **_names(due))
            self.watch.ring(cohort_bell(due.id))
        self.wake()  # perhaps nobody is awaited in the next phase

    async def _close_enrolling(self, due: Due) -> None:
        """Fix the roster; whoever joins meanwhile is seen by the next look."""
        try:
            await asyncio.to_thread(parameters, due.enrolled, due.assumptions)
        except InfeasibleError as error:
            await self._fail(due, Cause.INFEASIBLE, str(error), due.waiting.heard)
            return
        deadline = self._deadline(due, Phase.SHARING)
        moved = await self.store.cohorts.close_enrolling(due.id, due.enrolled, deadline)
        self._moved(due, Phase.SHARING, moved)

    async def _fail(self, due: Due, cause: Cause, reason: str, heard: int | None = None) -> None:
        if await self.store.cohorts.fail(due.id, due.waiting.phase, reason, heard, cause):
            _log.warning("cohort failed", cause=cause.value, reason=reason, **_names(due))
            self.watch.ring(cohort_bell(due.id), study_bell(due.study))
        self.wake()

    async def _sum(self, due: Due) -> None:
        """Take the masks off a cohort's sum and keep it."""
        try:
            found = await unmask_cohort(self.store.messages, due.id)
        except UNAVAILABLE:
            raise
        except RecoveryError as error:
            await self._blame(due, error.blamed)
            await self._fail(due, Cause.UNRECOVERABLE, str(error))
        except PoisonedError as error:
            await self._blame(due, error.blamed)
            reason = f"its sum is not one of honest vectors: {error}"
            await self._fail(due, Cause.POISONED, reason)
        except Refusal:  # stopped, or summed by another process: bodies are gone already
            _log.info("cohort over before its sum was made", **_names(due))
        except Exception:
            _log.exception("cohort not summed", **_names(due))
            await self._fail(due, Cause.INTERNAL, _INTERNAL)
        else:
            await self._blame(due, found.blamed)
            moved = await self.store.cohorts.finish(due.id, found.total)
            self._moved(due, Phase.SUMMED, moved)

    async def _blame(self, due: Due, dealers: frozenset[int]) -> None:
        if dealers:
            _log.warning("false shares dealt", slots=sorted(dealers), **_names(due))
            await self.store.cohorts.blame(due.id, dict.fromkeys(dealers, _FALSE_DEALER))
            self.metrics.blamed.inc(len(dealers))

    async def _close_round(self, study: str, number: int) -> None:
        """Decode the sum of a round's cohorts, keep the answer, open the next round."""
        view = await self.store.studies.show(study)
        try:
            plan = await self.store.rounds.plan(study, number)
            tally = await self.store.answers.tally(study)
        except UNAVAILABLE:
            raise
        except Exception:  # of another version, perhaps: without a plan there is no going on
            _log.exception("plan or tally not read: the study stops", study=study, round=number)
            await self.store.rounds.close(study, number, Outcome("failed"), None)
            self.watch.ring(study_bell(study))
            return
        try:
            with self.tracer.start_as_current_span("decode", record_exception=False):
                outcome = await decode_round(self.store, study, plan, tally)
        except UNAVAILABLE:
            raise
        except Exception:
            _log.exception("round not decoded", study=study, round=number)
            outcome = Outcome("failed")
        following = None
        if number < view.rounds and not outcome.is_last:
            following = await self._plan_next(plan, outcome, tally)
        try:
            closed = await self.store.rounds.close(study, number, outcome, following)
        except UNAVAILABLE:
            raise
        except Exception:  # the next look would find the same: better no answer than no end
            _log.exception("answer not kept", study=study, round=number)
            outcome = Outcome("failed")
            if following is not None:  # made from what was not kept
                following = await self._plan_next(plan, outcome, tally)
            closed = await self.store.rounds.close(study, number, outcome, following)
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


def _names(due: Due) -> dict[str, str | int]:
    return {"study": due.study, "round": due.round, "cohort": due.number}
