"""Repository of participants: their slots, and the status of their cohorts."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Row, bindparam, select
from sqlalchemy.orm import Session

from protocol.api.phases import Phase
from protocol.question_and_plan import Terms
from secagg.keys import PublicKeys
from secagg.roster import RosterEntry
from server.db.database import Repository, read_transaction
from server.db.schema import CohortRow, ParticipantRow, StudyRow
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
