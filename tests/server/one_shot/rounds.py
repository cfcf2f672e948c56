"""One-shot rounds over ASGI: devices with one message each, and members of the committee."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import SystemRandom
from typing import Any, Protocol

import httpx
import numpy as np

from client.committee.member import CommitteeMember, MemberPolicy
from client.committee.member_journal import MemberJournal
from client.device.device import DeviceStep, StudyDevice
from client.device.encoding import Contribution
from client.device.journal import MemoryJournal
from client.device.one_shot import OneShotParticipation
from client.http.transport import Transport
from protocol.api.messages import CommitteeRound, RoundView
from protocol.api.phases import Phase
from protocol.device_policy.policy import Policy
from protocol.mechanisms.registry import SUM_MECHANISMS
from protocol.randomness import seeded_words
from secagg.keys import Identity
from secagg.ring import Vector
from tests.server.harness import Served

OPERATORS = tuple(Identity.of(bytes([n]) * 32) for n in range(1, 8))
PINNED = tuple(operator.public.hex() for operator in OPERATORS)
MINIMUM = 4
TERMS: dict[str, Any] = {
    "cohort_size": 60,
    "minimum": MINIMUM,
    "sum": "one-shot",
    "committee": {"members": PINNED},
}
POLICY = Policy(
    min_cohort=MINIMUM,
    min_threshold=0,
    committee=frozenset(operator.public for operator in OPERATORS),
    trust_server_identities=True,
)
MEMBER_POLICY = MemberPolicy(min_devices=MINIMUM, serve_unverified=True)
TIMEOUTS = {"collecting": 30, "idle": 5}


@dataclass
class Members:
    """Members of a committee, or volunteers for one; those in `away` do nothing."""

    members: list[CommitteeMember]
    away: set[int] = field(default_factory=set)
    refusals: list[str] = field(default_factory=list)

    async def act(self, served: Served) -> None:
        """Let each present member take the steps that wait for it now."""
        async with transport_to(served) as transport:
            for number, member in enumerate(self.members):
                if number not in self.away:
                    await member.act(transport, report=self._report)

    def _report(self, pending: CommitteeRound, refusal: str) -> None:
        if refusal:
            self.refusals.append(f"{pending.phase}: {refusal}")


class Operators(Members):
    """The operators of a committee."""

    @classmethod
    def of(
        cls, journals: Sequence[MemberJournal] = (), identities: Sequence[Identity] = OPERATORS
    ) -> "Operators":
        """Return the operators, with fresh journals unless some are given."""
        kept = journals or [MemberJournal() for _ in identities]
        pairs = zip(identities, kept, strict=True)
        return cls([CommitteeMember(each, journal, MEMBER_POLICY) for each, journal in pairs])

    async def erase_spent_keys(self, served: Served, time: float) -> list[int]:
        """Let the members, whose clocks show `time`, erase keys; return the numbers they keep."""
        async with transport_to(served) as transport:
            for member in self.members:
                member.clock = lambda: time
                await member.erase_spent_keys(transport)
        return [len(member.journal.kept_keys()) for member in self.members]


@asynccontextmanager
async def transport_to(served: Served, **headers: str) -> AsyncIterator[Transport]:
    """Yield the transport of one client of a service."""
    asgi = httpx.ASGITransport(served.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(
        transport=asgi, base_url="http://test/v1", headers=headers
    ) as http:
        yield Transport(http, 5)


async def create(served: Served, **changes: Any) -> str:
    """Create a one-shot study; return its id."""
    return await served.create(**{"terms": TERMS, "timeouts": TIMEOUTS} | changes)


async def convene(served: Served, study: str, operators: Operators, number: int = 1) -> RoundView:
    """Let the operators register their keys until the round collects messages; return it."""
    await operators.act(served)
    if operators.away:
        await served.pass_phase(study, number)
    await served.until_phase(study, "collecting", number)
    return await served.open_round(study, number - 1)


def one_shot_device(index: int, journal: MemoryJournal | None = None) -> StudyDevice:
    """Return the device with a number, and items that depend on it."""
    items = {"ab": 1, "abc"[: 1 + index % 3]: 1}
    identity = Identity.of(b"d" * 28 + index.to_bytes(4, "big"))
    return StudyDevice(identity, Contribution(items), journal or MemoryJournal())


async def send(
    served: Served, view: RoundView, device: StudyDevice, policy: Policy = POLICY
) -> Vector:
    """Let a device take part in the open round; return its vector, as it encoded it."""
    async with transport_to(served) as transport:
        part = OneShotParticipation(
            transport,
            view,
            device,
            policy=policy,
            secrets=SystemRandom(),
            chance=seeded_words(np.random.default_rng([*device.identity.public])),
        )
        steps = [step async for step in part.steps(view.plan.study)]
    assert steps == [DeviceStep.SENT]
    assert part.vector is not None
    return part.vector


async def send_all(served: Served, view: RoundView, indices: Sequence[int]) -> Mapping[int, Vector]:
    """Let devices send their messages, one after the other; return their vectors."""
    return {index: await send(served, view, one_shot_device(index)) for index in indices}


def sum_of_vectors(view: RoundView, vectors: Sequence[Vector]) -> bytes:
    """Return the packed sum of vectors, as the service publishes it."""
    ring = SUM_MECHANISMS[view.plan.mechanism].ring(view.plan)
    total = ring.zero()
    for vector in vectors:
        ring.add(total, vector)
    packed: bytes = ring.pack(total)
    return packed


class Committee(Protocol):
    """Parties that may be members of a committee."""

    async def act(self, served: Served) -> None:
        """Take the steps that wait now."""


async def open_sum(served: Served, study: str, operators: Committee, number: int = 1) -> RoundView:
    """Let the members act, and time pass where some do not, until the round is over; return it."""
    while not (phase := await phase_of(served, study, number)).is_over:
        if phase is not Phase.COLLECTING:
            await operators.act(served)
        if phase is Phase.RELEASING:  # a job makes the sum, and no time needs to pass meanwhile
            for _ in range(20):
                if await phase_of(served, study, number) is not phase:
                    break
                await served.tick()
        await served.pass_phase(study, number, phase)
    return await served.until_closed(study, number)


async def phase_of(served: Served, study: str, number: int = 1) -> Phase:
    """Return the phase of a one-shot round."""
    return (await served.show_round(study, number)).cohorts[0].phase
