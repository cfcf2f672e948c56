"""A participant in a secure sum: a chain of states, each with one step.

    join -> Joined.share -> Shared.check -> Checked.mask -> Masked.confirm -> Confirmed.unmask

Participant u agrees on a mask with each neighbour v, draws its own seed b, and sends

    y_u = x_u + mask(b_u) + sum over v > u of mask(u, v) - sum over v < u of mask(u, v)

so that in the sum over all participants the pairwise masks cancel. Before that, u shares its mask
key and b_u among its holders. Each holder checks its shares, and complains about dealers whose
shares it cannot use. Such a dealer answers with these shares, or is left out. With both secrets of
u the server could read a vector. A participant therefore reveals only one of them, once, after it
has verified that a quorum signed the same set of survivors, and that u masked its vector under the
same transcript.

A state is spent by its step: a second call raises `OutOfPhaseError`. If the network lost the
answer to a message, the caller repeats the bytes, not the step.

Source: [Bonawitz17, figure 4] on a graph of randomly selected holders [Bell20, section 4].
Complaints, spot checks and the commitments to shares are additions of blindtally.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np

from secagg.errors import OutOfPhaseError, UnsafeRequestError
from secagg.keys import SEED_BYTES, Identity, KeyPair, PublicKeys, Purpose, is_signed
from secagg.masks import MaskedVector
from secagg.messages import (
    Answers,
    Complaints,
    KeyShares,
    MaskedInput,
    SignedInput,
    UnmaskingShares,
)
from secagg.ring import Ring, Vector
from secagg.roster import GRAPH_NONCE_BYTES, RosterEntry
from secagg.session import Session, SingleStepState, Transcript, advertisement_statement
from secagg.shamir import split
from secagg.shares import (
    ReceivedShares,
    SharePair,
    commit_seed,
    commit_share,
    decrypt_shares,
    encrypt_shares,
    received_shares_bytes,
    unpack_share_pairs,
)


def _check_quorum(session: Session, count: int, smallest: int) -> None:
    if count < smallest:
        raise UnsafeRequestError(
            f"named only {count} of {session.n} participants, "
            f"fewer than the quorum of {session.quorum}"
        )


def join(identity: Identity, rng: Random) -> "Joined":
    """Return a participant with fresh keys for one sum; pass the system's randomness."""
    return Joined(identity, KeyPair.generate(rng), KeyPair.generate(rng))


@dataclass(slots=True)
class Joined(SingleStepState):
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
        """Return the next state, and encrypted shares of the mask key and a seed for the holders.

        Raises:
            UnsafeRequestError: if another participant has `slot` in the roster, an identity or a
                key occurs in it twice, or a holder did not sign its keys or is not enrolled.
                Holders are selected once, so that this is final: another roster is refused as well.
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
        # Before any share is encrypted: a holder whose keys are the server's would reveal its
        # shares to the server, which could then name it as a dropout.
        for holder in holders:
            if not session.is_authentic(holder):
                raise UnsafeRequestError(
                    f"showed participant {holder} with keys not its own, or not enrolled"
                )
        dealt = self._make_shares(slot, session, graph_nonce, holders, rng)
        return Shared(slot, session, self, holders, dealt), dealt.key_shares

    def _make_shares(
        self, slot: int, session: Session, graph_nonce: bytes, holders: tuple[int, ...], rng: Random
    ) -> "DealtShares":
        """Return shares of the mask key and of a fresh seed for `holders`, and their message."""
        seed = rng.randbytes(SEED_BYTES)
        count, threshold = len(holders) + 1, session.parameters.threshold
        key_shares = split(self.mask_pair.secret, count, threshold, rng)[1:]
        own_share, *seed_shares = split(seed, count, threshold, rng)
        key_pads, seed_pads = list[bytes](), list[bytes]()
        agreed_secrets = {
            holder: self.encryption_pair.agree(session.roster.encryption_key(holder))
            for holder in holders
        }
        for holder, secret in agreed_secrets.items():
            key_pads.append(session.key_share_purpose(slot, holder).derive(secret))
            seed_pads.append(session.seed_share_purpose(slot, holder).derive(secret))
        rows = encrypt_shares(key_shares, key_pads), encrypt_shares(seed_shares, seed_pads)
        pairs = unpack_share_pairs(np.hstack(rows).tobytes())
        commitments = commit_seed(seed), commit_share(own_share)
        message = KeyShares(graph_nonce, *commitments, pairs)
        signed = session.key_shares_statement(slot, message.share_commitment)
        message = replace(message, signature=self.identity.sign(signed))
        return DealtShares(message, seed, own_share, key_shares, seed_shares, agreed_secrets)

    def _is_mine(self, entry: RosterEntry) -> bool:
        return (entry.identity, entry.keys) == (self.identity.public, self.public_keys)


@dataclass(frozen=True, slots=True)
class DealtShares:
    """The shares that a participant made, in the order of its holders, and their message."""

    key_shares: KeyShares
    seed: bytes = field(repr=False)
    own_share: bytes = field(repr=False)  # of the seed
    of_key: list[bytes] = field(repr=False)
    of_seed: list[bytes] = field(repr=False)
    agreed_secrets: dict[int, bytes] = field(repr=False)  # with each holder, to derive pads


@dataclass(slots=True)
class Shared(SingleStepState):
    """A participant that has shared its secrets and waits for the shares of others."""

    slot: int
    session: Session
    joined: Joined
    holders: tuple[int, ...]
    dealt: DealtShares

    def check(self, shares: Mapping[int, SharePair]) -> tuple["Checked", Complaints]:
        """Return the next state, and complaints about the dealers whose shares are not valid.

        `shares` are the share pairs for this holder, by dealer. A pair is valid if both shares are
        field elements that match their commitments.

        Raises:
            UnsafeRequestError: if a dealer is this participant, or not in the cohort.
        """
        slot, session = self.slot, self.session
        if not shares.keys() <= set(range(session.n)) - {slot}:
            raise UnsafeRequestError("forwarded a share of a participant that sent me none")
        self._mark_done()
        received = ReceivedShares.unpack(received_shares_bytes(shares))
        keys, seeds, signatures = dict[int, bytes](), dict[int, bytes](), dict[int, bytes]()
        for dealer, key, seed in self._decrypt(received):
            if key is not None and seed is not None:
                keys[dealer], seeds[dealer] = key, seed
            else:
                complaint = session.complaint_statement(slot, dealer, received[dealer].pack())
                signatures[dealer] = self.joined.identity.sign(complaint)
        complaints = Complaints(signatures)
        signed = session.complaints_statement(slot, received.digest, complaints.signed_bytes())
        complaints = replace(complaints, signature=self.joined.identity.sign(signed))
        return Checked(self, keys, seeds), complaints

    def _decrypt(
        self, received: ReceivedShares
    ) -> Iterator[tuple[int, bytes | None, bytes | None]]:
        """Yield each dealer, and its shares of its mask key and its seed; None if not valid."""
        session, dealers, pair = self.session, received.dealers, self.joined.encryption_pair
        known, public_key = self.dealt.agreed_secrets, session.roster.encryption_key
        secrets = [known.get(dealer) or pair.agree(public_key(dealer)) for dealer in dealers]

        def shares(name: str, purpose: Callable[[int, int], Purpose]) -> list[bytes | None]:
            pads = [
                purpose(dealer, self.slot).derive(secret)
                for dealer, secret in zip(dealers, secrets, strict=True)
            ]
            return decrypt_shares(received.records[name], pads)

        keys = shares("key", session.key_share_purpose)
        seeds = shares("seed", session.seed_share_purpose)
        yield from zip(dealers, keys, seeds, strict=True)


@dataclass(slots=True)
class Checked(SingleStepState):
    """A participant that has checked its shares and waits for the share commitments."""

    shared: Shared
    key_shares: dict[int, bytes] = field(repr=False)  # valid shares of others, by dealer
    seed_shares: dict[int, bytes] = field(repr=False)

    def answer(self, complaints: Mapping[int, bytes]) -> Answers:
        """Return the shares of the holders that complained about this participant.

        `complaints` are their signatures. A holder that complains about a pair that this
        participant sent is corrupt, so that its shares are no secret of the server.

        Raises:
            UnsafeRequestError: if a participant is not one of its holders, or did not complain
                about the pair that this participant sent to it.
            OutOfPhaseError: if this participant has masked its vector.
        """
        if self._is_done:
            raise OutOfPhaseError("answers are sent before the masked input")
        shared, keys, seeds = self.shared, dict[int, bytes](), dict[int, bytes]()
        for holder, signature in complaints.items():
            if holder not in shared.holders:
                raise UnsafeRequestError(f"showed a complaint of {holder}, which is not a holder")
            index = shared.holders.index(holder)
            pair = shared.dealt.key_shares.share_pairs[index].pack()
            complaint = shared.session.complaint_statement(holder, shared.slot, pair)
            if not is_signed(shared.session.roster.identity(holder), complaint, signature):
                raise UnsafeRequestError(f"showed a complaint that participant {holder} never made")
            keys[holder], seeds[holder] = shared.dealt.of_key[index], shared.dealt.of_seed[index]
        answers = Answers(keys, seeds)
        signed = shared.session.answers_statement(shared.slot, answers.signed_bytes())
        return replace(answers, signature=shared.joined.identity.sign(signed))

    def mask(
        self, transcript: Transcript, ring: Ring, vector: Vector
    ) -> tuple["Masked", MaskedInput]:
        """Return the next state, and `vector` masked.

        `vector` itself does not change.

        Raises:
            ValueError: if `vector` is not one of `ring`'s.
            UnsafeRequestError: if `transcript` does not have this participant's key shares as they
                were sent, or has fewer dealers than the quorum, or too few of its holders.
        """
        ring.check(vector)
        self._check_transcript(transcript)
        self._mark_done()
        slot, session, joined = self.shared.slot, self.shared.session, self.shared.joined
        masked = MaskedVector(ring, vector)
        masked.add(transcript.self_mask_purpose(slot).keystream(self.shared.dealt.seed))
        for other in transcript.neighbours(slot):
            secret = joined.mask_pair.agree(session.roster.mask_key(other))
            stream = transcript.pairwise_mask_purpose(slot, other).keystream(secret)
            (masked.add if slot < other else masked.subtract)(stream)
        masked_input = MaskedInput(ring.pack(masked.lanes), b"")
        signed = transcript.masked_input_statement(slot, masked_input.signed_input.digest)
        masked_input = replace(masked_input, signature=joined.identity.sign(signed))
        return Masked(self, transcript), masked_input

    def _check_transcript(self, transcript: Transcript) -> None:
        shared, commitments = self.shared, transcript.share_commitments
        commitment = commitments.get(shared.slot)
        if transcript.session is not shared.session or commitment is None:
            raise UnsafeRequestError("requested a vector but left out what I shared")
        if commitment.signed_bytes() != shared.dealt.key_shares.share_commitment.signed_bytes():
            raise UnsafeRequestError("forwarded other shares than I sent")
        _check_quorum(shared.session, len(commitments), shared.session.quorum)
        count = sum(holder in commitments for holder in shared.holders)
        threshold = shared.session.parameters.threshold
        if count + 1 < threshold:
            raise UnsafeRequestError(f"named only {count} of my holders with threshold {threshold}")


@dataclass(slots=True)
class Masked(SingleStepState):
    """A participant that has sent its masked input and waits for the survivors."""

    checked: Checked
    transcript: Transcript

    def confirm(self, survivors: Collection[int]) -> tuple["Confirmed", bytes]:
        """Return the next state, and the signature over the set of survivors.

        `survivors` are the slots whose masked inputs arrived.

        Raises:
            UnsafeRequestError: if they leave this participant out, name one twice or one that did
                not share, are fewer than the quorum, or have too few of its holders to unmask it.
            OutOfPhaseError: if this is the second request.
        """
        survivor_set = frozenset(survivors)
        session, shared = self.transcript.session, self.checked.shared
        if len(survivor_set) < len(survivors):
            raise UnsafeRequestError("named a survivor twice")
        if not survivor_set <= self.transcript.share_commitments.keys():
            raise UnsafeRequestError("named a survivor that did not share")
        if shared.slot not in survivor_set:
            raise UnsafeRequestError("requested shares but left my vector out")
        _check_quorum(session, len(survivor_set), max(session.quorum, 2))
        holders = survivor_set.intersection(shared.holders)
        if len(holders) + 1 < session.parameters.threshold:
            raise UnsafeRequestError(
                f"named only {len(holders)} of my holders: too few to unmask me"
            )
        self._mark_done()
        confirmation = self.transcript.confirmation_statement(shared.slot, survivor_set)
        return Confirmed(self, survivor_set), shared.joined.identity.sign(confirmation)


@dataclass(slots=True)
class Confirmed(SingleStepState):
    """A participant that has signed one set of survivors and waits for the others' signatures."""

    masked: Masked
    survivors: frozenset[int]

    def unmask(
        self, confirmations: Mapping[int, bytes], signed: Mapping[int, SignedInput], rng: Random
    ) -> UnmaskingShares:
        """Return one share for each dealer: of its seed if it survived, else of its mask key.

        `confirmations` are the signatures over the survivors, and `signed` the signed inputs of the
        survivors whose shares this participant holds, by slot.

        Raises:
            UnsafeRequestError: if fewer than a quorum confirmed, a spot-checked signature is false,
                or a survivor whose share this participant holds did not mask its vector under this
                transcript.
            OutOfPhaseError: if this is the second request, after an answer or after a refusal of
                signatures.
        """
        checked, transcript = self.masked.checked, self.masked.transcript
        self._mark_done()  # a second request after a refusal would draw other spot checks
        dealers = checked.seed_shares.keys() & transcript.share_commitments.keys()
        self._spot_check_signatures(confirmations, rng)
        self._check_transcript_of(dealers & self.survivors, signed)
        slot, dealt = checked.shared.slot, checked.shared.dealt
        seeds = {dealer: checked.seed_shares[dealer] for dealer in dealers & self.survivors}
        keys = {dealer: checked.key_shares[dealer] for dealer in dealers - self.survivors}
        message = UnmaskingShares(seeds | {slot: dealt.own_share}, keys)
        statement = transcript.unmasking_statement(slot, self.survivors, message.signed_bytes())
        return message.signed(checked.shared.joined.identity, statement)

    def _spot_check_signatures(self, confirmations: Mapping[int, bytes], rng: Random) -> None:
        session, slot = self.masked.transcript.session, self.masked.checked.shared.slot
        if not confirmations.keys() <= self.survivors:
            raise UnsafeRequestError("showed the signature of a participant that did not survive")
        if len(confirmations) < max(session.quorum, 2):
            raise UnsafeRequestError(
                f"showed {len(confirmations)} signatures over the survivors, "
                f"fewer than the quorum of {session.quorum}"
            )
        others = sorted(confirmations.keys() - {slot})
        for other in rng.sample(others, min(session.parameters.spot_checks, len(others))):
            confirmation = self.masked.transcript.confirmation_statement(other, self.survivors)
            if not is_signed(session.roster.identity(other), confirmation, confirmations[other]):
                raise UnsafeRequestError(f"showed survivors that participant {other} did not sign")

    def _check_transcript_of(
        self, dealers: Collection[int], signed: Mapping[int, SignedInput]
    ) -> None:
        """Check that `dealers` masked under this transcript, before their seeds are revealed.

        With a seed the server removes the mask of a vector that was masked under any transcript.
        """
        transcript = self.masked.transcript
        for dealer in dealers:
            digest, signature = signed.get(dealer, (b"", b""))
            statement = transcript.masked_input_statement(dealer, digest)
            if not is_signed(transcript.session.roster.identity(dealer), statement, signature):
                raise UnsafeRequestError(
                    f"named survivor {dealer}, which masked nothing under my share commitments"
                )
