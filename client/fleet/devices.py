"""Devices of a fleet in one process: their identities and journals, and their part in a round."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from random import SystemRandom
from typing import Final, TypeAlias

import httpx
import numpy as np

from client.device.device import DeviceStep, StudyDevice
from client.device.driver import (
    PARTICIPATION_ERRORS,
    ProgressCallback,
    RoundEnd,
    enrol_device,
    participation_type,
    run_participation,
)
from client.device.encoding import make_contribution
from client.device.journal import JournalEntry, MemoryJournal
from client.fleet.behaviour import DeviceBehaviour
from client.fleet.config_and_results import DeviceResult, FleetConfig
from client.http.transport import Transport
from client.process_files import check_open_files
from protocol.api.credentials import new_secret
from protocol.api.messages import RoundView, StudyView
from protocol.api.one_shot import SUM_NUMBER
from protocol.device_policy.plan_check import max_copies
from protocol.histograms import Histogram
from protocol.mechanisms.registry import AnyPlan
from protocol.randomness import seeded_words, system_words
from secagg.keys import KEY_BYTES, Identity, sharing_work
from secagg.session import Registry

ClientFactory: TypeAlias = Callable[[], httpx.AsyncClient]  # used by one device at a time
MAX_TURNS: Final = 64  # of devices of one process that send a message and wait for no other
Holdings: TypeAlias = Sequence[Histogram] | Mapping[int, Histogram]


@dataclass(frozen=True, slots=True)
class DeviceSnapshot:
    """A device as plain data, for another process: see `client.device.device.StudyDevice`."""

    index: int
    secret: bytes = field(repr=False)  # of its identity
    journal_entries: tuple[JournalEntry, ...]
    enrolment: bytes
    credential: str = field(repr=False)
    is_enrolled: bool  # at a closed service
    behaviour: DeviceBehaviour


@dataclass
class _Member:
    """State that a device of a fleet keeps from round to round."""

    secret: bytes = field(repr=False)  # of its identity
    journal: MemoryJournal
    enrolment: bytes
    credential: str = field(repr=False)
    is_enrolled: bool  # at a closed service

    @cached_property
    def identity(self) -> Identity:
        return Identity.of(self.secret)  # as slow as an agreement


@dataclass
class FleetDevices:
    """The devices with `holdings`, one histogram each, in `study`."""

    connect: ClientFactory
    study: StudyView
    holdings: Holdings
    config: FleetConfig
    _members: dict[int, _Member] = field(default_factory=dict, init=False)  # of earlier selections
    _secrets: SystemRandom = field(default_factory=SystemRandom, init=False)

    @cached_property
    def _registry(self) -> Registry | None:
        return self.study.registry  # hashes the question

    def eligible(self, number: int) -> list[int]:
        """Return the devices that may still contribute to round `number`."""
        repeats = self.study.question.asks_every_round
        ineligible = set()
        for index, member in self._members.items():
            rounds = member.journal.rounds_by_study().get(self.study.id, ())
            if number in rounds if repeats else rounds:
                ineligible.add(index)
        return [index for index in range(len(self.holdings)) if index not in ineligible]

    async def run_round(
        self,
        view: RoundView,
        behaviours: Mapping[int, DeviceBehaviour],
        on_progress: ProgressCallback = lambda _step: None,
    ) -> tuple[DeviceResult, ...]:
        """Let devices take part in the round of `view`, all at once.

        Devices that wait for no other take turns: `MAX_TURNS` of them make and send their messages
        at the same time, over one connection each, which the next ones use again. Otherwise
        thousands would prepare their messages before the first one is sent. A slow device pauses
        before its turn. Devices of this process verify each signature once, and two devices agree
        on a secret once.

        Raises:
            OpenFilesError: if this process may not open a connection for each device that waits.
        """

        async def run(index: int, behaviour: DeviceBehaviour) -> DeviceResult:
            await asyncio.sleep(behaviour.arrival_seconds)
            async with self.connect() as http:
                return await self._run_device(http, view, index, behaviour, on_progress)

        with sharing_work():
            if participation_type(view.plan).has_one_step:
                return await self._run_in_turns(view, behaviours, on_progress)
            check_open_files(len(behaviours))
            return await _gather(run(*device) for device in behaviours.items())

    async def _run_in_turns(
        self,
        view: RoundView,
        behaviours: Mapping[int, DeviceBehaviour],
        on_progress: ProgressCallback,
    ) -> tuple[DeviceResult, ...]:
        turns, idle = asyncio.Semaphore(MAX_TURNS), list[httpx.AsyncClient]()

        async def run(index: int, behaviour: DeviceBehaviour) -> DeviceResult:
            await asyncio.sleep(behaviour.arrival_seconds + sum(behaviour.pause_seconds[:1]))
            behaviour = replace(behaviour, pause_seconds=())
            async with turns:
                http = idle.pop() if idle else await clients.enter_async_context(self.connect())
                try:
                    return await self._run_device(http, view, index, behaviour, on_progress)
                finally:
                    idle.append(http)

        async with AsyncExitStack() as clients:
            return await _gather(run(*device) for device in behaviours.items())

    @asynccontextmanager
    async def transport(self) -> AsyncIterator[Transport]:
        async with self.connect() as http:
            yield Transport(http, self.config.patience)

    async def _run_device(
        self,
        http: httpx.AsyncClient,
        view: RoundView,
        index: int,
        behaviour: DeviceBehaviour,
        on_progress: ProgressCallback,
    ) -> DeviceResult:
        member, config = self._member(index), self.config
        device = self._device(index, member, view.plan)
        transport = Transport(http, self.config.patience)
        participation = participation_type(view.plan)(
            transport,
            view,
            device,
            policy=config.policy,
            secrets=self._secrets,
            chance=system_words,
        )
        try:
            await self._ensure_enrolled(transport, member)
        except PARTICIPATION_ERRORS as error:
            end = RoundEnd.of(error)
            on_progress(end.state)
        else:
            end = await run_participation(
                participation,
                self.study.id,
                on_progress,
                behaviour.last_step,
                behaviour.pause_seconds,
            )
        assignment, seat = participation.assignment, (-1, -1)
        if assignment is not None and assignment.slot is not None:
            seat = assignment.seat
        elif end.last_step is DeviceStep.SENT:
            seat = (SUM_NUMBER, -1)
        return DeviceResult(
            index,
            end.state,
            end.last_step,
            *seat,
            transport.traffic,
            device.contribution,
            participation.vector,
            end.error,
            end.policy_error,
        )

    async def credentials(self, index: int) -> tuple[Identity, bytes, str]:
        """Return the identity, the enrolment and the credential of a device, enrolled if needed.

        Raises:
            ServiceError, ServiceUnreachableError: if a closed service does not enrol it.
        """
        member = self._member(index)
        if self.config.token is not None:
            async with self.transport() as transport:
                await self._ensure_enrolled(transport, member)
        return member.identity, member.enrolment, member.credential

    async def _ensure_enrolled(self, transport: Transport, member: _Member) -> None:
        token = self.config.token
        if token is not None and not member.is_enrolled:
            await enrol_device(transport, member.identity, token, member.credential)
            member.is_enrolled = True

    def _member(self, index: int) -> _Member:
        if index not in self._members:
            secret = self._secrets.randbytes(KEY_BYTES)
            credential = new_secret(self._secrets) if self.config.token else ""
            member = _Member(secret, MemoryJournal(), b"", credential, is_enrolled=False)
            member.enrolment = sign_enrolment(
                self.config.registrar, self._registry, member.identity
            )
            self._members[index] = member
        return self._members[index]

    def _device(self, index: int, member: _Member, plan: AnyPlan) -> StudyDevice:
        """Return a device with what `client.device.take_part` would contribute to `plan`."""
        contribution = make_contribution(
            plan.question,
            self.holdings[index],
            seeded_words(np.random.default_rng([self.config.seed, index])),
            max_copies(self.config.policy, plan),
        )
        return StudyDevice(
            member.identity, contribution, member.journal, member.enrolment, member.credential
        )

    def snapshot(self, index: int, behaviour: DeviceBehaviour) -> DeviceSnapshot:
        member = self._member(index)
        return DeviceSnapshot(
            index,
            member.secret,
            member.journal.entries,
            member.enrolment,
            member.credential,
            member.is_enrolled,
            behaviour,
        )

    def restore(self, snapshot: DeviceSnapshot) -> None:
        self._members[snapshot.index] = _Member(
            snapshot.secret,
            MemoryJournal(snapshot.journal_entries),
            snapshot.enrolment,
            snapshot.credential,
            snapshot.is_enrolled,
        )

    def journal_entries(self, index: int) -> tuple[JournalEntry, ...]:
        return self._members[index].journal.entries

    def update(self, result: DeviceResult, entries: Sequence[JournalEntry]) -> None:
        """Store the journal that a device has after its part in another process."""
        member = self._members[result.device]
        member.journal = MemoryJournal(entries)
        member.is_enrolled = member.is_enrolled or result.last_step is not None


async def _gather(parts: Iterable[Coroutine[None, None, DeviceResult]]) -> tuple[DeviceResult, ...]:
    """Return the results of all parts, which run together; an error cancels the others."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(part) for part in parts]
    return tuple(task.result() for task in tasks)


def sign_enrolment(
    registrar: Identity | None, registry: Registry | None, identity: Identity
) -> bytes:
    """Return the enrolment of `identity` in a study's `registry`, empty without a registrar."""
    if registrar is None or registry is None:
        return b""
    return registrar.sign(registry.enrolment_statement(identity.public))
