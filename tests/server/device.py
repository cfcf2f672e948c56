"""A device that speaks the real protocol over HTTP, step by step, as a test tells it to."""

import asyncio
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from hashlib import sha256
from random import Random

import httpx
import numpy as np

from protocol.chance import seeded
from protocol.mechanism import enrolment_scope
from protocol.mechanisms import MECHANISMS
from protocol.messages import (
    Join,
    RoundView,
    Seat,
    Survivors,
    unpack_confirmations,
    unpack_parcels,
    unpack_roster,
    unpack_sharers,
)
from secagg.cohort import Cohort, Registry, View
from secagg.keys import Identity
from secagg.participant import Confirmed, Joined, Masked, Shared, join
from secagg.ring import Ring, Vector

KINDS = ("shares", "vector", "confirmation", "reveal")


@dataclass
class Device:
    """A device that does what it should, step by step, each step once."""

    client: httpx.AsyncClient
    name: str
    histogram: dict[str, int]
    rng: Random = field(default_factory=lambda: Random(1))
    registrar: Identity | None = None
    seat: Seat | None = None
    view: RoundView = field(init=False)

    def __post_init__(self) -> None:
        self.secret_ticket = self.rng.randbytes(32)
        self.ticket = urlsafe_b64encode(self.secret_ticket).decode().rstrip("=")
        self.headers = {"Authorization": f"Bearer {self.ticket}"}
        self.identity = Identity.of(sha256(self.name.encode()).digest())  # kept over rounds
        self.joined: Joined = join(self.identity, self.rng)

    @property
    def path(self) -> str:
        """Return the address of this participant."""
        assert self.seat is not None
        return f"/v1/participants/{self.seat.participant}"

    def again(self) -> "Device":
        """Return the same device as it comes to another round: with fresh keys and ticket."""
        chance = Random(self.rng.getrandbits(64))
        return Device(self.client, self.name, self.histogram, chance, self.registrar)

    @property
    def said(self) -> dict[str, bytes]:
        """Return what this participant has said so far, by kind."""
        bodies = {kind: vars(self).get(f"{kind}_body") for kind in KINDS}
        return {kind: body for kind, body in bodies.items() if body is not None}

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

    async def say(self, what: str, body: bytes) -> None:
        """Say something until it is accepted: a service that is busy has not heard it."""
        for _ in range(100):
            response = await self.put(what, body)
            if response.status_code != 503:
                break
            await asyncio.sleep(0.05)
        assert response.status_code == 204, response.text

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
        keys = self.joined.public
        return Join(
            identity=self.identity.public.hex(),
            mask_key=keys.mask.hex(),
            seal_key=keys.seal.hex(),
            signature=self.joined.advertise(self.view.plan.digest()).hex(),
            enrolment=self.enrolment,
        )

    @property
    def enrolment(self) -> str | None:
        """Return the registrar's signature, if I have a registrar."""
        if self.registrar is None:
            return None
        scope = enrolment_scope(self.view.plan.study)
        registry = Registry(self.registrar.public, scope)
        return self.registrar.sign(registry.enrolment(self.identity.public)).hex()

    async def compute_shares(self) -> bytes:
        """Take the step after the roster; return what to say."""
        response = await self.get("roster")
        assert response.status_code == 200, response.text
        assert self.seat is not None
        plan = self.view.plan
        roster = unpack_roster(response.content, has_registrar=plan.registry is not None)
        assumptions, registry = plan.terms.assumptions, plan.registry
        self.cohort = Cohort(plan.digest(), self.seat.cohort, roster, assumptions, registry)
        self.shared: Shared
        self.shared, deal = self.joined.share(self.seat.slot, self.cohort, self.rng)
        return deal.pack()

    async def share(self) -> None:
        """Hear the roster, share the mask key."""
        self.shares_body = await self.compute_shares()
        await self.say("shares", self.shares_body)

    @property
    def ring(self) -> Ring:
        """Return the ring of the round."""
        return MECHANISMS[self.view.plan.mechanism].ring(self.view.plan)

    def encode(self) -> Vector:
        """Return the vector of my items."""
        plan, chance = self.view.plan, seeded(np.random.default_rng(self.rng.getrandbits(64)))
        vector: Vector = MECHANISMS[plan.mechanism].encode(plan, self.histogram, chance)
        return vector

    async def compute_vector(self) -> bytes:
        """Take the step after the sharers; return what to say."""
        response = await self.get("sharers")
        assert response.status_code == 200, response.text
        self.vector: Vector = self.encode()
        self.masked: Masked
        graph = View(self.cohort, unpack_sharers(response.content))
        self.masked, upload = self.shared.mask(graph, self.ring, self.vector, self.rng)
        return upload.pack()

    async def mask(self) -> None:
        """Hear the sharers, send the vector."""
        self.vector_body = await self.compute_vector()
        await self.say("vector", self.vector_body)

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
        self.confirmation_body = await self.compute_confirmation()
        await self.say("confirmation", self.confirmation_body)

    async def compute_reveal(self) -> bytes:
        """Take the step after the confirmations, or, without any, after the survivors."""
        confirmations: dict[int, bytes] = {}
        if self.view.plan.terms.mode == "active":
            signatures = await self.get("confirmations")
            assert signatures.status_code == 200, signatures.text
            confirmations = unpack_confirmations(signatures.content)
        else:
            await self.compute_confirmation()  # and keep it to myself
        response = await self.get("parcels")
        assert response.status_code == 200, response.text
        self.parcels = unpack_parcels(response.content)
        return self.confirmed.reveal(confirmations, self.parcels, self.rng).pack()

    async def reveal(self) -> None:
        """Hear the confirmations, give the shares."""
        self.reveal_body = await self.compute_reveal()
        await self.say("reveal", self.reveal_body)
