"""The public facts of one secure sum, and the labels that bind every key to them.

    plan, roster              -> Cohort, its label: keys for shares of mask keys
    the cohort, who shared    -> View, its label: masks, and keys for shares of seeds

A label is the digest of all that participants must agree on by then. Whoever was shown another
plan, roster or list of sharers has another label: its keys agree with nobody's, its envelopes
open for nobody, and the sum of its masks is noise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from secagg.graph import Picking
from secagg.keys import PublicKeys, Purpose, is_signed, statement, statement_of
from secagg.parameters import Assumptions, Parameters, parameters
from secagg.roster import (
    DIGEST_BYTES,
    Entry,
    Roster,
    Sharer,
    Sharers,
    repeated,
    roster_bytes,
    sharers_bytes,
)

__all__ = ["DIGEST_BYTES", "Cohort", "Entry", "Registry", "Sharer", "View", "advertisement"]


@dataclass(frozen=True, slots=True)
class Registry:
    """Who may take part: identities that `registrar` has signed for `scope` (32 bytes).

    Without a registry the server's word is all there is that identities are different devices.
    """

    registrar: bytes
    scope: bytes

    def enrolment(self, identity: bytes) -> bytes:
        """Return the statement by which the registrar lets `identity` in."""
        return statement("enrolment", self.scope, 0, identity)

    def admits(self, identity: bytes, signature: bytes) -> bool:
        """Return whether `signature` is the registrar's under the enrolment of `identity`."""
        return is_signed(self.registrar, self.enrolment(identity), signature)


def advertisement(plan: bytes, keys: PublicKeys) -> bytes:
    """Return what an identity signs to take part with `keys` in the sums of a plan's digest."""
    return statement("keys", plan, 0, keys.mask + keys.seal)


@dataclass(frozen=True, eq=False)
class Cohort:
    """One secure sum of those in `roster`, by slot: cohort `number` of the plan of a digest.

    Raises:
        ValueError: if the digest is not 32 bytes, or entries differ in size: the label joins
            them, and one roster must not read as another.
        InfeasibleError: if so many cannot be kept safe under the assumptions.
    """

    plan: bytes
    number: int
    roster: Sequence[Entry]
    assumptions: Assumptions
    registry: Registry | None = None

    def __post_init__(self) -> None:
        if len(self.plan) != DIGEST_BYTES:
            raise ValueError(f"a plan's digest has {DIGEST_BYTES} bytes")
        packed = isinstance(self.roster, Roster)
        if not packed and len({len(entry.enrolment) for entry in self.roster}) > 1:
            raise ValueError("enrolments of different sizes in one roster")
        parameters(self.n, self.assumptions)

    @property
    def n(self) -> int:
        """Return the number of participants."""
        return len(self.roster)

    @property
    def parameters(self) -> Parameters:
        """Return what the assumptions ask for: everybody computes it, nobody is told."""
        return parameters(self.n, self.assumptions)

    @property
    def quorum(self) -> int:
        """Return how many participants each phase must keep."""
        return self.assumptions.quorum(self.n)

    @cached_property
    def label(self) -> bytes:
        """Return the 32 bytes that stand for plan, cohort, roster and parameters."""
        p = self.parameters
        numbers = (self.number, p.n, p.holders, p.threshold, p.partners, p.witnesses)
        packed = b"".join(number.to_bytes(4, "big") for number in numbers)
        roster = sha256(roster_bytes(self.roster)).digest()
        return sha256(b"blindtally sum v1\0" + self.plan + packed + roster).digest()

    def vouches(self, slot: int) -> bool:
        """Return whether `slot` is who it is said to be: it signed its keys, and is enrolled."""
        entry = self.roster[slot]
        if not is_signed(entry.identity, advertisement(self.plan, entry.keys), entry.signature):
            return False
        return self.registry is None or self.registry.admits(entry.identity, entry.enrolment)

    @cached_property
    def repeated(self) -> str | None:
        """Return what is in the roster twice, an identity or a key, or None."""
        return repeated(self.roster)

    @cached_property
    def picking(self) -> Picking:
        """Return how the participants pick their holders."""
        return Picking(self.label, self.parameters)

    def key_share(self, owner: int, holder: int) -> Purpose:
        """Return the purpose of the envelope with a share of `owner`'s mask key."""
        return Purpose(self.label, "key share", owner, holder)


@dataclass(frozen=True, eq=False)
class View:
    """A cohort as it is once the mask keys are shared: who did, who masks with whom.

    Raises:
        ValueError: if a sharer is not in the cohort, or what it said has a wrong size.
    """

    cohort: Cohort
    sharers: Mapping[int, Sharer]
    # The survivors last asked for: whoever checks a quorum of signatures asks for one set.
    _listed: tuple[frozenset[int] | None, bytes] = field(
        default=(None, b""), init=False, repr=False
    )

    def __post_init__(self) -> None:
        wrong = self.sharers.keys() - range(self.cohort.n)
        if not isinstance(self.sharers, Sharers):  # which has one size for all
            wrong |= {slot for slot, sharer in self.sharers.items() if not sharer.is_sized}
        if wrong:
            raise ValueError(f"participant {min(wrong)}: no such sharer, or of a wrong size")

    @cached_property
    def label(self) -> bytes:
        """Return the 32 bytes that stand for the cohort, its graph and all shares dealt."""
        said = sharers_bytes(self.sharers)
        return sha256(b"blindtally view v1\0" + self.cohort.label + said).digest()

    @cached_property
    def _contributions(self) -> Mapping[int, bytes]:
        if isinstance(self.sharers, Sharers):
            return self.sharers.contributions
        return {slot: sharer.contribution for slot, sharer in self.sharers.items()}

    @cached_property
    def slots(self) -> NDArray[np.int64]:
        """Return the sharers, in rising order."""
        return np.array(sorted(self.sharers), np.int64)

    @cached_property
    def picks(self) -> NDArray[np.int64]:
        """Return the k holders that each of `slots` picked, a row each, in the order of shares."""
        said = self._contributions
        return self.cohort.picking.all_holders({slot: said[slot] for slot in self.slots.tolist()})

    @cached_property
    def have_shared(self) -> NDArray[np.bool_]:
        """Return whether each of `picks` shared, too: who did not is dealt no share of a seed."""
        shared = np.zeros(self.cohort.n, np.bool_)
        shared[self.slots] = True
        found: NDArray[np.bool_] = shared[self.picks]
        return found

    @cached_property
    def heard_holders(self) -> dict[int, int]:
        """Return how many of its holders have shared, for each sharer."""
        return dict(zip(self.slots.tolist(), self.have_shared.sum(axis=1).tolist(), strict=True))

    @cached_property
    def _rows(self) -> dict[int, int]:
        return {slot: row for row, slot in enumerate(self.slots.tolist())}

    def holders(self, slot: int) -> tuple[int, ...]:
        """Return the k holders that sharer `slot` picked, in the order of their shares."""
        return tuple(self.picks[self._rows[slot]].tolist())

    def partners(self, slot: int) -> frozenset[int]:
        """Return the sharers whom sharer `slot` masks with: by the graph, if that is there."""
        if "graph" in vars(self):
            return frozenset(self.graph[slot])
        return self.cohort.picking.partners(slot, self._contributions)

    @cached_property
    def graph(self) -> dict[int, set[int]]:
        """Return the partners of all sharers, for whoever needs those of many."""
        found: dict[int, set[int]] = {slot: set() for slot in self.sharers}
        partners = self.picks[:, : self.cohort.parameters.partners]
        for slot, picked in zip(self.slots.tolist(), partners.tolist(), strict=True):
            for other in found.keys() & picked:
                found[slot].add(other)
                found[other].add(slot)
        return found

    def pairwise(self, one: int, other: int) -> Purpose:
        """Return the purpose of the mask between two slots."""
        return Purpose(self.label, "mask", min(one, other), max(one, other))

    def own(self, slot: int) -> Purpose:
        """Return the purpose of the mask that `slot` grows from its own seed."""
        return Purpose(self.label, "self", slot, slot)

    def seed_share(self, owner: int, holder: int) -> Purpose:
        """Return the purpose of the envelope with a share of `owner`'s seed."""
        return Purpose(self.label, "seed share", owner, holder)

    def confirmation(self, slot: int, survivors: frozenset[int]) -> bytes:
        """Return what `slot` signs to say that these, and no others, are in the sum."""
        return statement_of("survivors", self.label, slot, self._digest(survivors))

    def answer(self, slot: int, survivors: frozenset[int], inbox: bytes, said: bytes) -> bytes:
        """Return what `slot` signs to say the records `said`, given these survivors and an inbox.

        Of the inbox it is the digest. Both are what the answer follows from: who was told of other
        survivors or handed other parcels than the server sent is not to be blamed for it.
        """
        return statement("reveal", self.label, slot, self._digest(survivors), inbox, said)

    def _digest(self, survivors: frozenset[int]) -> bytes:
        listed, digest = self._listed
        if listed is not survivors:  # to compare large sets takes longer than a signature
            digest = sha256(b"".join(o.to_bytes(4, "big") for o in sorted(survivors))).digest()
            object.__setattr__(self, "_listed", (survivors, digest))
        return digest
