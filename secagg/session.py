"""The public facts of one secure sum, and the labels that bind every key to them.

    plan, roster                   -> Session, its label: keys for shares of mask keys
    the session, share commitments -> Transcript, its label: masks, and keys for shares of seeds

A label is the digest of all facts on which participants must agree at that point. A participant
that received an inconsistent plan, roster or list of share commitments has another label: its keys
agree with no other participant's, its encrypted shares cannot be decrypted, and the masks of its
vector do not cancel.
"""

from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from secagg.graph import NeighbourSelection
from secagg.keys import PublicKeys, Purpose, is_signed, statement, statement_of_digest
from secagg.parameters import Assumptions, Parameters, choose_parameters
from secagg.roster import DIGEST_BYTES, Roster, ShareCommitments


@dataclass(frozen=True, slots=True)
class Registry:
    """The identities that may take part: those that `registrar` signed for `scope` (32 bytes).

    Without a registry the server alone vouches that identities are different devices.
    """

    registrar: bytes
    scope: bytes

    def enrolment_statement(self, identity: bytes) -> bytes:
        """Return the statement that the registrar signs to enrol `identity`."""
        return statement("enrolment", self.scope, 0, identity)

    def admits(self, identity: bytes, signature: bytes) -> bool:
        """Return whether `signature` is the registrar's over the enrolment of `identity`."""
        return is_signed(self.registrar, self.enrolment_statement(identity), signature)


def advertisement_statement(plan_digest: bytes, keys: PublicKeys) -> bytes:
    """Return the statement that an identity signs to use `keys` in the sums of a plan."""
    return statement("keys", plan_digest, 0, keys.mask + keys.encryption)


@dataclass(frozen=True, eq=False)
class Session:
    """One secure sum of the participants in `roster`, by slot: cohort `cohort_number` of a plan.

    Raises:
        ValueError: if the digest is not 32 bytes.
        InfeasibleError: if a cohort of this size cannot be safe under the assumptions.
    """

    plan_digest: bytes
    cohort_number: int
    roster: Roster
    assumptions: Assumptions
    registry: Registry | None = None

    def __post_init__(self) -> None:
        if len(self.plan_digest) != DIGEST_BYTES:
            raise ValueError(f"a plan's digest has {DIGEST_BYTES} bytes")
        choose_parameters(self.n, self.assumptions)

    @property
    def n(self) -> int:
        """Return the number of participants."""
        return len(self.roster)

    @property
    def parameters(self) -> Parameters:
        """Return the parameters that the assumptions require; every party computes them."""
        return choose_parameters(self.n, self.assumptions)

    @property
    def quorum(self) -> int:
        """Return the number of participants without which a phase fails."""
        return self.assumptions.quorum(self.n)

    @cached_property
    def label(self) -> bytes:
        """Return the 32 bytes that identify plan, cohort, roster and parameters."""
        p = self.parameters
        numbers = (self.cohort_number, p.n, p.holders, p.threshold, p.neighbours, p.spot_checks)
        packed = b"".join(number.to_bytes(4, "big") for number in numbers)
        roster = sha256(self.roster.body).digest()
        return sha256(b"blindtally sum v1\0" + self.plan_digest + packed + roster).digest()

    def is_authentic(self, slot: int) -> bool:
        """Return whether the identity in `slot` signed its keys and is enrolled."""
        entry = self.roster[slot]
        advertisement = advertisement_statement(self.plan_digest, entry.keys)
        if not is_signed(entry.identity, advertisement, entry.signature):
            return False
        registry = self.registry
        return registry is None or registry.admits(entry.identity, entry.registrar_signature)

    @cached_property
    def neighbour_selection(self) -> NeighbourSelection:
        """Return the rule by which graph nonces select holders."""
        return NeighbourSelection(self.label, self.parameters)

    def key_share_purpose(self, dealer: int, holder: int) -> Purpose:
        """Return the purpose of the pad on a share of the mask key of `dealer`."""
        return Purpose(self.label, "key share", dealer, holder)


@dataclass(frozen=True, eq=False)
class Transcript:
    """A session once the mask keys are shared: its dealers, and the graph of their masks.

    Raises:
        ValueError: if a dealer is not in the cohort.
    """

    session: Session
    share_commitments: ShareCommitments
    # The last set of survivors and its digest: a quorum of signatures is checked over one set.
    _last_survivors: tuple[frozenset[int] | None, bytes] = field(
        default=(None, b""), init=False, repr=False
    )

    def __post_init__(self) -> None:
        if wrong := self.share_commitments.keys() - range(self.session.n):
            raise ValueError(f"share commitment of participant {min(wrong)}: not in the cohort")

    @cached_property
    def label(self) -> bytes:
        """Return the 32 bytes that identify the session, its graph and all key shares."""
        commitments = self.share_commitments.body
        return sha256(b"blindtally transcript v1\0" + self.session.label + commitments).digest()

    @property
    def dealers(self) -> NDArray[np.int64]:
        """Return the slots of the dealers, in rising order."""
        return self.share_commitments.slots

    @cached_property
    def selected_holders(self) -> NDArray[np.int64]:
        """Return the k holders of each of `dealers`: one row per dealer, in the order of shares."""
        return self.session.neighbour_selection.all_holders(self.share_commitments.graph_nonces)

    @cached_property
    def holder_has_shared(self) -> NDArray[np.bool_]:
        """Return, for each of `selected_holders`, whether it is a dealer too.

        Only these receive a share of a seed.
        """
        has_shared = np.zeros(self.session.n, np.bool_)
        has_shared[self.dealers] = True
        flags: NDArray[np.bool_] = has_shared[self.selected_holders]
        return flags

    @cached_property
    def sharing_holder_counts(self) -> dict[int, int]:
        """Return the number of holders that are dealers too, for each dealer."""
        counts = self.holder_has_shared.sum(axis=1).tolist()
        return dict(zip(self.dealers.tolist(), counts, strict=True))

    @cached_property
    def _row_of(self) -> dict[int, int]:
        return {slot: row for row, slot in enumerate(self.dealers.tolist())}

    def holders(self, slot: int) -> tuple[int, ...]:
        """Return the k holders of dealer `slot`, in the order of their shares."""
        return tuple(self.selected_holders[self._row_of[slot]].tolist())

    def neighbours(self, slot: int) -> frozenset[int]:
        """Return the neighbours of dealer `slot`; from `graph`, if that is known."""
        if "graph" in vars(self):
            return frozenset(self.graph[slot])
        nonces = self.share_commitments.graph_nonces
        return self.session.neighbour_selection.neighbours(slot, nonces)

    @cached_property
    def graph(self) -> dict[int, set[int]]:
        """Return the neighbours of all dealers, for callers that need those of many."""
        graph: dict[int, set[int]] = {slot: set() for slot in self.share_commitments}
        selected = self.selected_holders[:, : self.session.parameters.neighbours]
        for slot, others in zip(self.dealers.tolist(), selected.tolist(), strict=True):
            for other in graph.keys() & others:
                graph[slot].add(other)
                graph[other].add(slot)
        return graph

    def pairwise_mask_purpose(self, slot: int, other: int) -> Purpose:
        """Return the purpose of the mask between two slots."""
        return Purpose(self.label, "mask", min(slot, other), max(slot, other))

    def self_mask_purpose(self, slot: int) -> Purpose:
        """Return the purpose of the mask that `slot` expands from its own seed."""
        return Purpose(self.label, "self", slot, slot)

    def seed_share_purpose(self, dealer: int, holder: int) -> Purpose:
        """Return the purpose of the pad on a share of the seed of `dealer`."""
        return Purpose(self.label, "seed share", dealer, holder)

    def confirmation_statement(self, slot: int, survivors: frozenset[int]) -> bytes:
        """Return the statement that `slot` signs to confirm exactly these survivors."""
        return statement_of_digest("survivors", self.label, slot, self._survivors_digest(survivors))

    def unmasking_statement(
        self, slot: int, survivors: frozenset[int], received_digest: bytes, records: bytes
    ) -> bytes:
        """Return the statement that `slot` signs over the records of its unmasking shares.

        It covers the survivors and the digest of the received shares, because the records follow
        from both: a participant that received others than the server sent is not at fault.
        """
        digest = self._survivors_digest(survivors)
        return statement("unmasking shares", self.label, slot, digest, received_digest, records)

    def _survivors_digest(self, survivors: frozenset[int]) -> bytes:
        last, digest = self._last_survivors
        if last is not survivors:  # comparing large sets takes longer than a signature
            slots = (slot.to_bytes(4, "big") for slot in sorted(survivors))
            digest = sha256(b"".join(slots)).digest()
            object.__setattr__(self, "_last_survivors", (survivors, digest))
        return digest
