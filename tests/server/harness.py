"""A service in memory over ASGI, and devices that speak real secure aggregation to it."""

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from random import Random
from typing import Any

import httpx
import numpy as np
from fastapi import FastAPI

from protocol.mechanisms import MECHANISMS
from protocol.messages import (
    Join,
    RoundView,
    Seat,
    Survivors,
    join_statement,
    unpack_confirmations,
    unpack_parcels,
    unpack_roster,
    unpack_sharers,
)
from protocol.round import Phase
from secagg.cohort import Cohort, View
from secagg.keys import Identity
from secagg.participant import Confirmed, Joined, Masked, Shared, join
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
        self.identity = Identity.of(sha256(self.name.encode()).digest())  # kept over rounds
        self.joined: Joined = join(self.identity, self.rng)

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
        wish = self.wish()
        return await self.client.post(
            f"/v1/studies/{study}/rounds/{number}/participants",
            json=wish.model_dump(),
            headers=self.headers,
        )

    def wish(self) -> Join:
        """Return what to say to join the round in view."""
        keys, ticket = self.joined.public, urlsafe_b64decode(self.ticket + "=")
        said = join_statement(self.view.plan, keys, sha256(ticket).digest())
        return Join(
            identity=self.identity.public.hex(),
            mask_key=keys.mask.hex(),
            seal_key=keys.seal.hex(),
            signature=self.identity.sign(said).hex(),
        )

    async def compute_shares(self) -> bytes:
        """Take the step after the roster; return what to say."""
        response = await self.get("roster")
        assert response.status_code == 200, response.text
        roster = unpack_roster(response.content, has_registrar=False)
        assert self.seat is not None
        plan = self.view.plan
        self.cohort = Cohort(plan.session(self.seat.cohort), roster, plan.terms.assumptions)
        self.shared: Shared
        self.shared, deal = self.joined.share(self.seat.slot, self.cohort, self.rng)
        return deal.pack()

    async def share(self) -> None:
        """Hear the roster, share the mask key."""
        self.deal = await self.compute_shares()
        assert (await self.put("shares", self.deal)).status_code == 204

    @property
    def ring(self) -> Ring:
        """Return the ring of the round."""
        return MECHANISMS["adaptive-iblt"].ring(self.view.plan)

    async def compute_vector(self) -> bytes:
        """Take the step after the sharers; return what to say."""
        response = await self.get("sharers")
        assert response.status_code == 200, response.text
        plan, chance = self.view.plan, np.random.default_rng(self.rng.getrandbits(64))
        self.vector: Vector = MECHANISMS["adaptive-iblt"].encode(plan, self.histogram, chance)
        self.masked: Masked
        graph = View(self.cohort, unpack_sharers(response.content))
        self.masked, upload = self.shared.mask(graph, self.ring, self.vector, self.rng)
        return upload.pack()

    async def mask(self) -> None:
        """Hear the sharers, send the vector."""
        self.body = await self.compute_vector()
        assert (await self.put("vector", self.body)).status_code == 204

    async def compute_confirmation(self) -> bytes:
        """Take the step after the survivors; return what to say."""
        response = await self.get("survivors")
        assert response.status_code == 200, response.text
        told = Survivors.model_validate_json(response.content)
        self.confirmed: Confirmed
        self.confirmed, signature = self.masked.confirm(told.survivors)
        return signature

    async def confirm(self) -> None:
        """Hear the survivors, sign them."""
        self.confirmation = await self.compute_confirmation()
        assert (await self.put("confirmation", self.confirmation)).status_code == 204

    async def compute_reveal(self) -> bytes:
        """Take the step after the confirmations; return what to say."""
        signatures = await self.get("confirmations")
        assert signatures.status_code == 200, signatures.text
        response = await self.get("parcels")
        assert response.status_code == 200, response.text
        confirmations = unpack_confirmations(signatures.content)
        parcels = unpack_parcels(response.content)
        return self.confirmed.reveal(confirmations, parcels, self.rng).pack()

    async def reveal(self) -> None:
        """Hear the confirmations, give the shares."""
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
    lost: Sequence[Sequence[int]] = ((), (), (), ()),
    after: int = 0,
    count: int = 6,
) -> list[Device]:
    """Play a round; return the devices whose vectors are in its sum.

    `lost` names, by slot, who leaves before sharing, masking, confirming and revealing.
    """
    devices = await served.join(study, count, after)
    everybody, masked = list(devices), devices
    for step, gone in zip(("share", "mask", "confirm", "reveal"), lost, strict=True):
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
