"""Participants that send false messages, encrypted and signed correctly.

A false message replaces the honest one in a `Group`; the server and the others continue with it.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from hashlib import sha256

from secagg import aggregator, unmasking
from secagg.keys import Purpose
from secagg.messages import KeyShares, MaskedInput, UnmaskingShares
from secagg.shamir import SHARE_BYTES, P
from secagg.shares import (
    EncryptedShare,
    ReceivedShares,
    SharePair,
    decrypt_shares,
    encrypt_shares,
    received_shares_bytes,
)
from secagg.unmasking import UnmaskedSum
from tests.secagg.conftest import RING, Group, same


def false(share: bytes) -> bytes:
    """Return a false share, which is a field element like the true one."""
    # Not the next one: with equal steps at two numbers of four the errors may cancel at zero.
    step = int.from_bytes(sha256(share).digest(), "big")
    return ((int.from_bytes(share, "big") + step) % P).to_bytes(SHARE_BYTES, "big")


def key_purpose(group: Group, slot: int, holder: int) -> Purpose:
    return group.session.key_share_purpose(slot, holder)


def seed_purpose(group: Group, slot: int, holder: int) -> Purpose:
    return group.session.seed_share_purpose(slot, holder)


def seal(secret: bytes, purpose: Purpose, share: bytes) -> EncryptedShare:
    return EncryptedShare.unpack(encrypt_shares([share], [purpose.derive(secret)]).tobytes())


def unseal(secret: bytes, purpose: Purpose, encrypted: EncryptedShare) -> bytes | None:
    pair = SharePair(encrypted, encrypted)
    received = ReceivedShares.unpack(received_shares_bytes({0: pair}))
    (share,) = decrypt_shares(received.records["key"], [purpose.derive(secret)])
    return share


def share_pairs(group: Group, slot: int) -> dict[int, SharePair]:
    return dict(zip(group.shared[slot].holders, group.key_shares[slot].share_pairs, strict=True))


def key_shares(group: Group, slot: int) -> dict[int, bytes]:
    state = group.shared[slot]
    return dict(zip(state.holders, state.dealt.of_key, strict=True))


def seed_shares(group: Group, slot: int) -> dict[int, bytes]:
    state = group.shared[slot]
    return dict(zip(state.holders, state.dealt.of_seed, strict=True))


def replace_key_shares(
    group: Group, slot: int, changed: Mapping[int, SharePair] | None = None, **commitments: bytes
) -> None:
    """Replace some share pairs and commitments of `slot`, before any participant checks them."""
    pairs = {**share_pairs(group, slot), **(changed or {})}
    message = replace(group.key_shares[slot], share_pairs=tuple(pairs.values()), **commitments)
    set_key_shares(group, slot, message)


def set_key_shares(group: Group, slot: int, message: KeyShares) -> None:
    signed = group.session.key_shares_statement(slot, message.share_commitment)
    message = replace(message, signature=group.identities[slot].sign(signed))
    state = group.shared[slot]
    group.key_shares[slot] = message
    state.dealt = replace(state.dealt, key_shares=message)


def send_shares(
    group: Group, slot: int, which: str, shares: Mapping[int, bytes], **commitments: bytes
) -> None:
    """Replace shares of a secret of `slot`, by holder, which it encrypts correctly."""
    purpose = key_purpose if which == "key" else seed_purpose
    pairs = share_pairs(group, slot)
    changed = {
        holder: replace(
            pairs[holder],
            **{which: seal(group.agree(slot, holder), purpose(group, slot, holder), share)},
        )
        for holder, share in shares.items()
    }
    replace_key_shares(group, slot, changed, **commitments)


def spoiled(group: Group, slot: int, holder: int, which: str) -> SharePair:
    """Return a pair of `slot` for `holder` that it cannot use; `which` is key, seed or both."""
    garbage = EncryptedShare(bytes(32), bytes(33))
    pair = share_pairs(group, slot)[holder]
    names = ("key", "seed") if which == "both" else (which,)
    return replace(pair, **dict.fromkeys(names, garbage))


def replace_vector(group: Group, slot: int, vector: bytes) -> None:
    message = MaskedInput(vector, b"")
    signed = group.transcript.masked_input_statement(slot, message.signed_input.digest)
    group.masked_inputs[slot] = replace(message, signature=group.identities[slot].sign(signed))


def complain(group: Group, holder: int, dealers: Collection[int]) -> None:
    """Replace the complaints of `holder` by false ones about `dealers`, with its signatures."""
    received, identity, session = group.received[holder], group.identities[holder], group.session
    signatures = {
        dealer: identity.sign(session.complaint_statement(holder, dealer, received[dealer].pack()))
        for dealer in dealers
    }
    complaints = replace(group.complaints[holder], signatures=signatures)
    signed = session.complaints_statement(holder, received.digest, complaints.signed_bytes())
    group.complaints[holder] = replace(complaints, signature=identity.sign(signed))
    aggregator.check_complaints(session, holder, received, group.complaints[holder])


def reveal(group: Group, slot: int, instead: UnmaskingShares) -> UnmaskingShares:
    signed = group.transcript.unmasking_statement(
        slot, group.request.survivors, instead.signed_bytes()
    )
    return instead.signed(group.identities[slot], signed)


def unmask(group: Group, messages: Mapping[int, UnmaskingShares]) -> UnmaskedSum:
    request = group.request
    for slot, message in messages.items():
        aggregator.check_unmasking_shares(request, slot, message)
    return unmasking.unmask(request, RING, group.messages(messages), group.masked_sum())


def finish(
    group: Group,
    dropouts: Collection[int] = (),
    change: Callable[[int, UnmaskingShares], UnmaskingShares] | None = None,
) -> UnmaskedSum:
    """Check the messages of `group` and unmask; `change` replaces the shares that a slot reveals.

    If no participant has masked, all check their shares, and all except `dropouts` and those left
    out mask first.
    """
    for slot, key_shares in group.key_shares.items():
        aggregator.check_key_shares(group.session, slot, key_shares)
    if not group.masked_inputs:
        if not group.checked:
            group.check()
        group.mask(group.transcript.share_commitments.keys() - set(dropouts))
    for slot, masked_input in group.masked_inputs.items():
        aggregator.check_masked_input(group.transcript, slot, masked_input)
    group.reveal()
    messages = group.unmasking_shares
    if change is not None:
        messages = {slot: change(slot, message) for slot, message in messages.items()}
    return unmask(group, messages)


def assert_exact(
    group: Group, unmasked: UnmaskedSum, blamed: Mapping[int, str] | None = None
) -> None:
    assert same(unmasked.total, group.plain_sum(group.masked_inputs))
    assert unmasked.blamed == (blamed or {})
