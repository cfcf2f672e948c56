"""Parcels: shares sealed for their holders, one by one, as a dealer sends and a holder gets them.

A *parcel* is one share for one holder: a commitment to it, for the server, and its envelope, the
share under a pad that dealer and holder agree on and that is for this share alone.

    parcels of a deal    commitment (32), envelope (33) for each holder, in the order of shares
    inbox of a holder    slot (u32), commitment (32), envelope (33) for each owner, in rising order

Both are kept as the bytes they travel in. A server hands on the inboxes of a thousand holders
with the parcels of a hundred owners each, and compares what they give with the commitments: as
objects these would take three times the memory, and be read from all over it.

Shares have the full entropy of the field, so a digest commits to one and tells nothing of it; and
whoever does not know a pad cannot tell the digest of what another envelope would hold. So the
commitment is what authenticates an envelope, too: docs/threat-model.md, "Why a pad will do". All
but the first byte are under the pad: that one is 0 but for odds of 2^-247.

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
from secagg.packed import Packed
from secagg.roster import DIGEST_BYTES
from secagg.shamir import SHARE_BYTES, is_share

ENVELOPE_BYTES = SHARE_BYTES
PARCEL_BYTES = DIGEST_BYTES + ENVELOPE_BYTES
_DELIVERED = 64  # deals handed on together: half a megabyte, which stays in the cache
_RECORD = np.dtype(
    [("owner", ">u4"), ("commitment", f"V{DIGEST_BYTES}"), ("envelope", f"V{ENVELOPE_BYTES}")]
)
_WHOLE = np.dtype([("owner", ">u4"), ("parcel", f"V{PARCEL_BYTES}")])  # the same


def commit_share(share: bytes) -> bytes:
    """Return the 32 bytes that bind a dealer to `share`, and that do not tell it."""
    return commit_shares((share,))[0]


def commit_shares(shares: Iterable[bytes]) -> list[bytes]:
    """Return the commitment to each of `shares`."""
    return [sha256(b"blindtally share v1\0" + share).digest() for share in shares]


@dataclass(frozen=True, slots=True)
class Parcel:
    """One share for one holder: what commits to it, and what it is sealed in."""

    commitment: bytes
    envelope: bytes

    def pack(self) -> bytes:
        """Return the `PARCEL_BYTES` of the parcel."""
        return self.commitment + self.envelope

    @classmethod
    def unpack(cls, body: bytes) -> "Parcel":
        """Return the parcel in `PARCEL_BYTES` bytes.

        Raises:
            ValueError: if there are more or fewer.
        """
        if len(body) != PARCEL_BYTES:
            raise ValueError(f"a parcel has {PARCEL_BYTES} bytes, got {len(body)}")
        return cls(body[:DIGEST_BYTES], body[DIGEST_BYTES:])


def seal_shares(shares: Sequence[bytes], pads: Sequence[bytes]) -> Packed[Parcel]:
    """Return the parcels of `shares`, each under its pad of 32 bytes: use that once."""
    rows = np.empty((len(shares), PARCEL_BYTES), np.uint8)
    rows[:, :DIGEST_BYTES] = _rows(commit_shares(shares), DIGEST_BYTES)
    rows[:, DIGEST_BYTES:] = _covered(_rows(shares, SHARE_BYTES), pads)
    return unpack_parcels(rows.tobytes())


def open_parcels(parcels: "Inbox", pads: Sequence[bytes]) -> list[bytes | None]:
    """Return the share in each of `parcels`, under its pad; None if it commits to another."""
    envelopes = np.ascontiguousarray(parcels.records["envelope"]).view(np.uint8)
    covered = _covered(envelopes.reshape(-1, SHARE_BYTES), pads)
    shares: list[bytes] = covered.view(f"V{SHARE_BYTES}").ravel().tolist()
    committed = parcels.records["commitment"].tolist()
    return [
        share if found == meant and is_share(share) else None
        for share, found, meant in zip(shares, commit_shares(shares), committed, strict=True)
    ]


def _covered(shares: NDArray[np.uint8], pads: Sequence[bytes]) -> NDArray[np.uint8]:
    """Return `shares` with pads on, or off: on all but the first byte."""
    covered = shares.copy()
    covered[:, SHARE_BYTES - KEY_BYTES :] ^= _rows(pads, KEY_BYTES)
    return covered


def _rows(items: Sequence[bytes], size: int) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(items), np.uint8).reshape(-1, size)


def unpack_parcels(body: bytes | memoryview) -> Packed[Parcel]:
    """Return the parcels of a deal, which are not copied.

    Raises:
        ValueError: if the size of `body` is no multiple of a parcel's.
    """
    return Packed(body, PARCEL_BYTES, Parcel.unpack, "parcels")


def parcels_bytes(parcels: Sequence[Parcel]) -> bytes | memoryview:
    """Return the bytes of the parcels of a deal."""
    if isinstance(parcels, Packed):
        return parcels.body
    return b"".join(parcel.pack() for parcel in parcels)


class Inbox(Mapping[int, Parcel]):
    """The parcels addressed to one holder, by owner, packed in `records`."""

    def __init__(self, records: NDArray[np.void]) -> None:
        self.records = records

    @classmethod
    def unpack(cls, body: bytes) -> "Inbox":
        """Return the inbox in `body`.

        Raises:
            ValueError: if the size is no multiple of a record's, or slots do not strictly rise.
        """
        size = _RECORD.itemsize
        if len(body) % size:
            raise ValueError(f"parcels take {size} bytes each; {len(body)} is no multiple")
        records = np.frombuffer(body, _RECORD)
        if (records["owner"][1:] <= records["owner"][:-1]).any():
            raise ValueError("the slots of parcels must strictly rise")
        return cls(records)

    def pack(self) -> bytes:
        """Return the bytes of the inbox."""
        return self.records.tobytes()

    @property
    def digest(self) -> bytes:
        """Return the SHA-256 of the inbox."""
        return sha256(self.pack()).digest()

    @property
    def owners(self) -> list[int]:
        """Return whose parcels these are, in rising order."""
        owners: list[int] = self.records["owner"].tolist()
        return owners

    def commitment(self, owner: int) -> bytes | None:
        """Return what `owner` committed to its share by; None if there is none of it."""
        at = int(np.searchsorted(self.records["owner"], owner))
        if at == len(self) or self.records["owner"][at] != owner:
            return None
        found: bytes = self.records["commitment"][at].tobytes()
        return found

    @cached_property
    def _read(self) -> dict[int, Parcel]:
        commitments, envelopes = self.records["commitment"], self.records["envelope"]
        parcels = map(Parcel, commitments.tolist(), envelopes.tolist())
        return dict(zip(self.owners, parcels, strict=True))

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[int]:
        return iter(self.owners)

    def __getitem__(self, owner: int) -> Parcel:
        return self._read[owner]

    def keys(self) -> KeysView[int]:
        """Return the owners, without a parcel made of any."""
        return dict.fromkeys(self.owners).keys()


def inbox_bytes(parcels: Mapping[int, Parcel]) -> bytes:
    """Return the bytes of the parcels addressed to one holder."""
    if isinstance(parcels, Inbox):
        return parcels.pack()
    rows = ((owner.to_bytes(4, "big"), parcels[owner].pack()) for owner in sorted(parcels))
    return b"".join(chain.from_iterable(rows))


def deliver(
    owners: NDArray[np.int64],
    holders: NDArray[np.int64],
    given: NDArray[np.bool_],
    dealt: Sequence[Sequence[Parcel]],
) -> dict[int, Inbox]:
    """Return the inbox of each of `owners`, which rise.

    Of owner i row i of `holders` are its holders, in the order of their shares, and `given` says
    which of them the parcels of `dealt` are for. What is for nobody of `owners` goes to nobody.

    Raises:
        ValueError: if somebody dealt more or fewer parcels than that.
    """
    bodies, counts = [parcels_bytes(parcels) for parcels in dealt], given.sum(axis=1)
    sizes = np.array([len(body) for body in bodies], np.int64)
    if (wrong := np.flatnonzero(sizes != counts * PARCEL_BYTES)).size:
        slot = int(owners[wrong[0]])
        raise ValueError(f"participant {slot} did not deal a parcel to each of its holders")
    addressed = holders[given]
    narrow = addressed.astype(np.min_scalar_type(addressed.max(initial=0)))
    order = np.argsort(narrow, kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    whole, at = np.empty(len(order), _WHOLE), 0
    whole["owner"] = np.repeat(owners.astype(np.uint32), counts)[order]
    for start in range(0, len(bodies), _DELIVERED):  # all at once would be copied through memory
        parcels = np.frombuffer(b"".join(bodies[start : start + _DELIVERED]), f"V{PARCEL_BYTES}")
        whole["parcel"][places[at : at + len(parcels)]] = parcels
        at += len(parcels)
    records, addressed = whole.view(_RECORD), addressed[order]
    starts, ends = (np.searchsorted(addressed, owners, side).tolist() for side in ("left", "right"))
    return {
        slot: Inbox(records[start:end])
        for slot, start, end in zip(owners.tolist(), starts, ends, strict=True)
    }
