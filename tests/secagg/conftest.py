"""A cohort in memory: the tests forward the messages of the protocol by hand."""

from collections.abc import Collection
from dataclasses import dataclass, field
from random import Random

import numpy as np
import pytest

from secagg import aggregator, unmasking
from secagg.aggregator import UnmaskingRequest
from secagg.errors import RecoveryError
from secagg.keys import Identity
from secagg.messages import KeyShares, MaskedInput, UnmaskingShares
from secagg.parameters import Assumptions
from secagg.participant import Confirmed, Joined, Masked, Shared, join
from secagg.ring import Lane, Ring, Vector
from secagg.roster import Roster, RosterEntry, ShareCommitments
from secagg.session import Registry, Session, Transcript

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
        """Return the next part, which must have `n` bytes."""
        part = self._parts.pop(0)
        assert len(part) == n
        return part


def same(first: Vector, second: Vector) -> bool:
    """Return whether two vectors are equal, lane by lane."""
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
    masked: dict[int, Masked] = field(default_factory=dict)
    masked_inputs: dict[int, MaskedInput] = field(default_factory=dict)
    confirmed: dict[int, Confirmed] = field(default_factory=dict)
    confirmations: dict[int, bytes] = field(default_factory=dict)
    unmasking_shares: dict[int, UnmaskingShares] = field(default_factory=dict)

    @property
    def all_slots(self) -> frozenset[int]:
        """Return all slots."""
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
    def transcript(self) -> Transcript:
        """Return the transcript of the participants that shared."""
        messages = self.key_shares.items()
        commitments = {slot: message.share_commitment for slot, message in messages}
        return Transcript(self.session, ShareCommitments.of(commitments))

    def mask(self, slots: Collection[int] | None = None) -> UnmaskingRequest:
        """Let `slots` (all that shared) mask; return the request to unmask."""
        transcript = self.transcript
        for slot in sorted(self.shared if slots is None else slots):
            self.masked[slot], self.masked_inputs[slot] = self.shared[slot].mask(
                transcript, RING, self.vector(slot), self.rng
            )
            aggregator.check_masked_input(transcript, slot, self.masked_inputs[slot])
        return self.request

    @property
    def request(self) -> UnmaskingRequest:
        """Return the request that follows from the messages so far."""
        seeds = {slot: upload.seed_shares for slot, upload in self.masked_inputs.items()}
        return aggregator.collect_masked_inputs(self.transcript, self.key_shares, seeds)

    def confirm(self, slots: Collection[int] | None = None) -> None:
        """Let `slots` (all that masked) sign the survivors."""
        survivors = frozenset(self.masked_inputs)
        for slot in sorted(self.masked if slots is None else slots):
            state, signature = self.masked[slot].confirm(survivors)
            aggregator.check_confirmation(self.transcript, slot, survivors, signature)
            self.confirmed[slot], self.confirmations[slot] = state, signature

    def reveal(self, slots: Collection[int] | None = None) -> None:
        """Let `slots` (all that confirmed) reveal their shares."""
        request = self.request
        for slot in sorted(self.confirmed if slots is None else slots):
            self.unmasking_shares[slot] = self.confirmed[slot].unmask(
                self.confirmations, request.received_shares[slot], self.rng
            )
            aggregator.check_unmasking_shares(request, slot, self.unmasking_shares[slot])

    def masked_sum(self) -> Vector:
        """Return the sum of the masked vectors."""
        total = RING.zero()
        for upload in self.masked_inputs.values():
            RING.add(total, RING.unpack(upload.vector))
        return total

    def unmask(self) -> Vector:
        """Return the sum of the survivors, from the revealed shares."""
        return unmasking.unmask(self.request, RING, self.unmasking_shares, self.masked_sum()).total

    def total(
        self,
        sharing: Collection[int],
        masking: Collection[int],
        confirming: Collection[int],
        unmasking: Collection[int],
    ) -> Vector | None:
        """Run the whole sum with the slots that take part in each phase; None if it fails."""
        quorum = self.session.quorum
        stages = (self.share, self.mask, self.confirm, self.reveal)
        slots: frozenset[int] = self.all_slots
        for stage, present in zip(stages, (sharing, masking, confirming, unmasking), strict=True):
            slots = slots.intersection(present)
            if len(slots) < quorum:
                return None
            stage(slots)
        try:
            return self.unmask()
        except RecoveryError:
            return None

    def agree(self, slot: int, other: int) -> bytes:
        """Return the secret that `slot` agrees on with `other`, to derive pads."""
        return self.joined[slot].encryption_pair.agree(self.session.roster[other].keys.encryption)

    def vector(self, slot: int) -> Vector:
        """Return the input of `slot`, the same at each call."""
        chance = np.random.default_rng(slot)
        return RING.vector(
            [chance.integers(0, lane.q, lane.length, np.uint64) for lane in RING.lanes]
        )

    def plain_sum(self, slots: Collection[int]) -> Vector:
        """Return the sum of the inputs of `slots`."""
        total = RING.zero()
        for slot in slots:
            RING.add(total, self.vector(slot))
        return total


def assemble(
    n: int,
    assumptions: Assumptions = ASSUMPTIONS,
    seed: int = 0,
    registrar: Identity | None = None,
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
    """Return a group of the size N of the test's module."""
    return assemble(request.module.N)
