"""The server in a secure sum: checks of the messages that arrive, and the request to unmask.

Each check names the participant at fault, whose message then counts as missing. When the masked
inputs are in, `collect_masked_inputs` decides which shares the survivors must reveal: of the seed
for each survivor, of the mask key for each dealer that dropped out, never of both for one
participant. `unmasking` recovers these secrets and removes the masks.

Source: [Bonawitz17, figure 4].
"""

from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from secagg.errors import FaultyParticipantError
from secagg.keys import is_signed, statement
from secagg.messages import (
    ENCRYPTED_SHARE_BYTES,
    KEY_SHARE,
    RECEIVED_SHARE_DTYPE,
    SEED_SHARE,
    EncryptedShare,
    KeyShares,
    MaskedInput,
    ReceivedShares,
    SeedShares,
    UnmaskingShares,
    encrypted_shares_bytes,
)
from secagg.session import Session, Transcript
from secagg.shamir import is_share

_ROUTING_BATCH = 64  # dealers routed at a time: half a megabyte, which stays in the cache
_ROUTED_RECORD = np.dtype(  # the bytes of RECEIVED_SHARE_DTYPE
    [("dealer", ">u4"), ("encrypted_share", f"V{ENCRYPTED_SHARE_BYTES}")]
)


def check_key_shares(session: Session, slot: int, key_shares: KeyShares) -> None:
    """Check the key shares of participant `slot` before they are forwarded.

    Raises:
        FaultyParticipantError: if there is not one encrypted share for each holder, or the
            signature is false.
    """
    holders = session.parameters.holders
    count = len(key_shares.encrypted_shares)
    if count != holders:
        raise FaultyParticipantError(slot, f"sent {count} shares to {holders} holders")
    commitment = key_shares.share_commitment.signed_bytes()
    signed = statement("key shares", session.label, slot, commitment)
    _check_signature(session, slot, signed, key_shares.signature)


def check_masked_input(transcript: Transcript, slot: int, masked_input: MaskedInput) -> None:
    """Check the seed shares and the signature of a masked input of participant `slot`.

    Raises:
        FaultyParticipantError: if there is not one encrypted share for each of its holders that
            shared, or the signature is false.
    """
    seed_shares = masked_input.seed_shares
    holders, count = transcript.sharing_holder_counts[slot], len(seed_shares.encrypted_shares)
    if count != holders:
        raise FaultyParticipantError(slot, f"sent {count} shares of its seed to {holders} holders")
    signed = statement(
        "masked input", transcript.label, slot, seed_shares.pack(), masked_input.vector
    )
    _check_signature(transcript.session, slot, signed, masked_input.signature)


def check_confirmation(
    transcript: Transcript, slot: int, survivors: frozenset[int], signature: bytes
) -> None:
    """Check the signature of participant `slot` over the survivors.

    Raises:
        FaultyParticipantError: if the signature is over any other statement.
    """
    confirmation = transcript.confirmation_statement(slot, survivors)
    _check_signature(transcript.session, slot, confirmation, signature)


def _check_signature(session: Session, slot: int, signed: bytes, signature: bytes) -> None:
    if not is_signed(session.roster.identity(slot), signed, signature):
        raise FaultyParticipantError(slot, "did not sign this")


@dataclass(frozen=True, eq=False)
class UnmaskingRequest:
    """The survivors, and the encrypted shares that each of them must decrypt and reveal.

    Attributes:
        seed_commitments: the survivors' commitments to their seeds.
        own_share_commitments: the survivors' commitments to their own shares of their seeds.
        received_shares: the encrypted shares by holder and then dealer: of seeds for survivors,
            of mask keys for dropouts.
    """

    transcript: Transcript
    seed_commitments: Mapping[int, bytes]
    own_share_commitments: Mapping[int, bytes]
    received_shares: Mapping[int, ReceivedShares]

    @cached_property
    def survivors(self) -> frozenset[int]:
        """Return the slots whose vectors are in the masked sum."""
        return frozenset(self.seed_commitments)

    @cached_property
    def requested_kinds(self) -> NDArray[np.uint8]:
        """Return the kind of the requested shares, by the slot of the dealer."""
        kinds = np.full(self.transcript.session.n, KEY_SHARE, np.uint8)
        kinds[list(self.seed_commitments)] = SEED_SHARE
        return kinds

    def commitments(self, dealer: int) -> dict[int, bytes]:
        """Return the commitments to the shares of the requested secret of `dealer`, by number."""
        own = self.own_share_commitments.get(dealer)
        commitments = {} if own is None else {1: own}
        for number, holder in enumerate(self.transcript.holders(dealer), start=2):
            received = self.received_shares.get(holder)
            commitment = received and received.commitment(dealer)
            if commitment:
                commitments[number] = commitment
        return commitments

    @property
    def nbytes(self) -> int:
        """Return the size of all encrypted shares in bytes."""
        return sum(received.records.nbytes for received in self.received_shares.values())

    @cached_property
    def dropouts(self) -> frozenset[int]:
        """Return the dealers that dropped out before their masked inputs arrived."""
        return frozenset(self.transcript.share_commitments.keys() - self.seed_commitments.keys())


def collect_masked_inputs(
    transcript: Transcript, keys: Mapping[int, KeyShares], seeds: Mapping[int, SeedShares]
) -> UnmaskingRequest:
    """Return the request that follows from the survivors' `seeds` and the dropouts' `keys`.

    Raises:
        ValueError: if the key shares of a dropout are not in `keys`.
    """
    dealers = transcript.dealers.tolist()
    if missing := [dealer for dealer in dealers if dealer not in seeds and dealer not in keys]:
        raise ValueError(f"the key shares of participant {missing[0]} are missing")
    is_dropout = np.array([dealer not in seeds for dealer in dealers], np.bool_)
    encrypted_shares = [
        seeds[dealer].encrypted_shares if dealer in seeds else keys[dealer].encrypted_shares
        for dealer in dealers
    ]
    # Each holder has a share of a mask key, but only those that shared have one of a seed.
    is_sent = transcript.holder_has_shared | is_dropout[:, np.newaxis]
    received = _route_shares(
        transcript.dealers, transcript.selected_holders, is_sent, encrypted_shares
    )
    seed_commitments = {dealer: shares.seed_commitment for dealer, shares in seeds.items()}
    own_share_commitments = {
        dealer: shares.own_share_commitment for dealer, shares in seeds.items()
    }
    return UnmaskingRequest(transcript, seed_commitments, own_share_commitments, received)


def _route_shares(
    dealers: NDArray[np.int64],
    holders: NDArray[np.int64],
    is_sent: NDArray[np.bool_],
    encrypted_shares: Sequence[Sequence[EncryptedShare]],
) -> dict[int, ReceivedShares]:
    """Return the shares that each of `dealers`, which rise, receives as a holder.

    Row i of `holders` has the holders of dealer i in the order of its shares; `is_sent` marks
    those for which item i of `encrypted_shares` has one. Shares for others than `dealers` are
    left out.

    Raises:
        ValueError: if a dealer has not exactly one encrypted share for each marked holder.
    """
    bodies = [encrypted_shares_bytes(shares) for shares in encrypted_shares]
    counts = is_sent.sum(axis=1)
    sizes = np.array([len(body) for body in bodies], np.int64)
    if (wrong := np.flatnonzero(sizes != counts * ENCRYPTED_SHARE_BYTES)).size:
        slot = int(dealers[wrong[0]])
        raise ValueError(f"participant {slot} did not send one encrypted share to each holder")
    receivers = holders[is_sent]
    narrow = receivers.astype(np.min_scalar_type(receivers.max(initial=0)))
    order = np.argsort(narrow, kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    routed, filled = np.empty(len(order), _ROUTED_RECORD), 0
    routed["dealer"] = np.repeat(dealers.astype(np.uint32), counts)[order]
    # In batches, because joining all bodies at once would copy them through memory.
    for start in range(0, len(bodies), _ROUTING_BATCH):
        body = b"".join(bodies[start : start + _ROUTING_BATCH])
        batch = np.frombuffer(body, f"V{ENCRYPTED_SHARE_BYTES}")
        routed["encrypted_share"][places[filled : filled + len(batch)]] = batch
        filled += len(batch)
    records, receivers = routed.view(RECEIVED_SHARE_DTYPE), receivers[order]
    starts, ends = (
        np.searchsorted(receivers, dealers, side).tolist() for side in ("left", "right")
    )
    return {
        slot: ReceivedShares(records[start:end])
        for slot, start, end in zip(dealers.tolist(), starts, ends, strict=True)
    }


def check_unmasking_shares(request: UnmaskingRequest, slot: int, message: UnmaskingShares) -> None:
    """Check the shares that participant `slot` reveals; `unmask` compares them with commitments.

    An incomplete message counts as missing, so its sender counts as a dropout.

    Raises:
        FaultyParticipantError: if its own share of its seed is missing, an encrypted share is not
            answered, a share is of a participant that sent it none, of the secret that was not
            requested, or not a field element; or if the signature is false, or covers other
            survivors or encrypted shares than were sent.
    """
    if slot not in request.survivors:
        raise FaultyParticipantError(slot, "is not a survivor: its shares were not requested")
    if not _is_complete(request, slot, message):
        _raise_first_fault(request, slot, message)
    transcript, received_digest = request.transcript, request.received_shares[slot].digest
    signed = transcript.unmasking_statement(
        slot, request.survivors, received_digest, message.signed_bytes()
    )
    _check_signature(transcript.session, slot, signed, message.signature)


def _is_complete(request: UnmaskingRequest, slot: int, message: UnmaskingShares) -> bool:
    """Return whether `message` answers each encrypted share with a valid share.

    Nearly all messages do, and this check of all records at once is fast.
    """
    records = message.records
    dealers = request.received_shares[slot].dealers
    insort(dealers, slot)
    if records["dealer"].tolist() != dealers:
        return False
    kinds = request.requested_kinds[records["dealer"]] if request.dropouts else SEED_SHARE
    if (records["kind"] != kinds).any():
        return False
    return message.are_field_elements


def _raise_first_fault(request: UnmaskingRequest, slot: int, message: UnmaskingShares) -> None:
    """Raise the first fault of `message`; a report of invalid dealers is not a fault."""
    if slot not in message.seed_shares:
        raise FaultyParticipantError(slot, "left out its own share of its seed")
    wrong = message.seed_shares.keys() - request.survivors
    if wrong := wrong | message.key_shares.keys() & request.survivors:
        raise FaultyParticipantError(slot, f"revealed the wrong secret of participant {min(wrong)}")
    dealers = frozenset(request.received_shares[slot].dealers)
    if unknown := message.invalid_dealers - dealers:
        raise FaultyParticipantError(
            slot, f"reported a share of participant {min(unknown)}, which sent it none"
        )
    revealed = {**message.seed_shares, **message.key_shares}
    if missing := dealers - revealed.keys() - message.invalid_dealers:
        raise FaultyParticipantError(slot, f"did not reveal the share of {min(missing)}")
    if others := revealed.keys() - dealers - {slot}:
        raise FaultyParticipantError(
            slot, f"revealed a share of participant {min(others)}, which sent it none"
        )
    for dealer, share in revealed.items():
        if not is_share(share):
            raise FaultyParticipantError(
                slot, f"revealed a share of participant {dealer} that is not a field element"
            )
