"""Hundreds of simulated devices in one process, in front of a real service.

Each device holds a histogram of its own and takes part like any other, over HTTP, with an
identity that it keeps as long as the fleet lives. A round selects devices that have given no
vector yet, or none to this round if the study wants them in all; a fixed share of them vanishes,
each after one of its steps but the last, one as likely as the other. Where devices are invited by
coins, those selected flip theirs, and most may stay away. The fleet remembers what
each device encoded, which no service ever sees, so that a demo or a test can tell whether a sum
is exact.

`seed` drives selection, losses and clipping: two runs choose and lose the same devices. Secrets,
sampling and noise always come from the system's randomness.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import SystemRandom

import httpx
import numpy as np

from client.encoding import Contribution, contribute
from client.enrolment import enrol as enrol_device
from client.journal import MemoryJournal
from client.part import PROBLEMS, End, Ending, Heard, open_round, part_of, play
from client.participation import Device, Step, steps
from client.policy import Policy, PolicyError
from client.problems import WrongStateError
from client.transport import Traffic, Transport
from protocol.chance import system
from protocol.credentials import make
from protocol.mechanism import Histogram, enrolment_scope
from protocol.mechanisms import REPORTING
from protocol.messages import CohortView, RoundView, StudyView
from protocol.reporting import EVERY_STUDY
from protocol.round import Phase, phases
from secagg.cohort import Registry
from secagg.keys import Identity
from secagg.parameters import Mode
from secagg.ring import Vector

_LOOK_SECONDS = 0.1  # between two looks at a round that is about to be over


class NobodyEnteredError(RuntimeError):
    """No device of the fleet took part in a round: there is nothing to wait for.

    Attributes:
        refusals: what its policy has against the round, a limit each; empty if that is not why.
    """

    def __init__(self, number: int, why: str, refusals: Sequence[PolicyError] = ()) -> None:
        super().__init__(f"no device of this fleet took part in round {number}: {why}")
        self.refusals = tuple(refusals)


@dataclass(frozen=True, slots=True)
class Crew:
    """How a fleet behaves: `devices` a round, of which a share `dropout` vanishes.

    `registrar` enrols the devices for their study; without it they have no enrolment. A closed
    service lets them in by `token`, and shows the fleet its rounds by an API `key`.
    """

    devices: int
    dropout: float = 0.0
    seed: int = 0
    policy: Policy = field(default_factory=Policy)
    patience: float = 120.0
    registrar: Identity | None = None
    token: str | None = field(default=None, repr=False)
    key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Entry:
    """One device's part in one round; `last` is the last step that it took."""

    device: int
    end: End
    last: Step | None
    cohort: int
    slot: int
    traffic: Traffic
    contribution: Contribution = field(repr=False)
    vector: Vector | None = field(repr=False)  # None if it was lost before it masked
    error: str = ""
    refused: PolicyError | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Played:
    """One round as its devices saw it, and as the service shows it afterwards."""

    view: RoundView
    entries: tuple[Entry, ...]

    def in_sum(self, cohort: CohortView) -> list[Entry]:
        """Return the entries whose vectors the service says are in the sum of `cohort`."""
        kept = set(cohort.survivors)
        mine = (entry for entry in self.entries if entry.cohort == cohort.number)
        return [entry for entry in mine if entry.slot in kept]

    def losses(self) -> Mapping[Phase, int]:
        """Return how many devices were lost in each phase."""
        where = lost_in(self.view.plan.terms.mode)
        unlost = (End.FINISHED, End.STAYED_AWAY)
        lost = (entry for entry in self.entries if entry.end not in unlost)
        return Counter(where[entry.last] for entry in lost if entry.last in where)


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a round is: how many of its `devices` have taken each step, or are gone.

    Those whose coins do not invite them are none of its devices, once they know.
    """

    view: RoundView
    devices: int
    done: Mapping[Step, int]
    gone: int


Connect = Callable[[], httpx.AsyncClient]  # one client a device, as in life
Report = Callable[[Standing], None]


class Fleet:
    """Devices that hold `holdings`, one histogram each, taking part in `study`."""

    def __init__(
        self,
        connect: Connect,
        study: StudyView,
        holdings: Sequence[Histogram],
        crew: Crew,
        report: Report | None = None,
    ) -> None:
        self._connect = connect
        self._study = study
        self._holdings = holdings
        self._crew = crew
        self._report = report
        self._devices: dict[int, Device] = {}  # those that were asked so far
        self._known: set[bytes] = set()  # identities that the service let in
        self._secrets = SystemRandom()

    async def play(self) -> AsyncIterator[Played]:
        """Take part in round after round; yield each once it is over.

        It ends with the study, or when every device has given its vector.

        Raises:
            NobodyEnteredError: if no device could, or would, take part in a round.
        """
        after = 0
        while self._free(after + 1):
            view = await self.next_round(after)
            if view is None:
                return
            entries = await self.enter(view)
            after = view.number
            if all(entry.last is None for entry in entries):
                kept = [entry for entry in entries if entry.end is not End.STAYED_AWAY]
                if not kept or any(entry.end is End.LATE for entry in kept):
                    continue  # others took the seats, or coins fell so; there are more rounds
                raise NobodyEnteredError(view.number, *self._why(view, kept[0]))
            yield Played(await self._over(view.number), entries)

    def _why(self, view: RoundView, entry: Entry) -> tuple[str, list[PolicyError]]:
        """Return why nobody took part, as one of them has it, and all that the policy refuses."""
        if entry.refused is None:
            return entry.error, []
        every = self._crew.policy.refusals(view.plan, self._study.id, view.number)
        by_limit = {entry.refused.limit: entry.refused, **{one.limit: one for one in every}}
        return "; ".join(map(str, by_limit.values())), list(by_limit.values())

    async def next_round(self, after: int) -> RoundView | None:
        """Return the next round that takes devices, or None if the study is over."""
        async with self._transport() as transport:
            try:
                return await open_round(transport, self._study.id, after, ticket=self._crew.key)
            except WrongStateError:
                return None

    async def enter(self, view: RoundView) -> tuple[Entry, ...]:
        """Let selected devices take part in the round that `view` shows, all at once."""
        chosen, leaving = select(
            self._crew, view.number, view.plan.terms.mode, self._free(view.number)
        )
        steps: Counter[Step] = Counter()
        ends: Counter[End] = Counter()

        def heard(what: Step | End) -> None:
            if isinstance(what, End):
                ends[what] += 1
            else:
                steps[what] += 1
            if self._report:
                away = ends[End.STAYED_AWAY]
                gone = ends.total() - away
                self._report(Standing(view, len(chosen) - away, dict(steps), gone))

        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._take_part(view, device, leaving.get(device), heard))
                for device in chosen
            ]
        return tuple(task.result() for task in tasks)

    async def _take_part(
        self, view: RoundView, index: int, leaving: Step | None, heard: Heard
    ) -> Entry:
        async with self._transport() as transport:
            return await self._steps(transport, view, index, leaving, heard)

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[Transport]:
        async with self._connect() as http:
            yield Transport(http, self._crew.patience)

    async def _steps(
        self,
        transport: Transport,
        view: RoundView,
        index: int,
        leaving: Step | None,
        heard: Heard,
    ) -> Entry:
        device, crew = self._device(index), self._crew
        part = part_of(
            transport, view, device, policy=crew.policy, secrets=self._secrets, chance=system
        )
        try:
            await self._let_in(transport, device)
        except PROBLEMS as problem:
            ending = Ending.of(problem)
            heard(ending.end)
        else:
            ending = await play(part, self._study.id, heard, leaving)
        return Entry(
            index,
            ending.end,
            ending.last,
            part.seat.cohort if part.seat else -1,
            part.seat.slot if part.seat else -1,
            transport.traffic,
            device.contribution,
            part.vector,
            ending.error,
            ending.refused,
        )

    def _free(self, number: int) -> list[int]:
        """Return the devices that may still give their vectors to round `number`."""
        study, repeats = self._study.id, self._study.question.repeats
        given = {index: one.journal.rounds().get(study, ()) for index, one in self._devices.items()}
        spent = {i for i, rounds in given.items() if (number in rounds if repeats else rounds)}
        return [index for index in range(len(self._holdings)) if index not in spent]

    async def _let_in(self, transport: Transport, device: Device) -> None:
        """See to it that a closed service knows `device`."""
        token, public = self._crew.token, device.identity.public
        if token is not None and public not in self._known:
            await enrol_device(transport, device.identity, token, device.credential)
            self._known.add(public)

    def _device(self, index: int) -> Device:
        if index not in self._devices:
            rng = np.random.default_rng([self._crew.seed, index])
            given = contribute(self._study.question, self._holdings[index], rng)
            identity = Identity.generate(self._secrets)
            enrolment = enrol(self._crew.registrar, self._study, identity)
            credential = make(self._secrets) if self._crew.token else ""
            self._devices[index] = Device(identity, given, MemoryJournal(), enrolment, credential)
        return self._devices[index]

    async def _over(self, number: int) -> RoundView:
        """Return round `number` once it is over."""
        while True:
            async with self._transport() as transport:
                path = f"/studies/{self._study.id}/rounds/{number}"
                answer = await transport.send("GET", path, ticket=self._crew.key)
            view = RoundView.model_validate_json(answer.content)
            if view.state != "running":
                return view
            await asyncio.sleep(_LOOK_SECONDS)


def enrol(registrar: Identity | None, study: StudyView, identity: Identity) -> bytes:
    """Return the enrolment of `identity` for `study`, empty if nobody enrols."""
    if registrar is None or study.terms.registrar is None:
        return b""
    is_report = study.question.mechanism in REPORTING
    scope = enrolment_scope(EVERY_STUDY if is_report else study.id)
    registry = Registry(registrar.public, scope)
    return registrar.sign(registry.enrolment(identity.public))


def losable(mode: Mode) -> tuple[Step, ...]:
    """Return the steps after which a device may vanish: all but the last."""
    return steps(mode)[:-1]


def lost_in(mode: Mode) -> dict[Step | None, Phase]:
    """Return in which phase a device is missed, by the last step that it took."""
    return dict(zip((None, *losable(mode)), phases(mode), strict=True))


def select(
    crew: Crew, number: int, mode: Mode, free: Sequence[int]
) -> tuple[list[int], dict[int, Step]]:
    """Return the devices of round `number` among the `free`, and the last step of the lost."""
    rng, last_steps = np.random.default_rng([crew.seed, number]), losable(mode)
    size = min(crew.devices, len(free))
    chosen = [free[place] for place in rng.permutation(len(free))[:size]]
    lost = rng.permutation(size)[: round(crew.dropout * size)]
    last = rng.integers(len(last_steps), size=len(lost))
    pairs = zip(lost, last, strict=True)
    return chosen, {chosen[place]: last_steps[step] for place, step in pairs}
