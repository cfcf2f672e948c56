"""Messages that participants send in the phases of their cohort, and the rules for them."""

from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import cast

from sqlalchemy import Table, bindparam, select

from protocol.api.phases import MESSAGE_KIND, MessageKind, Phase
from server.db.prepared_insert import PreparedInsert
from server.db.repositories.arrivals import Arrival, ArrivalGroup
from server.db.repositories.devices.participants import ParticipantSlot
from server.db.schema import BodyRow, MessageRow

_PHASE_OF_KIND = {kind: phase for phase, kind in MESSAGE_KIND.items()}
_MESSAGES = cast("Table", MessageRow.__table__)
_STORED_DIGESTS = select(_MESSAGES.c.slot, _MESSAGES.c.digest).where(
    _MESSAGES.c.cohort == bindparam("cohort"),
    _MESSAGES.c.kind == bindparam("kind"),
    _MESSAGES.c.slot.in_(bindparam("slots")),
)
_INSERT = PreparedInsert(MessageRow)
_INSERT_BODIES = PreparedInsert(BodyRow)


@dataclass(frozen=True, slots=True)
class Upload(Arrival):
    """Message of the participant in `slot`, stored as one row, or as two of different kinds.

    `kind` is the kind of the phase. That the participant sent the message of the phase before is
    checked with its content, since it cannot change any more. The digest is that of all bodies.
    """

    slot: int
    kind: MessageKind
    bodies: Mapping[MessageKind, bytes | memoryview] = field(repr=False)

    @classmethod
    def of(cls, sender: ParticipantSlot, kind: MessageKind, body: bytes) -> "Upload":
        """Return the upload of a message that is stored as one row."""
        return cls(sender.cohort, sha256(body).digest(), sender.slot, kind, {kind: body})

    @property
    def key(self) -> tuple[int, MessageKind, int]:
        return self.cohort, self.kind, self.slot

    @property
    def name(self) -> str:
        return self.kind

    @property
    def phase(self) -> Phase:
        return _PHASE_OF_KIND[self.kind]

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.bodies.values()))


class UploadGroup(ArrivalGroup[Upload]):
    """Rules for uploads."""

    receiver = "participant"

    def read_stored(self) -> dict[Hashable, bytes]:
        slots = defaultdict(list)
        for upload in self.arrivals:
            slots[upload.cohort, upload.kind].append(upload.slot)
        stored = dict[Hashable, bytes]()
        for (cohort, kind), of_kind in slots.items():
            parameters = {"cohort": cohort, "kind": kind, "slots": of_kind}
            for slot, digest in self.connection.execute(_STORED_DIGESTS, parameters):
                stored[cohort, kind, slot] = digest
        return stored

    def store(self, now: datetime) -> None:
        rows = [
            {
                "cohort": upload.cohort,
                "kind": kind,
                "slot": upload.slot,
                "received_at": now,
                "digest": upload.digest,
                "body": body,
            }
            for upload in self.accepted
            for kind, body in upload.bodies.items()
        ]
        _INSERT(self.connection, rows)
        _INSERT_BODIES(self.connection, rows)
