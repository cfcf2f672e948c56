"""Participants who lie: what they would say instead, sealed and signed as it should be.

A lie is put in the place of what `Group` has heard: the others and the server go on with it.
"""

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256

from secagg.deals import KeyDeal, Reveal, Upload
from secagg.keys import Purpose, statement
from secagg.parcels import Inbox, Parcel, inbox_bytes, open_parcels, seal_shares
from secagg.shamir import SHARE_BYTES, P
from tests.secagg.conftest import Group


def false(share: bytes) -> bytes:
    """Return another share than `share`, as good to look at."""
    # Not the next one: with equal steps at two numbers of four the errors may cancel at zero.
    step = int.from_bytes(sha256(share).digest(), "big")
    return ((int.from_bytes(share, "big") + step) % P).to_bytes(SHARE_BYTES, "big")


def sign(group: Group, slot: int, what: str, label: bytes, said: bytes) -> bytes:
    """Return the signature of `slot` under whatever it says."""
    return group.identities[slot].sign(statement(what, label, slot, said))


def key_purpose(group: Group, slot: int, holder: int) -> Purpose:
    """Return the purpose of the envelope with a share of a mask key."""
    return group.cohort.key_share(slot, holder)


def seed_purpose(group: Group, slot: int, holder: int) -> Purpose:
    """Return the purpose of the envelope with a share of a seed."""
    return group.view.seed_share(slot, holder)


def seal(secret: bytes, purpose: Purpose, share: bytes) -> Parcel:
    """Return the parcel of one share."""
    (parcel,) = seal_shares([share], [purpose.derive(secret)])
    return parcel


def unseal(secret: bytes, purpose: Purpose, parcel: Parcel) -> bytes | None:
    """Return the share in a parcel, or None if it commits to another."""
    inbox = Inbox.unpack(inbox_bytes({0: parcel}))
    (share,) = open_parcels(inbox, [purpose.derive(secret)])
    return share


def sealed(group: Group, slot: int, holder: int, share: bytes, purpose: Purpose) -> Parcel:
    """Return a sound parcel of any share, from `slot` to `holder`."""
    return seal(group.shared[slot].sealing[holder], purpose, share)


def opened(group: Group, slot: int, holder: int, parcel: Parcel, purpose: Purpose) -> bytes:
    """Return the share in a parcel from `slot` to `holder`, as the dealer knows it."""
    share = unseal(group.shared[slot].sealing[holder], purpose, parcel)
    assert share is not None
    return share


def key_parcels(group: Group, slot: int) -> dict[int, Parcel]:
    """Return what `slot` dealt of its mask key, by holder."""
    return dict(zip(group.shared[slot].sealing, group.deals[slot].parcels, strict=True))


def seed_parcels(group: Group, slot: int) -> dict[int, Parcel]:
    """Return what `slot` dealt of its seed, by holder."""
    holders = [holder for holder in group.shared[slot].sealing if holder in group.deals]
    return dict(zip(holders, group.uploads[slot].deal.parcels, strict=True))


def key_shares(group: Group, slot: int) -> dict[int, bytes]:
    """Return the shares that `slot` dealt of its mask key, by holder."""
    return {
        holder: opened(group, slot, holder, parcel, key_purpose(group, slot, holder))
        for holder, parcel in key_parcels(group, slot).items()
    }


def seed_shares(group: Group, slot: int) -> dict[int, bytes]:
    """Return the shares that `slot` dealt of its seed, by holder."""
    return {
        holder: opened(group, slot, holder, parcel, seed_purpose(group, slot, holder))
        for holder, parcel in seed_parcels(group, slot).items()
    }


def deal_keys(group: Group, slot: int, parcels: Mapping[int, Parcel]) -> None:
    """Let `slot` deal these parcels of its mask key instead, before anybody masks."""
    old = group.deals[slot]
    deal = KeyDeal(old.contribution, tuple({**key_parcels(group, slot), **parcels}.values()))
    said = deal.sharer.said()
    deal = replace(deal, signature=sign(group, slot, "shares", group.cohort.label, said))
    group.deals[slot] = group.shared[slot].deal = deal


def upload(
    group: Group,
    slot: int,
    parcels: Mapping[int, Parcel] | None = None,
    *,
    commitment: bytes | None = None,
    own: bytes | None = None,
    vector: bytes | None = None,
) -> None:
    """Let `slot` send this instead of what it sent; what is not given stays."""
    old = group.uploads[slot]
    deal = replace(
        old.deal,
        commitment=old.deal.commitment if commitment is None else commitment,
        own=old.deal.own if own is None else own,
        parcels=tuple({**seed_parcels(group, slot), **(parcels or {})}.values()),
    )
    sent = Upload(deal, old.vector if vector is None else vector, b"")
    signature = sign(group, slot, "vector", group.view.label, sent.said())
    group.uploads[slot] = replace(sent, signature=signature)


def reveal(group: Group, slot: int, instead: Reveal) -> Reveal:
    """Return `instead`, signed by `slot`."""
    settled = group.settled
    inbox = settled.inboxes[slot].digest
    answer = settled.view.answer(slot, settled.survivors, inbox, instead.said())
    return instead.signed(group.identities[slot], answer)
