"""Cryptographic primitives: signatures, key agreement, key derivation and keystreams.

    signatures  Ed25519; a statement names its subject, the sum and the slot that signs
    agreement   X25519; an agreed secret is used only to derive keys
    derivation  one step of SHA-256 over the secret, the purpose, sender, receiver and a label
                of the sum (which covers plan, cohort and roster, and for masks the graph)
    pads        a derived key of one or more blocks, XORed onto the one share that it is for; it
                names the sum, the sender, the receiver and the purpose, so no share can be
                reflected or moved
    streams     AES-128-CTR keystream, from which masks are drawn
    blocks      AES-128 under a public key, from which holders are selected

A participant has two X25519 key pairs, made for one sum: one for masks, the other for encrypted
shares. When the holders of a dropout reveal its mask key, its encrypted shares stay secret. Its
Ed25519 pair is its identity: it is enrolled once, and only signs. No other module of blindtally
imports `cryptography` or `nacl`.

Source: [Bonawitz17, section 3 and figure 4], which hashes agreements too; the derivation is
that of [SP800-56C, section 4.1], signatures are [RFC8032].
"""

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from random import Random
from threading import Lock
from typing import Any, NamedTuple, TypeVar

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
_SLOT_PAIR = struct.Struct(">II")
_MAX_KEPT_AGREEMENTS = 2**17  # about 250 bytes each
_MAX_KEPT_SIGNATURES = 2**15  # about 500 bytes each
_COUNTER_ONE = (1).to_bytes(4, "big")  # a derived key has one block

K = TypeVar("K")
V = TypeVar("V")

_CURVE_P = 2**255 - 19


def _low_order(*coordinates: int) -> frozenset[bytes]:
    """Return all 32-byte encodings, whose top bit is ignored, of the points whose order divides 8.

    The points have these coordinates and 0, 1 and -1; some have an encoding not below p.
    """
    values = (0, 1, *coordinates, _CURVE_P - 1, _CURVE_P, _CURVE_P + 1)
    return frozenset(v.to_bytes(32, "little") for low in values for v in (low, low + 2**255))


_LOW_ORDER = _low_order(  # x coordinates; with each of them every secret key agrees on zero
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
)


def check_public_key(key: bytes) -> None:
    """Check an X25519 public key that another party sent.

    Raises:
        ValueError: if it is not 32 bytes, uses the unused bit, or is of low order.
    """
    if len(key) != KEY_BYTES:
        raise ValueError(f"a public key has {KEY_BYTES} bytes, got {len(key)}")
    if key[-1] >= 2**7:
        raise ValueError("a public key has its unused bit set: it disguises another key")
    if key in _LOW_ORDER:
        raise ValueError("a public key is of low order: it agrees on nothing secret")


@dataclass(frozen=True, slots=True)
class PublicKeys:
    """The X25519 public keys that a participant advertises: for masks and for encrypted shares.

    Raises:
        ValueError: if a key is not 32 bytes, uses the unused bit, is of low order, or both
            are the same.
    """

    mask: bytes
    encryption: bytes

    def __post_init__(self) -> None:
        check_public_key(self.mask)
        check_public_key(self.encryption)
        if self.mask == self.encryption:
            raise ValueError("the keys for masks and for encrypted shares must differ")


class SharedWork:
    """Results that are the same for many parties, which may run in several threads.

    The last valid signatures are kept. A secret is kept, by both public keys, until the other party
    of the agreement needs it, or too many are.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self.verified: dict[tuple[bytes, bytes, bytes], None] = {}
        self.agreed: dict[bytes, bytes] = {}

    def keep_verified(self, signed: tuple[bytes, bytes, bytes]) -> None:
        with self._lock:
            _keep(self.verified, signed, None, _MAX_KEPT_SIGNATURES)

    def take_agreed(self, ends: bytes) -> bytes | None:
        """Return the secret of an agreement, which is not kept any more; None if it is unknown."""
        with self._lock:
            return self.agreed.pop(ends, None)

    def keep_agreed(self, ends: bytes, secret: bytes) -> None:
        with self._lock:
            _keep(self.agreed, ends, secret, _MAX_KEPT_AGREEMENTS)


def _keep(results: dict[K, V], key: K, value: V, most: int) -> None:
    """Store a result, and forget the earliest ones of more than `most`."""
    results[key] = value
    while len(results) > most:
        del results[next(iter(results))]


_shared_work: ContextVar[SharedWork | None] = ContextVar("shared_work", default=None)


@contextmanager
def sharing_work() -> Iterator[SharedWork]:
    """Let the parties of this context share work, for programs that simulate many of them.

    Each signature is verified once, and each agreement is computed once for both of its parties. A
    hundred devices of one process would verify each signature of the others dozens of times.
    """
    token = _shared_work.set(work := SharedWork())
    try:
        yield work
    finally:
        _shared_work.reset(token)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """An X25519 key pair; its representation leaves out the secret half."""

    public: bytes
    secret: bytes = field(repr=False)
    _key: X25519PrivateKey = field(repr=False, compare=False)  # as slow to make as an agreement

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
        """Return the 32-byte secret agreed with the other party, only to derive keys from it.

        Raises:
            ValueError: if `public` is of low order.
        """
        work = _shared_work.get()
        if work is None:
            return self._key.exchange(X25519PublicKey.from_public_bytes(public))
        ends = b"".join(sorted((self.public, public)))
        agreed = work.take_agreed(ends)
        if agreed is None:
            agreed = self._key.exchange(X25519PublicKey.from_public_bytes(public))
            work.keep_agreed(ends, agreed)  # the other party may never ask for it
        return agreed


_WEAK_IDENTITIES = _low_order(  # y coordinates; signatures under these prove nothing
    2707385501144840649318225287225658788936804267575313519463743609750303402022,
    55188659117513257062467267217118295137698188065244968500265048394206261417927,
)


def check_identity(public: bytes) -> None:
    """Check an Ed25519 public key that a participant claims as its identity.

    Raises:
        ValueError: if it is not 32 bytes, or of low order.
    """
    if len(public) != KEY_BYTES:
        raise ValueError(f"an identity has {KEY_BYTES} bytes, got {len(public)}")
    if public in _WEAK_IDENTITIES:
        raise ValueError("an identity is of low order: its signatures prove nothing")


_WEAK_KEY_PREFIXES = np.array(
    sorted({int.from_bytes(key[:8], "little") for key in _WEAK_IDENTITIES | _LOW_ORDER}), "<u8"
)


def pass_quick_check(keys: NDArray[np.uint8]) -> bool:
    """Return whether these are certainly valid and different keys: participants x 3 x 32 bytes.

    Each row has an identity, a mask key and an encryption key. They certainly are if no first
    eight bytes equal those of a weak key, or those of another key. A million random keys pass
    except with probability 2^-22. If the test fails, `check_identity` and `PublicKeys` decide.
    """
    firsts = np.sort(np.ascontiguousarray(keys[:, :, :8]).view("<u8"), axis=None)
    has_duplicates = (firsts[1:] == firsts[:-1]).any()
    before, up_to = (
        np.searchsorted(firsts, _WEAK_KEY_PREFIXES, side) for side in ("left", "right")
    )
    is_suspect = (before < up_to).any()
    return not (has_duplicates or is_suspect or (keys[:, 1:, -1] >= 2**7).any())


@dataclass(frozen=True, slots=True)
class Identity:
    """An Ed25519 key pair that signs; its representation leaves out the secret half."""

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


_EXAMPLE_IDENTITY = bytes.fromhex(
    "ed4928c628d1c2c6eae90338905995612959273a5c63f93636c14614ac8737d1"
)
_REFUSED_EXAMPLES = (  # R plus a point of order 8, and S plus the order of the group
    bytes.fromhex(
        "dec4662e0b590d087c84f7fcee8d7d4c86ed255840508884798445c61e0aa6bd"
        "fc905cd9b50fdfef070838200148274f885b387856faa889183a062ec0cfda0f"
    )
    + b"blindtally",
    bytes.fromhex(
        "8725813dd9d5f6c3284f575f6468e8745fd6879a8be4d0e996d990cc388b06c0"
        "b61c29628ba7d49e38d90c45e616ac2b25fcea37c23422faae97bfeab285381c"
    )
    + b"blindtally",
)


def is_signed(identity: bytes, statement: bytes, signature: bytes) -> bool:
    """Return whether `signature` is that of `identity` over `statement`."""
    work, signed = _shared_work.get(), (identity, statement, signature)
    if work is not None and signed in work.verified:
        return True
    if not _is_valid(*signed):
        return False
    if work is not None:
        work.keep_verified(signed)
    return True


def _is_valid(identity: bytes, statement: bytes, signature: bytes) -> bool:
    """Return whether OpenSSL accepts a signature.

    It also accepts all that libsodium accepts, in half the time, so it decides only on the others.
    """
    public, raw = bytes(identity), bytes(signature)  # a view may have larger items than bytes
    if len(public) != KEY_BYTES or len(raw) != SIGNATURE_BYTES:
        return False  # libsodium would read beyond a shorter key
    if libsodium_verify()(b"".join((raw, statement)), public):
        return True
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(raw, statement)
    except (InvalidSignature, ValueError):  # ValueError: not a public key
        return False
    return True


@cache
def libsodium_verify() -> Callable[[bytes, bytes], bool]:
    """Return libsodium's verification of a signature with its statement, under a key of 32 bytes.

    A version that accepts one of two signatures that OpenSSL refuses is not used: newer ones
    multiply by the cofactor, and older ones can be built to accept S beyond the order. If none can
    be loaded, OpenSSL verifies alone: otherwise a service would start, and fail at each signature.
    """
    try:
        from nacl.bindings import crypto_sign_open  # noqa: PLC0415 - the import takes 30 ms
        from nacl.exceptions import BadSignatureError  # noqa: PLC0415
    except ImportError:
        return lambda _signed, _identity: False

    def verify(signed: bytes, identity: bytes) -> bool:
        try:
            crypto_sign_open(signed, identity)
        except BadSignatureError:
            return False
        return True

    if any(verify(signed, _EXAMPLE_IDENTITY) for signed in _REFUSED_EXAMPLES):
        return lambda _signed, _identity: False
    return verify


def statement(name: str, label: bytes, slot: int, *payload: bytes | memoryview) -> bytes:
    """Return the statement that participant `slot` signs over the parts of `payload`."""
    digest = sha256()
    for part in payload:  # joining would copy them, and vectors are long
        digest.update(part)
    return statement_of_digest(name, label, slot, digest.digest())


def statement_of_digest(name: str, label: bytes, slot: int, digest: bytes) -> bytes:
    """Return the `statement` over a payload with this SHA-256, which many participants sign."""
    return b"blindtally v1 " + name.encode() + b"\0" + label + slot.to_bytes(4, "big") + digest


class Purpose(NamedTuple):
    """The purpose of a derived key: `name`, from slot `sender` to slot `receiver`, in one sum.

    `label` is 32 bytes: of the session, or of the transcript. `name` is one of `mask` (sender
    below receiver), `self` (sender is receiver), `key share` and `seed share`. In one-shot sums
    the label is that of a device's message, and the name is `one-shot share` or
    `one-shot expansion`.
    """

    label: bytes
    name: str
    sender: int
    receiver: int

    def info(self) -> bytes:
        """Return the bytes that distinguish this purpose from all others in all sums."""
        pair = _SLOT_PAIR.pack(self.sender, self.receiver)
        return b"blindtally v1 %s\0%s%s" % (self.name.encode(), pair, self.label)

    def derive(self, secret: bytes) -> bytes:
        """Return the 32-byte key of a 32-byte `secret` for this purpose only."""
        return sha256(_COUNTER_ONE + secret + self.info()).digest()

    def pad(self, secret: bytes, size: int) -> bytes:
        """Return `size` bytes derived from a 32-byte `secret`, to encrypt one message with XOR.

        Block i is SHA-256 of i = 1, 2, ... in four bytes, the secret and `info`. A cipher object
        would take longer than the hashes of a short message.
        """
        rest, counters = secret + self.info(), range(1, -(-size // KEY_BYTES) + 1)
        blocks = (sha256(counter.to_bytes(4, "big") + rest).digest() for counter in counters)
        return b"".join(blocks)[:size]

    def keystream(self, secret: bytes) -> "Keystream":
        """Return the keystream that is expanded from `secret` for this purpose."""
        return Keystream(self.derive(secret)[:_STREAM_KEY_BYTES])


def permute_blocks(key: bytes, blocks: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return AES-128 of each block of four 32-bit words, in little-endian order."""
    cipher = Cipher(AES(key), ECB())  # noqa: S305 - not used to encrypt messages
    permuted = cipher.encryptor().update(blocks.astype("<u4").tobytes())
    return np.frombuffer(permuted, "<u4").reshape(blocks.shape)


_ZEROS = bytes(2**19)
_ZERO_COUNTER = CTR(bytes(16))


class Keystream:
    """AES-CTR keystream under a 16- or 32-byte key, from counter 0."""

    def __init__(self, key: bytes) -> None:
        self._encryptor = Cipher(AES(key), _ZERO_COUNTER).encryptor()

    def fill(self, out: NDArray[Any]) -> None:
        """Overwrite the contiguous array `out` with the stream's next bytes."""
        view = memoryview(out.view(np.uint8).data)
        for start in range(0, len(view), len(_ZEROS)):
            part = view[start : start + len(_ZEROS)]
            self._encryptor.update_into(memoryview(_ZEROS)[: len(part)], part)
