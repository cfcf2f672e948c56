"""Encrypted shares: the pair of shares that a dealer sends to each holder, and its encryption.

An *encrypted share* is a commitment to one share (32), for the server, and the ciphertext for the
holder (33): the share under a pad that dealer and holder agree on and that is used for this share
only. A dealer sends each holder a *share pair*: an encrypted share of its mask key, and one of its
seed (65 each). The pairs stand in the order of the shares: number 1 is the dealer's own, which it
keeps, number 2 its first holder's, and so on. A holder receives, for each dealer in rising order,
its slot (u32) and the pair.

Encrypted shares stay in the bytes they travel in. A server forwards to a thousand holders the
shares of a hundred dealers each: as objects these would take three times the memory, and be read
from scattered places.

Shares have the full entropy of the field. A digest therefore commits to a share and reveals
nothing of it, and without the pad nobody can distinguish the digests of two shares. So the
commitment also authenticates the ciphertext: "Why a pad will do" in docs/research/secure-sum.md.
The pad covers all bytes except the first, which is 0 except with probability 2^-247.

Source: [SEC1, section 3.8], whose XOR encryption has a tag where this has the commitment.
"""

from collections.abc import Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from secagg.keys import KEY_BYTES
from secagg.roster import DIGEST_BYTES, PackedSequence, records_by_slot
from secagg.shamir import SHARE_BYTES, is_share

CIPHERTEXT_BYTES = SHARE_BYTES
ENCRYPTED_SHARE_BYTES = DIGEST_BYTES + CIPHERTEXT_BYTES
SHARE_PAIR_BYTES = 2 * ENCRYPTED_SHARE_BYTES
_ENCRYPTED_SHARE_DTYPE = np.dtype(
    [("commitment", f"V{DIGEST_BYTES}"), ("ciphertext", f"V{CIPHERTEXT_BYTES}")]
)
RECEIVED_SHARES_DTYPE = np.dtype(
    [("dealer", ">u4"), ("key", _ENCRYPTED_SHARE_DTYPE), ("seed", _ENCRYPTED_SHARE_DTYPE)]
)


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


@dataclass(frozen=True, slots=True)
class SharePair:
    """The encrypted shares for one holder: of the dealer's mask key and of its seed."""

    key: EncryptedShare
    seed: EncryptedShare

    def pack(self) -> bytes:
        """Return the bytes of the pair."""
        return self.key.pack() + self.seed.pack()

    @classmethod
    def unpack(cls, body: bytes) -> "SharePair":
        """Return the pair in `body`; raises ValueError if it has another size."""
        size = ENCRYPTED_SHARE_BYTES
        return cls(EncryptedShare.unpack(body[:size]), EncryptedShare.unpack(body[size:]))


def unpack_share_pairs(body: bytes | memoryview) -> PackedSequence[SharePair]:
    """Return a dealer's share pairs, which are not copied.

    Raises:
        ValueError: if the size of `body` is not a multiple of a pair's.
    """
    return PackedSequence(body, SHARE_PAIR_BYTES, SharePair.unpack, "share pairs")


def share_pairs_bytes(pairs: Sequence[SharePair]) -> bytes | memoryview:
    """Return the bytes of a dealer's share pairs."""
    if isinstance(pairs, PackedSequence):
        return pairs.body
    return b"".join(pair.pack() for pair in pairs)


class ReceivedShares(Mapping[int, SharePair]):
    """The share pairs for one holder, by dealer, packed in `records`."""

    def __init__(self, records: NDArray[np.void]) -> None:
        self.records = records

    @classmethod
    def unpack(cls, body: bytes) -> "ReceivedShares":
        """Return the received shares in `body`.

        Raises:
            ValueError: if the size is not a multiple of a record's, or slots do not strictly rise.
        """
        return cls(records_by_slot(body, RECEIVED_SHARES_DTYPE, "dealer", "share pairs"))

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

    @cached_property
    def _row_of(self) -> dict[int, int]:
        return {dealer: row for row, dealer in enumerate(self.dealers)}

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[int]:
        return iter(self.dealers)

    def __getitem__(self, dealer: int) -> SharePair:
        return SharePair.unpack(self.records[self._row_of[dealer]].tobytes()[4:])

    def keys(self) -> KeysView[int]:
        """Return the dealers, without making their share pairs."""
        return self._row_of.keys()


def received_shares_bytes(shares: Mapping[int, SharePair]) -> bytes:
    """Return the bytes of the share pairs for one holder."""
    if isinstance(shares, ReceivedShares):
        return shares.pack()
    return b"".join(dealer.to_bytes(4, "big") + shares[dealer].pack() for dealer in sorted(shares))


def encrypt_shares(shares: Sequence[bytes], pads: Sequence[bytes]) -> NDArray[np.uint8]:
    """Return the encrypted shares of `shares`, one row each, under their own pads of 32 bytes.

    A pad must be used once.
    """
    rows = np.empty((len(shares), ENCRYPTED_SHARE_BYTES), np.uint8)
    rows[:, :DIGEST_BYTES] = _byte_rows([commit_share(share) for share in shares], DIGEST_BYTES)
    rows[:, DIGEST_BYTES:] = _xor_pads(_byte_rows(shares, SHARE_BYTES), pads)
    return rows


def decrypt_shares(encrypted: NDArray[np.void], pads: Sequence[bytes]) -> list[bytes | None]:
    """Return the share in each record of `encrypted`; None if it does not match its commitment."""
    ciphertexts = np.ascontiguousarray(encrypted["ciphertext"]).view(np.uint8)
    plain = _xor_pads(ciphertexts.reshape(-1, SHARE_BYTES), pads)
    shares: list[bytes] = plain.view(f"V{SHARE_BYTES}").ravel().tolist()
    return [
        share if commit_share(share) == commitment and is_share(share) else None
        for share, commitment in zip(shares, encrypted["commitment"].tolist(), strict=True)
    ]


def _xor_pads(shares: NDArray[np.uint8], pads: Sequence[bytes]) -> NDArray[np.uint8]:
    """Return `shares` with their pads XORed onto all bytes except the first."""
    covered = shares.copy()
    covered[:, SHARE_BYTES - KEY_BYTES :] ^= _byte_rows(pads, KEY_BYTES)
    return covered


def _byte_rows(items: Sequence[bytes], size: int) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(items), np.uint8).reshape(-1, size)
