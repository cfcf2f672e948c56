"""The one message of a device, and the part of it that each member receives.

    message  identity (32), enrolment (64, if devices are enrolled), X25519 key E (32), encrypted
             shares of members A + 1 to m, degree proof, signature (64)
    column   of one member: identity, enrolment, E, its encrypted share if it is sent, the path of
             the share to the Merkle root (32 for each level), degree proof, signature

The device makes a fresh key pair (e, E), which agrees with the key of each member. The share of
member j is encrypted with XOR under a pad of this secret, and for j = 1 to A it is expanded from a
key of the secret, which has a purpose of its own: whoever guessed a share would else know its pad.
The leaves of a Merkle tree are hashes of the encrypted shares, of no bytes for members 1 to A,
padded with zeros to a power of two. E and the label thus fix the expanded shares before the coins.
The coins of the degree proof depend on the label, E and the root, so that a device cannot choose
its shares by its coins. The device signs label, E, root and the hash of the proof. The hash of this
statement, the message's *digest*, names the message in a set. It covers the identity, so that two
messages of one device have two digests.

A member needs the path. The pads have no authentication tag, and a server could flip bits of a
share. It would learn from the complaint, or from its absence, what the bits were. With the path, an
altered share has another root and other coins, and the signature does not verify: then the message
is the server's, and the member does not complain.

Randomness comes from the generator of the caller: 32 bytes. e and the key of the AES-256 stream,
from which the blinds are drawn, are hashes of these bytes, the label and the vector. So two runs of
one copy of a device make the same message, or independent polynomials. A device that did not
receive an answer sends the same bytes again, and nothing after it has started again: two messages
of a device could be in two sums.

Source: an addition of blindtally; the Merkle tree is that of Fiat-Shamir proofs [Ligero].
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import accumulate, pairwise
from random import Random

import numpy as np

from secagg.errors import ProtocolError
from secagg.keys import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    Identity,
    KeyPair,
    Keystream,
    check_identity,
    check_public_key,
    is_signed,
    statement,
)
from secagg.oneshot.committee import OneShotSession
from secagg.oneshot.field import Bytes, Elements
from secagg.oneshot.sharing import Sharing
from secagg.ring import Vector
from secagg.roster import DIGEST_BYTES

_SEED_BYTES = 32
MerkleLevels = Sequence[bytes]  # the digests of each level, joined


class FaultyMessageError(ProtocolError):
    """A message or a column of which no enrolled device signed the public facts for this sum."""


def _leaf(encrypted_share: bytes) -> bytes:
    return sha256(b"\0" + encrypted_share).digest()


def _node(children: bytes) -> bytes:
    return sha256(b"\1" + children).digest()


def tree_depth(leaves: int) -> int:
    """Return the number of levels above `leaves` leaves, the digests in a path."""
    return (leaves - 1).bit_length()


def merkle_levels(encrypted_shares: Sequence[bytes]) -> list[bytes]:
    """Return the digests of each level of the tree: the leaves first, the root last."""
    depth = tree_depth(len(encrypted_shares))
    level = b"".join(_leaf(share) for share in encrypted_shares)
    levels = [level.ljust(DIGEST_BYTES << depth, b"\0")]
    for _ in range(depth):
        below = levels[-1]
        starts = range(0, len(below), 2 * DIGEST_BYTES)
        levels.append(b"".join(_node(below[at : at + 2 * DIGEST_BYTES]) for at in starts))
    return levels


def merkle_path(levels: MerkleLevels, index: int) -> bytes:
    """Return the digests next to the path from leaf `index` to the root, the lowest first."""
    starts = ((index >> depth ^ 1) * DIGEST_BYTES for depth in range(len(levels) - 1))
    return b"".join(
        level[at : at + DIGEST_BYTES] for level, at in zip(levels[:-1], starts, strict=True)
    )


def root_of_path(encrypted_share: bytes, index: int, path: bytes) -> bytes:
    """Return the root of the tree that has this share at leaf `index`."""
    digest = _leaf(encrypted_share)
    for start in range(0, len(path), DIGEST_BYTES):
        other = path[start : start + DIGEST_BYTES]
        digest = _node(other + digest if index & 1 else digest + other)
        index >>= 1
    return digest


@dataclass(frozen=True, slots=True)
class Opening:
    """The public facts of a message that its coins and its signature depend on."""

    label: bytes
    key: bytes
    root: bytes

    @property
    def coin_key(self) -> bytes:
        """Return the key of the coins of the degree proof."""
        content = b"blindtally one-shot coins v1\0" + self.label + self.key + self.root
        return sha256(content).digest()

    def statement(self, proof: bytes) -> bytes:
        """Return the statement that the device signs."""
        parts = self.key, self.root, sha256(proof).digest()
        return statement("one-shot message", self.label, 0, *parts)

    def digest(self, proof: bytes) -> bytes:
        """Return the digest that names the message in a set."""
        return sha256(self.statement(proof)).digest()


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of messages and columns, known before any byte is read, nor any committee."""

    enrolment: int
    sharing: Sharing

    @classmethod
    def of(cls, session: OneShotSession) -> "Layout":
        """Return the sizes in `session`."""
        return cls(session.enrolment_bytes, session.sharing)

    @property
    def message_sizes(self) -> tuple[int, ...]:
        """Return the sizes of the parts of a message, in their order."""
        sharing, parameters = self.sharing, self.sharing.parameters
        shares = (parameters.members - parameters.corrupt) * sharing.share_bytes
        return KEY_BYTES, self.enrolment, KEY_BYTES, shares, sharing.proof_bytes, SIGNATURE_BYTES

    def column_sizes(self, member: int) -> tuple[int, ...]:
        """Return the sizes of the parts of a column of `member`, 1 to m, in their order."""
        sharing, parameters = self.sharing, self.sharing.parameters
        path = DIGEST_BYTES * tree_depth(parameters.members)
        share = sharing.share_bytes if member > parameters.corrupt else 0
        head = KEY_BYTES, self.enrolment, KEY_BYTES
        return *head, share, path, sharing.proof_bytes, SIGNATURE_BYTES

    @property
    def message_bytes(self) -> int:
        return sum(self.message_sizes)

    def column_bytes(self, member: int) -> int:
        """Return the size of a column of `member`, 1 to m."""
        return sum(self.column_sizes(member))

    @property
    def largest_column(self) -> int:
        """Return the size of a column with a share."""
        return self.column_bytes(self.sharing.parameters.members)

    @staticmethod
    def split(body: bytes, sizes: Sequence[int]) -> list[bytes]:
        """Return the parts of `body`, which has the bytes of all `sizes`."""
        return [body[start:end] for start, end in pairwise(accumulate(sizes, initial=0))]


@dataclass(frozen=True)
class DeviceMessage:
    """The message of a device."""

    identity: bytes
    enrolment: bytes
    key: bytes
    shares: bytes = field(repr=False)  # encrypted, of members A + 1 to m
    proof: bytes = field(repr=False)
    signature: bytes

    def pack(self) -> bytes:
        head = self.identity + self.enrolment + self.key
        return b"".join((head, self.shares, self.proof, self.signature))

    @classmethod
    def unpack(cls, body: bytes, session: OneShotSession) -> "DeviceMessage":
        """Return the message in `body`.

        Raises:
            ValueError: if the size is not that of the session, or the identity or the key is not
                valid, or the proof is not a packing of field elements.
        """
        layout = Layout.of(session)
        if len(body) != layout.message_bytes:
            raise ValueError(f"a message has {layout.message_bytes} bytes, got {len(body)}")
        message = cls.of_checked(body, layout)
        check_identity(message.identity)
        check_public_key(message.key)
        if not session.sharing.proof_packing.is_valid(message.proof):
            raise ValueError("a degree proof has an element outside its lane")
        return message

    @classmethod
    def of_checked(cls, body: bytes, layout: Layout) -> "DeviceMessage":
        """Return the message in `body`, which `unpack` accepted before."""
        return cls(*layout.split(body, layout.message_sizes))

    def encrypted_shares(self, session: OneShotSession) -> list[bytes]:
        """Return the encrypted shares of members 1 to m, without bytes for those up to A."""
        size = session.sharing.share_bytes
        starts = range(0, len(self.shares), size)
        sent = [self.shares[start : start + size] for start in starts]
        return [b""] * session.parameters.corrupt + sent

    def opening(self, session: OneShotSession) -> Opening:
        """Return the facts that the coins and the signature depend on."""
        root = merkle_levels(self.encrypted_shares(session))[-1]
        return Opening(session.label(self.identity), self.key, root)

    def digest(self, session: OneShotSession) -> bytes:
        """Return the digest that names the message in a set."""
        return self.opening(session).digest(self.proof)

    def columns(self, session: OneShotSession) -> list[bytes]:
        """Return the column of each member, in their order."""
        levels = merkle_levels(self.encrypted_shares(session))
        members = range(1, session.parameters.members + 1)
        return [self.column(session, member, levels) for member in members]

    def column(
        self, session: OneShotSession, member: int, levels: MerkleLevels | None = None
    ) -> bytes:
        """Return the column of `member`, 1 to m; `levels` are those of the message, if known."""
        levels = merkle_levels(self.encrypted_shares(session)) if levels is None else levels
        head, path = self.identity + self.enrolment + self.key, merkle_path(levels, member - 1)
        place, size = member - 1 - session.parameters.corrupt, session.sharing.share_bytes
        share = self.shares[place * size : (place + 1) * size] if place >= 0 else b""
        return b"".join((head, share, path, self.proof, self.signature))


@dataclass(frozen=True, slots=True)
class Column:
    """The part of a message that member number `member`, 1 to m, receives."""

    member: int
    identity: bytes
    enrolment: bytes
    key: bytes
    share: bytes = field(repr=False)  # encrypted
    path: bytes = field(repr=False)
    proof: bytes = field(repr=False)
    signature: bytes

    @classmethod
    def unpack(cls, body: bytes, layout: Layout, member: int) -> "Column":
        """Return the column in `body`; raises ValueError if it has a wrong size."""
        sizes = layout.column_sizes(member)
        if len(body) != sum(sizes):
            raise ValueError(f"a column of member {member} has {sum(sizes)} bytes")
        return cls(member, *layout.split(body, sizes))

    def opening(self, session: OneShotSession) -> Opening:
        """Return the facts that the coins and the signature depend on."""
        root = root_of_path(self.share, self.member - 1, self.path)
        return Opening(session.label(self.identity), self.key, root)


def check_message(session: OneShotSession, message: DeviceMessage | Column) -> Opening:
    """Return the public facts of `message`, which an enrolled device signed for this sum.

    The server checks a message before it stores it, and a member its column before it decrypts its
    share.

    Raises:
        FaultyMessageError: if a signature is not valid; the text has the reason.
    """
    if not session.admits(message.identity, message.enrolment):
        raise FaultyMessageError("a message has an identity that is not enrolled")
    opening = message.opening(session)
    if not is_signed(message.identity, opening.statement(message.proof), message.signature):
        raise FaultyMessageError("a message was not signed by its device for this sum")
    return opening


def make_message(
    session: OneShotSession, identity: Identity, enrolment: bytes, vector: Vector, rng: Random
) -> DeviceMessage:
    """Return the message with `vector`, of the session's ring; pass the system's randomness.

    Raises:
        ValueError: if `vector` is not one of the ring's, or the enrolment has a wrong size.
        UnsafeRequestError: if the session's authority did not make the committee.
    """
    session.check_authority()
    if len(enrolment) != session.enrolment_bytes:
        raise ValueError(f"an enrolment has {session.enrolment_bytes} bytes, got {len(enrolment)}")
    session.ring.check(vector)
    (elements,), label, sharing = vector, session.label(identity.public), session.sharing
    pair, stream = own_secrets(rng.randbytes(_SEED_BYTES), label, sharing.pack(elements))
    secrets = [pair.agree(entry.key) for entry in session.committee.entries]
    expanded = expand_shares(session, label, secrets)
    nodes = sharing.nodes(elements, expanded, stream)
    shares = encrypt_shares(session, label, secrets, sharing.shares(nodes))
    rows = [row.tobytes() for row in shares]
    leaves = [b""] * len(expanded) + rows
    opening = Opening(label, pair.public, merkle_levels(leaves)[-1])
    proof = sharing.prove(nodes, opening.coin_key)
    signature = identity.sign(opening.statement(proof))
    return DeviceMessage(identity.public, enrolment, pair.public, b"".join(rows), proof, signature)


def own_secrets(drawn: bytes, label: bytes, packed: bytes) -> tuple[KeyPair, Keystream]:
    """Return the pair (e, E) and the stream of the blinds, given 32 random bytes and the vector."""
    key, stream = (
        sha256(b"blindtally one-shot %s v1\0" % name + drawn + label + packed).digest()
        for name in (b"key", b"stream")
    )
    return KeyPair.of(key), Keystream(stream)


def expand_shares(
    session: OneShotSession, label: bytes, secrets: Sequence[bytes]
) -> list[Elements]:
    """Return the shares of members 1 to A; `secrets` has what each member agreed on."""
    members = range(1, session.parameters.corrupt + 1)
    return [
        session.sharing.expand(session.expansion(label, member).keystream(secrets[member - 1]))
        for member in members
    ]


def encrypt_shares(
    session: OneShotSession, label: bytes, secrets: Sequence[bytes], shares: Bytes
) -> Bytes:
    """Return `shares`, one row for members A + 1 to m each, under the pad for its member."""
    size, first = shares.shape[1], session.parameters.corrupt + 1
    pads = [
        session.share_purpose(label, member).pad(secret, size)
        for member, secret in enumerate(secrets[first - 1 :], first)
    ]
    return shares ^ np.frombuffer(b"".join(pads), np.uint8).reshape(shares.shape)
