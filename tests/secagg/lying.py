"""Participants who lie: what they would say instead, sealed and signed as it should be.

A lie is put in the place of what `Group` has heard: the others and the server go on with it.
"""

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256

from secagg.keys import Purpose, statement
from secagg.messages import KeyShares, MaskedInput, UnmaskingShares
from secagg.shamir import SHARE_BYTES, P
from secagg.shares import (
    EncryptedShare,
    ReceivedShares,
    decrypt_shares,
    encrypt_shares,
    received_shares_bytes,
)
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
    return group.cohort.key_share_purpose(slot, holder)


def seed_purpose(group: Group, slot: int, holder: int) -> Purpose:
    """Return the purpose of the envelope with a share of a seed."""
    return group.view.seed_share_purpose(slot, holder)


def seal(secret: bytes, purpose: Purpose, share: bytes) -> EncryptedShare:
    """Return the parcel of one share."""
    (parcel,) = encrypt_shares([share], [purpose.derive(secret)])
    return parcel


def unseal(secret: bytes, purpose: Purpose, parcel: EncryptedShare) -> bytes | None:
    """Return the share in a parcel, or None if it commits to another."""
    inbox = ReceivedShares.unpack(received_shares_bytes({0: parcel}))
    (share,) = decrypt_shares(inbox, [purpose.derive(secret)])
    return share


def sealed(group: Group, slot: int, holder: int, share: bytes, purpose: Purpose) -> EncryptedShare:
    """Return a sound parcel of any share, from `slot` to `holder`."""
    return seal(group.shared[slot].agreed_secrets[holder], purpose, share)


def opened(group: Group, slot: int, holder: int, parcel: EncryptedShare, purpose: Purpose) -> bytes:
    """Return the share in a parcel from `slot` to `holder`, as the dealer knows it."""
    share = unseal(group.shared[slot].agreed_secrets[holder], purpose, parcel)
    assert share is not None
    return share


def key_parcels(group: Group, slot: int) -> dict[int, EncryptedShare]:
    """Return what `slot` dealt of its mask key, by holder."""
    return dict(
        zip(group.shared[slot].agreed_secrets, group.deals[slot].encrypted_shares, strict=True)
    )


def seed_parcels(group: Group, slot: int) -> dict[int, EncryptedShare]:
    """Return what `slot` dealt of its seed, by holder."""
    holders = [holder for holder in group.shared[slot].agreed_secrets if holder in group.deals]
    return dict(zip(holders, group.uploads[slot].seed_shares.encrypted_shares, strict=True))


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


def deal_keys(group: Group, slot: int, parcels: Mapping[int, EncryptedShare]) -> None:
    """Let `slot` deal these parcels of its mask key instead, before anybody masks."""
    old = group.deals[slot]
    deal = KeyShares(old.graph_nonce, tuple({**key_parcels(group, slot), **parcels}.values()))
    said = deal.share_commitment.signed_bytes()
    deal = replace(deal, signature=sign(group, slot, "key shares", group.cohort.label, said))
    group.deals[slot] = group.shared[slot].key_shares = deal


def upload(
    group: Group,
    slot: int,
    parcels: Mapping[int, EncryptedShare] | None = None,
    *,
    commitment: bytes | None = None,
    own: bytes | None = None,
    vector: bytes | None = None,
) -> None:
    """Let `slot` send this instead of what it sent; what is not given stays."""
    old = group.uploads[slot]
    deal = replace(
        old.seed_shares,
        seed_commitment=old.seed_shares.seed_commitment if commitment is None else commitment,
        own_share_commitment=old.seed_shares.own_share_commitment if own is None else own,
        encrypted_shares=tuple({**seed_parcels(group, slot), **(parcels or {})}.values()),
    )
    sent = MaskedInput(deal, old.vector if vector is None else vector, b"")
    signature = sign(group, slot, "masked input", group.view.label, sent.signed_bytes())
    group.uploads[slot] = replace(sent, signature=signature)


def reveal(group: Group, slot: int, instead: UnmaskingShares) -> UnmaskingShares:
    """Return `instead`, signed by `slot`."""
    settled = group.settled
    inbox = settled.received_shares[slot].digest
    answer = settled.transcript.unmasking_statement(
        slot, settled.survivors, inbox, instead.signed_bytes()
    )
    return instead.signed(group.identities[slot], answer)
