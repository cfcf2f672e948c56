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
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from random import SystemRandom

import httpx
import numpy as np
import stamina.instrumentation

from client.crew import Crew, Entry, Played, Standing, select
from client.encoding import Contribution, contribute
from client.enrolment import enrol as enrol_device
from client.habits import Behaviour, behave
from client.journal import Given, MemoryJournal
from client.part import PROBLEMS, End, Ending, Heard, open_round, part_of, play
from client.participation import STEP_IN, Device, Step
from client.policy import PolicyError
from client.problems import WrongStateError
from client.slices import Member, Slicing, gathered
from client.transport import Transport
from protocol.chance import system
from protocol.credentials import make
from protocol.mechanism import Histogram, enrolment_scope
from protocol.mechanisms import REPORTING
from protocol.messages import RoundView, StudyView
from protocol.reporting import EVERY_STUDY
from secagg.cohort import Registry
from secagg.keys import KEY_BYTES, Identity

_LOOK_SECONDS = 0.1  # between two looks at a round that is about to be over
_WATCH_SECONDS = 1.0  # at one that others play


class NobodyEnteredError(RuntimeError):
    """No device of the fleet took part in a round: there is nothing to wait for.

    Attributes:
        refusals: what its policy has against the round, a limit each; empty if that is not why.
    """

    def __init__(self, number: int, why: str, refusals: Sequence[PolicyError] = ()) -> None:
        super().__init__(f"no device of this fleet took part in round {number}: {why}")
        self.refusals = tuple(refusals)


Connect = Callable[[], httpx.AsyncClient]  # one client a device, as in life
Report = Callable[[Standing], None]


class Fleet:
    """Devices that hold `holdings`, one histogram each, taking part in `study`."""

    def __init__(
        self,
        connect: Connect,
        study: StudyView,
        holdings: Sequence[Histogram] | Mapping[int, Histogram],
        crew: Crew,
        report: Report | None = None,
        workers: Slicing | None = None,
    ) -> None:
        self._connect = connect
        self._study = study
        self._holdings = holdings
        self._crew = crew
        self._report = report
        self._workers = workers
        self._devices: dict[int, Device] = {}  # those that were asked so far
        self._keys: dict[int, bytes] = {}  # the secrets of their identities
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
        seed = [self._crew.seed, view.number, 1]
        behaviours = behave(self._crew.habits, chosen, leaving, seed)
        if self._workers is None:
            return await self._enter(view, behaviours)
        return await self._spread(self._workers, view, behaviours)

    async def _enter(
        self, view: RoundView, behaviours: Mapping[int, Behaviour]
    ) -> tuple[Entry, ...]:
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
                self._report(Standing(view, len(behaviours) - away, dict(steps), gone))

        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._take_part(view, device, behaviour, heard))
                for device, behaviour in behaviours.items()
            ]
        return tuple(task.result() for task in tasks)

    async def _spread(
        self, workers: Slicing, view: RoundView, behaviours: Mapping[int, Behaviour]
    ) -> tuple[Entry, ...]:
        """Let workers play slices of the devices; say meanwhile what the service tells of them."""
        loop = asyncio.get_running_loop()
        crew = replace(self._crew, registrar=None, key=None)
        slices = []
        for part in workers.cut(list(behaviours)):
            members = [self._member(index, behaviours[index]) for index in part]
            held = {index: self._holdings[index] for index in part}
            slices.append(Slice(self._connect, self._study, view, crew, held, members))
        watching = loop.create_task(self._watch(view, len(behaviours)))
        try:
            results = await gathered(
                [loop.run_in_executor(workers.executor, play_slice, one) for one in slices]
            )
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        played = {entry.device: (entry, given) for one in results for entry, given in one}
        for index, (entry, given) in played.items():
            self._devices[index] = replace(self._devices[index], journal=MemoryJournal(given))
            if entry.last is not None:
                self._known.add(self._devices[index].identity.public)
        return tuple(played[index][0] for index in behaviours)

    async def _watch(self, view: RoundView, devices: int) -> None:
        """Report how many were heard in each phase, by what the service shows."""
        while self._report:
            with suppress(*PROBLEMS):
                view = await self._view(view.number)
            records = [record for cohort in view.cohorts for record in cohort.history]
            done = Counter[Step]()
            for record in records:
                if record.phase in STEP_IN:
                    done[STEP_IN[record.phase]] += record.heard
            self._report(Standing(view, devices, dict(done), 0))
            await asyncio.sleep(_WATCH_SECONDS)

    def _member(self, index: int, behaviour: Behaviour) -> Member:
        device = self._device(index)
        assert isinstance(device.journal, MemoryJournal)  # `_device` made it
        is_known = device.identity.public in self._known
        given = device.journal.known
        return Member(
            index,
            self._keys[index],
            given,
            device.enrolment,
            device.credential,
            is_known,
            behaviour,
        )

    async def play_members(
        self, view: RoundView, members: Sequence[Member]
    ) -> list[tuple[Entry, tuple[Given, ...]]]:
        """Play these devices in one round; return how their parts ended, and what they gave."""
        for one in members:
            identity, journal = Identity.of(one.secret), MemoryJournal(one.given)
            self._devices[one.index] = Device(
                identity, self._given(one.index), journal, one.enrolment, one.credential
            )
            if one.is_known:
                self._known.add(identity.public)
        entries = await self._enter(view, {one.index: one.behaviour for one in members})
        journals = [self._devices[one.index].journal for one in members]
        return [
            (entry, journal.known)
            for entry, journal in zip(entries, journals, strict=True)
            if isinstance(journal, MemoryJournal)
        ]

    async def _take_part(
        self, view: RoundView, index: int, behaviour: Behaviour, heard: Heard
    ) -> Entry:
        await asyncio.sleep(behaviour.comes)
        async with self._transport() as transport:
            return await self._steps(transport, view, index, behaviour, heard)

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[Transport]:
        async with self._connect() as http:
            yield Transport(http, self._crew.patience)

    async def _steps(
        self,
        transport: Transport,
        view: RoundView,
        index: int,
        behaviour: Behaviour,
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
            ending = await play(part, self._study.id, heard, behaviour.leaving, behaviour.pauses)
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
            self._keys[index] = self._secrets.randbytes(KEY_BYTES)
            identity, given = Identity.of(self._keys[index]), self._given(index)
            enrolment = enrol(self._crew.registrar, self._study, identity)
            credential = make(self._secrets) if self._crew.token else ""
            self._devices[index] = Device(identity, given, MemoryJournal(), enrolment, credential)
        return self._devices[index]

    def _given(self, index: int) -> Contribution:
        rng = np.random.default_rng([self._crew.seed, index])
        return contribute(self._study.question, self._holdings[index], rng)

    async def _over(self, number: int) -> RoundView:
        """Return round `number` once it is over."""
        while True:
            view = await self._view(number)
            if view.state != "running":
                return view
            await asyncio.sleep(_LOOK_SECONDS)

    async def _view(self, number: int) -> RoundView:
        async with self._transport() as transport:
            path = f"/studies/{self._study.id}/rounds/{number}"
            answer = await transport.send("GET", path, ticket=self._crew.key)
        return RoundView.model_validate_json(answer.content)


@dataclass(frozen=True, slots=True)
class Slice:
    """Some devices of one round, with what they hold, before a service."""

    connect: Connect
    study: StudyView
    view: RoundView
    crew: Crew
    held: Mapping[int, Histogram] = field(repr=False)
    members: Sequence[Member]


def play_slice(one: Slice) -> list[tuple[Entry, tuple[Given, ...]]]:
    """Return how the parts of a slice's devices ended, and what they gave."""
    stamina.instrumentation.set_on_retry_hooks([])  # hundreds of devices say the same
    fleet = Fleet(one.connect, one.study, one.held, one.crew)
    return asyncio.run(fleet.play_members(one.view, one.members))


def enrol(registrar: Identity | None, study: StudyView, identity: Identity) -> bytes:
    """Return the enrolment of `identity` for `study`, empty if nobody enrols."""
    if registrar is None or study.terms.registrar is None:
        return b""
    is_report = study.question.mechanism in REPORTING
    scope = enrolment_scope(EVERY_STUDY if is_report else study.id)
    registry = Registry(registrar.public, scope)
    return registrar.sign(registry.enrolment(identity.public))
