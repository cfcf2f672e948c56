"""Who takes part and who shared: lists as long as the cohort, in the bytes they travel in.

    roster      for each slot: identity, mask key, seal key (32 each), signature (64),
                enrolment (64, if there is a registrar)
    sharers     for each in rising order: slot (u32), contribution (32), digest (32)

Labels cover the same bytes. A participant checks all entries and looks at some, so what is
checked is cut out of the bytes at once, and an entry is made when it is looked at.
"""

from collections.abc import Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from secagg.graph import CONTRIBUTION_BYTES
from secagg.keys import KEY_BYTES, SIGNATURE_BYTES, PublicKeys, are_plainly_good, check_identity
from secagg.packed import Packed

DIGEST_BYTES = 32
_SLOT_BYTES = 4
_SHARER = np.dtype(
    [("slot", ">u4"), ("contribution", f"V{CONTRIBUTION_BYTES}"), ("digest", f"V{DIGEST_BYTES}")]
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One participant in a roster: its identity, its keys for this sum, what vouches for them.

    `signature` is that of the identity under its keys, `enrolment` the registrar's under the
    identity, empty where there is no registry.

    Raises:
        ValueError: if the identity is not a good public key, or the signature of a wrong size.
    """

    identity: bytes
    keys: PublicKeys
    signature: bytes
    enrolment: bytes = b""

    def __post_init__(self) -> None:
        check_identity(self.identity)
        if len(self.signature) != SIGNATURE_BYTES:
            raise ValueError(f"a signature has {SIGNATURE_BYTES} bytes")

    def pack(self) -> bytes:
        """Return the entry's bytes: identity, mask key, seal key, signature, enrolment if any."""
        keys = self.keys.mask + self.keys.seal
        return self.identity + keys + self.signature + self.enrolment

    @classmethod
    def unpack(cls, row: bytes) -> "Entry":
        """Return the entry of these bytes; raises ValueError as the entry itself."""
        return cls(row[:32], PublicKeys(row[32:64], row[64:96]), row[96:160], row[160:])


class Roster(Packed[Entry]):
    """The entries packed in `body`, `size` bytes each, by slot.

    Raises:
        ValueError: if the size of `body` is no multiple, or an entry is none.
    """

    def __init__(self, body: bytes, size: int) -> None:
        super().__init__(body, size, Entry.unpack, "entries")
        rows = np.frombuffer(body, np.uint8).reshape(-1, size)[:, : 3 * KEY_BYTES]
        self.is_plain = are_plainly_good(rows.reshape(-1, 3, KEY_BYTES))
        if not self.is_plain:
            list(self)  # a bad one says what is wrong with it


def identity_of(roster: Sequence[Entry], slot: int) -> bytes:
    """Return the identity of `slot`; of a packed roster, without making the entry."""
    if isinstance(roster, Roster):
        return roster.cut(slot, 0, KEY_BYTES)
    return roster[slot].identity


def mask_key(roster: Sequence[Entry], slot: int) -> bytes:
    """Return the mask key of `slot`; of a packed roster, without making the entry."""
    if isinstance(roster, Roster):
        return roster.cut(slot, KEY_BYTES, KEY_BYTES)
    return roster[slot].keys.mask


def seal_key(roster: Sequence[Entry], slot: int) -> bytes:
    """Return the seal key of `slot`; of a packed roster, without making the entry."""
    if isinstance(roster, Roster):
        return roster.cut(slot, 2 * KEY_BYTES, KEY_BYTES)
    return roster[slot].keys.seal


def roster_bytes(roster: Iterable[Entry]) -> bytes:
    """Return the bytes of `roster`, by slot."""
    return bytes(roster.body) if isinstance(roster, Roster) else b"".join(e.pack() for e in roster)


def repeated(roster: Sequence[Entry]) -> str | None:
    """Return what is in `roster` twice, an identity or a key, or None."""
    if isinstance(roster, Roster) and roster.is_plain:
        return None
    if len({entry.identity for entry in roster}) < len(roster):
        return "identity"
    keys = {key for entry in roster for key in (entry.keys.mask, entry.keys.seal)}
    return "key" if len(keys) < 2 * len(roster) else None


@dataclass(frozen=True, slots=True)
class Sharer:
    """That a participant shared: its contribution to the graph, and the SHA-256 of its shares."""

    contribution: bytes
    digest: bytes

    @property
    def is_sized(self) -> bool:
        """Return whether both have the sizes that they should."""
        return (len(self.contribution), len(self.digest)) == (CONTRIBUTION_BYTES, DIGEST_BYTES)

    def said(self) -> bytes:
        """Return the bytes that the participant signs, and that views are told apart by."""
        return self.contribution + self.digest


class Sharers(Mapping[int, Sharer]):
    """Those who shared, by slot, packed in `body`: slot (u32), contribution, digest of each.

    `contributions` are theirs to the graph.

    Raises:
        ValueError: if the size of `body` is no multiple, or slots do not strictly rise.
    """

    def __init__(self, body: bytes) -> None:
        size = _SHARER.itemsize
        if len(body) % size:
            raise ValueError(f"sharers take {size} bytes each; {len(body)} is no multiple")
        self.body = body
        rows = np.frombuffer(body, _SHARER)
        slots = self._slots = rows["slot"].astype(np.int64)
        if (slots[1:] <= slots[:-1]).any():
            raise ValueError("the slots of sharers must strictly rise")
        said = rows["contribution"].tolist()
        self.contributions: dict[int, bytes] = dict(zip(slots.tolist(), said, strict=True))

    def __len__(self) -> int:
        return len(self.contributions)

    def __iter__(self) -> Iterator[int]:
        return iter(self.contributions)

    def __getitem__(self, slot: int) -> Sharer:
        contribution = self.contributions[slot]
        end = (int(np.searchsorted(self._slots, slot)) + 1) * _SHARER.itemsize
        return Sharer(contribution, self.body[end - DIGEST_BYTES : end])

    def __contains__(self, slot: object) -> bool:
        return slot in self.contributions

    def keys(self) -> KeysView[int]:
        """Return the slots; as a set they are some ten times as fast as a mapping's."""
        return self.contributions.keys()


def sharers_bytes(sharers: Mapping[int, Sharer]) -> bytes:
    """Return the bytes that say who shared."""
    if isinstance(sharers, Sharers):
        return sharers.body
    rows = ((slot, sharers[slot]) for slot in sorted(sharers))
    return b"".join(slot.to_bytes(_SLOT_BYTES, "big") + sharer.said() for slot, sharer in rows)
