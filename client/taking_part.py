"""A device with its items takes part: the few lines that a program on a device needs.

    outcomes = await take_part("https://counts.example.org", ["hello", "world"], Policy())
    for one in outcomes:
        print(one.study, one.round, one.end)

It looks for a round that takes devices, checks it against the policy, gives once, and says how it
went. What the device keeps (`client.kept`) is on its disk: who calls again, today or next year, is
the same device, which gives to no study twice.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from random import SystemRandom
from typing import Final, TypeAlias

from client.encoding import contribute, tally
from client.enrolment import enrol as enrol_device
from client.kept import Kept
from client.part import PROBLEMS, End, Ending, open_round, part_of, play
from client.participation import Device, Step, reading
from client.policy import Policy
from client.problems import NoRoundError, NotAuthorisedError, WrongStateError
from client.transport import Transport, connect
from protocol.chance import system
from protocol.mechanism import Histogram
from protocol.mechanisms import REPORTING
from protocol.messages import RoundView, Seat, StudyPage
from secagg.cohort import Registry

OFFERED: Final = 20  # studies at once: no service keeps a device busy with more
PATIENCE: Final = 120.0  # seconds

Items: TypeAlias = Iterable[str | float] | Mapping[str, int]
Enrol: TypeAlias = Callable[[Registry, bytes], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a device did in a study, or why it did not: how its part ended, after which step.

    `round` is None if it was shown none, `cohort` and `slot` unless it sat in a secure sum. It
    `sent` and `received` so many bytes of HTTP. `error` says why the end is no better.
    """

    study: str
    end: End
    round: int | None = None
    cohort: int | None = None
    slot: int | None = None
    last: Step | None = None
    sent: int = 0
    received: int = 0
    error: str = ""


async def take_part(  # noqa: PLR0913 - what differs from device to device
    url: str,
    items: Items,
    policy: Policy | None = None,
    *,
    study: str | None = None,
    kept: Kept | None = None,
    token: str | None = None,
    enrol: Enrol | None = None,
    wait: float = 0.0,
    patience: float = PATIENCE,
) -> tuple[Outcome, ...]:
    """Let one device, which holds `items`, take part in a round; return what it did, by study.

    It takes part in the open round of `study`, or else of the newest studies that the service
    shows to run (a closed one shows devices none: name it), waiting up to `wait` seconds for one
    that has room. Unless `kept` is something else, it is the one device of this user on this
    machine: name a folder for each where there are more, and keep it. A closed service lets it in
    by an enrolment `token`; where a registrar says who is real, `enrol` has it sign an identity. A
    service out of reach is tried again for `patience` seconds.

    Cancelled, it leaves: as far as the others can tell it has vanished. What was recorded as
    given stays given.

    Raises:
        JournalError: if what is to be given cannot be recorded: then it is not given.
        ServiceError: if the service does not show its studies; of a study, that is an outcome.
        httpx.TransportError: if it is out of reach meanwhile.
    """
    held = _histogram(items)
    if kept is None:
        kept = await asyncio.to_thread(Kept.on_disk)
    visit = _Visit(url.rstrip("/"), held, policy or Policy(), kept, token, enrol, wait, patience)
    named = (study,) if study is not None else await visit.offered()
    tasks = [asyncio.create_task(visit.play(one)) for one in named]
    try:
        return tuple([await task for task in tasks])
    finally:  # a journal that fails ends all of them, as does whoever cancels
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _histogram(items: Items) -> Histogram:
    return dict(items) if isinstance(items, Mapping) else tally(map(str, items))


@dataclass(frozen=True, slots=True)
class _Visit:
    """A device before a service, for one round of each study."""

    url: str
    held: Histogram = field(repr=False)
    policy: Policy
    kept: Kept
    token: str | None = field(repr=False)
    enrol: Enrol | None
    wait: float
    patience: float

    async def offered(self) -> tuple[str, ...]:
        """Return the newest studies that run."""
        async with connect(self.url) as http:
            transport = Transport(http, self.patience)
            answer = await transport.send("GET", "/studies", params={"limit": OFFERED})
            with reading():
                page = StudyPage.model_validate_json(answer.content)
        return tuple(one.id for one in page.studies[:OFFERED] if one.state == "running")

    async def play(self, study: str) -> Outcome:
        """Take part in one round of `study`: the next one, if others took the seats of this one."""
        late = time.monotonic() + self.wait
        given = await asyncio.to_thread(self.kept.journal.rounds)
        after = max(given.get(study, ()), default=0)
        async with connect(self.url) as http:
            transport = Transport(http, self.patience)
            while True:
                one = await self._try(transport, study, after, late - time.monotonic())
                is_full = one.end is End.LATE and one.last is None
                if one.round is None or not is_full or time.monotonic() >= late:
                    return one
                after = one.round

    async def _try(self, transport: Transport, study: str, after: int, wait: float) -> Outcome:
        view: RoundView | None = None
        seat: Seat | None = None
        try:
            view, device = await self._enter(transport, study, after, wait)
        except PROBLEMS as problem:
            ending = _why_not(problem)
        else:
            part = part_of(
                transport, view, device, policy=self.policy, secrets=SystemRandom(), chance=system
            )
            ending = await play(part, study)
            seat = part.seat
        return Outcome(
            study,
            ending.end,
            view.number if view else None,
            seat.cohort if seat else None,
            seat.slot if seat else None,
            ending.last,
            transport.traffic.sent,
            transport.traffic.received,
            ending.error,
        )

    async def _enter(
        self, transport: Transport, study: str, after: int, wait: float
    ) -> tuple[RoundView, Device]:
        """Return the round to take part in, and the device as the service knows it there."""
        ticket = await self._let_in(transport, study)
        view = await open_round(transport, study, after, ticket=ticket, patience=wait)
        plan = view.plan
        is_report = plan.mechanism in REPORTING
        if is_report:
            ticket = await self._let_in(transport, None)
        identity = self.kept.identity(self.url, None if is_report else study)
        enrolment = b""
        if plan.registry is not None and self.enrol is not None:
            enrolment = await self.enrol(plan.registry, identity.public)
        given = contribute(plan.question, self.held, self.kept.choices(self.url, study))
        return view, Device(identity, given, self.kept.journal, enrolment, ticket)

    async def _let_in(self, transport: Transport, study: str | None) -> str:
        """See to it that a closed service knows the device in `study`; return its credential.

        A token that is over lets nobody in, but whoever it has let in may stay.
        """
        identity = self.kept.identity(self.url, study)
        credential = self.kept.credential(self.url, study)
        if self.token is not None:
            with suppress(NotAuthorisedError):
                await enrol_device(transport, identity, self.token, credential)
        return credential


def _why_not(problem: Exception) -> Ending:
    """Return how a part ends that `problem` kept from beginning."""
    if isinstance(problem, NoRoundError):
        return Ending(End.NO_ROUND, error=str(problem))
    if isinstance(problem, WrongStateError):
        return Ending(End.OVER, error=str(problem))
    return Ending.of(problem)
