"""Messages of participants: encrypted shares, masked inputs and revealed shares; their bytes.

An *encrypted share* is a commitment to one share (32), for the server, and the ciphertext for the
holder (33): the share under a pad that dealer and holder agree on and that is used for this share
only. A dealer's encrypted shares stand in the order of the shares: number 1 is its own, which it
keeps, number 2 its first holder's, and so on.

    KeyShares        graph nonce (32), an encrypted share for each holder, signature (64)
    SeedShares       commitments to the seed (32) and to the own share of it (32), an encrypted
                     share for each holder that shared
    MaskedInput      seed shares, packed vector, signature (64)
    ReceivedShares   for each dealer in rising order: slot (u32), its encrypted share for a holder
    confirmations    for each survivor that confirmed, in rising order: slot (u32),
                     signature (64)
    UnmaskingShares  for each dealer in rising order: slot (u32), kind (u8), share (33);
                     signature (64)

Encrypted shares stay in the bytes they travel in. A server forwards to a thousand holders the
shares of a hundred dealers each: as objects these would take three times the memory, and be read
from scattered places.

Shares have the full entropy of the field. A digest therefore commits to a share and reveals
nothing of it, and without the pad nobody can distinguish the digests of two shares. So the
commitment also authenticates the ciphertext: docs/threat-model.md, "Why a pad will do". The pad
covers all bytes except the first, which is 0 except with probability 2^-247.

Source: [SEC1, section 3.8], whose XOR encryption has a tag where this has the commitment.
"""

import struct
from collections.abc import Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from secagg.keys import SIGNATURE_BYTES, Identity
from secagg.roster import (
    DIGEST_BYTES,
    GRAPH_NONCE_BYTES,
    PackedSequence,
    ShareCommitment,
    records_by_slot,
)
from secagg.shamir import SHARE_BYTES, is_share

CIPHERTEXT_BYTES = SHARE_BYTES
ENCRYPTED_SHARE_BYTES = DIGEST_BYTES + CIPHERTEXT_BYTES
RECEIVED_SHARE_DTYPE = np.dtype(
    [("dealer", ">u4"), ("commitment", f"V{DIGEST_BYTES}"), ("ciphertext", f"V{CIPHERTEXT_BYTES}")]
)
_CONFIRMATION_DTYPE = np.dtype([("slot", ">u4"), ("signature", f"V{SIGNATURE_BYTES}")])
_REVEALED_SHARE = struct.Struct(f">IB{SHARE_BYTES}s")
REVEALED_SHARE_BYTES = _REVEALED_SHARE.size
REVEALED_SHARE_DTYPE = np.dtype(  # the same bytes
    [("dealer", ">u4"), ("kind", "u1"), ("share", f"V{SHARE_BYTES}")]
)
SEED_SHARE, KEY_SHARE, NO_SHARE = range(3)  # kinds of revealed shares


def commit_seed(seed: bytes) -> bytes:
    """Return the 32 bytes that commit a participant to `seed` and reveal nothing of it."""
    return sha256(b"blindtally seed v1\0" + seed).digest()


def commit_share(share: bytes) -> bytes:
    """Return the 32 bytes that commit a dealer to `share` and reveal nothing of it."""
    return sha256(b"blindtally share v1\0" + share).digest()


@dataclass(frozen=True, slots=True)
class EncryptedShare:
    """One share for one holder: the commitment to it and its ciphertext."""

    commitment: bytes
    ciphertext: bytes

    def pack(self) -> bytes:
        return self.commitment + self.ciphertext

    @classmethod
    def unpack(cls, body: bytes) -> "EncryptedShare":
        """Return the encrypted share in `body`.

        Raises:
            ValueError: if `body` does not have `ENCRYPTED_SHARE_BYTES` bytes.
        """
        if len(body) != ENCRYPTED_SHARE_BYTES:
            size = ENCRYPTED_SHARE_BYTES
            raise ValueError(f"an encrypted share has {size} bytes, got {len(body)}")
        return cls(body[:DIGEST_BYTES], body[DIGEST_BYTES:])


def unpack_encrypted_shares(body: bytes | memoryview) -> PackedSequence[EncryptedShare]:
    """Return a dealer's encrypted shares, which are not copied.

    Raises:
        ValueError: if the size of `body` is not a multiple of an encrypted share's.
    """
    return PackedSequence(body, ENCRYPTED_SHARE_BYTES, EncryptedShare.unpack, "encrypted shares")


def encrypted_shares_bytes(shares: Sequence[EncryptedShare]) -> bytes | memoryview:
    """Return the bytes of a dealer's encrypted shares."""
    if isinstance(shares, PackedSequence):
        return shares.body
    return b"".join(share.pack() for share in shares)


class ReceivedShares(Mapping[int, EncryptedShare]):
    """The encrypted shares for one holder, by dealer, packed in `records`."""

    def __init__(self, records: NDArray[np.void]) -> None:
        self.records = records

    @classmethod
    def unpack(cls, body: bytes) -> "ReceivedShares":
        """Return the received shares in `body`.

        Raises:
            ValueError: if the size is not a multiple of a record's, or slots do not strictly rise.
        """
        return cls(records_by_slot(body, RECEIVED_SHARE_DTYPE, "dealer", "encrypted shares"))

    def pack(self) -> bytes:
        return self.records.tobytes()

    @property
    def digest(self) -> bytes:
        return sha256(self.pack()).digest()

    @property
    def dealers(self) -> list[int]:
        """Return the dealers, in rising order."""
        dealers: list[int] = self.records["dealer"].tolist()
        return dealers

    def commitment(self, dealer: int) -> bytes | None:
        """Return the commitment to the share of `dealer`; None if there is no such share."""
        index = int(np.searchsorted(self.records["dealer"], dealer))
        if index == len(self) or self.records["dealer"][index] != dealer:
            return None
        commitment: bytes = self.records["commitment"][index].tobytes()
        return commitment

    @cached_property
    def _by_dealer(self) -> dict[int, EncryptedShare]:
        commitments, ciphertexts = self.records["commitment"], self.records["ciphertext"]
        shares = map(EncryptedShare, commitments.tolist(), ciphertexts.tolist())
        return dict(zip(self.dealers, shares, strict=True))

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[int]:
        return iter(self.dealers)

    def __getitem__(self, dealer: int) -> EncryptedShare:
        return self._by_dealer[dealer]

    def keys(self) -> KeysView[int]:
        """Return the dealers, without making their encrypted shares."""
        return dict.fromkeys(self.dealers).keys()


def received_shares_bytes(shares: Mapping[int, EncryptedShare]) -> bytes:
    """Return the bytes of the encrypted shares for one holder."""
    if isinstance(shares, ReceivedShares):
        return shares.pack()
    return b"".join(dealer.to_bytes(4, "big") + shares[dealer].pack() for dealer in sorted(shares))


@dataclass(frozen=True, slots=True)
class KeyShares:
    """A dealer's graph nonce, and encrypted shares of its mask key for its holders."""

    graph_nonce: bytes
    encrypted_shares: Sequence[EncryptedShare]
    signature: bytes = b""

    @staticmethod
    def nbytes(holders: int) -> int:
        """Return the size of the message for this number of holders."""
        return GRAPH_NONCE_BYTES + holders * ENCRYPTED_SHARE_BYTES + SIGNATURE_BYTES

    @property
    def share_commitment(self) -> ShareCommitment:
        """Return the commitment to this message that all participants receive."""
        digest = sha256(encrypted_shares_bytes(self.encrypted_shares)).digest()
        return ShareCommitment(self.graph_nonce, digest)

    def pack(self) -> bytes:
        """Return the bytes of the message."""
        encrypted_shares = encrypted_shares_bytes(self.encrypted_shares)
        return b"".join((self.graph_nonce, encrypted_shares, self.signature))

    @classmethod
    def unpack(cls, body: bytes) -> "KeyShares":
        """Return the message in `body`.

        Raises:
            ValueError: if the size of `body` fits no number of encrypted shares.
        """
        if len(body) < GRAPH_NONCE_BYTES + SIGNATURE_BYTES:
            raise ValueError("too short for a graph nonce and a signature")
        shares = unpack_encrypted_shares(memoryview(body)[GRAPH_NONCE_BYTES:-SIGNATURE_BYTES])
        return cls(body[:GRAPH_NONCE_BYTES], shares, body[-SIGNATURE_BYTES:])


@dataclass(frozen=True, slots=True)
class SeedShares:
    """Commitments to a seed and to the dealer's own share of it; encrypted shares for holders."""

    seed_commitment: bytes
    own_share_commitment: bytes
    encrypted_shares: Sequence[EncryptedShare]

    @staticmethod
    def nbytes(holders: int) -> int:
        """Return the size of the message for this number of holders."""
        return 2 * DIGEST_BYTES + holders * ENCRYPTED_SHARE_BYTES

    def pack(self) -> bytes:
        """Return the bytes of the message."""
        commitments = (self.seed_commitment, self.own_share_commitment)
        return b"".join((*commitments, encrypted_shares_bytes(self.encrypted_shares)))

    @classmethod
    def unpack(cls, body: bytes) -> "SeedShares":
        """Return the message in `body`.

        Raises:
            ValueError: if the size of `body` fits no number of encrypted shares.
        """
        if len(body) < 2 * DIGEST_BYTES:
            raise ValueError("too short for two commitments")
        shares = unpack_encrypted_shares(memoryview(body)[2 * DIGEST_BYTES :])
        return cls(body[:DIGEST_BYTES], body[DIGEST_BYTES : 2 * DIGEST_BYTES], shares)


@dataclass(frozen=True, slots=True)
class MaskedInput:
    """A masked vector, packed, and shares of the seed that its own mask is expanded from."""

    seed_shares: SeedShares
    vector: bytes | memoryview = field(repr=False)
    signature: bytes

    def signed_bytes(self) -> bytes:
        """Return the bytes under the signature."""
        return self.seed_shares.pack() + self.vector

    def pack(self) -> bytes:
        """Return the bytes of the message."""
        return b"".join((self.seed_shares.pack(), self.vector, self.signature))  # copied once

    @classmethod
    def unpack(cls, body: bytes, vector_bytes: int) -> "MaskedInput":
        """Return the message in `body`, with a vector of `vector_bytes` that is not copied.

        Raises:
            ValueError: if `body` is too short, or its size fits no number of encrypted shares.
        """
        start = len(body) - SIGNATURE_BYTES - vector_bytes
        seed_shares = SeedShares.unpack(body[: max(start, 0)])
        vector = memoryview(body).toreadonly()[start:-SIGNATURE_BYTES]
        return cls(seed_shares, vector, body[-SIGNATURE_BYTES:])


def pack_confirmations(signatures: Mapping[int, bytes]) -> bytes:
    """Return the bytes of signatures over the survivors, by slot."""
    return b"".join(slot.to_bytes(4, "big") + signatures[slot] for slot in sorted(signatures))


def unpack_confirmations(body: bytes) -> dict[int, bytes]:
    """Return the signatures over the survivors in `body`, by slot.

    Raises:
        ValueError: if the size is not a multiple of a record's, or slots do not strictly rise.
    """
    records = records_by_slot(body, _CONFIRMATION_DTYPE, "slot", "confirmations")
    return dict(zip(records["slot"].tolist(), records["signature"].tolist(), strict=True))


@dataclass(frozen=True)
class UnmaskingShares:
    """Shares that a holder reveals to the server, by dealer: of the seed or the mask key.

    There is never a share of both for one dealer. `invalid_dealers` are the dealers whose
    encrypted share does not match its commitment.
    """

    seed_shares: Mapping[int, bytes] = field(repr=False)  # of survivors
    key_shares: Mapping[int, bytes] = field(repr=False)  # of dealers that dropped out
    invalid_dealers: frozenset[int] = frozenset()
    signature: bytes = b""

    @staticmethod
    def nbytes(dealers: int) -> int:
        """Return the size of the message about this number of dealers."""
        return dealers * REVEALED_SHARE_BYTES + SIGNATURE_BYTES

    def signed_bytes(self) -> bytes:
        """Return the bytes of the records, which the signature covers."""
        return self._records

    @cached_property
    def _records(self) -> bytes:
        records = [(dealer, SEED_SHARE, share) for dealer, share in self.seed_shares.items()]
        records += [(dealer, KEY_SHARE, share) for dealer, share in self.key_shares.items()]
        records += [(dealer, NO_SHARE, bytes(SHARE_BYTES)) for dealer in self.invalid_dealers]
        return b"".join(_REVEALED_SHARE.pack(*record) for record in sorted(records))

    @property
    def records(self) -> NDArray[np.void]:
        """Return dealers, kinds and shares (`REVEALED_SHARE_DTYPE`), by rising dealer."""
        return np.frombuffer(self._records, REVEALED_SHARE_DTYPE)

    @property
    def are_field_elements(self) -> bool:
        """Return whether all shares are field elements; it is certain if first bytes are 0."""
        records = self.records
        firsts = records.view(np.uint8).reshape(-1, REVEALED_SHARE_BYTES)[:, -SHARE_BYTES]
        return not firsts.any() or all(map(is_share, records["share"].tolist()))

    def signed(self, identity: Identity, statement: bytes) -> "UnmaskingShares":
        """Return this message signed by `identity` under its `Transcript.unmasking_statement`."""
        signed = replace(self, signature=identity.sign(statement))
        vars(signed)["_records"] = self.signed_bytes()  # the same bytes, made once
        return signed

    def pack(self) -> bytes:
        """Return the bytes of the message."""
        return self.signed_bytes() + self.signature

    @classmethod
    def unpack(cls, body: bytes) -> "UnmaskingShares":
        """Return the message in `body`.

        Raises:
            ValueError: if the size does not fit a whole number of records and a signature,
                dealers do not strictly rise (so that no message reveals both secrets of one
                dealer), or a kind is unknown.
        """
        if len(body) < SIGNATURE_BYTES:
            raise ValueError("too short for a signature")
        record_bytes = body[:-SIGNATURE_BYTES]
        records = records_by_slot(record_bytes, REVEALED_SHARE_DTYPE, "dealer", "shares")
        max_kind = records["kind"].max(initial=SEED_SHARE)
        if max_kind > NO_SHARE:
            raise ValueError("a share's kind is 0, 1 or 2")
        invalid = records[records["kind"] == NO_SHARE] if max_kind == NO_SHARE else records[:0]
        if any(map(any, invalid["share"].tolist())):
            raise ValueError("an invalid share is reported with zeros")
        message = cls(
            _SharesOfKind(records, SEED_SHARE),
            _SharesOfKind(records, KEY_SHARE),
            frozenset(invalid["dealer"].tolist()),
            body[-SIGNATURE_BYTES:],
        )
        vars(message)["_records"] = record_bytes  # records in rising order have one form only
        return message


class _SharesOfKind(Mapping[int, bytes]):
    """The shares of one kind in `records`, by dealer, made when they are first read.

    The server checks all shares as arrays, and reads single ones only of a false message.
    """

    def __init__(self, records: NDArray[np.void], kind: int) -> None:
        self._records = records
        self._kind = kind

    @cached_property
    def _by_dealer(self) -> dict[int, bytes]:
        records = self._records[self._records["kind"] == self._kind]
        return dict(zip(records["dealer"].tolist(), records["share"].tolist(), strict=True))

    def __getitem__(self, dealer: int) -> bytes:
        return self._by_dealer[dealer]

    def __iter__(self) -> Iterator[int]:
        return iter(self._by_dealer)

    def __len__(self) -> int:
        return len(self._by_dealer)
