"""Participants: their slots, the status of their cohorts, their messages and the rules for them."""

from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any, cast

from sqlalchemy import Row, Table, bindparam, select
from sqlalchemy.orm import Session

from protocol.api.phases import MESSAGE_KIND, MessageKind, Phase
from protocol.question_and_plan import Terms
from secagg.keys import PublicKeys
from secagg.roster import RosterEntry
from server.db.database import Repository, read_transaction
from server.db.group_commit import PreparedInsert
from server.db.repositories.arrivals import Arrival, ArrivalGroup
from server.db.schema import BodyRow, CohortRow, MessageRow, ParticipantRow, StudyRow
from server.errors import not_found

_COHORT_STATUS = select(CohortRow.phase, CohortRow.deadline, CohortRow.failure).where(
    CohortRow.id == bindparam("in_cohort")
)
_SLOT = (
    select(
        ParticipantRow.cohort,
        ParticipantRow.slot,
        ParticipantRow.credential_digest,
        CohortRow.phase,
        StudyRow.terms,
    )
    .join(CohortRow, CohortRow.id == ParticipantRow.cohort)
    .join(StudyRow, StudyRow.id == ParticipantRow.study)
    .where(ParticipantRow.id == bindparam("of_participant"))
)
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
class JoiningDevice:
    """Request of a device to join: the SHA-256 of its credential, and its roster entry."""

    credential_digest: bytes = field(repr=False)
    roster_entry: RosterEntry


@dataclass(frozen=True, slots=True)
class ParticipantSlot:
    """Cohort and slot of a participant, which never change once they are final.

    In a round that a registrar seats they are final when it has, and the order of joining before.
    """

    participant: str
    cohort: int
    slot: int
    credential_digest: bytes = field(repr=False)
    is_final: bool = True


@dataclass(frozen=True, slots=True)
class CohortStatus:
    """Phase of a cohort, its deadline, and the reason if it failed."""

    phase: Phase
    deadline: datetime
    failure: str | None


class ParticipantRepository(Repository):
    """Repository of participants."""

    @read_transaction
    def slot(self, session: Session, participant: str) -> ParticipantSlot:
        """Return the cohort and the slot of `participant`."""
        row = session.execute(_SLOT, {"of_participant": participant}).one_or_none()
        if row is None:
            raise not_found("participant")
        is_joining = row.phase in (Phase.ENROLLING, Phase.SEATING)
        is_final = not (is_joining and Terms.model_validate(row.terms).is_seated)
        return ParticipantSlot(participant, row.cohort, row.slot, row.credential_digest, is_final)

    @read_transaction
    def status(self, session: Session, cohort: int) -> CohortStatus:
        """Return the phase of `cohort`, its deadline, and the reason if it failed."""
        row = session.execute(_COHORT_STATUS, {"in_cohort": cohort}).one_or_none()
        if row is None:  # its study was deleted
            raise not_found("participant")
        return CohortStatus(*row)


def roster_entry(row: ParticipantRow | Row[Any]) -> RosterEntry:
    keys = PublicKeys(row.mask_key, row.encryption_key)
    return RosterEntry(bytes.fromhex(row.identity), keys, row.signature, row.registrar_signature)


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
