"""An event loop whose time and whose threads a seed decides.

Nothing in it waits and nothing in it runs at the same time. Time stands still until it is
moved. What a program gives to a thread, a transaction or a computation, is a *job*: it lies in
a heap until nothing else can go on, and then one job is drawn from the heap and run whole. So a
seed chooses in which order transactions of several requests, tickers and servers come, and
gives the same order again.

A job is also where a program may die: before it ran, before its transaction is committed, or
after that and before its result is delivered. Every task and every job belongs to the server in
whose context it was made, and a server that is killed takes them all with it. One that is
frozen, as by SIGSTOP, keeps them: none of its jobs runs until it goes on.

The loop's `CommitLog` has the committed claims, messages and sums, even if all processes died.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextlib import ExitStack
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Literal
from weakref import WeakSet

from sqlalchemy import event, inspect
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.pool import Pool

from server.db.schema import CohortRow, LeaseRow, MessageRow
from server.db.sqlite_lock import hold_lock

Moment = Literal["before the commit", "after the commit"]
_OWNER: ContextVar["Process | None"] = ContextVar("owner", default=None)
_MAX_JUMPS = 10_000  # of time, while a task waits


class Crash(BaseException):
    """A program dies here: nothing of it goes on, not even what it does about exceptions."""


@dataclass(frozen=True, slots=True)
class Summed:
    """A cohort whose sum was written; `work` is what claims of it name."""

    work: str
    round: int
    number: int


@dataclass
class CommitLog:
    """Committed claims, messages and sums in order, each with its process."""

    claims: list[tuple[str, "Process"]] = field(default_factory=list)
    messages: list[tuple[str, "Process"]] = field(default_factory=list)  # kinds of messages
    sums: list[tuple[Summed, "Process"]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class JobInterruption:
    """Freezes or kills the process that next claims a job, or stores a message, of this name.

    `seconds` is the time for which it is frozen; None kills it.
    """

    work: str
    seconds: float | None


_KIND_PLACE = MessageRow.__table__.columns.keys().index("kind")  # in a row of parameters


@dataclass(eq=False)
class Process:
    """Resources of one server process; `jobs_before_death` counts down its remaining jobs."""

    commit_log: CommitLog
    context: Context = field(init=False)
    tasks: WeakSet[asyncio.Task[Any]] = field(default_factory=WeakSet)
    connections: list[Any] = field(default_factory=list)  # to databases
    locks: list[ExitStack] = field(default_factory=list)  # of the operating system
    cut: WeakSet[asyncio.Future[Any]] = field(default_factory=WeakSet)  # tasks, by its death
    is_dead: bool = False
    frozen: float = 0.0  # until then
    jobs_before_death: tuple[int, Moment] | None = None
    is_committing_last: bool = False
    uncommitted: list[str] = field(default_factory=list)  # kinds of inserted messages

    def __post_init__(self) -> None:
        self.context = copy_context()
        self.context.run(_OWNER.set, self)


@dataclass(frozen=True, slots=True)
class _Job:
    future: asyncio.Future[Any]
    run: Callable[[], Any]
    owner: Process | None
    is_transaction: bool


class _Selector(selectors.DefaultSelector):
    """Selector that does not sleep: it calls `on_idle` instead."""

    on_idle: Callable[[float | None], None]

    def select(self, timeout: float | None = None) -> list[Any]:
        """Return the ready events; if there are none, call `on_idle`."""
        events = super().select(0)
        if not events and timeout != 0:
            self.on_idle(timeout)
        return events


class Loop(asyncio.SelectorEventLoop):
    """See the module's docstring.

    Attributes:
        commit_log: what was committed.
        outage: how many transactions fail from now on.
        interruption: what befalls who next claims certain work.
    """

    def __init__(self, rng: Random) -> None:
        selector = _Selector()
        selector.on_idle = self._idle
        super().__init__(selector)
        self.commit_log = CommitLog()
        self.outage: tuple[int, Moment] = (0, "before the commit")
        self.interruption: JobInterruption | None = None
        self._rng = rng
        self._seconds = 0.0
        self._jumps = 0
        self._jobs: list[_Job] = []
        self._resting: list[asyncio.Future[None]] = []
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        return self._seconds

    def advance(self, seconds: float) -> None:
        """Let time pass, all at once."""
        self._seconds += seconds

    async def rest(self) -> None:
        """Wait until nothing runs any more, except tasks that wait for time to pass."""
        future = self.create_future()
        self._resting.append(future)
        await future

    def start(self, owner: Process, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task of a process."""
        return self.create_task(work, context=owner.context)

    def freeze(self, owner: Process, seconds: float) -> None:
        owner.frozen = self._seconds + seconds
        self.call_at(owner.frozen, lambda: None)  # time stops there

    def kill(self, owner: Process) -> None:
        """End a process as SIGKILL does: what it has not done yet is never done."""
        owner.is_dead = True
        for job in [job for job in self._jobs if job.owner is owner]:
            self._jobs.remove(job)
            job.future.cancel()
        for task in [task for task in owner.tasks if not task.done()]:
            owner.cut.add(task)
            task.cancel()
        for connection in owner.connections:
            connection.close()
        for lock in owner.locks:
            lock.close()

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Put a job into the heap; transactions are the jobs of an executor."""
        owner = _OWNER.get()
        future = self.create_future()
        if owner is not None and owner.is_dead:
            future.cancel()
        else:
            self._jobs.append(_Job(future, partial(func, *args), owner, executor is not None))
        return future

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
        owner = (options.get("context") or copy_context()).get(_OWNER)
        if owner is not None:
            owner.tasks.add(task)
        return task

    def _idle(self, left: float | None) -> None:
        ready = [place for place, job in enumerate(self._jobs) if not self._is_frozen(job)]
        self._jumps = 0 if ready or self._resting else self._jumps + 1
        if ready:
            self._run(self._jobs.pop(self._rng.choice(ready)))
        elif self._resting:
            for future in self._resting:
                if not future.done():
                    future.set_result(None)
            self._resting.clear()
        elif left is None or self._jumps > _MAX_JUMPS:
            raise RuntimeError("a task waits for an event that never happens")
        else:
            self._seconds += left

    def _is_frozen(self, job: _Job) -> bool:
        return job.owner is not None and job.owner.frozen > self._seconds

    def _run(self, job: _Job) -> None:
        # A thread that has begun continues when its waiter is cancelled.
        if job.future.cancelled() and self._rng.random() < 0.5:
            return
        owner, moment = job.owner, _count_down(job.owner)
        claims, messages = len(self.commit_log.claims), len(self.commit_log.messages)
        try:
            result = self._run_with_faults(job, moment == "before the commit")
        except Crash:
            pass
        except Exception as error:
            if not job.future.done():
                job.future.set_exception(error)
        else:
            if moment is None and not job.future.done():
                job.future.set_result(result)
        if owner is not None and moment is not None:
            self.kill(owner)
            job.future.cancel()
        for what, process in (
            *self.commit_log.claims[claims:],
            *self.commit_log.messages[messages:],
        ):
            if self.interruption is not None and what.startswith(self.interruption.work):
                self._interrupt(process, self.interruption.seconds)

    def _interrupt(self, owner: Process, seconds: float | None) -> None:
        self.interruption = None
        if seconds is None:
            self.kill(owner)
        else:
            self.freeze(owner, seconds)

    def _run_with_faults(self, job: _Job, is_last: bool) -> Any:
        """Run a job, up to its commit if it is the last, with an outage if there is one."""
        left, moment = self.outage
        fails = left > 0 and job.is_transaction
        if fails:
            self.outage = (left - 1, moment)
        away = OperationalError("", None, Exception("the database is away"))
        if fails and moment == "before the commit":
            raise away
        if is_last and job.owner is not None:
            job.owner.is_committing_last = True
        token = _RUNNING_PROCESS.set(job.owner)
        try:
            result = job.run()
        finally:
            _RUNNING_PROCESS.reset(token)
        if fails:
            raise away
        return result


_RUNNING_PROCESS: ContextVar[Process | None] = ContextVar("running", default=None)


def own_lock(file: Path) -> ExitStack:
    """Return a lock that goes with the process which made it, however that ends."""
    lock = hold_lock(file)
    owner = _OWNER.get()
    if owner is not None:
        owner.locks.append(lock)
    return lock


def _count_down(owner: Process | None) -> Moment | None:
    """Return the moment of this job at which its owner dies, None if it survives."""
    if owner is None or owner.jobs_before_death is None:
        return None
    left, moment = owner.jobs_before_death
    owner.jobs_before_death = (left - 1, moment)
    return None if left else moment


@event.listens_for(Pool, "connect")
def _own(connection: Any, _record: object) -> None:
    running = _RUNNING_PROCESS.get()
    if running is not None:
        running.connections.append(connection)


@event.listens_for(Engine, "commit")
def _die_before(_connection: Connection) -> None:
    running = _RUNNING_PROCESS.get()
    if running is not None and running.is_committing_last:
        raise Crash


@event.listens_for(Session, "after_flush")
def _note(session: Session, _context: object) -> None:
    for row in (*session.new, *session.dirty):
        if isinstance(row, LeaseRow) and inspect(row).attrs.version.history.added:
            session.info.setdefault("claims", []).append(row.job)
        if isinstance(row, CohortRow) and inspect(row).attrs.sum.history.added not in ((), [None]):
            summed = Summed(f"sum-cohort {row.id}", row.round, row.number)
            session.info.setdefault("sums", []).append(summed)


@event.listens_for(Engine, "after_cursor_execute")
def _note_messages(
    _connection: Connection,
    _cursor: object,
    statement: str,
    parameters: Any,
    _context: object,
    is_many: bool,
) -> None:
    running = _RUNNING_PROCESS.get()
    if running is not None and statement.startswith(f"INSERT INTO {MessageRow.__tablename__} "):
        for row in parameters if is_many else [parameters]:
            kind = row["kind"] if isinstance(row, dict) else row[_KIND_PLACE]
            running.uncommitted.append(kind)


@event.listens_for(Session, "after_rollback")
def _forget(_session: Session) -> None:
    running = _RUNNING_PROCESS.get()
    if running is not None:
        running.uncommitted.clear()


@event.listens_for(Session, "after_commit")
def _keep(session: Session) -> None:
    running = _RUNNING_PROCESS.get()
    if running is not None:
        running.commit_log.claims += [(work, running) for work in session.info.pop("claims", ())]
        running.commit_log.messages += [(kind, running) for kind in running.uncommitted]
        running.uncommitted.clear()
        running.commit_log.sums += [(summed, running) for summed in session.info.pop("sums", ())]
