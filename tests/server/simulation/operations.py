"""Operations in a simulated study. A list of these, with a seed, is a test."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from hypothesis import strategies as st

from tests.server.simulation.device import Lost, NotReadyError
from tests.server.simulation.loop import JobInterruption, Loop, Moment
from tests.server.simulation.server import NoResponseError, simulated
from tests.server.simulation.study import RunFigures, SimulatedStudy, StudySize


@dataclass(frozen=True)
class Operation(ABC):
    """One operation; its numbers are taken modulo the number of existing devices or servers."""

    @abstractmethod
    async def apply(self, study: SimulatedStudy) -> None:
        """Let it happen in `study`."""


@dataclass(frozen=True)
class StepOne(Operation):
    """A device does what is next for it; its request, or the answer, may get lost."""

    device: int
    lost: Lost | None = None

    async def apply(self, study: SimulatedStudy) -> None:
        await study.devices[self.device % len(study.devices)].step(self.lost)


@dataclass(frozen=True)
class StepAll(Operation):
    """All present devices take their next step, at the same time.

    If no server is up, a supervisor has started one by then.
    """

    async def apply(self, study: SimulatedStudy) -> None:
        if not any(server.is_up for server in study.servers):
            await study.start(0)
        await study.step_all()


@dataclass(frozen=True)
class LeaveOrReturn(Operation):
    """A device goes away, or comes back."""

    device: int

    async def apply(self, study: SimulatedStudy) -> None:
        device = study.devices[self.device % len(study.devices)]
        device.is_away = not device.is_away


@dataclass(frozen=True)
class RepeatMessage(Operation):
    """A device repeats a message of this round or an earlier one."""

    device: int
    which: int

    async def apply(self, study: SimulatedStudy) -> None:
        device = study.devices[self.device % len(study.devices)]
        sent_messages = device.sent_messages()
        if sent_messages:
            seat, kind, body = sent_messages[self.which % len(sent_messages)]
            await seat.send(kind, body)
        elif device.seat is not None and device.seat.seat is not None:
            with suppress(NotReadyError):  # the database is away
                await device.seat.request_seat(None)


@dataclass(frozen=True)
class SendAlteredMessage(Operation):
    """A device repeats a message with one different bit."""

    device: int
    which: int
    bit: int

    async def apply(self, study: SimulatedStudy) -> None:
        sent_messages = study.devices[self.device % len(study.devices)].sent_messages()
        if sent_messages:
            seat, kind, body = sent_messages[self.which % len(sent_messages)]
            bit = self.bit % (8 * len(body))
            other = bytearray(body)
            other[bit // 8] ^= 1 << bit % 8
            await seat.send(kind, bytes(other))


@dataclass(frozen=True)
class ReplayMessage(Operation):
    """A device sends a message of another device, or its own message of an earlier round."""

    device: int
    source: int
    which: int

    async def apply(self, study: SimulatedStudy) -> None:
        seat = study.devices[self.device % len(study.devices)].seat
        sent_messages = study.devices[self.source % len(study.devices)].sent_messages()
        if seat is not None and seat.seat is not None and sent_messages:
            _, kind, body = sent_messages[self.which % len(sent_messages)]
            await seat.send(kind, body)


@dataclass(frozen=True)
class AdvanceTime(Operation):
    """Time passes."""

    seconds: float

    async def apply(self, study: SimulatedStudy) -> None:
        study.loop.advance(self.seconds)


@dataclass(frozen=True)
class KillServer(Operation):
    """A server dies at a later job, before the commit of that job or after it."""

    server: int
    jobs: int
    moment: Moment

    async def apply(self, study: SimulatedStudy) -> None:
        server = study.servers[self.server % len(study.servers)]
        if server.is_up:
            server.process.jobs_before_death = (self.jobs, self.moment)
            study.figures.kills += 1


@dataclass(frozen=True)
class FreezeServer(Operation):
    """A server freezes for some seconds, or until it is stopped, and then continues."""

    server: int
    seconds: float

    async def apply(self, study: SimulatedStudy) -> None:
        server = study.servers[self.server % len(study.servers)]
        if server.is_up:
            study.loop.freeze(server.process, self.seconds)


@dataclass(frozen=True)
class InterruptJob(Operation):
    """The server that claims such a job next dies with its lease, or is frozen for `seconds`.

    So is the server that stores such a message next: it is committed, and gets no response.
    """

    work: str
    seconds: float | None = None

    async def apply(self, study: SimulatedStudy) -> None:
        study.loop.interruption = JobInterruption(self.work, self.seconds)


@dataclass(frozen=True)
class RestartServer(Operation):
    """A server that is down is started; one that is up is restarted in order."""

    server: int

    async def apply(self, study: SimulatedStudy) -> None:
        place = self.server % len(study.servers)
        server = study.servers[place]
        if server.is_up:
            await server.stop()
        await study.start(place)


@dataclass(frozen=True)
class DatabaseOutage(Operation):
    """The database fails some transactions, perhaps after their commit."""

    transactions: int
    moment: Moment

    async def apply(self, study: SimulatedStudy) -> None:
        study.loop.outage = (self.transactions, self.moment)


@dataclass(frozen=True)
class StopStudy(Operation):
    """The analyst stops the study."""

    async def apply(self, study: SimulatedStudy) -> None:
        await study.ask("POST", f"{study.path}/stop")


@dataclass(frozen=True)
class Concurrently(Operation):
    """Several things happen at the same time."""

    operations: tuple[Operation, ...]

    async def apply(self, study: SimulatedStudy) -> None:
        await asyncio.gather(*(_apply(study, operation) for operation in self.operations))


async def _apply(study: SimulatedStudy, operation: Operation) -> None:
    study.figures.operations[type(operation).__name__] += 1
    with suppress(NoResponseError):
        await operation.apply(study)


Choose = Callable[[int], int]  # returns a number from 0 to below its argument
_MOMENTS: tuple[Moment, ...] = ("before the commit", "after the commit")
_LOSSES: tuple[Lost | None, ...] = (None, None, "request", "answer")
_PAUSES = (0.5, 0.5, 4.0, 6.0, 6.0, 6.0, 29.0, 31.0, 61.0, 400.0)
_INTERRUPTIONS = (None, None, 4.0, 29.0)  # seconds; a lease lasts 15
_WORK = ("sum-cohort", "close-round", "delete-bodies")
_FAULTS: tuple[Callable[[Choose], Operation], ...] = (
    lambda choose: LeaveOrReturn(choose(13)),
    lambda choose: RepeatMessage(choose(13), choose(13)),
    lambda choose: RepeatMessage(choose(13), choose(13)),
    lambda choose: SendAlteredMessage(choose(13), choose(13), choose(8000)),
    lambda choose: ReplayMessage(choose(13), choose(13), choose(13)),
    lambda choose: AdvanceTime(_PAUSES[choose(len(_PAUSES))]),
    lambda choose: AdvanceTime(_PAUSES[choose(len(_PAUSES))]),
    lambda choose: KillServer(choose(2), choose(60), _MOMENTS[choose(2)]),
    lambda choose: KillServer(choose(2), choose(15), _MOMENTS[choose(2)]),
    lambda choose: FreezeServer(choose(2), _PAUSES[choose(len(_PAUSES))]),
    lambda choose: InterruptJob(_WORK[choose(3)], _INTERRUPTIONS[choose(len(_INTERRUPTIONS))]),
    lambda choose: RestartServer(choose(2)),
    lambda choose: RestartServer(choose(2)),
    lambda choose: DatabaseOutage(1 + choose(6), _MOMENTS[choose(2)]),
)


def choose_operation(choose: Choose) -> Operation:
    """Return something that may happen, half of the time that all devices go on."""
    what = choose(16)
    if what < 7:
        return StepAll()
    if what < 10:
        return StepOne(choose(13), _LOSSES[choose(len(_LOSSES))])
    if what < 15:
        return _FAULTS[choose(len(_FAULTS))](choose)
    return Concurrently(tuple(choose_operation(choose) for _ in range(2 + choose(3))))


@st.composite
def histories(draw: st.DrawFn, least: int = 10, most: int = 40) -> list[Operation]:
    """Return a random list of operations; some end with a stop by the analyst."""
    operation = st.builds(choose_operation, st.just(lambda n: draw(st.integers(0, n - 1))))
    operations = draw(st.lists(operation, min_size=least, max_size=most))
    return [*operations, StopStudy()] if draw(st.integers(0, 7)) == 7 else operations


def choose_history(rng: Random, length: int) -> list[Operation]:
    """Return a list of `length` operations or one more."""
    operations = [choose_operation(rng.randrange) for _ in range(length)]
    return [*operations, StopStudy()] if rng.randrange(8) == 7 else operations


def play(url: str, size: StudySize, seed: int, operations: list[Operation]) -> RunFigures:
    """Let all this happen in a study on the empty database at `url`; return what it came to.

    Raises:
        AssertionError: if something is not as it must be (`study.py`).
    """
    loop = Loop(Random(seed))
    study = SimulatedStudy(loop, url, size, Random(seed))
    try:
        with study.listening(), simulated(loop):
            loop.run_until_complete(_play(study, operations))
    finally:
        loop.run_until_complete(study.close())
        loop.close()
    return study.figures


async def _play(study: SimulatedStudy, operations: list[Operation]) -> None:
    await study.open()
    for operation in operations:
        await _apply(study, operation)
        await study.check()
    await study.finish()
