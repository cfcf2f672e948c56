"""A cohort in memory: the tests forward the messages of the protocol by hand."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from random import Random

import numpy as np
import pytest

from secagg import aggregator, unmasking
from secagg.aggregator import UnmaskingRequest
from secagg.errors import RecoveryError
from secagg.keys import Identity
from secagg.messages import (
    Answers,
    Complaints,
    KeyShares,
    MaskedInput,
    SignedInput,
    UnmaskingShares,
)
from secagg.parameters import Assumptions
from secagg.participant import Checked, Confirmed, Joined, Masked, Shared, join
from secagg.ring import Lane, Ring, Vector
from secagg.roster import Roster, RosterEntry, ShareCommitments
from secagg.session import Registry, Session, Transcript
from secagg.shares import ReceivedShares
from secagg.unmasking import SumMessages

RING = Ring((Lane(2**13, 9), Lane(131071, 5), Lane(2**32, 2), Lane(2**61 - 1, 3)))
ASSUMPTIONS = Assumptions(corrupt=0.1, dropout=0.2)


class Script(Random):
    """Random generator that returns the given bytes in order; samples are arbitrary."""

    def __new__(cls, *_parts: bytes) -> "Script":
        """Return a generator without passing the parts to its base class, a seeded generator."""
        return super().__new__(cls)

    def __init__(self, *parts: bytes) -> None:
        super().__init__(0)
        self._parts = list(parts)

    def randbytes(self, n: int) -> bytes:
        part = self._parts.pop(0)
        assert len(part) == n
        return part


def same(first: Vector, second: Vector) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@dataclass
class Group:
    """Participants that have joined, and their messages since; a step runs when it is called."""

    session: Session
    identities: list[Identity]
    joined: list[Joined]
    rng: Random
    shared: dict[int, Shared] = field(default_factory=dict)
    key_shares: dict[int, KeyShares] = field(default_factory=dict)
    checked: dict[int, Checked] = field(default_factory=dict)
    complaints: dict[int, Complaints] = field(default_factory=dict)
    answers: dict[int, Answers] = field(default_factory=dict)
    masked: dict[int, Masked] = field(default_factory=dict)
    masked_inputs: dict[int, MaskedInput] = field(default_factory=dict)
    confirmed: dict[int, Confirmed] = field(default_factory=dict)
    confirmations: dict[int, bytes] = field(default_factory=dict)
    unmasking_shares: dict[int, UnmaskingShares] = field(default_factory=dict)

    @property
    def all_slots(self) -> frozenset[int]:
        return frozenset(range(self.session.n))

    def share(self, slots: Collection[int] | None = None) -> Transcript:
        """Let `slots` (all by default) share; return the transcript."""
        for slot in sorted(self.all_slots if slots is None else slots):
            self.shared[slot], self.key_shares[slot] = self.joined[slot].share(
                slot, self.session, self.rng
            )
            aggregator.check_key_shares(self.session, slot, self.key_shares[slot])
        return self.transcript

    @property
    def received(self) -> dict[int, ReceivedShares]:
        return aggregator.route_shares(self.session, self.key_shares)

    def check(self, slots: Collection[int] | None = None) -> Transcript:
        """Let `slots` (all that shared) check their shares; return the transcript.

        If no participant has shared, all of them share first.
        """
        if not self.key_shares:
            self.share()
        received = self.received
        for slot in sorted(self.shared if slots is None else slots):
            self.checked[slot], self.complaints[slot] = self.shared[slot].check(received[slot])
            aggregator.check_complaints(self.session, slot, received[slot], self.complaints[slot])
        return self.transcript

    @property
    def complaints_by_dealer(self) -> dict[int, dict[int, bytes]]:
        return aggregator.complaints_by_dealer(self.complaints)

    def answer(self, slots: Collection[int] | None = None) -> Transcript:
        """Let `slots` (all with complaints about them) answer; return the transcript."""
        complaints = self.complaints_by_dealer
        for slot in sorted(complaints if slots is None else slots):
            self.answers[slot] = self.checked[slot].answer(complaints[slot])
            self.check_answers(slot)
        return self.transcript

    def check_answers(self, slot: int) -> None:
        aggregator.check_answers(
            self.session,
            slot,
            self.key_shares[slot],
            self.complaints_by_dealer[slot],
            self.answers[slot],
        )

    @property
    def transcript(self) -> Transcript:
        """Return the transcript of the participants that shared, and checked if any has.

        Dealers without an answer to the complaints about them are left out.
        """
        dealers = self.checked.keys() or self.key_shares.keys()
        dealers = dealers - (self.complaints_by_dealer.keys() - self.answers.keys())
        commitments = {slot: self.key_shares[slot].share_commitment for slot in dealers}
        return Transcript(self.session, ShareCommitments.of(commitments))

    def mask(self, slots: Collection[int] | None = None) -> UnmaskingRequest:
        """Let `slots` (all that are not left out) mask; return the request to unmask.

        If no participant has checked its shares, all of them check them first.
        """
        if not self.checked:
            self.check()
        transcript = self.transcript
        for slot in sorted(transcript.share_commitments if slots is None else slots):
            self.masked[slot], self.masked_inputs[slot] = self.checked[slot].mask(
                transcript, RING, self.vector(slot)
            )
            aggregator.check_masked_input(transcript, slot, self.masked_inputs[slot])
        return self.request

    @property
    def request(self) -> UnmaskingRequest:
        complaints = {slot: message.signatures for slot, message in self.complaints.items()}
        return UnmaskingRequest(self.transcript, frozenset(self.masked_inputs), complaints)

    @property
    def signed_inputs(self) -> dict[int, SignedInput]:
        return {slot: message.signed_input for slot, message in self.masked_inputs.items()}

    def confirm(self, slots: Collection[int] | None = None) -> None:
        survivors = frozenset(self.masked_inputs)
        for slot in sorted(self.masked if slots is None else slots):
            state, signature = self.masked[slot].confirm(survivors)
            aggregator.check_confirmation(self.transcript, slot, survivors, signature)
            self.confirmed[slot], self.confirmations[slot] = state, signature

    def reveal(self, slots: Collection[int] | None = None) -> None:
        """Let `slots` (all) reveal; if no participant has confirmed, all of them confirm first."""
        if not self.confirmed:
            self.confirm()
        request = self.request
        for slot in sorted(self.confirmed if slots is None else slots):
            self.unmasking_shares[slot] = self.confirmed[slot].unmask(
                self.confirmations, self.signed_inputs, self.rng
            )
            aggregator.check_unmasking_shares(request, slot, self.unmasking_shares[slot])

    def masked_sum(self) -> Vector:
        total = RING.zero()
        for upload in self.masked_inputs.values():
            RING.add(total, RING.unpack(upload.vector))
        return total

    def unmask(self) -> Vector:
        return unmasking.unmask(self.request, RING, self.messages(), self.masked_sum()).total

    def messages(self, revealed: Mapping[int, UnmaskingShares] | None = None) -> SumMessages:
        """Return the messages that the sum is unmasked with; `revealed` replaces those revealed."""
        shares = self.unmasking_shares if revealed is None else revealed
        return SumMessages(self.key_shares, shares, self.answers)

    def total(
        self,
        sharing: Collection[int],
        checking: Collection[int],
        masking: Collection[int],
        confirming: Collection[int],
        unmasking: Collection[int],
    ) -> Vector | None:
        """Run the whole sum with the slots that take part in each phase; None if it fails."""
        quorum = self.session.quorum
        stages = (self.share, self.check, self.mask, self.confirm, self.reveal)
        slots: frozenset[int] = self.all_slots
        attendance = (sharing, checking, masking, confirming, unmasking)
        for stage, present in zip(stages, attendance, strict=True):
            slots = slots.intersection(present)
            if len(slots) < quorum:
                return None
            stage(slots)
        try:
            return self.unmask()
        except RecoveryError:
            return None

    def agree(self, slot: int, other: int) -> bytes:
        return self.joined[slot].encryption_pair.agree(self.session.roster[other].keys.encryption)

    def vector(self, slot: int) -> Vector:
        """Return the input of `slot`, the same at each call."""
        chance = np.random.default_rng(slot)
        return RING.vector(
            [chance.integers(0, lane.q, lane.length, np.uint64) for lane in RING.lanes]
        )

    def plain_sum(self, slots: Collection[int]) -> Vector:
        total = RING.zero()
        for slot in slots:
            RING.add(total, self.vector(slot))
        return total


def assemble(
    n: int, assumptions: Assumptions = ASSUMPTIONS, seed: int = 0, registrar: Identity | None = None
) -> Group:
    """Return a group of `n` that have joined, enrolled if there is a registrar."""
    rng = Random(seed)
    identities = [Identity.generate(rng) for _ in range(n)]
    joined = [join(identity, rng) for identity in identities]
    registry = Registry(registrar.public, bytes(32)) if registrar else None

    def enrol(identity: bytes) -> bytes:
        return (
            registrar.sign(registry.enrolment_statement(identity))
            if registrar and registry
            else b""
        )

    plan = rng.randbytes(32)
    roster = [
        RosterEntry(
            state.identity.public,
            state.public_keys,
            state.advertise(plan),
            enrol(state.identity.public),
        )
        for state in joined
    ]
    session = Session(plan, 0, Roster.of(roster), assumptions, registry)
    return Group(session, identities, joined, rng)


@pytest.fixture
def group(request: pytest.FixtureRequest) -> Group:
    return assemble(request.module.N)
