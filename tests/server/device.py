"""A device that runs the real protocol over HTTP, one step at a time."""

import asyncio
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from functools import partialmethod
from hashlib import sha256
from random import Random

import httpx
import numpy as np

from protocol.api.messages import RoundView, SlotAssignment
from protocol.api.messages_outside_sums import JoinRequest, Survivors
from protocol.mechanisms.registry import MECHANISMS
from protocol.randomness import seeded_words
from secagg.keys import Identity
from secagg.messages import unpack_signatures, unpack_signed_inputs
from secagg.participant import Checked, Confirmed, Joined, Masked, Shared, join
from secagg.ring import Ring, Vector
from secagg.roster import Roster, ShareCommitments
from secagg.seating import CohortSeating
from secagg.session import Session, Transcript
from secagg.shares import ReceivedShares

KINDS = ("key-shares", "complaints", "masked-input", "confirmation", "unmasking-shares")
_NAMES = dict(zip(KINDS, ("shares", "complaints", "vector", "confirmation", "reveal"), strict=True))


@dataclass
class Device:
    """An honest device; each step is a method that runs once."""

    client: httpx.AsyncClient
    name: str
    histogram: dict[str, int]
    rng: Random = field(default_factory=lambda: Random(1))
    registrar: Identity | None = None
    seat: SlotAssignment | None = None
    view: RoundView = field(init=False)

    def __post_init__(self) -> None:
        self.secret_ticket = self.rng.randbytes(32)
        self.ticket = urlsafe_b64encode(self.secret_ticket).decode().rstrip("=")
        self.headers = {"Authorization": f"Bearer {self.ticket}"}
        self.identity = Identity.of(sha256(self.name.encode()).digest())  # the same in all rounds
        self.joined: Joined = join(self.identity, self.rng)

    @property
    def path(self) -> str:
        return f"/v1/participants/{self.seat.participant}"

    def again(self) -> "Device":
        """Return the same device for another round, with fresh keys and a fresh credential."""
        rng = Random(self.rng.getrandbits(64))
        return Device(self.client, self.name, self.histogram, rng, self.registrar)

    async def compute(self, kind: str) -> bytes:
        """Take the step that makes the message of this kind; return its body."""
        body: bytes = await getattr(self, f"compute_{_NAMES[kind]}")()
        return body

    def record(self, kind: str, body: bytes) -> None:
        setattr(self, f"{_NAMES[kind]}_body", body)

    @property
    def bodies(self) -> dict[str, bytes]:
        """Bodies of the messages sent so far, by kind."""
        bodies = {kind: vars(self).get(f"{name}_body") for kind, name in _NAMES.items()}
        return {kind: body for kind, body in bodies.items() if body is not None}

    async def get(self, name: str, wait: float = 10) -> httpx.Response:
        """Read a resource of this participant with a long poll."""
        return await self.client.get(
            f"{self.path}/{name}", params={"wait": wait}, headers=self.headers
        )

    async def read(self, name: str) -> bytes:
        """Return a document that must be there."""
        response = await self.get(name)
        assert response.status_code == 200, response.text
        return response.content

    async def put(self, kind: str, body: bytes, **headers: str) -> httpx.Response:
        octets = {"Content-Type": "application/octet-stream"}
        return await self.client.put(
            f"{self.path}/{kind}", content=body, headers=octets | self.headers | headers
        )

    async def upload(self, kind: str, body: bytes) -> None:
        """Upload a message, and repeat it while the service is busy."""
        for _ in range(100):
            response = await self.put(kind, body)
            if response.status_code != 503:
                break
            await asyncio.sleep(0.05)
        assert response.status_code == 204, response.text

    async def join(self, study: str, view: RoundView) -> SlotAssignment:
        self.view = view
        response = await self.apply(study, view.number)
        assert response.status_code == 201, response.text
        self.seat = SlotAssignment.model_validate_json(response.content)
        return self.seat

    async def apply(self, study: str, number: int) -> httpx.Response:
        request = self.join_request()
        return await self.client.post(
            f"/v1/studies/{study}/rounds/{number}/participants",
            json=request.model_dump(),
            headers=self.headers,
        )

    def join_request(self) -> JoinRequest:
        """Return the request to join the round in view."""
        keys = self.joined.public_keys
        return JoinRequest(
            identity=self.identity.public.hex(),
            mask_key=keys.mask.hex(),
            encryption_key=keys.encryption.hex(),
            signature=self.joined.advertise(self.view.plan.digest()).hex(),
            registrar_signature=self.enrolment,
        )

    @property
    def enrolment(self) -> str | None:
        """Return the signature of the registrar, if there is one."""
        registry = self.view.plan.registry
        if self.registrar is None or registry is None:
            return None
        return self.registrar.sign(registry.enrolment_statement(self.identity.public)).hex()

    async def compute_shares(self) -> bytes:
        """Take the step after the roster; return the key shares."""
        plan, body = self.view.plan, await self.read("roster")
        if plan.terms.is_seated:
            seating, body = CohortSeating.split(body)
        roster = Roster.unpack(body, has_registrar=plan.registry is not None)
        if plan.terms.is_seated:
            seat = {"cohort": seating.cohort, "slot": roster.identities.index(self.identity.public)}
            self.seat = self.seat.model_copy(update=seat)
        assumptions, registry = plan.terms.assumptions, plan.registry
        self.cohort = Session(plan.digest(), self.seat.cohort, roster, assumptions, registry)
        self.shared: Shared
        self.shared, key_shares = self.joined.share(self.seat.slot, self.cohort, self.rng)
        return key_shares.pack()

    @property
    def ring(self) -> Ring:
        return MECHANISMS[self.view.plan.mechanism].ring(self.view.plan)

    def encode(self) -> Vector:
        plan, chance = self.view.plan, seeded_words(np.random.default_rng(self.rng.getrandbits(64)))
        vector: Vector = MECHANISMS[plan.mechanism].encode(plan, self.histogram, chance)
        return vector

    async def compute_complaints(self) -> bytes:
        """Take the step after the encrypted shares; return the complaints."""
        self.parcels = ReceivedShares.unpack(await self.read("encrypted-shares"))
        self.checked: Checked
        self.checked, complaints = self.shared.check(self.parcels)
        return complaints.pack()

    async def answer(self) -> None:
        """Answer the complaints about this device, of which there are some."""
        complaints = unpack_signatures(await self.read("complaints"))
        await self.upload("answers", self.checked.answer(complaints).pack())

    async def compute_vector(self) -> bytes:
        """Take the step after the share commitments; return the masked input."""
        commitments = ShareCommitments.unpack(await self.read("share-commitments"))
        self.vector: Vector = self.encode()
        self.masked: Masked
        graph = Transcript(self.cohort, commitments)
        self.masked, upload = self.checked.mask(graph, self.ring, self.vector)
        return upload.pack()

    async def compute_confirmation(self) -> bytes:
        """Take the step after the survivors; return the signature of their list."""
        survivors = Survivors.model_validate_json(await self.read("survivors"))
        self.confirmed: Confirmed
        self.confirmed, signature = self.masked.confirm(survivors.survivors)
        return signature

    async def compute_reveal(self) -> bytes:
        """Take the step after the confirmations; return the unmasking shares."""
        confirmations = unpack_signatures(await self.read("confirmations"))
        signed = unpack_signed_inputs(await self.read("signed-inputs"))
        return self.confirmed.unmask(confirmations, signed, self.rng).pack()

    async def take_step(self, kind: str) -> None:
        """Compute the message of this kind, record it and send it."""
        body = await self.compute(kind)
        self.record(kind, body)
        await self.upload(kind, body)

    share = partialmethod(take_step, "key-shares")
    check = partialmethod(take_step, "complaints")
    mask = partialmethod(take_step, "masked-input")
    confirm = partialmethod(take_step, "confirmation")
    reveal = partialmethod(take_step, "unmasking-shares")
