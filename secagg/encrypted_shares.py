"""Encrypted shares, one per holder, as a dealer sends them and as a holder receives them.

An *encrypted share* is a commitment to one share, for the server, and the ciphertext for the
holder: the share under a pad that dealer and holder agree on and that is used for this share only.

    encrypted shares of a dealer  commitment (32), ciphertext (33) for each holder, in the order
                                  of shares
    received shares of a holder   slot (u32), commitment (32), ciphertext (33) for each dealer, in
                                  rising order

Both stay in the bytes they travel in. A server forwards to a thousand holders the shares of a
hundred dealers each, and compares revealed shares with the commitments: as objects these would
take three times the memory, and be read from scattered places.

Shares have the full entropy of the field. A digest therefore commits to a share and reveals
nothing of it, and without the pad nobody can distinguish the digests of two shares. So the
commitment also authenticates the ciphertext: docs/threat-model.md, "Why a pad will do". The pad
covers all bytes except the first, which is 0 except with probability 2^-247.

Source: [SEC1, section 3.8], whose XOR encryption has a tag where this has the commitment.
"""

from collections.abc import Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from secagg.keys import KEY_BYTES
from secagg.roster import DIGEST_BYTES, PackedSequence
from secagg.shamir import SHARE_BYTES, is_share

CIPHERTEXT_BYTES = SHARE_BYTES
ENCRYPTED_SHARE_BYTES = DIGEST_BYTES + CIPHERTEXT_BYTES
_ROUTING_BATCH = 64  # dealers routed at a time: half a megabyte, which stays in the cache
_RECEIVED_RECORD = np.dtype(
    [("dealer", ">u4"), ("commitment", f"V{DIGEST_BYTES}"), ("ciphertext", f"V{CIPHERTEXT_BYTES}")]
)
_ROUTED_RECORD = np.dtype(  # the same bytes
    [("dealer", ">u4"), ("encrypted_share", f"V{ENCRYPTED_SHARE_BYTES}")]
)


def commit_share(share: bytes) -> bytes:
    """Return the 32 bytes that commit a dealer to `share` and reveal nothing of it."""
    return commit_shares((share,))[0]


def commit_shares(shares: Iterable[bytes]) -> list[bytes]:
    """Return the commitment to each of `shares`."""
    return [sha256(b"blindtally share v1\0" + share).digest() for share in shares]


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


def encrypt_shares(
    shares: Sequence[bytes], pads: Sequence[bytes]
) -> PackedSequence[EncryptedShare]:
    """Return the encrypted shares of `shares`, each under its own pad of 32 bytes.

    A pad must be used once.
    """
    rows = np.empty((len(shares), ENCRYPTED_SHARE_BYTES), np.uint8)
    rows[:, :DIGEST_BYTES] = _byte_rows(commit_shares(shares), DIGEST_BYTES)
    rows[:, DIGEST_BYTES:] = _xor_pads(_byte_rows(shares, SHARE_BYTES), pads)
    return unpack_encrypted_shares(rows.tobytes())


def decrypt_shares(received: "ReceivedShares", pads: Sequence[bytes]) -> list[bytes | None]:
    """Return each received share; None if it does not match its commitment."""
    ciphertexts = np.ascontiguousarray(received.records["ciphertext"]).view(np.uint8)
    plain = _xor_pads(ciphertexts.reshape(-1, SHARE_BYTES), pads)
    shares: list[bytes] = plain.view(f"V{SHARE_BYTES}").ravel().tolist()
    expected = received.records["commitment"].tolist()
    return [
        share if actual == commitment and is_share(share) else None
        for share, actual, commitment in zip(shares, commit_shares(shares), expected, strict=True)
    ]


def _xor_pads(shares: NDArray[np.uint8], pads: Sequence[bytes]) -> NDArray[np.uint8]:
    """Return `shares` with their pads XORed onto all bytes except the first."""
    covered = shares.copy()
    covered[:, SHARE_BYTES - KEY_BYTES :] ^= _byte_rows(pads, KEY_BYTES)
    return covered


def _byte_rows(items: Sequence[bytes], size: int) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(items), np.uint8).reshape(-1, size)


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
        size = _RECEIVED_RECORD.itemsize
        if len(body) % size:
            raise ValueError(
                f"encrypted shares take {size} bytes each; {len(body)} is not a multiple"
            )
        records = np.frombuffer(body, _RECEIVED_RECORD)
        if (records["dealer"][1:] <= records["dealer"][:-1]).any():
            raise ValueError("the slots of encrypted shares must strictly rise")
        return cls(records)

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
    rows = ((dealer.to_bytes(4, "big"), shares[dealer].pack()) for dealer in sorted(shares))
    return b"".join(chain.from_iterable(rows))


def route_shares(
    dealers: NDArray[np.int64],
    holders: NDArray[np.int64],
    is_sent: NDArray[np.bool_],
    encrypted_shares: Sequence[Sequence[EncryptedShare]],
) -> dict[int, ReceivedShares]:
    """Return the shares that each of `dealers`, which rise, receives as a holder.

    Row i of `holders` has the holders of dealer i in the order of its shares; `is_sent` marks
    those for which item i of `encrypted_shares` has one. Shares for others than `dealers` are
    left out.

    Raises:
        ValueError: if a dealer has not exactly one encrypted share for each marked holder.
    """
    bodies = [encrypted_shares_bytes(shares) for shares in encrypted_shares]
    counts = is_sent.sum(axis=1)
    sizes = np.array([len(body) for body in bodies], np.int64)
    if (wrong := np.flatnonzero(sizes != counts * ENCRYPTED_SHARE_BYTES)).size:
        slot = int(dealers[wrong[0]])
        raise ValueError(f"participant {slot} did not send one encrypted share to each holder")
    receivers = holders[is_sent]
    narrow = receivers.astype(np.min_scalar_type(receivers.max(initial=0)))
    order = np.argsort(narrow, kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    routed, filled = np.empty(len(order), _ROUTED_RECORD), 0
    routed["dealer"] = np.repeat(dealers.astype(np.uint32), counts)[order]
    # In batches, because joining all bodies at once would copy them through memory.
    for start in range(0, len(bodies), _ROUTING_BATCH):
        body = b"".join(bodies[start : start + _ROUTING_BATCH])
        batch = np.frombuffer(body, f"V{ENCRYPTED_SHARE_BYTES}")
        routed["encrypted_share"][places[filled : filled + len(batch)]] = batch
        filled += len(batch)
    records, receivers = routed.view(_RECEIVED_RECORD), receivers[order]
    starts, ends = (
        np.searchsorted(receivers, dealers, side).tolist() for side in ("left", "right")
    )
    return {
        slot: ReceivedShares(records[start:end])
        for slot, start, end in zip(dealers.tolist(), starts, ends, strict=True)
    }
