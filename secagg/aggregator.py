"""The server in a secure sum: checks of the messages that arrive, and the request to unmask.

Each check names the participant at fault, whose message then counts as missing. Once the holders
have checked their shares, a dealer with complaints must answer each of them with shares that match
its commitments, or it is left out, before any participant has masked with it. When the masked
inputs are in, the survivors must reveal shares: of the seed for each survivor, of the mask key for
each dealer that dropped out, never of both for one participant. `unmasking` recovers these secrets
and removes the masks.

Source: [Bonawitz17, figure 4]; complaints and answers are those of verifiable secret sharing.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from secagg.errors import FaultyParticipantError
from secagg.keys import is_signed
from secagg.messages import (
    KEY_SHARE,
    SEED_SHARE,
    Answers,
    Complaints,
    KeyShares,
    MaskedInput,
    UnmaskingShares,
)
from secagg.session import Session, Transcript
from secagg.shamir import is_share
from secagg.shares import (
    RECEIVED_SHARES_DTYPE,
    SHARE_PAIR_BYTES,
    ReceivedShares,
    commit_share,
    share_pairs_bytes,
)

_ROUTING_BATCH = 32  # dealers routed at a time: half a megabyte, which stays in the cache
_ROUTED_RECORD = np.dtype(  # the bytes of RECEIVED_SHARES_DTYPE
    [("dealer", ">u4"), ("pair", f"V{SHARE_PAIR_BYTES}")]
)


def check_key_shares(session: Session, slot: int, key_shares: KeyShares) -> None:
    """Check the key shares of participant `slot` before they are forwarded.

    Raises:
        FaultyParticipantError: if there is not one share pair for each holder, or the signature
            is false.
    """
    holders, count = session.parameters.holders, len(key_shares.share_pairs)
    if count != holders:
        raise FaultyParticipantError(slot, f"sent {count} shares to {holders} holders")
    signed = session.key_shares_statement(slot, key_shares.share_commitment)
    _check_signature(session, slot, signed, key_shares.signature)


def route_shares(
    session: Session, key_shares: Mapping[int, KeyShares]
) -> dict[int, ReceivedShares]:
    """Return the share pairs that each dealer of `key_shares` receives as a holder.

    Pairs for participants that sent no key shares are left out.

    Raises:
        ValueError: if a dealer has not exactly one pair for each holder.
    """
    slots = sorted(key_shares)
    dealers = np.array(slots, np.int64)
    nonces = {slot: key_shares[slot].graph_nonce for slot in slots}
    holders = session.neighbour_selection.all_holders(nonces)
    bodies = [share_pairs_bytes(key_shares[slot].share_pairs) for slot in slots]
    count = session.parameters.holders
    for slot, body in zip(slots, bodies, strict=True):
        if len(body) != count * SHARE_PAIR_BYTES:
            raise ValueError(f"participant {slot} did not send one share pair to each holder")
    narrow = holders.ravel().astype(np.min_scalar_type(session.n))
    order = np.argsort(narrow, kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    routed, filled = np.empty(len(order), _ROUTED_RECORD), 0
    routed["dealer"] = np.repeat(dealers.astype(np.uint32), count)[order]
    # In batches, because joining all bodies at once would copy them through memory.
    for start in range(0, len(bodies), _ROUTING_BATCH):
        body = b"".join(bodies[start : start + _ROUTING_BATCH])
        batch = np.frombuffer(body, f"V{SHARE_PAIR_BYTES}")
        routed["pair"][places[filled : filled + len(batch)]] = batch
        filled += len(batch)
    records, receivers = routed.view(RECEIVED_SHARES_DTYPE), holders.ravel()[order]
    starts, ends = (
        np.searchsorted(receivers, dealers, side).tolist() for side in ("left", "right")
    )
    return {
        slot: ReceivedShares(records[start:end])
        for slot, start, end in zip(slots, starts, ends, strict=True)
    }


def check_complaints(
    session: Session, slot: int, received: ReceivedShares, complaints: Complaints
) -> None:
    """Check the complaints of participant `slot` about the share pairs that it `received`.

    Raises:
        FaultyParticipantError: if a complaint is about a participant that sent it none, or a
            signature is false or covers other share pairs than were sent.
    """
    signed = session.complaints_statement(slot, received.digest, complaints.signed_bytes())
    _check_signature(session, slot, signed, complaints.signature)
    if unknown := complaints.signatures.keys() - received.keys():
        raise FaultyParticipantError(
            slot, f"complained about participant {min(unknown)}, which sent it no share"
        )
    for dealer, signature in complaints.signatures.items():
        pair = received[dealer].pack()
        _check_signature(session, slot, session.complaint_statement(slot, dealer, pair), signature)


def complaints_by_dealer(complaints: Mapping[int, Complaints]) -> dict[int, dict[int, bytes]]:
    """Return the signatures of the holders that complained, by dealer and then holder.

    `complaints` are by holder. A dealer that did not check its own shares has dropped out, so that
    complaints about it are left out.
    """
    by_dealer: dict[int, dict[int, bytes]] = {}
    for holder, message in complaints.items():
        for dealer, signature in message.signatures.items():
            if dealer in complaints:
                by_dealer.setdefault(dealer, {})[holder] = signature
    return by_dealer


def check_answers(
    session: Session,
    slot: int,
    key_shares: KeyShares,
    complaining: Collection[int],
    answers: Answers,
) -> None:
    """Check the answers of participant `slot` to the holders that complained about it.

    `key_shares` are those that it sent.

    Raises:
        FaultyParticipantError: if it did not answer exactly the complaints, a share is not a field
            element or does not match its commitment, or the signature is false.
    """
    if answers.key_shares.keys() != set(complaining):
        raise FaultyParticipantError(slot, "did not answer exactly the complaints about it")
    holders = session.neighbour_selection.holders(slot, key_shares.graph_nonce)
    for holder, key_share in answers.key_shares.items():
        pair = key_shares.share_pairs[holders.index(holder)]
        answered = (pair.key, key_share), (pair.seed, answers.seed_shares[holder])
        for encrypted, share in answered:
            if not is_share(share) or commit_share(share) != encrypted.commitment:
                raise FaultyParticipantError(slot, f"committed to another share for {holder}")
    signed = session.answers_statement(slot, answers.signed_bytes())
    _check_signature(session, slot, signed, answers.signature)


def check_masked_input(transcript: Transcript, slot: int, masked_input: MaskedInput) -> None:
    """Check the signature of a masked input of participant `slot`.

    Raises:
        FaultyParticipantError: if it was left out, or the signature is false.
    """
    if slot not in transcript.share_commitments:
        raise FaultyParticipantError(slot, "did not share, or did not answer all complaints")
    signed = transcript.masked_input_statement(slot, masked_input.signed_input.digest)
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
    """The survivors of a sum, which must reveal the shares that they hold.

    `complaints` are the dealers that each holder complained about: it has no share of theirs, and
    their answers have it.

    Raises:
        ValueError: if a survivor did not share.
    """

    transcript: Transcript
    survivors: frozenset[int]
    complaints: Mapping[int, Collection[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if unknown := self.survivors - self.transcript.share_commitments.keys():
            raise ValueError(f"survivor {min(unknown)} did not share")

    @cached_property
    def requested_kinds(self) -> NDArray[np.uint8]:
        """Return the kind of the requested shares, by the slot of the dealer."""
        kinds = np.full(self.transcript.session.n, KEY_SHARE, np.uint8)
        kinds[list(self.survivors)] = SEED_SHARE
        return kinds

    @cached_property
    def dropouts(self) -> frozenset[int]:
        """Return the dealers that dropped out before their masked inputs arrived."""
        return frozenset(self.transcript.share_commitments.keys() - self.survivors)

    def dealers_of(self, holder: int) -> frozenset[int]:
        """Return the dealers whose shares `holder` must reveal, besides its own."""
        return self.transcript.dealers_of[holder].difference(self.complaints.get(holder, ()))


def check_unmasking_shares(request: UnmaskingRequest, slot: int, message: UnmaskingShares) -> None:
    """Check the shares that participant `slot` reveals; `unmask` compares them with commitments.

    An incomplete message counts as missing, so its sender counts as a dropout.

    Raises:
        FaultyParticipantError: if it is not one share for each dealer, its own included, of the
            secret that was requested; if a share is not a field element; or if the signature is
            false, or covers other survivors.
    """
    if slot not in request.survivors:
        raise FaultyParticipantError(slot, "is not a survivor: its shares were not requested")
    if not _is_complete(request, slot, message):
        _raise_first_fault(request, slot, message)
    transcript = request.transcript
    signed = transcript.unmasking_statement(slot, request.survivors, message.signed_bytes())
    _check_signature(transcript.session, slot, signed, message.signature)


def _is_complete(request: UnmaskingRequest, slot: int, message: UnmaskingShares) -> bool:
    """Return whether `message` has each requested share, and all are field elements.

    Nearly all messages do, and this check of all records at once is fast.
    """
    records = message.records
    if records["dealer"].tolist() != sorted(request.dealers_of(slot) | {slot}):
        return False
    kinds = request.requested_kinds[records["dealer"]] if request.dropouts else SEED_SHARE
    if (records["kind"] != kinds).any():
        return False
    return message.are_field_elements


def _raise_first_fault(request: UnmaskingRequest, slot: int, message: UnmaskingShares) -> None:
    """Raise the first fault of `message`."""
    if slot not in message.seed_shares:
        raise FaultyParticipantError(slot, "left out its own share of its seed")
    wrong = message.seed_shares.keys() - request.survivors
    if wrong := wrong | message.key_shares.keys() & request.survivors:
        raise FaultyParticipantError(slot, f"revealed the wrong secret of participant {min(wrong)}")
    dealers = request.dealers_of(slot)
    revealed = {**message.seed_shares, **message.key_shares}
    if missing := dealers - revealed.keys():
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
