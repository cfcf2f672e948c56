"""Repository of committees: the messages of their members in the phases of one-shot sums.

A row never changes. The committee of a round follows from the keys that operators registered while
it convened, in the order of the plan's terms. It is stored when the round starts to collect. A
registrar draws a committee of volunteers instead (`server/db/repositories/devices/volunteers.py`).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

from sqlalchemy import exists, func, select
from sqlalchemy.orm import Session

from protocol.api.messages import CommitteeRound, ProblemType
from protocol.api.one_shot import SUM_NUMBER, committee_terms
from protocol.api.phases import MEMBER_MESSAGE_KIND, MemberMessageKind, Phase
from protocol.committee_terms import CommitteeTerms
from protocol.mechanisms.registry import AnyPlan, parse_plan
from secagg.keys import KEY_BYTES
from secagg.oneshot.committee import Committee, MemberEntry, packed_identities
from server.db.database import Repository, read_transaction, write_transaction
from server.db.repositories.cohort_phases import is_one_shot
from server.db.repositories.studies import find_study
from server.db.schema import CohortRow, MemberMessageRow, RoundRow, StudyRow
from server.errors import ProblemError, cohort_failed, late, not_found, out_of_phase

_PHASE_OF_KIND = {kind: phase for phase, kind in MEMBER_MESSAGE_KIND.items()}


@dataclass(frozen=True, slots=True)
class OneShotStatus:
    """Status of the cohort of a one-shot round."""

    cohort: int
    phase: Phase
    deadline: datetime
    failure: str | None


@dataclass(frozen=True, slots=True)
class MemberUpload:
    """Checked message of a member to a cohort, by its identity in hexadecimal.

    A round takes keys of `max_keys` members at most; None for a message of another kind.
    """

    cohort: int
    kind: MemberMessageKind
    identity: str
    body: bytes = field(repr=False)
    max_keys: int | None = None

    @property
    def phase(self) -> Phase:
        return _PHASE_OF_KIND[self.kind]


class CommitteeRepository(Repository):
    """Repository of committees."""

    @read_transaction
    def status(self, session: Session, study: str, number: int) -> OneShotStatus:
        """Return the status of a one-shot round; raises ProblemError if it is of another kind."""
        row = _one_shot_cohort(session, study, number)
        return OneShotStatus(row.id, row.phase, row.deadline, row.failure)

    @read_transaction
    def committee(self, session: Session, study: str, number: int) -> tuple[int, Committee]:
        """Return the cohort of a one-shot round, and its committee.

        Raises:
            ProblemError: if the members still register their keys, or too few of them did.
        """
        row = _one_shot_cohort(session, study, number)
        plan = parse_plan(session.get_one(RoundRow, (study, number)).plan)
        committee = committee_of(session, row, plan)
        if committee is None:
            raise _no_committee(row)
        return row.id, committee

    @read_transaction
    def bodies(self, session: Session, cohort: int, kind: MemberMessageKind) -> dict[bytes, bytes]:
        """Return the messages of a kind by the identity of the member."""
        return _bodies(session, cohort, kind)

    @read_transaction
    def pending(
        self, session: Session, identity: str, study: str | None = None
    ) -> tuple[CommitteeRound, ...]:
        """Return the rounds that wait for a message of the member `identity`.

        With a `study` they are those of this study, also if it asks for volunteers.
        """
        query = (
            select(CohortRow, StudyRow.terms)
            .join(StudyRow, StudyRow.id == CohortRow.study)
            .where(CohortRow.phase.in_(MEMBER_MESSAGE_KIND))
            .order_by(CohortRow.deadline)
        )
        if study is not None:
            query = query.where(CohortRow.study == study)
        rows = [
            row
            for row, terms in session.execute(query)
            if is_one_shot(row) and _may_serve(terms["committee"], identity, study)
        ]
        sent = (
            select(MemberMessageRow.cohort, MemberMessageRow.kind)
            .where(MemberMessageRow.cohort.in_([row.id for row in rows]))
            .where(MemberMessageRow.identity == identity)
        )
        known = {(cohort, kind) for cohort, kind in session.execute(sent)}
        return tuple(
            CommitteeRound(study=row.study, round=row.round, phase=row.phase, deadline=row.deadline)
            for row in rows
            if (row.id, MEMBER_MESSAGE_KIND[row.phase]) not in known
            and (row.phase is Phase.CONVENING or _serves(row, bytes.fromhex(identity), known))
        )

    async def accept(self, upload: MemberUpload) -> None:
        """Store the message of a member; the same message may be sent again.

        Raises:
            ProblemError: if the round is in another phase, the member has sent another message, or
                another member has registered its key.
        """
        await self._accept(upload, self.database.monotonic_seconds())

    @write_transaction
    def _accept(self, session: Session, upload: MemberUpload, arrived: float) -> None:
        waited = timedelta(seconds=self.database.monotonic_seconds() - arrived)
        now = self.database.now(session)  # before the lock, for which no member is late
        query = select(CohortRow).where(CohortRow.id == upload.cohort)
        row = session.scalar(query.with_for_update())
        if row is None:  # the study was deleted
            raise not_found("round")
        digest = sha256(upload.body).digest()
        stored = session.get(MemberMessageRow, (upload.cohort, upload.kind, upload.identity))
        if stored is not None and stored.digest == digest:
            return
        if stored is not None:
            detail = f"this member has sent another {upload.kind} before"
            raise ProblemError(ProblemType.CONFLICT, detail, phase=row.phase)
        if row.phase is Phase.FAILED:
            raise cohort_failed(row.failure)
        if row.phase is not upload.phase:
            raise out_of_phase(upload.kind, upload.phase, row.phase)
        if now - waited >= row.deadline:
            raise late(row.phase, row.deadline, has_lost_time=self.database.has_lost_time)
        if upload.max_keys is not None and row.received >= upload.max_keys:
            raise ProblemError(ProblemType.NO_ROUND, "enough devices have volunteered")
        if upload.kind is MemberMessageKind.KEY and _is_taken(session, upload):
            detail = "another member has registered this key"
            raise ProblemError(ProblemType.CONFLICT, detail, phase=row.phase)
        session.add(
            MemberMessageRow(
                cohort=upload.cohort,
                kind=upload.kind,
                identity=upload.identity,
                received_at=now,
                digest=digest,
                body=upload.body,
            )
        )
        row.received += 1
        row.last_received = now


def _may_serve(committee: dict[str, Any], identity: str, study: str | None) -> bool:
    """Return whether the terms of a study allow this member; any device of it may volunteer."""
    return identity in committee["members"] if "members" in committee else study is not None


def _serves(row: CohortRow, identity: bytes, known: Collection[tuple[int, str]]) -> bool:
    """Return whether an operator is in the committee of a round that no longer convenes."""
    if row.seating is None:  # of a round that version 0.2.0 opened
        return (row.id, MemberMessageKind.KEY) in known
    return identity in packed_identities(row.seating)


def committee_of(session: Session, row: CohortRow, plan: AnyPlan) -> Committee | None:
    """Return the committee of a one-shot cohort, None if it has none (yet)."""
    if row.seating is not None:
        return Committee.unpack(row.seating)
    is_stored = plan.terms.draws_committee or row.phase is Phase.CONVENING
    return None if is_stored else convened_committee(session, row, plan)


def convened_committee(session: Session, row: CohortRow, plan: AnyPlan) -> Committee | None:
    """Return the committee of the operators that registered keys, None if they are too few."""
    keys = _bodies(session, row.id, MemberMessageKind.KEY)
    terms = committee_terms(plan)
    assert isinstance(terms, CommitteeTerms), "the registrar draws volunteers"
    present = terms.present([identity.hex() for identity in keys])
    if len(present) < terms.parameters.needed_sums:
        return None
    entries = tuple(MemberEntry.unpack(keys[bytes.fromhex(each)]) for each in present)
    return Committee(plan.digest(), SUM_NUMBER, terms.parameters_of(len(present)), entries)


def _is_taken(session: Session, upload: MemberUpload) -> bool:
    """Return whether another member registered this key: a committee has different ones."""
    of_kind = (MemberMessageRow.cohort == upload.cohort, MemberMessageRow.kind == upload.kind)
    key = func.substr(MemberMessageRow.body, KEY_BYTES + 1, KEY_BYTES)  # counts from 1
    has_key = key == upload.body[KEY_BYTES : 2 * KEY_BYTES]
    return bool(session.scalar(select(exists().where(*of_kind, has_key))))


def _bodies(session: Session, cohort: int, kind: MemberMessageKind) -> dict[bytes, bytes]:
    of_kind = (MemberMessageRow.cohort == cohort, MemberMessageRow.kind == kind)
    query = select(MemberMessageRow.identity, MemberMessageRow.body).where(*of_kind)
    rows: Sequence[tuple[str, bytes | None]] = [(i, b) for i, b in session.execute(query)]
    return {bytes.fromhex(identity): body for identity, body in rows if body is not None}


def _one_shot_cohort(session: Session, study: str, number: int) -> CohortRow:
    find_study(session, study)
    query = select(CohortRow).where(CohortRow.study == study, CohortRow.round == number)
    row = session.scalar(query.limit(1))
    if row is None:
        raise not_found("round")
    if not is_one_shot(row):
        raise ProblemError(ProblemType.WRONG_STATE, "this round has no one-shot sum")
    return row


def _no_committee(row: CohortRow) -> ProblemError:
    if row.phase is Phase.FAILED:
        return cohort_failed(row.failure)
    detail = "the committee is not complete yet"
    return ProblemError(ProblemType.WRONG_PHASE, detail, phase=row.phase)
