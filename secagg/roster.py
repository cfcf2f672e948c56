"""The roster of a cohort and the share commitments of its dealers, in the bytes they travel in.

    roster             for each slot: identity, mask key, encryption key (32 each), signature
                       (64), registrar's signature (64, if there is a registrar)
    share commitments  for each dealer in rising order: slot (u32), graph nonce (32), digest (32)

Labels cover the same bytes. A participant checks all entries of a roster but uses only a few.
The check therefore works on the bytes, and an entry object is made only when it is read.
"""

from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from secagg.keys import KEY_BYTES, SIGNATURE_BYTES, PublicKeys, check_identity, pass_quick_check

T = TypeVar("T")
DIGEST_BYTES = 32
GRAPH_NONCE_BYTES = 32
_SHARE_COMMITMENT = np.dtype(
    [
        ("slot", ">u4"),
        ("graph_nonce", f"V{GRAPH_NONCE_BYTES}"),
        ("shares_digest", f"V{DIGEST_BYTES}"),
    ]
)


def records_by_slot(
    body: bytes, dtype: np.dtype[np.void], slot: str, what: str
) -> NDArray[np.void]:
    """Return the records of `dtype` in `body`, named `what` in errors.

    Raises:
        ValueError: if the size of `body` is not a multiple of a record's, or the field `slot` does
            not strictly rise.
    """
    if len(body) % dtype.itemsize:
        size = dtype.itemsize
        raise ValueError(f"{what} take {size} bytes each; {len(body)} is not a multiple")
    records = np.frombuffer(body, dtype)
    if (records[slot][1:] <= records[slot][:-1]).any():
        raise ValueError(f"the slots of {what} must strictly rise")
    return records


class PackedSequence(Sequence[T], Generic[T]):
    """Items of `size` bytes each in `body`; `read` makes an item of its bytes when it is read.

    Raises:
        ValueError: if the size of `body` is not a multiple of `size`; the text names the items
            as `what`.
    """

    def __init__(
        self, body: bytes | memoryview, size: int, read: Callable[[bytes], T], what: str
    ) -> None:
        if len(body) % size:
            raise ValueError(f"{what} take {size} bytes each; {len(body)} is not a multiple")
        self.body = body
        self._size = size
        self._starts = range(0, len(body), size)
        self._read = read

    def read_field(self, index: int, offset: int, size: int) -> bytes:
        """Return `size` bytes at `offset` of an item, without making the item."""
        start = self._starts[index] + offset
        return bytes(self.body[start : start + size])

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        if isinstance(index, slice):
            return tuple(map(self._item, self._starts[index]))
        return self._item(self._starts[index])

    def _item(self, start: int) -> T:
        return self._read(bytes(self.body[start : start + self._size]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # equal to tuples, which hash differently


@dataclass(frozen=True, slots=True)
class RosterEntry:
    """One participant in a roster: its identity, its keys for this sum, and their signatures.

    `signature` is the identity's over its keys; `registrar_signature` is the registrar's over the
    identity, empty without a registry.

    Raises:
        ValueError: if the identity is not a valid public key, or the signature has a wrong size.
    """

    identity: bytes
    keys: PublicKeys
    signature: bytes
    registrar_signature: bytes = b""

    def __post_init__(self) -> None:
        check_identity(self.identity)
        if len(self.signature) != SIGNATURE_BYTES:
            raise ValueError(f"a signature has {SIGNATURE_BYTES} bytes")

    def pack(self) -> bytes:
        """Return the bytes of the entry."""
        keys = self.keys.mask + self.keys.encryption
        return self.identity + keys + self.signature + self.registrar_signature

    @classmethod
    def unpack(cls, row: bytes) -> "RosterEntry":
        """Return the entry in `row`; raises ValueError as the class does."""
        return cls(row[:32], PublicKeys(row[32:64], row[64:96]), row[96:160], row[160:])


class Roster(PackedSequence[RosterEntry]):
    """The entries packed in `body`, `size` bytes each, by slot.

    Raises:
        ValueError: if the size of `body` is not a multiple of `size`, or an entry is invalid.
    """

    def __init__(self, body: bytes, size: int) -> None:
        super().__init__(body, size, RosterEntry.unpack, "entries")
        rows = np.frombuffer(body, np.uint8).reshape(-1, size)[:, : 3 * KEY_BYTES]
        self.passed_quick_check = pass_quick_check(rows.reshape(-1, 3, KEY_BYTES))
        if not self.passed_quick_check:
            list(self)  # an invalid entry raises the error

    @classmethod
    def unpack(cls, body: bytes, *, has_registrar: bool) -> "Roster":
        """Return the roster in `body`, with the registrar's signatures or without any."""
        return cls(body, 3 * KEY_BYTES + (1 + has_registrar) * SIGNATURE_BYTES)

    @classmethod
    def of(cls, entries: Sequence[RosterEntry]) -> "Roster":
        """Return the roster of `entries`.

        Raises:
            ValueError: if registrar signatures differ in size: labels cover the joined entries,
                and one roster must not read as another.
        """
        sizes = {len(entry.registrar_signature) for entry in entries}
        if len(sizes) > 1:
            raise ValueError("registrar signatures of different sizes in one roster")
        size = 3 * KEY_BYTES + SIGNATURE_BYTES + sum(sizes)
        return cls(b"".join(entry.pack() for entry in entries), size)

    def identity(self, slot: int) -> bytes:
        """Return the identity of `slot`, without making its entry."""
        return self.read_field(slot, 0, KEY_BYTES)

    @property
    def identities(self) -> list[bytes]:
        """Return the identities in the order of slots, without making entries."""
        return [self.identity(slot) for slot in range(len(self))]

    def mask_key(self, slot: int) -> bytes:
        """Return the mask key of `slot`, without making its entry."""
        return self.read_field(slot, KEY_BYTES, KEY_BYTES)

    def encryption_key(self, slot: int) -> bytes:
        """Return the encryption key of `slot`, without making its entry."""
        return self.read_field(slot, 2 * KEY_BYTES, KEY_BYTES)

    @cached_property
    def duplicate(self) -> str | None:
        """Return "identity" or "key" if two participants share one, or None."""
        if self.passed_quick_check:
            return None
        if len({entry.identity for entry in self}) < len(self):
            return "identity"
        keys = {key for entry in self for key in (entry.keys.mask, entry.keys.encryption)}
        return "key" if len(keys) < 2 * len(self) else None


def roster_bytes(roster: Iterable[RosterEntry]) -> bytes:
    """Return the bytes of `roster`, by slot."""
    return bytes(roster.body) if isinstance(roster, Roster) else b"".join(e.pack() for e in roster)


@dataclass(frozen=True, slots=True)
class ShareCommitment:
    """A dealer's commitment to its key shares: its graph nonce and the SHA-256 of the rest.

    The commitment to a single share is `EncryptedShare.commitment`.

    Raises:
        ValueError: if a field has a wrong size.
    """

    graph_nonce: bytes
    shares_digest: bytes

    def __post_init__(self) -> None:
        sizes = (len(self.graph_nonce), len(self.shares_digest))
        if sizes != (GRAPH_NONCE_BYTES, DIGEST_BYTES):
            raise ValueError(f"a share commitment of {sizes} bytes: a wrong size")

    def signed_bytes(self) -> bytes:
        """Return the bytes that the dealer signs, and that the transcript's label covers."""
        return self.graph_nonce + self.shares_digest


class ShareCommitments(Mapping[int, ShareCommitment]):
    """The share commitments of all dealers by slot, packed in `body`.

    Raises:
        ValueError: if the size of `body` is not a multiple of a record's, or slots do not strictly
            rise.
    """

    def __init__(self, body: bytes) -> None:
        self.body = body
        rows = records_by_slot(body, _SHARE_COMMITMENT, "slot", "share commitments")
        self.slots = rows["slot"].astype(np.int64)
        nonces = rows["graph_nonce"].tolist()
        self.graph_nonces: dict[int, bytes] = dict(zip(self.slots.tolist(), nonces, strict=True))

    @classmethod
    def unpack(cls, body: bytes) -> "ShareCommitments":
        """Return the share commitments in `body`; raises ValueError as the class does."""
        return cls(body)

    @classmethod
    def of(cls, commitments: Mapping[int, ShareCommitment]) -> "ShareCommitments":
        """Return `commitments`, given by slot."""
        return cls(share_commitments_bytes(commitments))

    def __len__(self) -> int:
        return len(self.graph_nonces)

    def __iter__(self) -> Iterator[int]:
        return iter(self.graph_nonces)

    def __getitem__(self, slot: int) -> ShareCommitment:
        graph_nonce = self.graph_nonces[slot]
        end = (int(np.searchsorted(self.slots, slot)) + 1) * _SHARE_COMMITMENT.itemsize
        return ShareCommitment(graph_nonce, self.body[end - DIGEST_BYTES : end])

    def __contains__(self, slot: object) -> bool:
        return slot in self.graph_nonces

    def keys(self) -> KeysView[int]:
        """Return the slots; as a set they are about ten times as fast as a mapping's."""
        return self.graph_nonces.keys()


def share_commitments_bytes(commitments: Mapping[int, ShareCommitment]) -> bytes:
    """Return the bytes of the dealers' commitments, by slot."""
    if isinstance(commitments, ShareCommitments):
        return commitments.body
    return b"".join(
        slot.to_bytes(4, "big") + commitments[slot].signed_bytes() for slot in sorted(commitments)
    )
