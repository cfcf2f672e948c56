"""What participants deal and give: shares in parcels, and shares in the open; their bytes.

The parcels of a deal stand in the order of the shares: number 1 is the dealer's own, which it
keeps, number 2 its first holder's, and so on.

    KeyDeal   contribution (32), a parcel for each holder, signature (64)
    SeedDeal  commitments to the seed (32) and to the own share of it (32), a parcel for each
              holder that shared; it travels before the masked vector, in one upload
    Reveal    for each owner in rising order: slot (u32), kind (u8), share (33); signature (64)
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from secagg.cohort import DIGEST_BYTES, Sharer
from secagg.graph import CONTRIBUTION_BYTES
from secagg.keys import SIGNATURE_BYTES, Identity
from secagg.parcels import PARCEL_BYTES, Parcel, parcels_bytes, unpack_parcels
from secagg.shamir import SHARE_BYTES, is_share

_REVEALED = struct.Struct(f">IB{SHARE_BYTES}s")
REVEALED_BYTES = _REVEALED.size
RECORD = np.dtype([("owner", ">u4"), ("kind", "u1"), ("share", f"V{SHARE_BYTES}")])  # the same
SEED, KEY, NEITHER = range(3)


def commit_seed(seed: bytes) -> bytes:
    """Return the 32 bytes that bind a participant to `seed`, and that do not tell it."""
    return sha256(b"blindtally seed v1\0" + seed).digest()


@dataclass(frozen=True, slots=True)
class KeyDeal:
    """A participant's contribution to the graph, and shares of its mask key for its holders."""

    contribution: bytes
    parcels: Sequence[Parcel]
    signature: bytes = b""

    @staticmethod
    def nbytes(holders: int) -> int:
        """Return the size of a deal among so many holders."""
        return CONTRIBUTION_BYTES + holders * PARCEL_BYTES + SIGNATURE_BYTES

    @property
    def sharer(self) -> Sharer:
        """Return what the others are told of this deal."""
        digest = sha256(parcels_bytes(self.parcels)).digest()
        return Sharer(self.contribution, digest)

    def pack(self) -> bytes:
        """Return the bytes of the deal."""
        return b"".join((self.contribution, parcels_bytes(self.parcels), self.signature))

    @classmethod
    def unpack(cls, body: bytes) -> "KeyDeal":
        """Return the deal in `body`.

        Raises:
            ValueError: if `body` is not as long as some number of parcels makes it.
        """
        if len(body) < CONTRIBUTION_BYTES + SIGNATURE_BYTES:
            raise ValueError("too short for a contribution and a signature")
        parcels = unpack_parcels(memoryview(body)[CONTRIBUTION_BYTES:-SIGNATURE_BYTES])
        return cls(body[:CONTRIBUTION_BYTES], parcels, body[-SIGNATURE_BYTES:])


@dataclass(frozen=True, slots=True)
class SeedDeal:
    """Commitments to a seed and to the dealer's own share of it; the shares of its holders."""

    commitment: bytes
    own: bytes
    parcels: Sequence[Parcel]

    @staticmethod
    def nbytes(holders: int) -> int:
        """Return the size of a deal among so many holders."""
        return 2 * DIGEST_BYTES + holders * PARCEL_BYTES

    def pack(self) -> bytes:
        """Return the bytes of the deal."""
        return b"".join((self.commitment, self.own, parcels_bytes(self.parcels)))

    @classmethod
    def unpack(cls, body: bytes) -> "SeedDeal":
        """Return the deal in `body`.

        Raises:
            ValueError: if `body` is not as long as some number of parcels makes it.
        """
        if len(body) < 2 * DIGEST_BYTES:
            raise ValueError("too short for two commitments")
        parcels = unpack_parcels(memoryview(body)[2 * DIGEST_BYTES :])
        return cls(body[:DIGEST_BYTES], body[DIGEST_BYTES : 2 * DIGEST_BYTES], parcels)


@dataclass(frozen=True, slots=True)
class Upload:
    """A masked vector, packed, with the deal of the seed that grew its own mask."""

    deal: SeedDeal
    vector: bytes | memoryview = field(repr=False)
    signature: bytes

    def said(self) -> bytes:
        """Return the bytes under the signature."""
        return self.deal.pack() + self.vector

    def pack(self) -> bytes:
        """Return the bytes of the upload."""
        return b"".join((self.deal.pack(), self.vector, self.signature))  # copied once

    @classmethod
    def unpack(cls, body: bytes, vector_bytes: int) -> "Upload":
        """Return the upload in `body`, of a vector of so many bytes, which are not copied.

        Raises:
            ValueError: if `body` is too short for that, or holds no whole number of parcels.
        """
        start = len(body) - SIGNATURE_BYTES - vector_bytes
        deal = SeedDeal.unpack(body[: max(start, 0)])
        vector = memoryview(body).toreadonly()[start:-SIGNATURE_BYTES]
        return cls(deal, vector, body[-SIGNATURE_BYTES:])


@dataclass(frozen=True)
class Reveal:
    """Shares given to the server, by the slot of the secret's owner: never both for one.

    `faulty` are the owners whose parcel held no share that it commits to.
    """

    seed_shares: Mapping[int, bytes] = field(repr=False)  # owners whose vectors are in the sum
    key_shares: Mapping[int, bytes] = field(repr=False)  # owners who shared and were lost since
    faulty: frozenset[int] = frozenset()
    signature: bytes = b""

    @staticmethod
    def nbytes(owners: int) -> int:
        """Return the size of a reveal about so many owners."""
        return owners * REVEALED_BYTES + SIGNATURE_BYTES

    def said(self) -> bytes:
        """Return the bytes under the signature."""
        return self._records

    @cached_property
    def _records(self) -> bytes:
        records = [(owner, SEED, share) for owner, share in self.seed_shares.items()]
        records += [(owner, KEY, share) for owner, share in self.key_shares.items()]
        records += [(owner, NEITHER, bytes(SHARE_BYTES)) for owner in self.faulty]
        return b"".join(_REVEALED.pack(*record) for record in sorted(records))

    @property
    def records(self) -> NDArray[np.void]:
        """Return owners, kinds and shares (`RECORD`), by rising owner."""
        return np.frombuffer(self._records, RECORD)

    @property
    def are_shares(self) -> bool:
        """Return whether all shares are of the field: plainly so, where their first bytes are 0."""
        records = self.records
        firsts = records.view(np.uint8).reshape(-1, REVEALED_BYTES)[:, -SHARE_BYTES]
        return not firsts.any() or all(map(is_share, records["share"].tolist()))

    def signed(self, identity: Identity, answer: bytes) -> "Reveal":
        """Return this reveal signed by `identity`, under the `View.answer` of what it says."""
        found = replace(self, signature=identity.sign(answer))
        vars(found)["_records"] = self.said()  # the same; made once
        return found

    def pack(self) -> bytes:
        """Return the bytes of the reveal."""
        return self.said() + self.signature

    @classmethod
    def unpack(cls, body: bytes) -> "Reveal":
        """Return the reveal in `body`.

        Raises:
            ValueError: if the size is no whole number of records and a signature, owners do
                not strictly rise (so nobody can give both secrets of one owner), or a kind
                is unknown.
        """
        size = len(body) - SIGNATURE_BYTES
        if size < 0 or size % REVEALED_BYTES:
            raise ValueError(f"shares take {REVEALED_BYTES} bytes each, before a signature")
        said = body[:size]
        records = np.frombuffer(said, RECORD)
        owners, worst = records["owner"], records["kind"].max(initial=SEED)
        if (owners[1:] <= owners[:-1]).any():
            raise ValueError("the slots of shares must strictly rise")
        if worst > NEITHER:
            raise ValueError("a share's kind is 0, 1 or 2")
        none = records[records["kind"] == NEITHER] if worst == NEITHER else records[:0]
        if any(map(any, none["share"].tolist())):
            raise ValueError("a share that is none is all zeros")
        faulty = frozenset(none["owner"].tolist())
        found = cls(_Shares(records, SEED), _Shares(records, KEY), faulty, body[size:])
        vars(found)["_records"] = said  # records in rising order have one form only
        return found


class _Shares(Mapping[int, bytes]):
    """The shares of one kind in `records`, by owner; read when they are asked for.

    The server checks shares by the hundred, and looks at single ones of a liar only.
    """

    def __init__(self, records: NDArray[np.void], kind: int) -> None:
        self._records = records
        self._kind = kind

    @cached_property
    def _read(self) -> dict[int, bytes]:
        found = self._records[self._records["kind"] == self._kind]
        return dict(zip(found["owner"].tolist(), found["share"].tolist(), strict=True))

    def __getitem__(self, owner: int) -> bytes:
        return self._read[owner]

    def __iter__(self) -> Iterator[int]:
        return iter(self._read)

    def __len__(self) -> int:
        return len(self._read)
