"""The primitives: signatures, key agreement, labels, envelopes and seed streams.

    signatures  Ed25519; a statement names what is said, in which sum and by which slot
    agreement   X25519; a shared secret never leaves this module as it is
    labels      one step of SHA-256 over the secret, the purpose, sender, receiver and a label
                of the sum (which covers plan, cohort and roster, and once it is known the graph)
    pads        such a derived key, put on the one share that it is for; it names the sum, the
                sender, the receiver and the purpose, so no share can be reflected or moved
    streams     AES-128-CTR keystream, from which masks are drawn
    blocks      AES-128 under a key that everybody has, from which picks are drawn

A participant has two X25519 key pairs, made for one sum: one agrees on masks, the other on
envelopes, so that giving away the first (as a lost participant's holders do) opens no
envelope. Its Ed25519 pair is its identity: it is enrolled once, and signs only. This is the
only module of ours that imports `cryptography`.

Source: [Bonawitz17, section 3 and figure 4], which hashes agreements too; the derivation is
that of [SP800-56C, section 4.1], signatures are [RFC8032].
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from random import Random
from typing import Any, NamedTuple

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR, ECB
from numpy.typing import NDArray

KEY_BYTES = 32
SEED_BYTES = 32
SIGNATURE_BYTES = 64
_STREAM_KEY_BYTES = 16
_PAIR = struct.Struct(">II")
_FIRST = (1).to_bytes(4, "big")  # and only block of a derived key

_P = 2**255 - 19


def _encodings(values: Iterable[int]) -> frozenset[bytes]:
    """Return all 32-byte encodings of values below 2^255: the top bit is not read."""
    return frozenset(v.to_bytes(32, "little") for low in values for v in (low, low + 2**255))


# The points whose order divides 8, and their encodings not below p: with them every secret
# key agrees on the same secret, zero.
_LOW_ORDER = _encodings(
    {
        0,
        1,
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
        _P - 1,
        _P,
        _P + 1,
    }
)


@dataclass(frozen=True, slots=True)
class PublicKeys:
    """What a participant advertises: X25519 public keys for masks and for envelopes.

    Raises:
        ValueError: if a key is not 32 bytes, uses the unused bit, is of low order, or both
            are the same.
    """

    mask: bytes
    seal: bytes

    def __post_init__(self) -> None:
        for key in (self.mask, self.seal):
            if len(key) != KEY_BYTES:
                raise ValueError(f"a public key has {KEY_BYTES} bytes, got {len(key)}")
            if key[-1] >= 2**7:
                raise ValueError(
                    "a public key has its unused bit set: it is another's, in disguise"
                )
            if key in _LOW_ORDER:
                raise ValueError("a public key is of low order: it agrees on nothing secret")
        if self.mask == self.seal:
            raise ValueError("the keys for masks and for envelopes must differ")


@dataclass(frozen=True, slots=True)
class KeyPair:
    """An X25519 key pair; the secret half stays out of logs and tracebacks."""

    public: bytes
    secret: bytes = field(repr=False)
    _key: X25519PrivateKey = field(repr=False, compare=False)  # making it costs an agreement

    @classmethod
    def of(cls, secret: bytes) -> "KeyPair":
        """Return the pair of a 32-byte `secret`."""
        key = X25519PrivateKey.from_private_bytes(secret)
        return cls(key.public_key().public_bytes_raw(), secret, key)

    @classmethod
    def generate(cls, rng: Random) -> "KeyPair":
        """Return a fresh pair."""
        return cls.of(rng.randbytes(KEY_BYTES))

    def agree(self, public: bytes) -> bytes:
        """Return the 32-byte secret shared with the owner of `public`; derive from it only.

        Raises:
            ValueError: if `public` is of low order.
        """
        return self._key.exchange(X25519PublicKey.from_public_bytes(public))


# The y coordinates of the points of Ed25519 whose order divides 8, with their encodings not
# below p: a signature under such an identity is no evidence of anything.
_WEAK_IDENTITIES = _encodings(
    {
        0,
        1,
        2707385501144840649318225287225658788936804267575313519463743609750303402022,
        55188659117513257062467267217118295137698188065244968500265048394206261417927,
        _P - 1,
        _P,
        _P + 1,
    }
)


def check_identity(public: bytes) -> None:
    """Check an Ed25519 public key that somebody claims as its identity.

    Raises:
        ValueError: if it is not 32 bytes, or of low order.
    """
    if len(public) != KEY_BYTES:
        raise ValueError(f"an identity has {KEY_BYTES} bytes, got {len(public)}")
    if public in _WEAK_IDENTITIES:
        raise ValueError("an identity is of low order: its signatures prove nothing")


_SUSPECTS = np.array(
    sorted({int.from_bytes(key[:8], "little") for key in _WEAK_IDENTITIES | _LOW_ORDER}), "<u8"
)


def are_plainly_good(keys: NDArray[np.uint8]) -> bool:
    """Return whether it is plain that these are good keys, all different: people x 3 x 32 bytes.

    In each row stand an identity, a key for masks and one for envelopes. It is plain if no
    eight first bytes are those of a weak key, or those of another; of good keys chosen at
    random a million are so, but for odds of 2^-22. If not, `check_identity` and `PublicKeys` tell.
    """
    firsts = np.sort(np.ascontiguousarray(keys[:, :, :8]).view("<u8"), axis=None)
    has_twins = (firsts[1:] == firsts[:-1]).any()
    before, up_to = (np.searchsorted(firsts, _SUSPECTS, side) for side in ("left", "right"))
    is_suspect = (before < up_to).any()
    return not (has_twins or is_suspect or (keys[:, 1:, -1] >= 2**7).any())


@dataclass(frozen=True, slots=True)
class Identity:
    """An Ed25519 key pair that signs what a device says; the secret half stays out of logs."""

    public: bytes
    _key: Ed25519PrivateKey = field(repr=False, compare=False)

    @classmethod
    def of(cls, secret: bytes) -> "Identity":
        """Return the identity of a 32-byte `secret`."""
        key = Ed25519PrivateKey.from_private_bytes(secret)
        return cls(key.public_key().public_bytes_raw(), key)

    @classmethod
    def generate(cls, rng: Random) -> "Identity":
        """Return a fresh identity; pass the system's randomness."""
        return cls.of(rng.randbytes(KEY_BYTES))

    def sign(self, statement: bytes) -> bytes:
        """Return the 64-byte signature of `statement`."""
        return self._key.sign(statement)


def is_signed(identity: bytes, statement: bytes, signature: bytes) -> bool:
    """Return whether `signature` is that of `identity` under `statement`."""
    try:
        Ed25519PublicKey.from_public_bytes(identity).verify(signature, statement)
    except (InvalidSignature, ValueError):  # ValueError: no public key at all
        return False
    return True


def statement(what: str, label: bytes, slot: int, *payload: bytes | memoryview) -> bytes:
    """Return what participant `slot` signs to say `payload`, in parts, in the sum of `label`."""
    said = sha256()
    for part in payload:  # joined they would be copied, and vectors are long
        said.update(part)
    return statement_of(what, label, slot, said.digest())


def statement_of(what: str, label: bytes, slot: int, digest: bytes) -> bytes:
    """Return the `statement` of a payload of this SHA-256, for what many say alike."""
    return b"blindtally v1 " + what.encode() + b"\0" + label + slot.to_bytes(4, "big") + digest


class Purpose(NamedTuple):
    """What a derived key is for: `name`, from slot `sender` to slot `receiver`, in one sum.

    `label` is 32 bytes: of the cohort, or of the view of it that includes who shared. `name`
    is one of `mask` (sender below receiver), `self` (both the owner), `key share` and
    `seed share`.
    """

    label: bytes
    name: str
    sender: int
    receiver: int

    def info(self) -> bytes:
        """Return the bytes that tell this purpose from all others, of whatever sum."""
        pair = _PAIR.pack(self.sender, self.receiver)
        return b"blindtally v1 %s\0%s%s" % (self.name.encode(), pair, self.label)

    def derive(self, secret: bytes) -> bytes:
        """Return the 32-byte key of a 32-byte `secret` for this purpose alone."""
        return sha256(_FIRST + secret + self.info()).digest()

    def stream(self, secret: bytes) -> "Stream":
        """Return the keystream that `secret` grows into for this purpose."""
        return Stream(self.derive(secret)[:_STREAM_KEY_BYTES])


def permute_blocks(key: bytes, blocks: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return AES-128 of each block of four words of 32 bits, little end first."""
    cipher = Cipher(AES(key), ECB())  # noqa: S305 - these are no messages
    permuted = cipher.encryptor().update(blocks.astype("<u4").tobytes())
    return np.frombuffer(permuted, "<u4").reshape(blocks.shape)


_ZEROS = bytes(2**19)
_FROM_ZERO = CTR(bytes(16))


class Stream:
    """AES-CTR keystream under a 16- or 32-byte key, from counter 0."""

    def __init__(self, key: bytes) -> None:
        self._encryptor = Cipher(AES(key), _FROM_ZERO).encryptor()

    def fill(self, out: NDArray[Any]) -> None:
        """Overwrite the contiguous array `out` with the stream's next bytes."""
        view = memoryview(out.view(np.uint8).data)
        for start in range(0, len(view), len(_ZEROS)):
            part = view[start : start + len(_ZEROS)]
            self._encryptor.update_into(memoryview(_ZEROS)[: len(part)], part)
