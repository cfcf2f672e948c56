"""A member of a committee: a chain of states, each with one step.

    volunteer -> Volunteered.check -> Checked.agree -> Agreed.release

    check    decrypts or expands its share of each message that an enrolled device signed, and
             compares it with the degree proof. It signs complaints about messages that their
             devices made wrong
    agree    signs the digest of one set of messages, once. The set has `minimum` messages or more,
             all of different devices and all valid
    release  needs the signatures of m - D members under the same set. It sends the sum of its
             shares over the set, and erases them

A state is spent by its step, also by one that fails: a member that refused a set signs no other. A
driver keeps the bytes that a step returned and repeats them. It erases the secret key from its
journal after the release; the states drop the key after `check` and the shares after `release`.

Complaints open nothing. A complaint names messages by their digests and has no pad, because a
member that revealed a pad would open the share to a server that complains in a colluder's name.

A row without the device's signature is the server's, and is not even decrypted. Otherwise the
server could change a device's message so that the degree proof holds only if a guess of its vector
is right: whether the member complains, or signs a set with this row, would be the answer. The
signature covers all that the proof depends on, see `secagg.oneshot.message`. The server decides
whether a complaint excludes the message or the member: `opening.choose_messages`.

Source: signatures under one set [Bonawitz17, section 6.1]; an addition of blindtally.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

import numpy as np

from secagg.errors import OutOfPhaseError, UnsafeRequestError
from secagg.keys import KEY_BYTES, Identity, KeyPair, is_signed
from secagg.oneshot.committee import MemberEntry, OneShotSession, key_statement
from secagg.oneshot.field import Elements
from secagg.oneshot.member_messages import ComplaintList, MemberSum, are_rising
from secagg.oneshot.message import Column, FaultyMessageError, Layout, Opening, check_message
from secagg.oneshot.sharing import Flags
from secagg.session import SingleStepState

_BATCH_ROWS = 256  # messages that are unpacked and compared together, at most
# The coins of a batch take the most memory, and numpy makes copies of them.
_BATCH_BYTES = 2**26
_ERASED: Final = np.empty((0, 0), np.uint64)


@dataclass(frozen=True, slots=True)
class CheckedMessage:
    """A message of a device: its digest, its place among the shares, and its sender."""

    digest: bytes
    place: int
    identity: bytes


def volunteer(identity: Identity, rng: Random) -> "Volunteered":
    """Return a member with a fresh key for one sum; pass the system's randomness."""
    return Volunteered(identity, KeyPair.generate(rng))


def volunteer_again(
    identity: Identity, secret: bytes, plan_digest: bytes, number: int
) -> "Volunteered":
    """Return the member whose journal has the `secret` half of its key for one sum."""
    return Volunteered(identity, KeyPair.of(secret), (plan_digest, number))


@dataclass(slots=True)
class Volunteered:
    """A member that has a key for one sum, and waits for the end of the round.

    It is spent when `check` drops the key.
    """

    identity: Identity
    _pair: KeyPair | None = field(repr=False)
    _sum: tuple[bytes, int] | None = None

    def register(self, plan_digest: bytes, number: int) -> MemberEntry:
        """Return the entry that offers this member for sum `number` of a plan.

        Raises:
            OutOfPhaseError: if its key is registered for another sum.
        """
        if self._pair is None or self._sum not in (None, (plan_digest, number)):
            raise OutOfPhaseError("a key is for one sum only")
        self._sum = plan_digest, number
        signed = key_statement(plan_digest, number, self._pair.public)
        return MemberEntry(self.identity.public, self._pair.public, self.identity.sign(signed))

    def check(
        self, session: OneShotSession, columns: Iterable[bytes]
    ) -> tuple["Checked", ComplaintList]:
        """Return the next state, and complaints about messages that their devices made wrong.

        `columns` are those of this member, one for each message.

        Raises:
            ValueError: if a column has a wrong size.
            UnsafeRequestError: if the authority did not make the committee, or this member's entry
                is not in it.
            OutOfPhaseError: if the columns were checked.
        """
        pair = self._pair
        if pair is None:
            raise OutOfPhaseError("the columns were checked already")
        session.check_authority()
        member = self._position(session)
        if member is None:
            raise UnsafeRequestError("showed a committee without my entry for this sum")
        self._pair = None
        checking = _Checking(session, member, pair)
        checking.add(columns)
        complaints = tuple(sorted(checking.complaints))
        signed = session.complaints_statement(checking.member, b"".join(complaints))
        state = Checked(session, checking.member, self.identity, checking.valid, checking.shares)
        return state, ComplaintList(complaints, self.identity.sign(signed))

    def _position(self, session: OneShotSession) -> int | None:
        """Return the number of this member in the committee of the sum that it registered for."""
        committee = session.committee
        if self._sum is None or self._sum != (committee.plan_digest, committee.number):
            return None
        entry = self.register(*self._sum)
        return committee.entries.index(entry) + 1 if entry in committee.entries else None


class _Checking:
    """The messages that a member has checked so far, by digest, and its shares."""

    def __init__(self, session: OneShotSession, member: int, pair: KeyPair) -> None:
        self.session = session
        self.member = member
        self.valid = dict[bytes, CheckedMessage]()
        self.complaints = set[bytes]()
        self._pair = pair
        self._layout = Layout.of(session)
        self._batches = [np.empty((0, session.sharing.columns), np.uint32)]
        self._rows = 0

    @property
    def shares(self) -> Elements:
        """Return the shares of all messages that devices signed, in the order of their places."""
        return np.vstack(self._batches)

    def add(self, columns: Iterable[bytes]) -> None:
        """Check `columns` in batches."""
        batch = list[bytes]()
        coin_bytes = 24 * self.session.sharing.columns * self.session.sharing.blinds
        rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES // coin_bytes))
        for column in columns:
            batch.append(column)
            if len(batch) == rows:
                self._add_batch(batch)
                batch = []
        if batch:
            self._add_batch(batch)

    def _add_batch(self, batch: Sequence[bytes]) -> None:
        columns = [Column.unpack(body, self._layout, self.member) for body in batch]
        messages, signed = list[CheckedMessage](), list[tuple[Opening, Column]]()
        for column in columns:
            try:
                opening = check_message(self.session, column)
            except FaultyMessageError:
                continue  # the server made it
            digest, place = opening.digest(column.proof), self._rows + len(messages)
            messages.append(CheckedMessage(digest, place, column.identity))
            signed.append((opening, column))
        if not messages:
            return
        shares, is_opened = self._open_shares(signed)
        is_valid = self.session.sharing.check(
            self.member,
            shares,
            _rows([column.proof for _, column in signed]),
            [opening.coin_key for opening, _ in signed],
        )
        self._batches.append(shares[:, : self.session.sharing.columns].astype(np.uint32))
        for message, valid in zip(messages, (is_opened & is_valid).tolist(), strict=True):
            if valid:
                self.valid.setdefault(message.digest, message)
            else:
                self.complaints.add(message.digest)
        self._rows += len(messages)

    def _open_shares(self, signed: Sequence[tuple[Opening, Column]]) -> tuple[Elements, Flags]:
        """Return the shares of this member, one row per message, and whether each is one.

        A message is not valid if its key agrees on nothing secret, or a share is no packing.
        """
        sharing, secrets = self.session.sharing, [self._agree(each.key) for each, _ in signed]
        is_secret = np.array([secret is not None for secret in secrets])
        pairs = [
            (each, secret or bytes(KEY_BYTES)) for each, secret in zip(signed, secrets, strict=True)
        ]
        if self.member > self.session.parameters.corrupt:
            packed = [self._decrypt(*each, secret) for each, secret in pairs]
            shares, is_packed = sharing.share_packing.unpack(_rows(packed))
            return shares, is_secret & is_packed
        streams = (
            self.session.expansion(opening.label, self.member).keystream(secret)
            for (opening, _), secret in pairs
        )
        return np.vstack([sharing.expand(stream) for stream in streams]), is_secret

    def _agree(self, key: bytes) -> bytes | None:
        try:
            return self._pair.agree(key)
        except ValueError:
            return None

    def _decrypt(self, opening: Opening, column: Column, secret: bytes) -> bytes:
        size = len(column.share)
        pad = self.session.share_purpose(opening.label, self.member).pad(secret, size)
        return (int.from_bytes(column.share) ^ int.from_bytes(pad)).to_bytes(size)


def _rows(parts: Sequence[bytes]) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    return np.frombuffer(b"".join(parts), np.uint8).reshape(len(parts), -1)


@dataclass(slots=True)
class Checked(SingleStepState):
    """A member that has checked all messages, and waits for the set to sum."""

    session: OneShotSession
    member: int
    identity: Identity
    messages: Mapping[bytes, CheckedMessage] = field(repr=False)
    _shares: Elements = field(repr=False)

    def agree(self, included: Sequence[bytes]) -> tuple["Agreed", bytes]:
        """Return the next state, and the signature over the set of messages `included`.

        `included` has digests in rising order.

        Raises:
            UnsafeRequestError: if the digests do not strictly rise, are fewer than `minimum`, or
                name two messages of one device, or one that no enrolled device signed or of which
                this member has no valid share. The member then signs no other set.
        """
        self._mark_done()
        session, messages = self.session, self.messages
        if not are_rising(included):
            raise UnsafeRequestError("listed messages that do not strictly rise")
        if len(included) < session.minimum:
            raise UnsafeRequestError(
                f"listed {len(included)} messages, fewer than the minimum of {session.minimum}"
            )
        if any(digest not in messages for digest in included):
            raise UnsafeRequestError("listed a message that I have no valid share of")
        chosen = [messages[digest] for digest in included]
        if len({message.identity for message in chosen}) != len(chosen):
            raise UnsafeRequestError("listed two messages of one device")
        agreed = self._agreed(included)
        signature = self.identity.sign(session.set_statement(self.member, agreed.set_digest))
        return agreed, signature

    def agree_again(self, included: Sequence[bytes], set_digest: bytes) -> "Agreed":
        """Return the state after `agree`, for a member that has signed `set_digest` before.

        It has started again, and checked the columns again. A digest names the share of a message,
        so that the shares are those of the set that it signed.

        Raises:
            UnsafeRequestError: if `included` is another set, or has a message without valid share.
        """
        self._mark_done()
        if self.session.set_digest(included) != set_digest:
            raise UnsafeRequestError("listed other messages than those that I signed")
        if any(digest not in self.messages for digest in included):
            raise UnsafeRequestError("listed a message that I have no valid share of")
        return self._agreed(included)

    def _agreed(self, included: Sequence[bytes]) -> "Agreed":
        places = np.array([self.messages[digest].place for digest in included], np.intp)
        shares, self._shares = self._shares[places], _ERASED
        set_digest = self.session.set_digest(included)
        return Agreed(self.session, self.member, self.identity, set_digest, shares)


@dataclass(slots=True)
class Agreed(SingleStepState):
    """A member that has signed one set, and waits for the signatures of the others."""

    session: OneShotSession
    member: int
    identity: Identity
    set_digest: bytes
    _shares: Elements = field(repr=False)

    def release(self, signatures: Mapping[int, bytes]) -> MemberSum:
        """Return the signed sum of this member's shares over the set, and erase the shares.

        `signatures` are those of members, 1 to m, over the set that this member signed.

        Raises:
            UnsafeRequestError: if fewer than m - D are valid. The member may be asked again.
            OutOfPhaseError: if the sum was released.
        """
        session, needed = self.session, self.session.parameters.needed_signatures
        if self._is_done:
            raise OutOfPhaseError("the sum was released already")
        valid = sum(
            is_set_signed(session, member, self.set_digest, signature)
            for member, signature in signatures.items()
        )
        if valid < needed:
            raise UnsafeRequestError(
                f"showed {valid} signatures of my set, and {needed} are needed"
            )
        self._mark_done()
        packed = session.sharing.add_columns(self._shares)
        self._shares = _ERASED
        signed = session.sum_statement(self.member, self.set_digest, packed)
        return MemberSum(packed, self.identity.sign(signed))


def is_set_signed(
    session: OneShotSession, member: int, set_digest: bytes, signature: bytes
) -> bool:
    """Return whether `signature` is that of a listed `member` under a set."""
    if not 1 <= member <= session.parameters.members:
        return False
    return is_signed(
        session.member_identity(member), session.set_statement(member, set_digest), signature
    )
