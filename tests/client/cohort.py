"""A service in memory with a cohort around one device; every answer of it may be changed.

The device under test sits in slot 0. The others are there in every phase, but for those that
`lost` says share and send no vector.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from random import Random

import httpx
import numpy as np

from protocol.chance import seeded
from protocol.domain import Utf8
from protocol.mechanism import Terms
from protocol.mechanisms import SUMMING, AnyPlan, AnyQuestion
from protocol.mechanisms.adaptive_iblt import AdaptiveIbltQuestion
from protocol.messages import (
    Join,
    RoundView,
    Seat,
    Survivors,
    pack_confirmations,
    pack_parcels,
    pack_roster,
    pack_sharers,
)
from secagg.aggregator import Settled, check_confirmation, check_reveal, settle_deals, unmask
from secagg.cohort import Cohort, Entry, View, advertisement
from secagg.deals import KeyDeal, Reveal, Upload
from secagg.keys import Identity, PublicKeys, is_signed
from secagg.participant import Confirmed, Joined, Masked, Shared, join
from secagg.ring import Ring, Vector

N = 9
STUDY = "study-1"
TERMS = Terms(cohort_size=N, minimum=8, corrupt=0.1, dropout=0.3)
QUESTION = AdaptiveIbltQuestion(threshold=5, contribution=4, domain=Utf8(max_bytes=6), words=1500)


def view_of(number: int = 1, question: AnyQuestion = QUESTION, **terms: object) -> RoundView:
    """Return an open round of a study that asks `question`, with `terms`."""
    asked = Terms.model_validate(TERMS.model_dump() | terms)
    first = SUMMING[question.mechanism].first_plan(question, asked, STUDY, 9, Random(1))
    opened = "2030-01-01T00:00:00Z"
    return RoundView.model_validate(
        {
            "number": number,
            "state": "running",
            "plan": first.model_copy(update={"round": number}).model_dump(),
            "cohorts": (),
            "participants": None,
            "distinct": None,
            "opened": opened,
            "closed": None,
        }
    )


@dataclass
class Service:
    """The service; `cheats` change its answers by name, `heard` is what the device sent."""

    view: RoundView
    registrar: Identity | None = None
    lost: Collection[int] = ()
    cheats: dict[str, Callable[[bytes], bytes]] = field(default_factory=dict)
    before: Callable[[str, bytes], None] = lambda _what, _body: None
    heard: dict[str, bytes] = field(default_factory=dict)
    rng: Random = field(default_factory=lambda: Random(1))

    @property
    def plan(self) -> AnyPlan:
        """Return the plan of the round."""
        return self.view.plan

    @property
    def ring(self) -> Ring:
        """Return the ring of the round."""
        ring: Ring = SUMMING[self.plan.mechanism].ring(self.plan)
        return ring

    def client(self) -> httpx.AsyncClient:
        """Return a client of this service."""
        return httpx.AsyncClient(
            transport=httpx.MockTransport(self._answer), base_url="http://service/v1"
        )

    def _answer(self, request: httpx.Request) -> httpx.Response:
        what = request.url.path.rsplit("/", 1)[-1]
        if request.method == "GET":
            body = getattr(self, what)()
            return httpx.Response(200, content=self.cheats.get(what, bytes)(body))
        self.before(what, request.content)
        self.heard[what] = request.content
        if request.method == "PUT":
            return httpx.Response(204)
        assert re.fullmatch(r"Bearer [\w-]{43}", request.headers["authorization"])
        seat = self._seat()
        return httpx.Response(201, content=self.cheats.get("seat", bytes)(seat))

    def _seat(self) -> bytes:
        said = Join.model_validate_json(self.heard["participants"])
        keys = PublicKeys(bytes.fromhex(said.mask_key), bytes.fromhex(said.seal_key))
        signature, enrolment = map(bytes.fromhex, (said.signature, said.enrolment or ""))
        device = Entry(bytes.fromhex(said.identity), keys, signature, enrolment)
        assert is_signed(device.identity, advertisement(self.plan.digest(), keys), signature)
        self.others = [join(Identity.generate(self.rng), self.rng) for _ in range(N - 1)]
        roster = (device, *(self._entry(other) for other in self.others))
        plan, registry = self.plan.digest(), self.plan.registry
        self.cohort = Cohort(plan, 0, roster, self.plan.terms.assumptions, registry)
        seat = {"participant": "p", "cohort": 0, "slot": 0, "deadline": "2030-01-01T00:00:00Z"}
        return Seat.model_validate(seat).model_dump_json().encode()

    def _entry(self, other: Joined) -> Entry:
        enrolment = b""
        if self.registrar and self.plan.registry:
            enrolment = self.registrar.sign(self.plan.registry.enrolment(other.identity.public))
        signature = other.advertise(self.plan.digest())
        return Entry(other.identity.public, other.public, signature, enrolment)

    def roster(self) -> bytes:
        """Return the roster."""
        return pack_roster(self.cohort.roster)

    def sharers(self) -> bytes:
        """Let the others share; return who shared."""
        self.deals = {0: KeyDeal.unpack(self.heard["shares"])}
        self.shared: dict[int, Shared] = {}
        for slot, other in enumerate(self.others, start=1):
            self.shared[slot], self.deals[slot] = other.share(slot, self.cohort, self.rng)
        self.sum = View(self.cohort, {slot: deal.sharer for slot, deal in self.deals.items()})
        return pack_sharers(self.sum.sharers)

    def survivors(self) -> bytes:
        """Let the others mask; return whose vectors arrived."""
        self.uploads = {0: Upload.unpack(self.heard["vector"], self.ring.nbytes)}
        self.masked: dict[int, Masked] = {}
        for slot in self.shared.keys() - set(self.lost):
            vector = self.vector(slot)
            self.masked[slot], self.uploads[slot] = self.shared[slot].mask(
                self.sum, self.ring, vector, self.rng
            )
        return Survivors(survivors=tuple(sorted(self.uploads))).model_dump_json().encode()

    def confirmations(self) -> bytes:
        """Let the others confirm; return the signatures."""
        self._confirm()
        signature = self.heard["confirmation"]
        check_confirmation(self.sum, 0, self.settled.survivors, signature)
        return pack_confirmations(self.signatures | {0: signature})

    def _confirm(self) -> None:
        self.confirmed: dict[int, Confirmed] = {}
        self.signatures: dict[int, bytes] = {}
        for slot, state in self.masked.items():
            self.confirmed[slot], self.signatures[slot] = state.confirm(self.settled.survivors)

    @property
    def settled(self) -> Settled:
        """Return what is settled by those who masked."""
        deals = {slot: upload.deal for slot, upload in self.uploads.items()}
        return settle_deals(self.sum, self.deals, deals)

    def parcels(self) -> bytes:
        """Return the device's parcels."""
        return pack_parcels(self.settled.inboxes[0])

    def total(self) -> Vector:
        """Let the others reveal; return the sum."""
        if self.plan.terms.mode == "semi-honest":
            self._confirm()
        signatures = self.signatures | {0: self.heard.get("confirmation", b"")}
        settled, reveals = self.settled, {0: Reveal.unpack(self.heard["reveal"])}
        check_reveal(settled, 0, reveals[0])
        for slot, state in self.confirmed.items():
            reveals[slot] = state.reveal(signatures, settled.inboxes[slot], self.rng)
        total = self.ring.zero()
        for upload in self.uploads.values():
            self.ring.add(total, self.ring.unpack(upload.vector))
        return unmask(settled, self.ring, reveals, total).total

    def vector(self, slot: int) -> Vector:
        """Return the vector of one of the others."""
        vector: Vector = SUMMING[self.plan.mechanism].encode(
            self.plan, {"word": 1}, seeded(np.random.default_rng(slot))
        )
        return vector
