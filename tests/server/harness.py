"""A service in memory over ASGI, and devices that speak real secure aggregation to it."""

import asyncio
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import httpx
import numpy as np
from fastapi import FastAPI

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
from protocol.round import Phase
from secagg.graph import Parameters
from secagg.keys import PublicKeys
from secagg.participant import Cohort, Joined, Masked, Shared, join
from secagg.ring import Ring, Vector

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


class Clock:
    """A clock that stands still until it is told to move."""

    def __init__(self) -> None:
        self.time = NOON

    def __call__(self) -> datetime:
        """Return the time."""
        return self.time

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.time += timedelta(seconds=seconds)


@dataclass
class Device:
    """A device that does what it should, step by step, each step once."""

    client: httpx.AsyncClient
    name: str
    histogram: dict[str, int]
    rng: Random = field(default_factory=lambda: Random(1))
    seat: Seat | None = None

    def __post_init__(self) -> None:
        self.ticket = urlsafe_b64encode(self.rng.randbytes(32)).decode().rstrip("=")
        self.headers = {"Authorization": f"Bearer {self.ticket}"}
        self.joined: Joined = join(self.rng)

    @property
    def path(self) -> str:
        """Return the address of this participant."""
        assert self.seat is not None
        return f"/v1/participants/{self.seat.participant}"

    async def get(self, what: str, wait: float = 10) -> httpx.Response:
        """Ask for something, and wait for it."""
        return await self.client.get(
            f"{self.path}/{what}", params={"wait": wait}, headers=self.headers
        )

    async def put(self, what: str, body: bytes, **headers: str) -> httpx.Response:
        """Say something."""
        kind = {"Content-Type": "application/octet-stream"}
        return await self.client.put(
            f"{self.path}/{what}", content=body, headers=kind | self.headers | headers
        )

    async def join(self, study: str, view: RoundView) -> Seat:
        """Take a seat in the round."""
        self.view = view
        response = await self.apply(study, view.number)
        assert response.status_code == 201, response.text
        self.seat = Seat.model_validate_json(response.content)
        return self.seat

    async def apply(self, study: str, number: int) -> httpx.Response:
        """Ask for a seat in the round."""
        keys = self.joined.public
        wish = Join(
            device=self.name,
            mask_key=keys.mask.hex(),
            seal_key=keys.seal.hex(),
            commitment=self.joined.commitment.hex(),
        )
        return await self.client.post(
            f"/v1/studies/{study}/rounds/{number}/participants",
            json=wish.model_dump(),
            headers=self.headers,
        )

    async def compute_envelopes(self) -> bytes:
        """Take the step after the roster; return what to say."""
        response = await self.get("roster")
        assert response.status_code == 200, response.text
        roster = Roster.model_validate_json(response.content)
        assert self.seat is not None
        plan = self.view.plan
        cohort = Cohort(
            session=plan.session(self.seat.cohort),
            parameters=Parameters(roster.n, roster.degree, roster.threshold, 0),
            assumptions=plan.terms.assumptions,
            seed=bytes.fromhex(roster.seed),
            digest=bytes.fromhex(roster.digest),
        )
        keys = {
            one.slot: PublicKeys(bytes.fromhex(one.mask_key), bytes.fromhex(one.seal_key))
            for one in roster.neighbours
        }
        self.shared: Shared
        self.shared, envelopes = self.joined.share(roster.slot, cohort, keys, self.rng)
        return pack_envelopes(envelopes)

    async def share(self) -> None:
        """Hear the roster, send the envelopes."""
        self.envelopes = await self.compute_envelopes()
        assert (await self.put("envelopes", self.envelopes)).status_code == 204

    @property
    def ring(self) -> Ring:
        """Return the ring of the round."""
        return MECHANISMS["adaptive-iblt"].ring(self.view.plan)

    async def compute_vector(self) -> bytes:
        """Take the step after the envelopes; return what to say."""
        response = await self.get("envelopes")
        assert response.status_code == 200, response.text
        plan, chance = self.view.plan, np.random.default_rng(self.rng.getrandbits(64))
        self.vector: Vector = MECHANISMS["adaptive-iblt"].encode(plan, self.histogram, chance)
        self.masked: Masked
        received = unpack_envelopes(response.content)
        self.masked, masked = self.shared.mask(received, self.ring, self.vector)
        return self.ring.pack(masked)

    async def mask(self) -> None:
        """Hear the envelopes, send the vector."""
        self.body = await self.compute_vector()
        assert (await self.put("vector", self.body)).status_code == 204

    async def compute_reveal(self) -> bytes:
        """Take the step after the survivors; return what to say."""
        response = await self.get("survivors")
        assert response.status_code == 200, response.text
        told = Survivors.model_validate_json(response.content)
        return pack_reveal(self.masked.reveal(told.survivors, told.lost))

    async def reveal(self) -> None:
        """Hear the survivors, send the shares."""
        self.shares = await self.compute_reveal()
        assert (await self.put("reveal", self.shares)).status_code == 204


@dataclass
class Served:
    """A running service, and what to ask it."""

    app: FastAPI
    client: httpx.AsyncClient
    clock: Clock

    async def create(self, **changes: Any) -> str:
        """Create a small study with `changes`; return its id."""
        response = await self.client.post("/v1/studies", json=study_request(**changes))
        assert response.status_code == 201, response.text
        return str(response.json()["id"])

    async def open_round(self, study: str, after: int = 0) -> RoundView:
        """Return the round after `after` once it is open."""
        path = f"/v1/studies/{study}/rounds/open"
        response = await self.client.get(path, params={"after": after, "wait": 10})
        assert response.status_code == 200, response.text
        return RoundView.model_validate_json(response.content)

    async def show_round(self, study: str, number: int = 1) -> RoundView:
        """Return a round as it is."""
        response = await self.client.get(f"/v1/studies/{study}/rounds/{number}")
        assert response.status_code == 200, response.text
        return RoundView.model_validate_json(response.content)

    async def until_closed(self, study: str, number: int = 1) -> RoundView:
        """Return a round once it is over."""
        for _ in range(1000):
            view = await self.show_round(study, number)
            if view.state != "running":
                return view
            await self.tick()
        raise AssertionError("the round did not close")

    async def tick(self) -> None:
        """Let the service look at its cohorts now."""
        self.app.state.service.orchestrator.wake()
        await asyncio.sleep(0.01)

    async def pass_phase(self, study: str, number: int = 1) -> Phase:
        """Let time pass until the first cohort's phase is over; return the next one."""
        before = (await self.show_round(study, number)).cohorts[0].phase
        for _ in range(1000):
            await self.tick()
            after = (await self.show_round(study, number)).cohorts[0].phase
            if after is not before:
                return after
            self.clock.advance(6)
        raise AssertionError(f"the cohort stays in {before}")

    async def read_sum(self, study: str, number: int = 1) -> bytes:
        """Return the packed sum of the first cohort."""
        path = f"/v1/studies/{study}/rounds/{number}/cohorts/0/sum"
        response = await self.client.get(path)
        assert response.status_code == 200, response.text
        return response.content

    async def join(self, study: str, count: int, after: int = 0, first: int = 0) -> list[Device]:
        """Let devices of numbers from `first` on join; the same number is the same device."""
        view = await self.open_round(study, after)
        devices = [
            Device(
                self.client,
                f"device-{after}-{number}",
                {"ab": 1, "abc"[: 1 + number % 3]: 1},
                Random(1000 * after + number),
            )
            for number in range(first, first + count)
        ]
        for device in devices:
            await device.join(study, view)
        return devices


def study_request(**changes: Any) -> dict[str, Any]:
    """Return a small study: cohorts of up to 6 that bear the loss of 2."""
    request: dict[str, Any] = {
        "name": "letters",
        "question": {
            "mechanism": "adaptive-iblt",
            "threshold": 4,
            "contribution": 2,
            "domain": {"kind": "utf8", "max_bytes": 3},
            "words": 2000,
        },
        "terms": {"cohort_size": 6, "minimum": 3, "corrupt": 0.1, "dropout": 0.35},
        "rounds": 1,
        "start": True,
    }
    return request | changes


async def play(
    served: Served,
    study: str,
    *,
    lost: Sequence[Sequence[int]] = ((), (), ()),
    after: int = 0,
    count: int = 6,
) -> list[Device]:
    """Play a round; return the devices whose vectors are in its sum.

    `lost` names, by slot, who leaves before sharing, before masking, and before revealing.
    """
    devices = await served.join(study, count, after)
    everybody, masked = list(devices), devices
    for step, gone in zip(("share", "mask", "reveal"), lost, strict=True):
        devices = [device for device in devices if everybody.index(device) not in gone]
        tasks = [asyncio.create_task(getattr(device, step)()) for device in devices]
        if gone:  # the others hear no more once a quorum's patience is over
            await asyncio.wait(tasks)
            await served.pass_phase(study, after + 1)
        await asyncio.gather(*tasks)
        masked = devices if step == "mask" else masked
    return masked


def sum_of(devices: Sequence[Device]) -> bytes:
    """Return the packed sum of the devices' own, unmasked vectors."""
    total = devices[0].ring.zero()
    for device in devices:
        device.ring.add(total, device.vector)
    return devices[0].ring.pack(total)
