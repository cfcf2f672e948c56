"""One device in one round: the steps of `secagg.participant`, said over HTTP.

    join -> [roster] share -> [envelopes] mask -> [survivors] reveal

In brackets what is awaited before a step. `Participation.steps` yields after each, so that
whoever drives it can stop there: that device has vanished, as far as the others can tell.
Each step is computed once and its bytes are sent until they arrive, never computed again.
The device checks what it is told against its policy before the step that depends on it.
"""

import asyncio
from base64 import urlsafe_b64encode
from collections.abc import AsyncGenerator, Callable, Collection
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import TypeVar
from urllib.parse import quote

import numpy as np

from client.encoding import Contribution, encode
from client.policy import Policy
from client.transport import Transport
from protocol.mechanisms import MECHANISMS
from protocol.messages import (
    Join,
    Roster,
    RoundView,
    Seat,
    Survivors,
    pack_envelopes,
    pack_reveal,
    unpack_envelopes,
)
from secagg.errors import RefusedError
from secagg.graph import Parameters
from secagg.keys import PublicKeys
from secagg.participant import Cohort, Joined, Masked, Shared, join
from secagg.ring import Ring, Vector

TICKET_BYTES = 32
MUCH = 4 * 2**20  # bytes of masks: from some 10 ms on, the event loop should go on meanwhile
M = TypeVar("M")
T = TypeVar("T")


class Step(StrEnum):
    """What a device has just done."""

    JOINED = "joined"
    SHARED = "shared"
    MASKED = "masked"
    REVEALED = "revealed"


@dataclass(frozen=True, slots=True)
class Device:
    """A device's name in one study, its contribution, and the sums it is in already."""

    name: str
    contribution: Contribution = field(repr=False)
    counted: Collection[str] = ()


class Participation:
    """The part that `device` takes in the round that `view` shows.

    `secrets` makes keys, seeds and tickets and must be the system's randomness; `chance`
    only samples what is sent, and may be seeded. `seat` is known once the device has joined,
    `vector` (unmasked, as it was encoded) once it has masked.
    """

    def __init__(
        self,
        transport: Transport,
        view: RoundView,
        device: Device,
        *,
        policy: Policy,
        secrets: Random,
        chance: np.random.Generator,
    ) -> None:
        self.seat: Seat | None = None
        self.vector: Vector | None = None
        self._transport = transport
        self._plan = view.plan
        self._number = view.number
        self._device = device
        self._policy = policy
        self._secrets = secrets
        self._chance = chance
        self._ticket = ""

    async def steps(self, study: str) -> AsyncGenerator[Step]:
        """Take part in a round of `study`, step by step.

        Raises:
            RefusedError: if the service asks for more than the policy gives, or for what
                would weaken the sum.
            ServiceError: if the service refuses a message: `LeftOutError`,
                `CohortFailedError` and so on.
            httpx.TransportError: if the service is out of reach for too long.
        """
        self._policy.check_plan(self._plan, study, self._number, self._device.counted)
        joined, seat = await self._join(study)
        yield Step.JOINED
        shared = await self._share(joined, seat)
        yield Step.SHARED
        masked = await self._mask(shared)
        yield Step.MASKED
        await self._reveal(masked)
        yield Step.REVEALED

    async def _join(self, study: str) -> tuple[Joined, Seat]:
        joined = join(self._secrets)
        keys = joined.public
        self._ticket = new_ticket(self._secrets)
        asked = Join(
            device=self._device.name,
            mask_key=keys.mask.hex(),
            seal_key=keys.seal.hex(),
            commitment=joined.commitment.hex(),
        )
        path = f"/studies/{study}/rounds/{self._number}/participants"
        answer = await self._transport.send(
            "POST", path, content=asked.model_dump_json().encode(), ticket=self._ticket
        )
        self.seat = _read(Seat.model_validate_json, answer.content)
        return joined, self.seat

    async def _share(self, joined: Joined, seat: Seat) -> Shared:
        roster = _read(Roster.model_validate_json, await self._hear("roster"))
        self._policy.check_roster(self._plan, seat, roster)
        cohort = self._cohort(seat, roster)
        keys = _read(_keys, roster)
        shared, envelopes = joined.share(roster.slot, cohort, keys, self._secrets)
        await self._say("envelopes", pack_envelopes(envelopes))
        return shared

    async def _mask(self, shared: Shared) -> Masked:
        envelopes = _read(unpack_envelopes, await self._hear("envelopes"))
        ring: Ring = MECHANISMS[self._plan.question.mechanism].ring(self._plan)
        if len(envelopes) * ring.nbytes < MUCH:
            masked, body = self._put_on(shared, envelopes, ring)
        else:
            masked, body = await asyncio.to_thread(self._put_on, shared, envelopes, ring)
        await self._say("vector", body)
        return masked

    def _put_on(
        self, shared: Shared, envelopes: dict[int, bytes], ring: Ring
    ) -> tuple[Masked, bytes]:
        self.vector = encode(self._plan, self._device.contribution, self._chance)
        masked, vector = shared.mask(envelopes, ring, self.vector)
        return masked, ring.pack(vector)

    async def _reveal(self, masked: Masked) -> None:
        told = _read(Survivors.model_validate_json, await self._hear("survivors"))
        await self._say("reveal", pack_reveal(masked.reveal(told.survivors, told.lost)))

    def _cohort(self, seat: Seat, roster: Roster) -> Cohort:
        return Cohort(
            session=self._plan.session(seat.cohort),
            parameters=Parameters(roster.n, roster.degree, roster.threshold, slack=0),
            assumptions=self._plan.terms.assumptions,
            seed=bytes.fromhex(roster.seed),
            digest=bytes.fromhex(roster.digest),
        )

    async def _hear(self, what: str) -> bytes:
        return (await self._transport.poll(self._path(what), self._ticket)).content

    async def _say(self, what: str, body: bytes) -> None:
        await self._transport.send("PUT", self._path(what), content=body, ticket=self._ticket)

    def _path(self, what: str) -> str:
        assert self.seat is not None  # `steps` joins first
        return f"/participants/{quote(self.seat.participant, safe='')}/{what}"


def new_ticket(secrets: Random) -> str:
    """Return a fresh ticket: 32 random bytes in base64url, 43 characters."""
    return urlsafe_b64encode(secrets.randbytes(TICKET_BYTES)).rstrip(b"=").decode()


def _keys(roster: Roster) -> dict[int, PublicKeys]:
    return {
        other.slot: PublicKeys(bytes.fromhex(other.mask_key), bytes.fromhex(other.seal_key))
        for other in roster.neighbours
    }


def _read(parse: Callable[[M], T], said: M) -> T:
    """Return what the service said; leave if it cannot be read."""
    try:
        return parse(said)
    except ValueError as error:  # pydantic's among them
        raise RefusedError(f"sent what cannot be read: {error}") from error
