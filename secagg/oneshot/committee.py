"""Committees: the list of members, the authority that made it, and the labels of one sum.

    entry      identity (32), X25519 key (32), the identity's signature over the key (64)
    committee  plan digest (32), number, m, A, D, t (u32 each), entries, the registrar's signature
               (64, or none)

A member makes one key for one sum, and signs it for the plan and the number of the sum. The
committee's *digest* is a hash of all bytes before the registrar's signature, and the *label* of a
device's message is a hash of the digest and the device's identity. All pads, coins and signatures
depend on a label or the digest. So a message of another plan, round, committee or device
decrypts to noise, and no signature of a member or device counts twice.

A server that chose the committee would choose its own processes. Each device therefore checks an
authority that its policy names:

    `Registrar`  signed the list. It draws the members at random from the volunteers, after it has
                 checked that they are enrolled, and signs one list per plan and number
    `Operators`  are pinned in the policy, with the smallest A that the device accepts, and the
                 number of them that may be absent

Source: an addition of blindtally, as `secagg.seating`.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from itertools import islice
from typing import Final, TypeAlias

from secagg.errors import FaultyParticipantError, UnsafeRequestError
from secagg.keys import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    Identity,
    Purpose,
    check_identity,
    check_public_key,
    is_signed,
    statement,
    statement_of_digest,
)
from secagg.oneshot.parameters import CommitteeParameters
from secagg.oneshot.sharing import Sharing
from secagg.ring import Ring
from secagg.roster import DIGEST_BYTES
from secagg.session import Registry

_NUMBERS: Final = struct.Struct(">IIIII")
ENTRY_BYTES: Final = 2 * KEY_BYTES + SIGNATURE_BYTES


def key_statement(plan_digest: bytes, number: int, key: bytes) -> bytes:
    """Return the statement that a member signs to use `key` in sum `number` of a plan."""
    return statement("one-shot member key", plan_digest, number, key)


@dataclass(frozen=True, slots=True)
class MemberEntry:
    """A member of a committee: its identity, its key for one sum, and its signature over the key.

    Raises:
        ValueError: if the identity or the key is not valid, or the signature has a wrong size.
    """

    identity: bytes
    key: bytes
    signature: bytes

    def __post_init__(self) -> None:
        check_identity(self.identity)
        check_public_key(self.key)
        if len(self.signature) != SIGNATURE_BYTES:
            raise ValueError(f"a signature has {SIGNATURE_BYTES} bytes")

    def is_authentic(self, plan_digest: bytes, number: int) -> bool:
        """Return whether the identity signed the key for this sum."""
        return is_signed(
            self.identity, key_statement(plan_digest, number, self.key), self.signature
        )

    def pack(self) -> bytes:
        return self.identity + self.key + self.signature

    @classmethod
    def unpack(cls, body: bytes) -> "MemberEntry":
        """Return the entry in `body`; raises ValueError as the class does."""
        return cls(body[:KEY_BYTES], body[KEY_BYTES : 2 * KEY_BYTES], body[2 * KEY_BYTES :])


@dataclass(frozen=True)
class Committee:
    """The members of sum `number` of a plan.

    Raises:
        ValueError: if the number of entries is not m, an identity or a key occurs twice, a number
            does not fit in 32 bits, or the signature has a wrong size.
    """

    plan_digest: bytes
    number: int
    parameters: CommitteeParameters
    entries: tuple[MemberEntry, ...]
    signature: bytes = b""

    def __post_init__(self) -> None:
        if len(self.plan_digest) != DIGEST_BYTES or len(self.signature) not in (0, SIGNATURE_BYTES):
            raise ValueError(f"a digest has {DIGEST_BYTES} bytes, a signature {SIGNATURE_BYTES}")
        if not 0 <= self.number < 2**32:
            raise ValueError(f"the number of a sum has 32 bits, got {self.number}")
        m = self.parameters.members
        if len(self.entries) != m:
            raise ValueError(f"a committee of {m} members expected, got {len(self.entries)}")
        for what in ("identity", "key"):
            if len({getattr(entry, what) for entry in self.entries}) != m:
                raise ValueError(f"a committee has the same {what} twice")

    @cached_property
    def signed_bytes(self) -> bytes:
        """Return the bytes that the registrar signs."""
        p = self.parameters
        numbers = (self.number, p.members, p.corrupt, p.dropouts, p.threshold)
        entries = b"".join(entry.pack() for entry in self.entries)
        return self.plan_digest + _NUMBERS.pack(*numbers) + entries

    @cached_property
    def digest(self) -> bytes:
        """Return the digest that binds all messages and signatures to this committee."""
        return sha256(b"blindtally one-shot committee v1\0" + self.signed_bytes).digest()

    @property
    def statement(self) -> bytes:
        """Return the statement that the registrar signs."""
        return statement("one-shot committee", self.plan_digest, self.number, self.signed_bytes)

    def pack(self) -> bytes:
        return self.signed_bytes + self.signature

    @classmethod
    def unpack(cls, body: bytes) -> "Committee":
        """Return the committee in `body`.

        Raises:
            ValueError: if the size does not fit the number of members, or as the class does.
        """
        start = DIGEST_BYTES + _NUMBERS.size
        if len(body) < start:
            raise ValueError(f"a committee has {start} bytes and its entries, got {len(body)}")
        number, m, *others = _NUMBERS.unpack(body[DIGEST_BYTES:start])
        parameters = CommitteeParameters(m, *others)
        end = committee_bytes(m, has_signature=False)
        if len(body) not in (end, committee_bytes(m, has_signature=True)):
            raise ValueError(f"a committee of {m} members has {end} bytes, got {len(body)}")
        entries = tuple(
            MemberEntry.unpack(body[place : place + ENTRY_BYTES])
            for place in range(start, end, ENTRY_BYTES)
        )
        return cls(body[:DIGEST_BYTES], number, parameters, entries, body[end:])


def committee_bytes(members: int, *, has_signature: bool) -> int:
    """Return the size of a packed committee of `members`, with a registrar's signature or not."""
    nbytes = DIGEST_BYTES + _NUMBERS.size + members * ENTRY_BYTES
    return nbytes + (SIGNATURE_BYTES if has_signature else 0)


def packed_identities(body: bytes) -> tuple[bytes, ...]:
    """Return the identities of the members of a committee that was checked and packed before."""
    start = DIGEST_BYTES + _NUMBERS.size
    end = start + (len(body) - start) // ENTRY_BYTES * ENTRY_BYTES
    return tuple(body[at : at + KEY_BYTES] for at in range(start, end, ENTRY_BYTES))


@dataclass(frozen=True, slots=True)
class Registrar:
    """The authority of committees that a registrar draws from volunteers, and signs."""

    identity: bytes

    def fault(self, committee: Committee) -> str | None:
        """Return the fault of `committee`, None if the registrar signed it."""
        if not is_signed(self.identity, committee.statement, committee.signature):
            return "showed a committee that the registrar did not sign"
        return None


@dataclass(frozen=True, slots=True)
class Operators:
    """The authority of a committee of pinned operators, of which `corrupt` or more may collude.

    Up to `absent` of them may have registered no key, and are not in the committee.
    """

    identities: frozenset[bytes]
    corrupt: int
    absent: int = 0

    def fault(self, committee: Committee) -> str | None:
        """Return the fault of `committee`, None if these operators alone signed its keys."""
        present = {entry.identity for entry in committee.entries}
        if not present <= self.identities or len(self.identities - present) > self.absent:
            return "showed a committee of other operators than those pinned"
        if committee.parameters.corrupt < self.corrupt:
            return f"assumes fewer than {self.corrupt} colluding operators"
        plan, number = committee.plan_digest, committee.number
        if not all(entry.is_authentic(plan, number) for entry in committee.entries):
            return "showed a key that its operator did not sign"
        return None


Authority: TypeAlias = Registrar | Operators


def draw_members(
    volunteers: Sequence[MemberEntry],
    size: int,
    plan_digest: bytes,
    number: int,
    order: Sequence[int],
) -> tuple[MemberEntry, ...]:
    """Return `size` random volunteers for a committee; only authentic keys take part.

    `order` has the numbers of all volunteers in a random order, of which there is one per plan and
    number, drawn after the list of volunteers is fixed. Each volunteer must be enrolled, which the
    caller checks.

    Raises:
        ValueError: if an identity volunteers twice, or too few of the keys are authentic.
    """
    if len({entry.identity for entry in volunteers}) != len(volunteers):
        raise ValueError("a volunteer is listed twice")
    in_order = (volunteers[each] for each in order)
    authentic = (entry for entry in in_order if entry.is_authentic(plan_digest, number))
    members = tuple(islice(authentic, size))
    if len(members) < size:
        raise ValueError(f"{size} members expected, and {len(members)} keys are authentic")
    return members


def sign_committee(committee: Committee, registrar: Identity) -> Committee:
    """Return `committee` with the registrar's signature."""
    return replace(committee, signature=registrar.sign(committee.statement))


@dataclass(frozen=True)
class OneShotSession:
    """The public facts of one sum: committee, ring of one lane, authority, enrolled devices.

    A member sums no set of fewer than `minimum` messages, which is a number of the plan. Without a
    `registry` any identity may send a message. The server alone vouches then that identities are
    different devices.

    Raises:
        ValueError: if the ring has not one lane, modulo a prime that fits the committee.
    """

    committee: Committee
    ring: Ring
    authority: Authority
    minimum: int
    registry: Registry | None = None

    def __post_init__(self) -> None:
        assert self.sharing  # raises ValueError if there is none

    @property
    def parameters(self) -> CommitteeParameters:
        return self.committee.parameters

    @cached_property
    def sharing(self) -> Sharing:
        if len(self.ring.lanes) != 1:
            raise ValueError(f"a one-shot sum has one lane, got {len(self.ring.lanes)}")
        return Sharing(self.ring.lanes[0], self.committee.parameters)

    def check_authority(self) -> None:
        """Check that the authority made the committee; raises UnsafeRequestError if not."""
        fault = self.authority.fault(self.committee)
        if fault is not None:
            raise UnsafeRequestError(fault)

    def member_identity(self, member: int) -> bytes:
        """Return the identity of `member`, 1 to m.

        Raises:
            FaultyParticipantError: if the committee has no such member.
        """
        if not 1 <= member <= self.parameters.members:
            raise FaultyParticipantError(member, "is not in the committee")
        return self.committee.entries[member - 1].identity

    def label(self, identity: bytes) -> bytes:
        """Return the label of the message of `identity` (L)."""
        content = b"blindtally one-shot message v1\0" + self.committee.digest + identity
        return sha256(content).digest()

    def share_purpose(self, label: bytes, member: int) -> Purpose:
        """Return the purpose of the pad on the share of `member` in the message of `label`."""
        return Purpose(label, "one-shot share", 0, member)

    def expansion(self, label: bytes, member: int) -> Purpose:
        """Return the purpose of the key that `member`'s share in the message of `label` has.

        It has the member's number, because two keys can agree on the same secret with each device:
        one with a point of low order added to the other.
        """
        return Purpose(label, "one-shot expansion", 0, member)

    def admits(self, identity: bytes, enrolment: bytes) -> bool:
        """Return whether `enrolment` is the registrar's signature over `identity`, if required."""
        return self.registry is None or self.registry.admits(identity, enrolment)

    @property
    def enrolment_bytes(self) -> int:
        return SIGNATURE_BYTES if self.registry is not None else 0

    def set_digest(self, messages: Sequence[bytes]) -> bytes:
        """Return the digest of a set of messages, given by digest in rising order (H(U))."""
        content = sha256(b"blindtally one-shot set v1\0" + self.committee.digest)
        for message in messages:
            content.update(message)
        return content.digest()

    def complaints_statement(self, member: int, messages: bytes) -> bytes:
        """Return the statement with which `member` complains about messages, given by digest."""
        return statement("one-shot complaints", self.committee.digest, member, messages)

    def set_statement(self, member: int, set_digest: bytes) -> bytes:
        """Return the statement that `member` signs once: the one set that it sums."""
        return statement_of_digest("one-shot set", self.committee.digest, member, set_digest)

    def sum_statement(self, member: int, set_digest: bytes, packed: bytes) -> bytes:
        """Return the statement that `member` signs over the sum of its shares over a set."""
        return statement("one-shot sum", self.committee.digest, member, set_digest, packed)
