"""A server that departs from the protocol, and the participants that collude with it.

It keeps all shares that it receives. It can read a vector once it has the seed of the sender, and
the sender's mask key or the mask keys of all its neighbours.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from secagg.keys import KeyPair, Purpose
from secagg.masks import MaskedVector
from secagg.messages import MaskedInput, UnmaskingShares
from secagg.ring import Vector
from secagg.roster import Roster, ShareCommitments
from secagg.session import Session, Transcript
from secagg.shares import EncryptedShare
from tests.secagg.conftest import RING, Group
from tests.secagg.lying import unseal
from tests.vectors.reference import recover


class MaliciousServer:
    """The knowledge of the server and the participants in `corrupt`."""

    def __init__(self, group: Group, corrupt: Collection[int]) -> None:
        assert len(corrupt) <= group.session.assumptions.max_corrupt(group.session.n)
        self.group = group
        self.corrupt = frozenset(corrupt)
        self._seeds: dict[int, dict[int, bytes]] = {}  # shares by dealer, then holder
        self._keys: dict[int, dict[int, bytes]] = {}

    def receive(self, slot: int, message: UnmaskingShares) -> None:
        for dealer, share in message.seed_shares.items():
            self._seeds.setdefault(dealer, {})[slot] = share
        for dealer, share in message.key_shares.items():
            self._keys.setdefault(dealer, {})[slot] = share

    def keep(self, dealer: int, holder: int, *, key_share: bytes) -> None:
        self._keys.setdefault(dealer, {})[holder] = key_share

    def decrypt_shares_of(self, dealer: int) -> None:
        session, message = self.group.session, self.group.key_shares[dealer]
        holders = session.neighbour_selection.holders(dealer, message.graph_nonce)
        for holder, pair in zip(holders, message.share_pairs, strict=True):
            if holder in self.corrupt:
                purpose = session.key_share_purpose(dealer, holder)
                self.keep(dealer, holder, key_share=self._open(dealer, holder, pair.key, purpose))
                purpose = session.seed_share_purpose(dealer, holder)
                seed_share = self._open(dealer, holder, pair.seed, purpose)
                self._seeds.setdefault(dealer, {})[holder] = seed_share

    def _open(self, dealer: int, holder: int, encrypted: EncryptedShare, purpose: Purpose) -> bytes:
        share = unseal(self.group.agree(holder, dealer), purpose, encrypted)
        assert share is not None
        return share

    def seed(self, dealer: int) -> bytes | None:
        """Return the seed of `dealer`, or None if there are too few shares."""
        return self._recover(dealer, self._seeds)

    def pair(self, dealer: int) -> KeyPair | None:
        """Return the mask key of `dealer` if it is corrupt or enough of its shares are known."""
        if dealer in self.corrupt:
            return self.group.joined[dealer].mask_pair
        secret = self._recover(dealer, self._keys)
        return None if secret is None else KeyPair.of(secret)

    def _recover(self, dealer: int, shares_of: Mapping[int, Mapping[int, bytes]]) -> bytes | None:
        order = (dealer, *self.group.transcript.holders(dealer))
        by_holder = shares_of.get(dealer, {})
        shares = {x: by_holder[h] for x, h in enumerate(order, start=1) if h in by_holder}
        threshold = self.group.session.parameters.threshold
        return recover(dict(list(shares.items())[:threshold])) if len(shares) >= threshold else None

    def vector(
        self, dealer: int, transcript: Transcript, masked_input: MaskedInput
    ) -> Vector | None:
        """Return the vector of `dealer` without its masks; None if one cannot be removed."""
        seed, own = self.seed(dealer), self.pair(dealer)
        if seed is None:
            return None
        masked = MaskedVector(RING, RING.unpack(masked_input.vector))
        masked.subtract(transcript.self_mask_purpose(dealer).keystream(seed))
        for other in transcript.neighbours(dealer):
            theirs = self.pair(other)
            roster = transcript.session.roster
            if own is not None:
                secret = own.agree(roster[other].keys.mask)
            elif theirs is not None:
                secret = theirs.agree(roster[dealer].keys.mask)
            else:
                return None
            stream = transcript.pairwise_mask_purpose(dealer, other).keystream(secret)
            (masked.subtract if dealer < other else masked.add)(stream)
        return masked.lanes

    def sign(self, transcript: Transcript, survivors: Collection[int]) -> dict[int, bytes]:
        survivor_set = frozenset(survivors)
        return {
            slot: self.group.identities[slot].sign(
                transcript.confirmation_statement(slot, survivor_set)
            )
            for slot in self.corrupt & survivor_set
        }


def collude(group: Group, victim: int) -> MaliciousServer:
    """Return a server that colludes with all corrupt participants: holders of `victim`."""
    count = group.session.assumptions.max_corrupt(group.session.n)
    return MaliciousServer(group, group.transcript.holders(victim)[:count])


def with_entry(session: Session, slot: int, **facts: object) -> Session:
    """Return the session with another roster: the entry of `slot` has these fields."""
    entries = list(session.roster)
    entries[slot] = replace(entries[slot], **facts)  # type: ignore[arg-type]
    return replace(session, roster=Roster.of(entries))


def with_commitment(transcript: Transcript, slot: int, **facts: bytes) -> Transcript:
    commitment = replace(transcript.share_commitments[slot], **facts)
    commitments = {**transcript.share_commitments, slot: commitment}
    return replace(transcript, share_commitments=ShareCommitments.of(commitments))


def without(transcript: Transcript, slots: Collection[int]) -> Transcript:
    commitments = transcript.share_commitments.items()
    kept = {slot: commitment for slot, commitment in commitments if slot not in slots}
    return replace(transcript, share_commitments=ShareCommitments.of(kept))
