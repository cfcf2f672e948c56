"""The ticker: looks at every cohort that waits, and moves those that are due.

    look -> settle each (protocol/round.py) -> move, fail, sum -> close rounds that are over

It keeps nothing of its own: each look reads rows, and the database's clock with them; each move
names the phase it saw, so it may be killed at any line and started anywhere, also twice. A
message accepted here wakes it at once, a change made elsewhere too (`server/listener.py`), a
deadline when it comes, and every `poll` seconds it looks in any case. Sums and answers take
long: they run beside it, one task each, under leases (`server/worker.py`), and what another
process has claimed is left alone until its lease ends. An error in one cohort fails that cohort;
a database that is locked or away fails nobody: it is tried again, and then, as after a restart,
cohorts get the time back in which nobody could be heard (`server/presence.py`).
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

from protocol.events import Cause
from protocol.round import Phase, Waiting, settle
from secagg.errors import InfeasibleError
from secagg.parameters import parameters
from server.database import UNAVAILABLE, reason
from server.leases import Holder, process_name
from server.metrics import Metrics
from server.presence import Presence
from server.store import Store
from server.store.due import Due, Look
from server.store.leases import Work, closing, forgetting, summing
from server.watch import Watch, cohort_bell, study_bell
from server.worker import INTERNAL, Worker, names

_log = structlog.get_logger(__name__)
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
    """Seconds between two looks, at least `rest` and at most `poll`, and that a `lease` lasts."""

    poll: float = 1.0
    rest: float = 0.05
    lease: float = 15.0


@dataclass
class Orchestrator:
    """One ticker over one store."""

    store: Store
    watch: Watch
    rng: Random
    pace: Pace = Pace()
    metrics: Metrics = field(default_factory=Metrics)
    tracer: Tracer = field(default_factory=NoOpTracer)
    presence: Presence = field(init=False)
    _worker: Worker = field(init=False)
    _woken: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _busy: dict[str, asyncio.Task[None]] = field(default_factory=dict, init=False)
    _seen: dict[int, tuple[str, Phase]] = field(default_factory=dict, init=False)
    _over: set[int] = field(default_factory=set, init=False)  # with bodies left, perhaps
    _room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_HEAVY), init=False)

    def __post_init__(self) -> None:
        name = process_name()
        self.presence = Presence(self.store, name)
        holder = Holder(self.store.leases, name, self.pace.lease)
        self._worker = Worker(self.store, self.watch, self.rng, holder, self.metrics, self.tracer)

    def seen(self, cohort: int) -> Phase | None:
        """Return in which phase `cohort` was at the last look, None if it waited for nobody."""
        return self._seen.get(cohort, (None, None))[1]

    def wake(self) -> None:
        """Look again soon: something was said."""
        self._woken.set()

    async def resume(self) -> None:
        """Give running cohorts back the time in which nobody was heard: do this first."""
        await self.presence.arrive()
        self._over.update(await self.store.cohorts.over())

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

    async def _try_tick(self) -> float | None:
        try:
            if self.presence.is_deaf:
                await self.resume()
            with self.tracer.start_as_current_span("tick", record_exception=False):
                return await self.tick()
        except UNAVAILABLE as error:
            self.presence.is_deaf = True
            _log.warning("database unavailable", error=reason(error))
        except Exception:
            _log.exception("tick failed")
        return None

    async def _rest(self, left: float | None) -> None:
        """Sleep until woken, for `left` seconds or the poll; never less than the pace allows."""
        await asyncio.sleep(self.pace.rest)
        left = self.pace.poll if left is None else min(left, self.pace.poll)
        with suppress(TimeoutError):  # Python 3.11's wait_for may lose a cancellation
            async with asyncio.timeout(left):
                await self._woken.wait()
        self._woken.clear()

    async def tick(self) -> float | None:
        """Move what is due; return in how many seconds the next phase or lease ends."""
        look = await self.store.cohorts.look()
        self._notice(look.due)
        for cohort in self._over:
            work = forgetting(cohort)
            if not self._is_taken(look, work):
                self._beside(work.name, "forget", self._forget, cohort)
        ends = list(look.taken.values())
        for due in look.due:
            waiting = self._waiting(look, due)
            if not self._is_taken(look, summing(due.id)):
                await self._settle_safely(replace(due, waiting=waiting), look.now)
                ends.append(waiting.closing)
        for study, number in await self.store.rounds.complete():
            work = closing(study, number)
            if not self._is_taken(look, work):
                self._beside(work.name, "answer", self._worker.close_round, study, number)
        self.metrics.look((due.waiting for due in look.due), look.now.timestamp())
        return max((min(ends) - look.now).total_seconds(), 0.0) if ends else None

    def _is_taken(self, look: Look, work: Work) -> bool:
        """Return whether this process or another does the work already."""
        return work.name in self._busy or work.name in look.taken

    def _waiting(self, look: Look, due: Due) -> Waiting:
        """Return what the cohort waits for; silence counts only while somebody could hear."""
        since = [at for at in (look.heard_since, self.presence.since) if at is not None]
        return replace(due.waiting, last=max(due.waiting.last, min(since, default=look.now)))

    def _notice(self, waiting: tuple[Due, ...]) -> None:
        """Ring for every cohort that is not where it was seen last, whoever moved it."""
        now = {due.id: (due.study, due.waiting.phase) for due in waiting}
        for cohort in self._seen.keys() | now.keys():
            before, after = self._seen.get(cohort), now.get(cohort)
            if before != after:
                study, _ = before or after or ("", None)
                self.watch.ring(cohort_bell(cohort), study_bell(study))
            if after is None:  # it is over, so what was said in it is needed no more
                self._over.add(cohort)
        self._seen = now

    async def _forget(self, cohort: int) -> None:
        """Leave a cohort that is over alone once its bodies are gone, whoever dropped them."""
        if await self._worker.forget(cohort):
            self._over.discard(cohort)

    def _beside(
        self, name: str, kind: str, work: Callable[..., Coroutine[Any, Any, None]], *of: object
    ) -> None:
        if name not in self._busy:
            self._busy[name] = asyncio.create_task(self._guarded(name, kind, work, *of))

    async def _guarded(
        self, name: str, kind: str, work: Callable[..., Coroutine[Any, Any, None]], *of: object
    ) -> None:
        try:
            with self.metrics.work.labels(kind, "waiting").track_inprogress():
                await self._room.acquire()  # before it is claimed: another process may have room
            try:
                await work(*of)
            finally:
                self._room.release()
        except UNAVAILABLE as error:
            _log.warning("database unavailable", error=reason(error))
        except Exception:
            _log.exception("work failed", work=name)
        finally:
            del self._busy[name]
        self.wake()

    async def _settle_safely(self, due: Due, now: datetime) -> None:
        try:
            await self._settle(due, now)
        except UNAVAILABLE:
            raise
        except Exception:
            _log.exception("cohort failed", **names(due))
            await self._fail(due, Cause.INTERNAL, INTERNAL)

    async def _settle(self, due: Due, now: datetime) -> None:
        """Do with one cohort what the table of phases says."""
        waiting = due.waiting
        phase, settled = waiting.phase, settle(waiting, now)
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
            self._beside(summing(due.id).name, "sum", self._worker.sum, due)
        else:
            self._moved(due, settled, await self.store.cohorts.move(due, settled))

    def _moved(self, due: Due, phase: Phase, moved: bool) -> None:
        if moved:
            _log.info("cohort moved", phase=phase.value, **names(due))
            self.watch.ring(cohort_bell(due.id))
        self.wake()  # perhaps nobody is awaited in the next phase

    async def _close_enrolling(self, due: Due) -> None:
        """Fix the roster; whoever joins meanwhile is seen by the next look."""
        try:
            await asyncio.to_thread(parameters, due.enrolled, due.assumptions)
        except InfeasibleError as error:
            await self._fail(due, Cause.INFEASIBLE, str(error), due.waiting.heard)
            return
        self._moved(due, Phase.SHARING, await self.store.cohorts.close_enrolling(due))

    async def _fail(self, due: Due, cause: Cause, reason: str, heard: int | None = None) -> None:
        if await self.store.cohorts.fail(due, reason, heard, cause):
            _log.warning("cohort failed", cause=cause.value, reason=reason, **names(due))
            self.watch.ring(cohort_bell(due.id), study_bell(due.study))
        self.wake()
