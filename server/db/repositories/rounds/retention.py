"""Repository of deletions: of a study on request, and of rows that are kept for a limited time.

Rows are old by the time that two readings of the clock confirm (`server/db/clock.py`).

Many short transactions delete a study, the rows of its devices first, so that other writers do not
wait. A deletion that was interrupted is completed by its repetition. One row outlives a study of a
population: what it has spent of the privacy budget, since devices have revealed that much.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    CursorResult,
    Select,
    delete,
    exists,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Session

from protocol.api.events import EventKind
from protocol.api.messages import ProblemType
from server.db.channels import cohort_channel, notify_on_commit, study_channel
from server.db.clock import ClockState, clock_state, confirm_clock, store_reading
from server.db.columns import Base
from server.db.database import Repository, read_transaction, write_transaction
from server.db.repositories.access.credentials_and_audit import (
    COMMAND_LINE_ACTOR,
    add_audit_entry,
    has_ended,
)
from server.db.repositories.leases import sum_job
from server.db.repositories.studies.populations import charged_event, find_population, last_sum
from server.db.repositories.studies.studies import find_study
from server.db.repositories.studies.webhooks import MAX_TRIES
from server.db.schema import (
    AuditEntryRow,
    BodyRow,
    CohortRow,
    CommitteeMemberRow,
    DeletedStudyRow,
    EventCounterRow,
    EventRow,
    HeavyHitterRow,
    IdempotencyKeyRow,
    LeaseRow,
    LoginSessionRow,
    MemberMessageRow,
    MessageRow,
    MessageSetRow,
    OneShotBodyRow,
    OneShotMessageRow,
    ParticipantRow,
    ReportRow,
    RoundRow,
    SharedLinkRow,
    StudyRow,
    StudyStateRow,
    WebhookRow,
)
from server.errors import ProblemError

_ROWS_PER_TRANSACTION = 5_000
_FINAL_STATES = ("finished", "stopped")
# Rows with a foreign key before those that it names.
_TABLES_OF_STUDY = (
    *(HeavyHitterRow, StudyStateRow, CohortRow, RoundRow, EventRow, EventCounterRow),
    *(SharedLinkRow, WebhookRow),
)


class RetentionRepository(Repository):
    """Repository of deletions."""

    async def delete_study(self, study: str) -> None:
        """Delete a study with its answer, its rounds and all rows of its devices.

        Raises:
            ProblemError: if it is unknown or running.
        """
        await self._check_can_be_deleted(study)
        await self.delete_device_rows(study)
        await self._delete_study(study)

    async def delete_device_rows(self, study: str) -> None:
        """Delete the identities, messages and reports of the devices of a study that has ended."""
        for cohort in await self._cohorts(study):
            while await self._delete_device_rows(study, cohort):
                pass

    @read_transaction
    def _check_can_be_deleted(self, session: Session, study: str) -> None:
        _check_not_running(find_study(session, study))

    @read_transaction
    def _cohorts(self, session: Session, study: str) -> Sequence[int]:
        return session.scalars(select(CohortRow.id).where(CohortRow.study == study)).all()

    @write_transaction
    def _delete_device_rows(self, session: Session, study: str, cohort: int) -> bool:
        """Delete some rows of the devices of a cohort; return whether there may be more."""
        slots = session.scalars(
            select(ParticipantRow.slot)
            .where(ParticipantRow.cohort == cohort)
            .order_by(ParticipantRow.slot)
            .limit(_ROWS_PER_TRANSACTION)
        ).all()
        identities = session.scalars(
            select(ReportRow.identity)
            .where(ReportRow.study == study, ReportRow.cohort == cohort)
            .limit(_ROWS_PER_TRANSACTION)
        ).all()
        if slots:
            for row in (BodyRow, MessageRow, ParticipantRow):
                of_slots = (row.cohort == cohort, row.slot <= slots[-1])
                _delete(session, row, *of_slots)
        if identities:
            _delete(
                session, ReportRow, ReportRow.study == study, ReportRow.identity.in_(identities)
            )
        senders = session.scalars(
            select(OneShotMessageRow.identity)
            .where(OneShotMessageRow.cohort == cohort)
            .limit(_ROWS_PER_TRANSACTION)
        ).all()
        if senders:
            for sent in (OneShotBodyRow, OneShotMessageRow):
                _delete(session, sent, sent.cohort == cohort, sent.identity.in_(senders))
        if slots or identities or senders:
            return True
        for of_committee in (CommitteeMemberRow, MemberMessageRow, MessageSetRow):
            _delete(session, of_committee, of_committee.cohort == cohort)
        nothing: dict[str, Any] = {"seating": None, "seats": None, "committee": None, "accused": []}
        erase = update(CohortRow).where(CohortRow.id == cohort).values(nothing)
        session.execute(erase.execution_options(synchronize_session=False))
        _delete_leases(session, study, cohort)
        return False

    @write_transaction
    def _delete_study(self, session: Session, study: str) -> None:
        population = find_study(session, study).population
        if population is not None:  # no study of it starts meanwhile
            find_population(session, population, lock=True)
        row = find_study(session, study, lock=True)
        _check_not_running(row)
        if population is not None and row.round:
            session.add(
                DeletedStudyRow(
                    id=study,
                    population=population,
                    created=row.created,
                    dp_event=charged_event(row).model_dump(mode="json"),
                    last_sum=session.scalar(select(last_sum(literal(study)))),
                )
            )
        cohorts = session.scalars(select(CohortRow.id).where(CohortRow.study == study)).all()
        notify_on_commit(session, study_channel(study), *map(cohort_channel, cohorts))
        _delete_leases(session, study)
        _delete_creation_response(session, study)
        for table in _TABLES_OF_STUDY:
            _delete(session, table, table.study == study)
        _delete(session, StudyRow, StudyRow.id == study)

    @read_transaction
    def studies_with_device_rows(self, session: Session, ended_before: datetime) -> Sequence[str]:
        """Return the studies that ended before a time and still have rows of devices.

        Volunteers are only in the messages of members. Seatings, which have identities, are
        deleted last: they remain if a deletion was interrupted.
        """
        of_study = CohortRow.study == StudyRow.id
        has_rows = or_(
            exists().where(ParticipantRow.study == StudyRow.id),
            exists().where(ReportRow.study == StudyRow.id),
            exists().where(OneShotMessageRow.study == StudyRow.id),
            exists().where(of_study, CohortRow.seating.is_not(None)),
            exists().where(of_study, CohortRow.committee.is_not(None)),
            exists().where(of_study, MemberMessageRow.cohort == CohortRow.id),
        )
        return session.scalars(_ended_before(ended_before).where(has_rows)).all()

    @read_transaction
    def studies_ended_before(self, session: Session, time: datetime) -> Sequence[str]:
        return session.scalars(_ended_before(time)).all()

    @read_transaction
    def clock(self, session: Session) -> ClockState:
        """Return the state of the clock, without a new reading."""
        return clock_state(session, self.database.now(session))

    @write_transaction
    def read_clock(self, session: Session) -> ClockState:
        """Store a reading of the clock, unless it is not trusted; return its state."""
        return store_reading(session, self.database.now(session))

    @write_transaction
    def confirm_clock(self, session: Session) -> ClockState:
        """Confirm the present time, which an operator has compared with another clock."""
        now = self.database.now(session)
        subject = f"{now:%Y-%m-%d %H:%M}"
        add_audit_entry(session, now, COMMAND_LINE_ACTOR, "confirm clock", subject)
        return confirm_clock(session, now)

    async def delete_audit_entries(self, before: datetime) -> int:
        """Delete the entries of the audit trail that are older than a time; return their number."""
        total = 0
        while deleted := await self._delete_audit_entries(before):
            total += deleted
        return total

    @write_transaction
    def _delete_audit_entries(self, session: Session, before: datetime) -> int:
        """Delete some old entries; return their number."""
        oldest = select(AuditEntryRow.id).order_by(AuditEntryRow.id).limit(_ROWS_PER_TRANSACTION)
        old = AuditEntryRow.id.in_(oldest.scalar_subquery()), AuditEntryRow.at < before
        return _delete(session, AuditEntryRow, *old)

    @write_transaction
    def delete_login_sessions(self, session: Session, now: datetime) -> None:
        """Delete the sessions, shared links and webhooks that have ended by themselves."""
        _delete(session, LoginSessionRow, has_ended(now))
        _delete(session, SharedLinkRow, SharedLinkRow.expires <= now)
        _delete(session, WebhookRow, WebhookRow.tries >= MAX_TRIES, WebhookRow.next_try <= now)


def _check_not_running(row: StudyRow) -> None:
    if row.state == "running":
        raise ProblemError(ProblemType.WRONG_STATE, "the study is running: stop it, then delete it")


def _ended_before(time: datetime) -> Select[str]:
    """Return the query of the studies that ended before a time."""
    ended = exists().where(
        EventRow.study == StudyRow.id, EventRow.kind == EventKind.STUDY_ENDED, EventRow.at < time
    )
    return select(StudyRow.id).where(StudyRow.state.in_(_FINAL_STATES), ended)


def _delete_creation_response(session: Session, study: str) -> None:
    """Delete the stored response to the request that created a study, which describes it."""
    created = select(EventRow.at).where(EventRow.study == study, EventRow.id == 1)
    stored = select(IdempotencyKeyRow).where(IdempotencyKeyRow.created == created.scalar_subquery())
    for row in session.scalars(stored):
        if row.response.get("id") == study:
            session.delete(row)
    session.flush()


def _delete_leases(session: Session, study: str, *cohorts: int) -> None:
    """Delete the leases of jobs of a study that is over; a holder left over publishes nothing."""
    names = [sum_job(cohort).name for cohort in cohorts]
    of_study = or_(LeaseRow.job.in_(names), LeaseRow.job.contains(f" {study} "))
    _delete(session, LeaseRow, of_study)


def _delete(session: Session, table: type[Base], *conditions: ColumnElement[bool]) -> int:
    """Delete the rows of `table` that meet all `conditions`; return their number."""
    query = delete(table).where(*conditions).execution_options(synchronize_session=False)
    result = session.execute(query)
    assert isinstance(result, CursorResult)
    return result.rowcount
