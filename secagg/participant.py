"""A participant in a secure sum: a chain of states, each with one step.

    join -> Joined.share -> Shared.mask -> Masked.confirm -> Confirmed.unmask

Participant u agrees on a mask with each neighbour v, draws its own seed b, and sends

    y_u = x_u + mask(b_u) + sum over v > u of mask(u, v) - sum over v < u of mask(u, v)

so that in the sum over all participants the pairwise masks cancel. Before that, u shares its mask
key among its holders; with y_u it shares b_u. With both secrets the server could read a vector. A
participant therefore reveals only one of them, once, and in the `active` mode only after it has
verified that a quorum signed the same set of survivors.

A state is spent by its step: a second call raises `OutOfPhaseError`. If the network lost the
answer to a message, the caller repeats the bytes, not the step.

Source: [Bonawitz17, figure 4] on a graph of randomly selected holders [Bell20, section 4]. Sharing
b together with the vector, spot checks and the commitments to shares are additions of blindtally.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np
from numpy.typing import NDArray

from secagg.errors import OutOfPhaseError, UnsafeRequestError
from secagg.keys import KEY_BYTES, SEED_BYTES, Identity, KeyPair, PublicKeys, is_signed, statement
from secagg.messages import (
    ENCRYPTED_SHARE_BYTES,
    EncryptedShare,
    KeyShares,
    MaskedInput,
    ReceivedShares,
    SeedShares,
    UnmaskingShares,
    commit_seed,
    commit_share,
    received_shares_bytes,
    unpack_encrypted_shares,
)
from secagg.ring import MaskApplier, Ring, Vector
from secagg.roster import DIGEST_BYTES, GRAPH_NONCE_BYTES, PackedSequence, RosterEntry
from secagg.session import Session, Transcript, advertisement_statement
from secagg.shamir import SHARE_BYTES, is_share, split


@dataclass(slots=True)
class _SingleStepState:
    """A state of the chain, valid for one step."""

    _is_done: bool = field(default=False, init=False, repr=False)

    def _mark_done(self) -> None:
        if self._is_done:
            raise OutOfPhaseError(f"{type(self).__name__} has taken its step already")
        self._is_done = True


def _check_quorum(session: Session, count: int, smallest: int) -> None:
    if count < smallest:
        raise UnsafeRequestError(
            f"named only {count} of {session.n} participants, "
            f"fewer than the quorum of {session.quorum}"
        )


def encrypt_shares(
    shares: Sequence[bytes], pads: Sequence[bytes]
) -> PackedSequence[EncryptedShare]:
    """Return the encrypted shares of `shares`, each under its own pad of 32 bytes.

    A pad must be used once.
    """
    rows = np.empty((len(shares), ENCRYPTED_SHARE_BYTES), np.uint8)
    rows[:, :DIGEST_BYTES] = _byte_rows([commit_share(share) for share in shares], DIGEST_BYTES)
    rows[:, DIGEST_BYTES:] = _xor_pads(_byte_rows(shares, SHARE_BYTES), pads)
    return unpack_encrypted_shares(rows.tobytes())


def decrypt_shares(received: ReceivedShares, pads: Sequence[bytes]) -> list[bytes | None]:
    """Return each received share; None if it does not match its commitment."""
    ciphertexts = np.ascontiguousarray(received.records["ciphertext"]).view(np.uint8)
    plain = _xor_pads(ciphertexts.reshape(-1, SHARE_BYTES), pads)
    shares: list[bytes] = plain.view(f"V{SHARE_BYTES}").ravel().tolist()
    expected = received.records["commitment"].tolist()
    return [
        share if commit_share(share) == commitment and is_share(share) else None
        for share, commitment in zip(shares, expected, strict=True)
    ]


def _xor_pads(shares: NDArray[np.uint8], pads: Sequence[bytes]) -> NDArray[np.uint8]:
    """Return `shares` with their pads XORed onto all bytes except the first."""
    covered = shares.copy()
    covered[:, SHARE_BYTES - KEY_BYTES :] ^= _byte_rows(pads, KEY_BYTES)
    return covered


def _byte_rows(items: Sequence[bytes], size: int) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(items), np.uint8).reshape(-1, size)


def join(identity: Identity, rng: Random) -> "Joined":
    """Return a participant with fresh keys for one sum; pass the system's randomness."""
    return Joined(identity, KeyPair.generate(rng), KeyPair.generate(rng))


@dataclass(slots=True)
class Joined(_SingleStepState):
    """A participant that has made its keys and waits for the roster."""

    identity: Identity
    mask_pair: KeyPair
    encryption_pair: KeyPair

    @property
    def public_keys(self) -> PublicKeys:
        """Return the keys to advertise."""
        return PublicKeys(self.mask_pair.public, self.encryption_pair.public)

    def advertise(self, plan_digest: bytes) -> bytes:
        """Return the signature over the participant's keys for the sums of a plan."""
        return self.identity.sign(advertisement_statement(plan_digest, self.public_keys))

    def share(self, slot: int, session: Session, rng: Random) -> tuple["Shared", KeyShares]:
        """Return the next state, and encrypted shares of the mask key for the holders.

        Raises:
            UnsafeRequestError: if another participant has `slot` in the roster, an identity or a
                key occurs in it twice, or (`active`) a holder did not sign its keys or is not
                enrolled. Holders are selected once, so that this is final: another roster is
                refused as well.
        """
        if session.roster.duplicate:  # one device in two slots, or two masks in one
            raise UnsafeRequestError(
                f"showed a roster with the same {session.roster.duplicate} twice"
            )
        if not 0 <= slot < session.n or not self._is_mine(session.roster[slot]):
            raise UnsafeRequestError(f"showed a roster with another than me in slot {slot}")
        self._mark_done()
        graph_nonce = rng.randbytes(GRAPH_NONCE_BYTES)
        holders = session.neighbour_selection.holders(slot, graph_nonce)
        if session.assumptions.is_active:
            # Before any share is encrypted: a holder whose keys are the server's would reveal its
            # shares to the server, which could then name it as a dropout.
            for holder in holders:
                if not session.is_authentic(holder):
                    raise UnsafeRequestError(
                        f"showed participant {holder} with keys not its own, or not enrolled"
                    )
        shares = split(self.mask_pair.secret, len(holders) + 1, session.parameters.threshold, rng)
        secrets = {
            holder: self.encryption_pair.agree(session.roster.encryption_key(holder))
            for holder in holders
        }
        pads = [
            session.key_share_purpose(slot, holder).derive(secret)
            for holder, secret in secrets.items()
        ]
        encrypted_shares = encrypt_shares(shares[1:], pads)
        commitment = KeyShares(graph_nonce, encrypted_shares).share_commitment.signed_bytes()
        signature = self.identity.sign(statement("key shares", session.label, slot, commitment))
        key_shares = KeyShares(graph_nonce, encrypted_shares, signature)
        return Shared(slot, session, self, key_shares, secrets), key_shares

    def _is_mine(self, entry: RosterEntry) -> bool:
        return (entry.identity, entry.keys) == (self.identity.public, self.public_keys)


@dataclass(slots=True)
class Shared(_SingleStepState):
    """A participant that has shared its mask key and waits for the share commitments."""

    slot: int
    session: Session
    joined: Joined
    key_shares: KeyShares
    agreed_secrets: dict[int, bytes] = field(repr=False)  # with each holder, to derive pads

    def mask(
        self, transcript: Transcript, ring: Ring, vector: Vector, rng: Random
    ) -> tuple["Masked", MaskedInput]:
        """Return the next state, and `vector` masked, with shares of the seed.

        `vector` itself does not change.

        Raises:
            ValueError: if `vector` is not one of `ring`'s.
            UnsafeRequestError: if `transcript` does not have this participant's key shares as they
                were sent, or has fewer dealers than the quorum, or too few of its holders.
        """
        ring.check(vector)
        holders = self._check_transcript(transcript)
        self._mark_done()
        seed = rng.randbytes(SEED_BYTES)
        masked = tuple(lane.copy() for lane in vector)
        applier = MaskApplier(ring)
        applier.add_mask(masked, transcript.self_mask_purpose(self.slot).keystream(seed))
        for other in transcript.neighbours(self.slot):
            secret = self.joined.mask_pair.agree(self.session.roster.mask_key(other))
            stream = transcript.pairwise_mask_purpose(self.slot, other).keystream(secret)
            (applier.add_mask if self.slot < other else applier.subtract_mask)(masked, stream)
        seed_shares, own_share = self._share_seed(transcript, holders, seed, rng)
        packed = ring.pack(masked)
        signed = statement("masked input", transcript.label, self.slot, seed_shares.pack(), packed)
        masked_input = MaskedInput(seed_shares, packed, self.joined.identity.sign(signed))
        state = Masked(self.slot, transcript, self.joined, self.agreed_secrets, own_share)
        return state, masked_input

    def _check_transcript(self, transcript: Transcript) -> list[int]:
        """Return the participant's holders that shared."""
        commitments = transcript.share_commitments
        commitment = commitments.get(self.slot)
        if transcript.session is not self.session or commitment is None:
            raise UnsafeRequestError("requested a vector but left out what I shared")
        if commitment.signed_bytes() != self.key_shares.share_commitment.signed_bytes():
            raise UnsafeRequestError("forwarded other shares than I sent")
        _check_quorum(self.session, len(commitments), self.session.quorum)
        holders = [holder for holder in self.agreed_secrets if holder in commitments]
        threshold = self.session.parameters.threshold
        if len(holders) + 1 < threshold:
            raise UnsafeRequestError(
                f"named only {len(holders)} of my holders with threshold {threshold}"
            )
        return holders

    def _share_seed(
        self, transcript: Transcript, holders: Collection[int], seed: bytes, rng: Random
    ) -> tuple[SeedShares, bytes]:
        """Return shares of `seed` for `holders`, and the participant's own share."""
        threshold = self.session.parameters.threshold
        shares = split(seed, len(self.agreed_secrets) + 1, threshold, rng)
        share_of = dict(zip(self.agreed_secrets, shares[1:], strict=True))
        pads = [
            transcript.seed_share_purpose(self.slot, holder).derive(self.agreed_secrets[holder])
            for holder in holders
        ]
        encrypted_shares = encrypt_shares([share_of[holder] for holder in holders], pads)
        commitments = commit_seed(seed), commit_share(shares[0])
        return SeedShares(*commitments, encrypted_shares), shares[0]


@dataclass(slots=True)
class Masked(_SingleStepState):
    """A participant that has sent its masked input and waits for the survivors."""

    slot: int
    transcript: Transcript
    joined: Joined
    agreed_secrets: dict[int, bytes] = field(repr=False)
    own_share: bytes = field(repr=False)  # of its seed

    def confirm(self, survivors: Collection[int]) -> tuple["Confirmed", bytes]:
        """Return the next state, and the signature over the set of survivors.

        `survivors` are the slots whose masked inputs arrived.

        Raises:
            UnsafeRequestError: if they leave this participant out, name one twice or one that did
                not share, are fewer than the quorum, or have too few of its holders to unmask it.
            OutOfPhaseError: if this is the second request.
        """
        survivor_set = frozenset(survivors)
        session = self.transcript.session
        if len(survivor_set) < len(survivors):
            raise UnsafeRequestError("named a survivor twice")
        if not survivor_set <= self.transcript.share_commitments.keys():
            raise UnsafeRequestError("named a survivor that did not share")
        if self.slot not in survivor_set:
            raise UnsafeRequestError("requested shares but left my vector out")
        _check_quorum(session, len(survivor_set), max(session.quorum, 2))
        holders = survivor_set.intersection(self.agreed_secrets)
        if len(holders) + 1 < session.parameters.threshold:
            raise UnsafeRequestError(
                f"named only {len(holders)} of my holders: too few to unmask me"
            )
        self._mark_done()
        confirmation = self.transcript.confirmation_statement(self.slot, survivor_set)
        return Confirmed(self, survivor_set), self.joined.identity.sign(confirmation)


@dataclass(slots=True)
class Confirmed(_SingleStepState):
    """A participant that has signed one set of survivors and waits for the others' signatures."""

    masked: Masked
    survivors: frozenset[int]

    def unmask(
        self, confirmations: Mapping[int, bytes], shares: Mapping[int, EncryptedShare], rng: Random
    ) -> UnmaskingShares:
        """Return one decrypted share for each dealer: of its seed if it survived.

        `confirmations` are the signatures over the survivors, by slot; `shares` are the encrypted
        shares for this holder by dealer: of seeds for survivors, of mask keys for dropouts. A
        dealer whose share does not match its commitment is reported as invalid. The
        `semi-honest` mode does not use the confirmations.

        Raises:
            UnsafeRequestError: if a dealer did not share, or (`active`) fewer than a quorum
                confirmed, or a spot-checked signature is false.
            OutOfPhaseError: if this is the second request, after an answer or after a refusal of
                signatures.
        """
        slot, transcript = self.masked.slot, self.masked.transcript
        if slot in shares or not shares.keys() <= transcript.share_commitments.keys():
            raise UnsafeRequestError("forwarded a share of a participant that sent me none")
        received = ReceivedShares.unpack(received_shares_bytes(shares))
        self._mark_done()  # a second request after a refusal would draw other spot checks
        if transcript.session.assumptions.is_active:
            self._spot_check_signatures(confirmations, rng)
        dealers = received.dealers
        decrypted = decrypt_shares(received, [self._pad(dealer) for dealer in dealers])
        seeds, keys, invalid = {slot: self.masked.own_share}, dict[int, bytes](), set[int]()
        for dealer, share in zip(dealers, decrypted, strict=True):
            if share is None:
                invalid.add(dealer)
            else:
                (seeds if dealer in self.survivors else keys)[dealer] = share
        message = UnmaskingShares(seeds, keys, frozenset(invalid))
        signed = transcript.unmasking_statement(
            slot, self.survivors, received.digest, message.signed_bytes()
        )
        return message.signed(self.masked.joined.identity, signed)

    def _spot_check_signatures(self, confirmations: Mapping[int, bytes], rng: Random) -> None:
        session = self.masked.transcript.session
        if not confirmations.keys() <= self.survivors:
            raise UnsafeRequestError("showed the signature of a participant that did not survive")
        if len(confirmations) < max(session.quorum, 2):
            raise UnsafeRequestError(
                f"showed {len(confirmations)} signatures over the survivors, "
                f"fewer than the quorum of {session.quorum}"
            )
        others = sorted(confirmations.keys() - {self.masked.slot})
        for slot in rng.sample(others, min(session.parameters.spot_checks, len(others))):
            confirmation = self.masked.transcript.confirmation_statement(slot, self.survivors)
            if not is_signed(session.roster.identity(slot), confirmation, confirmations[slot]):
                raise UnsafeRequestError(f"showed survivors that participant {slot} did not sign")

    def _pad(self, dealer: int) -> bytes:
        """Return the pad on the share of the one secret of `dealer` that may be revealed."""
        masked, transcript = self.masked, self.masked.transcript
        secret = masked.agreed_secrets.get(dealer)
        if secret is None:
            public = transcript.session.roster.encryption_key(dealer)
            secret = masked.joined.encryption_pair.agree(public)
        if dealer in self.survivors:
            return transcript.seed_share_purpose(dealer, masked.slot).derive(secret)
        return transcript.session.key_share_purpose(dealer, masked.slot).derive(secret)
