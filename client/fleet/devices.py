"""Devices of a fleet in one process: their identities and journals, and their part in a round."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from random import SystemRandom
from typing import TypeAlias

import httpx
import numpy as np

from client.device.device import Device
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
from client.fleet.config import DeviceResult, FleetConfig
from client.transport import Transport
from protocol.api.credentials import new_secret
from protocol.api.messages import RoundView, StudyView
from protocol.histograms import Histogram
from protocol.randomness import system_words
from secagg.keys import KEY_BYTES, Identity

ClientFactory: TypeAlias = Callable[[], httpx.AsyncClient]  # one client per device
Holdings: TypeAlias = Sequence[Histogram] | Mapping[int, Histogram]


@dataclass(frozen=True, slots=True)
class DeviceSnapshot:
    """A device as plain data, for another process: see `client.device.device.Device`."""

    index: int
    secret: bytes = field(repr=False)  # of its identity
    journal_entries: tuple[JournalEntry, ...]
    enrolment: bytes
    credential: str = field(repr=False)
    is_enrolled: bool  # at a closed service
    behaviour: DeviceBehaviour


@dataclass
class FleetDevices:
    """The devices with `holdings`, one histogram each, in `study`."""

    connect: ClientFactory
    study: StudyView
    holdings: Holdings
    config: FleetConfig
    _devices: dict[int, Device] = field(default_factory=dict, init=False)  # of earlier selections
    _identity_secrets: dict[int, bytes] = field(default_factory=dict, init=False)
    _enrolled: set[bytes] = field(default_factory=set, init=False)  # at a closed service
    _secrets: SystemRandom = field(default_factory=SystemRandom, init=False)

    def eligible(self, number: int) -> list[int]:
        """Return the devices that may still contribute to round `number`."""
        repeats = self.study.question.asks_every_round
        ineligible = set()
        for index, device in self._devices.items():
            rounds = device.journal.rounds_by_study().get(self.study.id, ())
            if number in rounds if repeats else rounds:
                ineligible.add(index)
        return [index for index in range(len(self.holdings)) if index not in ineligible]

    async def run_round(
        self,
        view: RoundView,
        behaviours: Mapping[int, DeviceBehaviour],
        on_progress: ProgressCallback = lambda _step: None,
    ) -> tuple[DeviceResult, ...]:
        """Let devices take part in the round of `view`, all at once."""
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._run_device(view, index, behaviour, on_progress))
                for index, behaviour in behaviours.items()
            ]
        return tuple(task.result() for task in tasks)

    @asynccontextmanager
    async def transport(self) -> AsyncIterator[Transport]:
        async with self.connect() as http:
            yield Transport(http, self.config.patience)

    async def _run_device(
        self, view: RoundView, index: int, behaviour: DeviceBehaviour, on_progress: ProgressCallback
    ) -> DeviceResult:
        await asyncio.sleep(behaviour.arrival_seconds)
        device, config = self._device(index), self.config
        async with self.transport() as transport:
            participation = participation_type(view.plan)(
                transport,
                view,
                device,
                policy=config.policy,
                secrets=self._secrets,
                chance=system_words,
            )
            try:
                await self._ensure_enrolled(transport, device)
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
        assignment = participation.assignment
        is_seated = assignment is not None and assignment.slot is not None
        return DeviceResult(
            index,
            end.state,
            end.last_step,
            *(assignment.seat if assignment and is_seated else (-1, -1)),
            transport.traffic,
            device.contribution,
            participation.vector,
            end.error,
            end.policy_error,
        )

    async def _ensure_enrolled(self, transport: Transport, device: Device) -> None:
        token, public = self.config.token, device.identity.public
        if token is not None and public not in self._enrolled:
            await enrol_device(transport, device.identity, token, device.credential)
            self._enrolled.add(public)

    def _device(self, index: int) -> Device:
        if index not in self._devices:
            secret = self._secrets.randbytes(KEY_BYTES)
            enrolment = sign_enrolment(self.config.registrar, self.study, Identity.of(secret))
            credential = new_secret(self._secrets) if self.config.token else ""
            self._create(index, secret, MemoryJournal(), enrolment, credential)
        return self._devices[index]

    def _create(
        self, index: int, secret: bytes, journal: MemoryJournal, enrolment: bytes, credential: str
    ) -> None:
        rng = np.random.default_rng([self.config.seed, index])
        contribution = make_contribution(self.study.question, self.holdings[index], rng)
        self._identity_secrets[index] = secret
        self._devices[index] = Device(
            Identity.of(secret), contribution, journal, enrolment, credential
        )

    def snapshot(self, index: int, behaviour: DeviceBehaviour) -> DeviceSnapshot:
        device = self._device(index)
        return DeviceSnapshot(
            index,
            self._identity_secrets[index],
            self.journal_entries(index),
            device.enrolment,
            device.credential,
            device.identity.public in self._enrolled,
            behaviour,
        )

    def restore(self, snapshot: DeviceSnapshot) -> None:
        self._create(
            snapshot.index,
            snapshot.secret,
            MemoryJournal(snapshot.journal_entries),
            snapshot.enrolment,
            snapshot.credential,
        )
        if snapshot.is_enrolled:
            self._enrolled.add(self._devices[snapshot.index].identity.public)

    def journal_entries(self, index: int) -> tuple[JournalEntry, ...]:
        journal = self._devices[index].journal
        assert isinstance(journal, MemoryJournal)  # `_create` made it
        return journal.entries

    def update(self, result: DeviceResult, entries: Sequence[JournalEntry]) -> None:
        """Store the journal that a device has after its part in another process."""
        device = replace(self._devices[result.device], journal=MemoryJournal(entries))
        self._devices[result.device] = device
        if result.last_step is not None:
            self._enrolled.add(device.identity.public)


def sign_enrolment(registrar: Identity | None, study: StudyView, identity: Identity) -> bytes:
    """Return the enrolment of `identity` for `study`, empty without a registrar."""
    registry = study.registry
    if registrar is None or registry is None:
        return b""
    return registrar.sign(registry.enrolment_statement(identity.public))
