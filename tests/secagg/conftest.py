"""A cohort in memory: the protocol's messages, passed on by hand."""

from collections.abc import Callable, Collection
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
from secagg.roster import RosterEntry
from secagg.session import Registry, Session, Transcript

RING = Ring((Lane(2**13, 9), Lane(131071, 5), Lane(2**32, 2), Lane(2**61 - 1, 3)))
ASSUMPTIONS = Assumptions(corrupt=0.1, dropout=0.2)


class Script(Random):
    """Chance that yields what it was given, in order; what is sampled does not matter."""

    def __new__(cls, *_parts: bytes) -> "Script":
        """Return one; the generator beneath takes no parts."""
        return super().__new__(cls)

    def __init__(self, *parts: bytes) -> None:
        super().__init__(0)
        self._parts = list(parts)

    def randbytes(self, n: int) -> bytes:
        """Return the next part, which must have `n` bytes."""
        part = self._parts.pop(0)
        assert len(part) == n
        return part


def same(one: Vector, other: Vector) -> bool:
    """Return whether two vectors are equal, lane by lane."""
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@dataclass
class Group:
    """Participants who have joined, and what they said since; every step is done on demand."""

    cohort: Session
    identities: list[Identity]
    joined: list[Joined]
    rng: Random
    shared: dict[int, Shared] = field(default_factory=dict)
    deals: dict[int, KeyShares] = field(default_factory=dict)
    masked: dict[int, Masked] = field(default_factory=dict)
    uploads: dict[int, MaskedInput] = field(default_factory=dict)
    confirmed: dict[int, Confirmed] = field(default_factory=dict)
    confirmations: dict[int, bytes] = field(default_factory=dict)
    reveals: dict[int, UnmaskingShares] = field(default_factory=dict)

    @property
    def everybody(self) -> frozenset[int]:
        """Return all slots."""
        return frozenset(range(self.cohort.n))

    def share(self, slots: Collection[int] | None = None) -> Transcript:
        """Let `slots` (all) share; return the view that follows."""
        for slot in sorted(self.everybody if slots is None else slots):
            self.shared[slot], self.deals[slot] = self.joined[slot].share(
                slot, self.cohort, self.rng
            )
            aggregator.check_key_shares(self.cohort, slot, self.deals[slot])
        return self.view

    @property
    def view(self) -> Transcript:
        """Return the cohort with those who shared."""
        return Transcript(
            self.cohort, {slot: deal.share_commitment for slot, deal in self.deals.items()}
        )

    def mask(self, slots: Collection[int] | None = None) -> UnmaskingRequest:
        """Let `slots` (all who shared) mask; return what is settled then."""
        view = self.view
        for slot in sorted(self.shared if slots is None else slots):
            self.masked[slot], self.uploads[slot] = self.shared[slot].mask(
                view, RING, self.vector(slot), self.rng
            )
            aggregator.check_masked_input(view, slot, self.uploads[slot])
        return self.settled

    @property
    def settled(self) -> UnmaskingRequest:
        """Return what is settled by those who shared and those who masked."""
        seeds = {slot: upload.seed_shares for slot, upload in self.uploads.items()}
        return aggregator.collect_masked_inputs(self.view, self.deals, seeds)

    def confirm(self, slots: Collection[int] | None = None) -> None:
        """Let `slots` (all who masked) sign the survivors."""
        survivors = frozenset(self.uploads)
        for slot in sorted(self.masked if slots is None else slots):
            state, signature = self.masked[slot].confirm(survivors)
            aggregator.check_confirmation(self.view, slot, survivors, signature)
            self.confirmed[slot], self.confirmations[slot] = state, signature

    def reveal(self, slots: Collection[int] | None = None) -> None:
        """Let `slots` (all who confirmed) give their shares."""
        settled = self.settled
        for slot in sorted(self.confirmed if slots is None else slots):
            self.reveals[slot] = self.confirmed[slot].unmask(
                self.confirmations, settled.received_shares[slot], self.rng
            )
            aggregator.check_unmasking_shares(settled, slot, self.reveals[slot])

    def masked_sum(self) -> Vector:
        """Return the sum of the masked vectors."""
        total = RING.zero()
        for upload in self.uploads.values():
            RING.add(total, RING.unpack(upload.vector))
        return total

    def unmask(self) -> Vector:
        """Return the survivors' sum, from what was revealed."""
        return unmasking.unmask(self.settled, RING, self.reveals, self.masked_sum()).total

    def total(
        self,
        sharing: Collection[int],
        masking: Collection[int],
        confirming: Collection[int],
        unmasking: Collection[int],
    ) -> Vector | None:
        """Run the whole sum with those who are still there in each phase; None if it fails."""
        quorum = self.cohort.quorum
        stages = (self.share, self.mask, self.confirm, self.reveal)
        slots: frozenset[int] = self.everybody
        for stage, there in zip(stages, (sharing, masking, confirming, unmasking), strict=True):
            slots = slots.intersection(there)
            if len(slots) < quorum:
                return None
            stage(slots)
        try:
            return self.unmask()
        except RecoveryError:
            return None

    def vector(self, slot: int) -> Vector:
        """Return the input of `slot`, the same whenever asked."""
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
    """Return a group of n who have joined, enrolled if there is a registrar."""
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
    roster = tuple(
        RosterEntry(
            one.identity.public, one.public_keys, one.advertise(plan), enrol(one.identity.public)
        )
        for one in joined
    )
    cohort = Session(plan, 0, roster, assumptions, registry)
    return Group(cohort, identities, joined, rng)


@pytest.fixture(scope="session")
def gather() -> Callable[..., Group]:
    """Return a function that gathers a group of n under some assumptions."""
    return assemble
