"""Participants that send false messages, encrypted and signed correctly.

A false message replaces the honest one in a `Group`; the server and the others continue with it.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from hashlib import sha256

from secagg import aggregator, unmasking
from secagg.keys import Purpose, statement
from secagg.messages import (
    EncryptedShare,
    KeyShares,
    MaskedInput,
    ReceivedShares,
    UnmaskingShares,
    received_shares_bytes,
)
from secagg.participant import decrypt_shares, encrypt_shares
from secagg.shamir import SHARE_BYTES, P
from secagg.unmasking import UnmaskedSum
from tests.secagg.conftest import RING, Group, same


def false(share: bytes) -> bytes:
    """Return a false share, which is a field element like the true one."""
    # Not the next one: with equal steps at two numbers of four the errors may cancel at zero.
    step = int.from_bytes(sha256(share).digest(), "big")
    return ((int.from_bytes(share, "big") + step) % P).to_bytes(SHARE_BYTES, "big")


def sign(group: Group, slot: int, name: str, label: bytes, payload: bytes) -> bytes:
    """Return the signature of `slot` over any payload."""
    return group.identities[slot].sign(statement(name, label, slot, payload))


def key_purpose(group: Group, slot: int, holder: int) -> Purpose:
    """Return the purpose of the pad on a share of a mask key."""
    return group.session.key_share_purpose(slot, holder)


def seed_purpose(group: Group, slot: int, holder: int) -> Purpose:
    """Return the purpose of the pad on a share of a seed."""
    return group.transcript.seed_share_purpose(slot, holder)


def seal(secret: bytes, purpose: Purpose, share: bytes) -> EncryptedShare:
    """Return the encrypted share of `share`."""
    (encrypted,) = encrypt_shares([share], [purpose.derive(secret)])
    return encrypted


def unseal(secret: bytes, purpose: Purpose, encrypted: EncryptedShare) -> bytes | None:
    """Return the decrypted share, or None if it does not match its commitment."""
    received = ReceivedShares.unpack(received_shares_bytes({0: encrypted}))
    (share,) = decrypt_shares(received, [purpose.derive(secret)])
    return share


def sealed(group: Group, slot: int, holder: int, share: bytes, purpose: Purpose) -> EncryptedShare:
    """Return any share correctly encrypted, from `slot` to `holder`."""
    return seal(group.shared[slot].agreed_secrets[holder], purpose, share)


def opened(
    group: Group, slot: int, holder: int, encrypted: EncryptedShare, purpose: Purpose
) -> bytes:
    """Return the share that `slot` encrypted for `holder`."""
    share = unseal(group.shared[slot].agreed_secrets[holder], purpose, encrypted)
    assert share is not None
    return share


def encrypted_key_shares(group: Group, slot: int) -> dict[int, EncryptedShare]:
    """Return the encrypted shares of the mask key of `slot`, by holder."""
    return dict(
        zip(group.shared[slot].agreed_secrets, group.key_shares[slot].encrypted_shares, strict=True)
    )


def encrypted_seed_shares(group: Group, slot: int) -> dict[int, EncryptedShare]:
    """Return the encrypted shares of the seed of `slot`, by holder."""
    holders = [holder for holder in group.shared[slot].agreed_secrets if holder in group.key_shares]
    return dict(zip(holders, group.masked_inputs[slot].seed_shares.encrypted_shares, strict=True))


def key_shares(group: Group, slot: int) -> dict[int, bytes]:
    """Return the shares of the mask key of `slot`, by holder."""
    return {
        holder: opened(group, slot, holder, encrypted, key_purpose(group, slot, holder))
        for holder, encrypted in encrypted_key_shares(group, slot).items()
    }


def seed_shares(group: Group, slot: int) -> dict[int, bytes]:
    """Return the shares of the seed of `slot`, by holder."""
    return {
        holder: opened(group, slot, holder, encrypted, seed_purpose(group, slot, holder))
        for holder, encrypted in encrypted_seed_shares(group, slot).items()
    }


def replace_key_shares(group: Group, slot: int, changed: Mapping[int, EncryptedShare]) -> None:
    """Replace some encrypted shares of the mask key of `slot`, before any participant masks."""
    encrypted = {**encrypted_key_shares(group, slot), **changed}
    message = KeyShares(group.key_shares[slot].graph_nonce, tuple(encrypted.values()))
    commitment = message.share_commitment.signed_bytes()
    signature = sign(group, slot, "key shares", group.session.label, commitment)
    message = replace(message, signature=signature)
    group.key_shares[slot] = group.shared[slot].key_shares = message


def replace_masked_input(
    group: Group,
    slot: int,
    changed: Mapping[int, EncryptedShare] | None = None,
    *,
    vector: bytes | None = None,
    **commitments: bytes,
) -> None:
    """Replace parts of the masked input of `slot`; parts that are not given stay."""
    honest = group.masked_inputs[slot]
    encrypted = {**encrypted_seed_shares(group, slot), **(changed or {})}
    seed_shares = replace(
        honest.seed_shares, encrypted_shares=tuple(encrypted.values()), **commitments
    )
    message = MaskedInput(seed_shares, honest.vector if vector is None else vector, b"")
    label = group.transcript.label
    signature = sign(group, slot, "masked input", label, message.signed_bytes())
    group.masked_inputs[slot] = replace(message, signature=signature)


def reveal(group: Group, slot: int, instead: UnmaskingShares) -> UnmaskingShares:
    """Return the false answer `instead`, signed by `slot`."""
    request = group.request
    received_digest = request.received_shares[slot].digest
    signed = request.transcript.unmasking_statement(
        slot, request.survivors, received_digest, instead.signed_bytes()
    )
    return instead.signed(group.identities[slot], signed)


def unmask(group: Group, messages: Mapping[int, UnmaskingShares]) -> UnmaskedSum:
    """Check `messages`, by holder, and unmask the sum."""
    request = group.request
    for slot, message in messages.items():
        aggregator.check_unmasking_shares(request, slot, message)
    return unmasking.unmask(request, RING, messages, group.masked_sum())


def finish(
    group: Group,
    dropouts: Collection[int] = (),
    change: Callable[[int, UnmaskingShares], UnmaskingShares] | None = None,
) -> UnmaskedSum:
    """Check the messages of `group` and unmask; `change` replaces the shares that a slot reveals.

    If no participant has masked, all except `dropouts` mask first.
    """
    for slot, key_shares in group.key_shares.items():
        aggregator.check_key_shares(group.session, slot, key_shares)
    if not group.masked_inputs:
        group.mask(group.shared.keys() - set(dropouts))
    for slot, masked_input in group.masked_inputs.items():
        aggregator.check_masked_input(group.transcript, slot, masked_input)
    group.confirm()
    group.reveal()
    messages = group.unmasking_shares
    if change is not None:
        messages = {slot: change(slot, message) for slot, message in messages.items()}
    return unmask(group, messages)


def assert_exact(
    group: Group, unmasked: UnmaskedSum, blamed: Mapping[int, str] | None = None
) -> None:
    """Assert that the sum is that of the survivors, and that exactly these are blamed."""
    assert same(unmasked.total, group.plain_sum(group.masked_inputs))
    assert unmasked.blamed == (blamed or {})
