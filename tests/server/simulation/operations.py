"""Operations in a simulated world. A list of these, with a seed, is a test."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from hypothesis import strategies as st

from tests.server.simulation.loop import Loop, Moment, Strike
from tests.server.simulation.member import Lost, NotYet
from tests.server.simulation.worker import Unanswered, simulated
from tests.server.simulation.world import Score, Shape, World


@dataclass(frozen=True)
class Operation(ABC):
    """One operation; its numbers are taken modulo the number of existing devices or servers."""

    @abstractmethod
    async def happen(self, world: World) -> None:
        """Let it happen in `world`."""


@dataclass(frozen=True)
class Step(Operation):
    """A device does what is next for it; its request, or the answer, may get lost."""

    member: int
    lost: Lost | None = None

    async def happen(self, world: World) -> None:
        await world.members[self.member % len(world.members)].step(self.lost)


@dataclass(frozen=True)
class Everybody(Operation):
    """All present devices take their next step, at the same time.

    If no server is up, a supervisor has started one by then.
    """

    async def happen(self, world: World) -> None:
        if not any(worker.is_up for worker in world.workers):
            await world.start(0)
        await world.go_on()


@dataclass(frozen=True)
class Leave(Operation):
    """A device goes away, or comes back."""

    member: int

    async def happen(self, world: World) -> None:
        member = world.members[self.member % len(world.members)]
        member.is_away = not member.is_away


@dataclass(frozen=True)
class Repeat(Operation):
    """A device repeats a message of this round or an earlier one."""

    member: int
    which: int

    async def happen(self, world: World) -> None:
        member = world.members[self.member % len(world.members)]
        spoken = member.spoken()
        if spoken:
            seat, kind, body = spoken[self.which % len(spoken)]
            await seat.send(kind, body)
        elif member.seat is not None and member.seat.seat is not None:
            with suppress(NotYet):  # the database is away
                await member.seat.apply_for(None)


@dataclass(frozen=True)
class Alter(Operation):
    """A device repeats a message with one different bit."""

    member: int
    which: int
    bit: int

    async def happen(self, world: World) -> None:
        spoken = world.members[self.member % len(world.members)].spoken()
        if spoken:
            seat, kind, body = spoken[self.which % len(spoken)]
            bit = self.bit % (8 * len(body))
            other = bytearray(body)
            other[bit // 8] ^= 1 << bit % 8
            await seat.send(kind, bytes(other))


@dataclass(frozen=True)
class Replay(Operation):
    """A device sends a message of another device, or its own message of an earlier round."""

    member: int
    source: int
    which: int

    async def happen(self, world: World) -> None:
        seat = world.members[self.member % len(world.members)].seat
        spoken = world.members[self.source % len(world.members)].spoken()
        if seat is not None and seat.seat is not None and spoken:
            _, kind, body = spoken[self.which % len(spoken)]
            await seat.send(kind, body)


@dataclass(frozen=True)
class Advance(Operation):
    """Time passes."""

    seconds: float

    async def happen(self, world: World) -> None:
        world.loop.advance(self.seconds)


@dataclass(frozen=True)
class Kill(Operation):
    """A server dies at a later job, before the commit of that job or after it."""

    worker: int
    jobs: int
    moment: Moment

    async def happen(self, world: World) -> None:
        worker = world.workers[self.worker % len(world.workers)]
        if worker.is_up:
            worker.process.doom = (self.jobs, self.moment)
            world.score.kills += 1


@dataclass(frozen=True)
class Freeze(Operation):
    """A server freezes for some seconds, or until it is stopped, and then continues."""

    worker: int
    seconds: float

    async def happen(self, world: World) -> None:
        worker = world.workers[self.worker % len(world.workers)]
        if worker.is_up:
            world.loop.freeze(worker.process, self.seconds)


@dataclass(frozen=True)
class StrikeHolder(Operation):
    """The server that claims such a job next dies with its lease, or is frozen for `seconds`.

    So is the server that stores such a message next: it is committed, and gets no response.
    """

    work: str
    seconds: float | None = None

    async def happen(self, world: World) -> None:
        world.loop.strike = Strike(self.work, self.seconds)


@dataclass(frozen=True)
class Start(Operation):
    """A server that is down is started; one that is up is restarted in order."""

    worker: int

    async def happen(self, world: World) -> None:
        place = self.worker % len(world.workers)
        worker = world.workers[place]
        if worker.is_up:
            await worker.stop()
        await world.start(place)


@dataclass(frozen=True)
class Outage(Operation):
    """The database fails some transactions, perhaps after their commit."""

    transactions: int
    moment: Moment

    async def happen(self, world: World) -> None:
        world.loop.outage = (self.transactions, self.moment)


@dataclass(frozen=True)
class Stop(Operation):
    """The analyst stops the study."""

    async def happen(self, world: World) -> None:
        await world.ask("POST", f"{world.path}/stop")


@dataclass(frozen=True)
class AtOnce(Operation):
    """Several things happen at the same time."""

    operations: tuple[Operation, ...]

    async def happen(self, world: World) -> None:
        await asyncio.gather(
            *(_unless_unanswered(world, operation) for operation in self.operations)
        )


async def _unless_unanswered(world: World, operation: Operation) -> None:
    world.score.operations[type(operation).__name__] += 1
    with suppress(Unanswered):
        await operation.happen(world)


Choose = Callable[[int], int]  # returns a number from 0 to below its argument
_MOMENTS: tuple[Moment, ...] = ("before the commit", "after the commit")
_LOSSES: tuple[Lost | None, ...] = (None, None, "request", "answer")
_PAUSES = (0.5, 0.5, 4.0, 6.0, 6.0, 6.0, 29.0, 31.0, 61.0, 400.0)
_STRIKES = (None, None, 4.0, 29.0)  # seconds; a lease lasts 15
_WORK = ("sum-cohort", "close-round", "delete-bodies")
_TROUBLE: tuple[Callable[[Choose], Operation], ...] = (
    lambda choose: Leave(choose(13)),
    lambda choose: Repeat(choose(13), choose(13)),
    lambda choose: Repeat(choose(13), choose(13)),
    lambda choose: Alter(choose(13), choose(13), choose(8000)),
    lambda choose: Replay(choose(13), choose(13), choose(13)),
    lambda choose: Advance(_PAUSES[choose(len(_PAUSES))]),
    lambda choose: Advance(_PAUSES[choose(len(_PAUSES))]),
    lambda choose: Kill(choose(2), choose(60), _MOMENTS[choose(2)]),
    lambda choose: Kill(choose(2), choose(15), _MOMENTS[choose(2)]),
    lambda choose: Freeze(choose(2), _PAUSES[choose(len(_PAUSES))]),
    lambda choose: StrikeHolder(_WORK[choose(3)], _STRIKES[choose(len(_STRIKES))]),
    lambda choose: Start(choose(2)),
    lambda choose: Start(choose(2)),
    lambda choose: Outage(1 + choose(6), _MOMENTS[choose(2)]),
)


def choose_operation(choose: Choose) -> Operation:
    """Return something that may happen, half of the time that all devices go on."""
    what = choose(16)
    if what < 7:
        return Everybody()
    if what < 10:
        return Step(choose(13), _LOSSES[choose(len(_LOSSES))])
    if what < 15:
        return _TROUBLE[choose(len(_TROUBLE))](choose)
    return AtOnce(tuple(choose_operation(choose) for _ in range(2 + choose(3))))


@st.composite
def histories(draw: st.DrawFn, least: int = 10, most: int = 40) -> list[Operation]:
    """Return a random list of operations; some end with a stop by the analyst."""
    operation = st.builds(choose_operation, st.just(lambda n: draw(st.integers(0, n - 1))))
    happening = draw(st.lists(operation, min_size=least, max_size=most))
    return [*happening, Stop()] if draw(st.integers(0, 7)) == 7 else happening


def choose_history(rng: Random, length: int) -> list[Operation]:
    """Return a list of `length` operations or one more."""
    happening = [choose_operation(rng.randrange) for _ in range(length)]
    return [*happening, Stop()] if rng.randrange(8) == 7 else happening


def play(url: str, shape: Shape, seed: int, happening: list[Operation]) -> Score:
    """Let all this happen in a world on the empty database at `url`; return what it came to.

    Raises:
        AssertionError: if something is not as it must be (`world.py`).
    """
    loop = Loop(Random(seed))
    world = World(loop, url, shape, Random(seed))
    try:
        with world.listening(), simulated(loop):
            loop.run_until_complete(_play(world, happening))
    finally:
        loop.run_until_complete(world.close())
        loop.close()
    return world.score


async def _play(world: World, happening: list[Operation]) -> None:
    await world.open()
    for operation in happening:
        await _unless_unanswered(world, operation)
        await world.check()
    await world.finish()
