"""A cohort in memory: the protocol's messages, passed on by hand."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from random import Random

import numpy as np
import pytest

from secagg import aggregator
from secagg.aggregator import Heard
from secagg.errors import RecoveryError, RefusedError
from secagg.graph import Assumptions, parameters
from secagg.keys import PublicKeys
from secagg.participant import Cohort, Joined, Masked, Shared, join
from secagg.ring import Lane, Ring, Vector

RING = Ring((Lane(2**13, 9), Lane(131071, 5), Lane(2**32, 2), Lane(2**61 - 1, 3)))
ASSUMPTIONS = Assumptions(corrupt=0.1, dropout=0.2)


@dataclass
class Group:
    """Participants who have joined, and the cohort they are about to form."""

    cohort: Cohort
    joined: list[Joined]
    keys: dict[int, PublicKeys]
    rng: Random

    @property
    def commitments(self) -> dict[int, bytes]:
        """Return everybody's commitment to its seed."""
        return {slot: state.commitment for slot, state in enumerate(self.joined)}

    def share(
        self, slots: Collection[int]
    ) -> tuple[dict[int, Shared], dict[int, dict[int, bytes]]]:
        """Let `slots` share; return their states and everybody's envelopes by receiver."""
        shared: dict[int, Shared] = {}
        inbox: dict[int, dict[int, bytes]] = {slot: {} for slot in self.keys}
        for slot in slots:
            neighbours = {other: self.keys[other] for other in self.cohort.graph.neighbours(slot)}
            shared[slot], sent = self.joined[slot].share(slot, self.cohort, neighbours, self.rng)
            aggregator.check_envelopes(self.cohort, slot, sent)
            for receiver, envelope in sent.items():
                inbox[receiver][slot] = envelope
        return shared, inbox

    def hear(
        self, sharing: set[int], masking: set[int], unmasking: set[int]
    ) -> tuple[Heard, Vector] | None:
        """Run the phases with those who are still there; return what the server has heard.

        None if a phase keeps less than the quorum.
        """
        shared, inbox = self.share(sharing)
        if len(shared) < self.cohort.quorum:
            return None
        masked: dict[int, Masked] = {}
        masked_sum = RING.zero()
        for slot, state in shared.items():
            if slot in masking:
                try:
                    masked[slot], vector = state.mask(inbox[slot], RING, self.vector(slot))
                except RefusedError:  # too few of its neighbours shared: it leaves
                    continue
                RING.add(masked_sum, RING.unpack(RING.pack(vector)))
        if len(masked) < self.cohort.quorum:
            return None
        lost = shared.keys() - masked.keys()
        reveals = {
            slot: state.reveal(masked.keys(), lost)
            for slot, state in masked.items()
            if slot in unmasking
        }
        for slot, reveal in reveals.items():
            aggregator.check_reveal(self.cohort, slot, shared.keys(), masked.keys(), reveal)
        keys, commitments = self.keys, self.commitments
        return Heard(keys, commitments, shared.keys(), masked.keys(), reveals), masked_sum

    def total(self, sharing: set[int], masking: set[int], unmasking: set[int]) -> Vector | None:
        """Run the whole sum with those who are still there in each phase; None if it fails."""
        heard = self.hear(sharing, masking, unmasking)
        try:
            return aggregator.unmask(self.cohort, RING, *heard).total if heard else None
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


@pytest.fixture(scope="session")
def gather() -> Callable[..., Group]:
    """Return a function that gathers a group of n under some assumptions."""

    def group(n: int, assumptions: Assumptions = ASSUMPTIONS, seed: int = 0) -> Group:
        rng = Random(seed)
        joined = [join(rng) for _ in range(n)]
        keys = {slot: participant.public for slot, participant in enumerate(joined)}
        cohort = Cohort(
            session=rng.randbytes(32),
            parameters=parameters(n, assumptions),
            assumptions=assumptions,
            seed=rng.randbytes(32),
            digest=aggregator.digest(keys),
        )
        return Group(cohort, joined, keys, rng)

    return group
