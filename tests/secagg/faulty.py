"""A server that departs from the protocol, and the participants that collude with it.

It keeps all shares that come its way, and reads a vector once it has both secrets of its
sender, or of all whom the sender masked with. A test plays it and asks what it has in the end.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from secagg.keys import KeyPair, Purpose
from secagg.masks import MaskApplier
from secagg.messages import MaskedInput, UnmaskingShares
from secagg.ring import Vector
from secagg.session import Transcript
from secagg.shares import EncryptedShare
from tests.secagg.conftest import RING, Group
from tests.secagg.lying import unseal
from tests.vectors.reference import recover


class Crooked:
    """What the server has by now, together with those of `corrupt`."""

    def __init__(self, group: Group, corrupt: Collection[int]) -> None:
        assert len(corrupt) <= group.cohort.assumptions.max_corrupt(group.cohort.n)
        self.group = group
        self.corrupt = frozenset(corrupt)
        self._seeds: dict[int, dict[int, bytes]] = {}  # shares by owner, then holder
        self._keys: dict[int, dict[int, bytes]] = {}

    def hear(self, slot: int, reveal: UnmaskingShares) -> None:
        """Keep the shares that `slot` gave."""
        for owner, share in reveal.seed_shares.items():
            self._seeds.setdefault(owner, {})[slot] = share
        for owner, share in reveal.key_shares.items():
            self._keys.setdefault(owner, {})[slot] = share

    def keep(self, owner: int, holder: int, *, key_share: bytes) -> None:
        """Keep a share of a mask key that came another way."""
        self._keys.setdefault(owner, {})[holder] = key_share

    def open_deals(self, owner: int, view: Transcript, upload: MaskedInput | None = None) -> None:
        """Let the corrupt holders of `owner` open what it dealt, both secrets."""
        deal, holders = self.group.deals[owner], view.holders(owner)
        for holder, parcel in zip(holders, deal.encrypted_shares, strict=True):
            if holder in self.corrupt:
                share = self._open(
                    owner, holder, parcel, view.session.key_share_purpose(owner, holder)
                )
                self.keep(owner, holder, key_share=share)
        if upload is None:
            return
        heard = [holder for holder in holders if holder in view.share_commitments]
        for holder, parcel in zip(heard, upload.seed_shares.encrypted_shares, strict=True):
            if holder in self.corrupt:
                share = self._open(owner, holder, parcel, view.seed_share_purpose(owner, holder))
                self._seeds.setdefault(owner, {})[holder] = share

    def _open(self, owner: int, holder: int, parcel: EncryptedShare, purpose: Purpose) -> bytes:
        public = self.group.cohort.roster[owner].keys.encryption
        share = unseal(self.group.joined[holder].encryption_pair.agree(public), purpose, parcel)
        assert share is not None
        return share

    def seed(self, owner: int) -> bytes | None:
        """Return the seed of `owner`, if there are shares enough."""
        return self._recover(owner, self._seeds)

    def pair(self, owner: int) -> KeyPair | None:
        """Return the mask key of `owner`, if it is corrupt or there are shares enough."""
        if owner in self.corrupt:
            return self.group.joined[owner].mask_pair
        secret = self._recover(owner, self._keys)
        return None if secret is None else KeyPair.of(secret)

    def _recover(self, owner: int, given: Mapping[int, Mapping[int, bytes]]) -> bytes | None:
        order = (owner, *self.group.view.holders(owner))
        by_holder = given.get(owner, {})
        shares = {x: by_holder[h] for x, h in enumerate(order, start=1) if h in by_holder}
        threshold = self.group.cohort.parameters.threshold
        return recover(dict(list(shares.items())[:threshold])) if len(shares) >= threshold else None

    def vector(self, owner: int, view: Transcript, upload: MaskedInput) -> Vector | None:
        """Return what `owner` uploaded under `view`, with all masks off; None if one stays on."""
        seed, own = self.seed(owner), self.pair(owner)
        if seed is None:
            return None
        found, wardrobe = RING.unpack(upload.vector), MaskApplier(RING)
        wardrobe.subtract_mask(found, view.self_mask_purpose(owner).keystream(seed))
        for other in view.neighbours(owner):
            theirs = self.pair(other)
            roster = view.session.roster
            if own is not None:
                secret = own.agree(roster[other].keys.mask)
            elif theirs is not None:
                secret = theirs.agree(roster[owner].keys.mask)
            else:
                return None
            stream = view.pairwise_mask_purpose(owner, other).keystream(secret)
            (wardrobe.subtract_mask if owner < other else wardrobe.add_mask)(found, stream)
        return found

    def sign(self, view: Transcript, survivors: Collection[int]) -> dict[int, bytes]:
        """Return the signatures of the corrupt under any set: they sign as many as asked."""
        kept = frozenset(survivors)
        return {
            slot: self.group.identities[slot].sign(view.confirmation_statement(slot, kept))
            for slot in self.corrupt & kept
        }


def with_entry(group: Group, slot: int, **facts: object) -> Group:
    """Return the group with another roster: the entry of `slot` has other facts."""
    entries = list(group.cohort.roster)
    entries[slot] = replace(entries[slot], **facts)  # type: ignore[arg-type]
    return replace(group, cohort=replace(group.cohort, roster=tuple(entries)))


def with_sharer(view: Transcript, slot: int, **facts: bytes) -> Transcript:
    """Return a view in which `slot` is said to have shared otherwise."""
    return Transcript(
        view.session,
        {**view.share_commitments, slot: replace(view.share_commitments[slot], **facts)},
    )


def without(view: Transcript, slots: Collection[int]) -> Transcript:
    """Return a view in which `slots` are said to have shared nothing."""
    return Transcript(
        view.session, {s: said for s, said in view.share_commitments.items() if s not in slots}
    )
