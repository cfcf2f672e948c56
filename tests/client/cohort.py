"""Service in memory with a cohort around one device, which a test lets take part.

A test may change each answer of the service.

The device under test has slot 0. The others take part in every phase, except those in `dropouts`,
which share keys and send no vector.
"""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from random import Random, SystemRandom

import httpx
import numpy as np

from client.device.device import DeviceStep, StudyDevice
from client.device.encoding import Contribution
from client.device.journal import Journal, MemoryJournal
from client.device.participation import SumParticipation
from client.http.transport import Transport
from protocol.api.messages import RoundView, SlotAssignment
from protocol.api.messages_outside_sums import (
    NEXT_DOCUMENTS,
    DocumentKind,
    JoinRequest,
    Survivors,
    frame_document,
)
from protocol.api.phases import MessageKind
from protocol.device_policy.policy import Policy
from protocol.domains.strings import Utf8
from protocol.mechanisms.central.trie_plan import TrieHhQuestion
from protocol.mechanisms.iblt.adaptive import AdaptiveIbltQuestion
from protocol.mechanisms.registry import SUM_MECHANISMS, AnyPlan, AnyQuestion
from protocol.question_and_plan import Terms
from protocol.randomness import RandomWords, seeded_words
from secagg.aggregator import (
    UnmaskingRequest,
    check_complaints,
    check_confirmation,
    check_unmasking_shares,
    complaints_by_dealer,
    route_shares,
)
from secagg.keys import Identity, PublicKeys, is_signed
from secagg.messages import (
    Complaints,
    KeyShares,
    MaskedInput,
    UnmaskingShares,
    pack_signatures,
    pack_signed_inputs,
)
from secagg.participant import Checked, Confirmed, Joined, Masked, Shared, join
from secagg.ring import Ring, Vector
from secagg.roster import (
    Roster,
    RosterEntry,
    ShareCommitments,
    roster_bytes,
    share_commitments_bytes,
)
from secagg.session import Session, Transcript, advertisement_statement
from secagg.unmasking import SumMessages, unmask
from tests.client.mock_transport import MockTransport
from tests.support.policies import trusting_policy
from tests.support.views import round_document

N = 9
STUDY = "study-1"
TERMS = Terms(cohort_size=N, minimum=8, corrupt=0.1, dropout=0.3)
QUESTION = AdaptiveIbltQuestion(
    threshold=5, contribution=4, domain=Utf8(max_bytes=6), message_bytes=8000
)
EVERY_ROUND_QUESTION = TrieHhQuestion(
    threshold=5,
    contribution=1,
    domain=Utf8(max_bytes=6),
    message_bytes=132_856,
    stride=2,
    epsilon=1,
    delta=1e-6,
    mode="noise",
)
POLICY = trusting_policy(min_cohort=5)
REGISTRAR = Identity.of(bytes(range(32)))
SECOND_REGISTRAR = Identity.of(bytes(range(1, 33)))


def view_of(
    number: int = 1, question: AnyQuestion = QUESTION, study: str = STUDY, **terms: object
) -> RoundView:
    """Return an open round of a study that asks `question`, with `terms`."""
    changed = Terms.model_validate(TERMS.model_dump() | terms)
    first = SUM_MECHANISMS[question.mechanism].first_plan(question, changed, study, 9, Random(1))
    plan = first.model_copy(update={"round": number}).model_dump()
    return RoundView.model_validate(round_document(plan, number=number))


@dataclass
class Service:
    """The service; `cheats` change its answers by name, `received` has the device's messages."""

    view: RoundView
    registrar: Identity | None = None
    dropouts: Collection[int] = ()
    cheats: dict[str, Callable[[bytes], bytes]] = field(default_factory=dict)
    before: Callable[[str, bytes], None] = lambda _name, _body: None
    received: dict[str, bytes] = field(default_factory=dict)
    requested: list[str] = field(default_factory=list)  # documents that the device asked for
    rng: Random = field(default_factory=lambda: Random(1))
    n: int = N
    cohort: int = 0
    sends_following: bool = True  # with the answer to a message; otherwise the device asks for it

    @property
    def plan(self) -> AnyPlan:
        return self.view.plan

    @property
    def ring(self) -> Ring:
        ring: Ring = SUM_MECHANISMS[self.plan.mechanism].ring(self.plan)
        return ring

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            transport=MockTransport(self._answer), base_url="http://service/v1"
        )

    def _answer(self, request: httpx.Request) -> httpx.Response:
        resource = request.url.path.rsplit("/", 1)[-1]
        if request.method == "GET":
            self.requested.append(resource)
            return httpx.Response(200, content=self._document(resource))
        self.before(resource, request.content)
        self.received[resource] = request.content
        if request.method == "PUT":
            kinds = NEXT_DOCUMENTS.get(MessageKind(resource), ())
            return httpx.Response(200, content=self._following(kinds))
        assert re.fullmatch(r"Bearer [\w-]{43}", request.headers["authorization"])
        assignment = frame_document(self.cheats.get("slot", bytes)(self._assign()))
        following = self._following([DocumentKind.ROSTER])
        return httpx.Response(201, content=assignment + following)

    def _following(self, kinds: Sequence[DocumentKind]) -> bytes:
        if not self.sends_following:
            return b""
        return b"".join(frame_document(self._document(kind)) for kind in kinds)

    def _document(self, kind: str) -> bytes:
        body: bytes = getattr(self, kind.replace("-", "_"))()
        return self.cheats.get(kind, bytes)(body)

    def _assign(self) -> bytes:
        request = JoinRequest.model_validate_json(self.received["participants"])
        keys = PublicKeys(bytes.fromhex(request.mask_key), bytes.fromhex(request.encryption_key))
        signature, enrolment = map(
            bytes.fromhex, (request.signature, request.registrar_signature or "")
        )
        device = RosterEntry(bytes.fromhex(request.identity), keys, signature, enrolment)
        assert is_signed(
            device.identity, advertisement_statement(self.plan.digest(), keys), signature
        )
        self.others = [join(Identity.generate(self.rng), self.rng) for _ in range(self.n - 1)]
        roster = Roster.of((device, *(self._entry(other) for other in self.others)))
        plan, registry = self.plan.digest(), self.plan.registry
        assumptions = self.plan.terms.assumptions
        self.session = Session(plan, self.cohort, roster, assumptions, registry)
        assignment = {
            "participant": "p",
            "cohort": 0,
            "slot": 0,
            "deadline": "2030-01-01T00:00:00Z",
        }
        return SlotAssignment.model_validate(assignment).model_dump_json().encode()

    def _entry(self, other: Joined) -> RosterEntry:
        enrolment = b""
        if self.registrar and self.plan.registry:
            enrolment = self.registrar.sign(
                self.plan.registry.enrolment_statement(other.identity.public)
            )
        signature = other.advertise(self.plan.digest())
        return RosterEntry(other.identity.public, other.public_keys, signature, enrolment)

    def roster(self) -> bytes:
        return roster_bytes(self.session.roster)

    def encrypted_shares(self) -> bytes:
        """Let the others share; return the share pairs for the device."""
        self.key_shares = {0: KeyShares.unpack(self.received["key-shares"])}
        self.shared: dict[int, Shared] = {}
        for slot, other in enumerate(self.others, start=1):
            self.shared[slot], self.key_shares[slot] = other.share(slot, self.session, self.rng)
        self.routed = route_shares(self.session, self.key_shares)
        return self.routed[0].pack()

    def complaints(self) -> bytes:
        """Let the others check; return the complaints about the device."""
        all_complaints = {0: Complaints.unpack(self.received["complaints"])}
        check_complaints(self.session, 0, self.routed[0], all_complaints[0])
        self.checked: dict[int, Checked] = {}
        for slot, state in self.shared.items():
            self.checked[slot], all_complaints[slot] = state.check(self.routed[slot])
        return pack_signatures(complaints_by_dealer(all_complaints).get(0, {}))

    def share_commitments(self) -> bytes:
        commitments = {slot: message.share_commitment for slot, message in self.key_shares.items()}
        self.transcript = Transcript(self.session, ShareCommitments.of(commitments))
        return share_commitments_bytes(self.transcript.share_commitments)

    def survivors(self) -> bytes:
        """Let the others mask; return the survivors."""
        self.masked_inputs = {0: MaskedInput.unpack(self.received["masked-input"])}
        self.masked: dict[int, Masked] = {}
        for slot in self.checked.keys() - set(self.dropouts):
            vector = self.vector(slot)
            self.masked[slot], self.masked_inputs[slot] = self.checked[slot].mask(
                self.transcript, self.ring, vector
            )
        return Survivors(survivors=tuple(sorted(self.masked_inputs))).model_dump_json().encode()

    def confirmations(self) -> bytes:
        """Let the others confirm; return the signatures."""
        self._confirm()
        signature = self.received["confirmation"]
        check_confirmation(self.transcript, 0, self.request.survivors, signature)
        return pack_signatures(self.signatures | {0: signature})

    def _confirm(self) -> None:
        self.confirmed: dict[int, Confirmed] = {}
        self.signatures: dict[int, bytes] = {}
        for slot, state in self.masked.items():
            self.confirmed[slot], self.signatures[slot] = state.confirm(self.request.survivors)

    @property
    def request(self) -> UnmaskingRequest:
        """Return the unmasking request for the masked inputs that arrived."""
        return UnmaskingRequest(self.transcript, frozenset(self.masked_inputs))

    def signed_inputs(self) -> bytes:
        request = self.request
        dealers = request.dealers_of(0) & request.survivors
        return pack_signed_inputs({slot: self.masked_inputs[slot].signed_input for slot in dealers})

    def total(self) -> Vector:
        """Let the others reveal; return the sum."""
        signatures = self.signatures | {0: self.received.get("confirmation", b"")}
        request, messages = (
            self.request,
            {0: UnmaskingShares.unpack(self.received["unmasking-shares"])},
        )
        check_unmasking_shares(request, 0, messages[0])
        for slot, state in self.confirmed.items():
            signed = {d: each.signed_input for d, each in self.masked_inputs.items()}
            messages[slot] = state.unmask(signatures, signed, self.rng)
        total = self.ring.zero()
        for masked_input in self.masked_inputs.values():
            self.ring.add(total, self.ring.unpack(masked_input.vector))
        return unmask(request, self.ring, SumMessages(self.key_shares, messages), total).total

    def check_total(self, own: Vector) -> None:
        """Check that the sum is that of the device's `own` vector and of the other survivors."""
        expected = self.ring.zero()
        self.ring.add(expected, own)
        for slot in set(range(1, self.n)) - set(self.dropouts):
            self.ring.add(expected, self.vector(slot))
        assert self.ring.pack(self.total()) == self.ring.pack(expected)

    def vector(self, slot: int) -> Vector:
        vector: Vector = SUM_MECHANISMS[self.plan.mechanism].encode(
            self.plan, {"word": 1}, seeded_words(np.random.default_rng(slot))
        )
        return vector


def device(index: int = 0, journal: Journal | None = None, enrolment: bytes = b"") -> StudyDevice:
    identity = Identity.of(index.to_bytes(32, "big"))
    given = Contribution({"word": 1})
    return StudyDevice(identity, given, journal or MemoryJournal(), enrolment)


def participation(
    http: httpx.AsyncClient,
    view: RoundView,
    who: StudyDevice | None = None,
    policy: Policy = POLICY,
    chance: RandomWords | None = None,
) -> SumParticipation:
    return SumParticipation(
        Transport(http, patience=5),
        view,
        who or device(),
        policy=policy,
        secrets=SystemRandom(),
        chance=chance or seeded_words(np.random.default_rng(1)),
    )


async def play(
    service: Service, who: StudyDevice | None = None, policy: Policy = POLICY
) -> list[DeviceStep]:
    """Let one device take part in a round of `service`; return its steps."""
    async with service.client() as http:
        part = participation(http, service.view, who, policy)
        return [step async for step in part.steps(STUDY)]


def enrolled(service: Service, registrar: Identity) -> StudyDevice:
    assert service.plan.registry is not None
    enrolment = registrar.sign(service.plan.registry.enrolment_statement(device().identity.public))
    return device(enrolment=enrolment)
