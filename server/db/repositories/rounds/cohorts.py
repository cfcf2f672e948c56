"""Repository of cohorts: their phases, sums and message bodies.

Any process makes a light phase change, without a lease: it names the phase and the deadline that it
read, and one of several concurrent processes wins. Only a sum, which takes long, is made under a
lease; its result is stored in one transaction.

Changes and results that arrive together share a transaction (`server/db/group_commit.py`), in which
each is made or refused as if it were alone.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from itertools import accumulate

from sqlalchemy import delete, func, select, union, update
from sqlalchemy.orm import Session

from protocol.api.events import FailureCause
from protocol.api.phases import Phase
from protocol.mechanisms.registry import parse_plan
from server.db.channels import cohort_channel, notify_on_commit
from server.db.database import Repository, read_transaction, write_transaction
from server.db.database_errors import BusyError
from server.db.group_commit import GroupCommit
from server.db.repositories.access.committees import convened_committee
from server.db.repositories.cohort_phases import count_received, enter_phase, fix_committee
from server.db.repositories.leases import (
    Lease,
    StaleLeaseError,
    check_lease,
    claimed_jobs,
    receiving_since,
    stale_leases,
)
from server.db.repositories.rounds.pending_cohorts import (
    CohortSelection,
    PendingCohort,
    PendingSnapshot,
    read_pending,
)
from server.db.schema import (
    FINAL_PHASES,
    SUMMING_PHASES,
    BodyRow,
    CohortRow,
    MessageSetRow,
    OneShotBodyRow,
    ParticipantRow,
    RoundRow,
)

_MAX_DECISION_SECONDS = 2.0
_BODIES_PER_TRANSACTION = 5_000  # of a cohort of 1,000 devices
COHORTS_PER_DELETION = 500
_DELETE_BODIES, _DELETE_ONE_SHOT_BODIES = (
    delete(row).execution_options(synchronize_session=False) for row in (BodyRow, OneShotBodyRow)
)


@dataclass(frozen=True, slots=True)
class CheckedCohort:
    """Result of the phase `checking`, after which a cohort goes `to` another phase.

    `accused` are the slots of dealers that must answer, and `accusations` pairs of dealer and
    holder. `message_set` has the digests of the messages of a one-shot sum, in rising order, and
    `note` is what readers of the sum must know.
    """

    to: Phase
    accused: Sequence[int] = ()
    accusations: Sequence[tuple[int, int]] = ()
    message_set: bytes | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class _Change:
    """Change of a cohort to the phase `to`, `decided` at this monotonic time in seconds.

    It depends on the cohort `due` and, unless it is None, on the number `received`.
    """

    due: PendingCohort
    to: Phase
    decided: float = math.inf
    received: int | None = None
    failure: str | None = None
    cause: FailureCause | None = None
    checked: CheckedCohort | None = None


@dataclass(frozen=True, slots=True)
class _Result:
    """Result of a sum under `lease`: its packed `total`, or the cause of its failure."""

    cohort: PendingCohort
    lease: Lease
    total: bytes | None = None
    failure: str | None = None
    cause: FailureCause | None = None


class CohortRepository(Repository):
    """Repository of cohorts."""

    @read_transaction
    def snapshot(
        self,
        session: Session,
        select_at: Callable[[datetime], CohortSelection | None] = lambda _now: None,
    ) -> PendingSnapshot:
        """Return pending cohorts, and the facts on which their next phase change depends.

        `select_at` selects cohorts by the time of the snapshot; None selects all.
        """
        now = self.database.now(session)
        selection = select_at(now)
        return PendingSnapshot(
            now,
            selection,
            read_pending(session, selection),
            receiving_since(session, now),
            claimed_jobs(session, now),
        )

    @read_transaction
    def pending(self, session: Session) -> tuple[PendingCohort, ...]:
        return read_pending(session)

    async def fix_devices(self, due: PendingCohort) -> bool:
        """Fix the `due.enrolled` devices; False if the cohort has changed since it was read."""
        to = due.phase_status.next_phase
        return await self._changes(_Change(due, to, received=due.enrolled))

    async def move(self, due: PendingCohort, to: Phase) -> bool:
        """Move a cohort to the phase `to`; False if it has changed since it was read as `due`.

        Phases only move forward, so the phase is its own version number. The deadline is compared
        too, because it may have been extended, and the number of messages.

        Raises:
            BusyError: if the database took so long that the decision is stale: messages that
                arrived meanwhile must count before it is repeated.
        """
        decided, received = self.database.monotonic_seconds(), due.phase_status.received
        return await self._changes(_Change(due, to, decided, received))

    @write_transaction
    def convene(self, session: Session, due: PendingCohort) -> bool:
        """Fix the committee of a one-shot sum, and collect messages; False if it has changed."""
        row = _lock(session, [due.id]).get(due.id)
        if row is None or _has_changed(row, due):
            return False
        plan = parse_plan(session.get_one(RoundRow, (row.study, row.round)).plan)
        committee = convened_committee(session, row, plan)
        assert committee is not None, "keys are never deleted while a round convenes"
        fix_committee(session, row, committee)
        duration = timedelta(seconds=due.timeouts.collecting)
        now = self.database.now(session)
        enter_phase(session, row, Phase.COLLECTING, count_received(row), now, duration)
        return True

    async def close_checking(self, due: PendingCohort, checked: CheckedCohort) -> bool:
        """Continue as the complaints want.

        False if the cohort has changed since it was read as `due`: then complaints may have
        arrived. Raises as `move`.
        """
        decided, received = self.database.monotonic_seconds(), due.phase_status.received
        return await self._changes(_Change(due, checked.to, decided, received, checked=checked))

    async def fail(
        self,
        due: PendingCohort,
        reason: str,
        received: int | None = None,
        cause: FailureCause = FailureCause.INTERNAL,
    ) -> bool:
        """Fail for `reason`; False if the cohort or `received` has changed. Raises as `move`."""
        decided = self.database.monotonic_seconds()
        return await self._changes(_Change(due, Phase.FAILED, decided, received, reason, cause))

    @cached_property
    def _changes(self) -> GroupCommit[_Change, bool]:
        # In the order of the event counters that they lock.
        return GroupCommit(self._change, order=lambda change: change.due.study)

    @write_transaction
    def _change(self, session: Session, changes: Sequence[_Change]) -> Sequence[bool | BusyError]:
        """Make all changes of cohorts that are as when it was decided; return whether each was."""
        seconds = self.database.monotonic_seconds()
        rows = _lock(session, [change.due.id for change in changes])
        now = self.database.now(session)
        return [
            BusyError("the database was busy for so long that a decision is stale")
            if seconds - change.decided > _MAX_DECISION_SECONDS
            else _make_change(session, rows.get(change.due.id), change, now)
            for change in changes
        ]

    @write_transaction
    def blame(
        self, session: Session, cohort: int, culprits: Mapping[int, str], lease: Lease
    ) -> int:
        """Record the participants that departed from the protocol, which bars them from the study.

        Returns the number of new ones: a repeated job blames the same participants again.

        Raises:
            StaleLeaseError: if the job was claimed again.
        """
        check_lease(session, lease)
        count = 0
        for slot, offence in culprits.items():
            of_slot = (ParticipantRow.cohort == cohort, ParticipantRow.slot == slot)
            query = update(ParticipantRow).where(*of_slot, ParticipantRow.blamed.is_(None))
            blamed = session.scalar(query.values(blamed=offence).returning(ParticipantRow.slot))
            count += blamed is not None
        return count

    async def save_sum(self, cohort: PendingCohort, total: bytes, lease: Lease) -> bool:
        """Store the packed sum; False if the cohort is over.

        Raises:
            StaleLeaseError: if the job was claimed again.
        """
        return await self._results(_Result(cohort, lease, total))

    async def fail_unmasking(
        self, cohort: PendingCohort, reason: str, cause: FailureCause, lease: Lease
    ) -> bool:
        """Fail because there is no sum; returns and raises as `save_sum` does."""
        return await self._results(_Result(cohort, lease, None, reason, cause))

    @cached_property
    def _results(self) -> GroupCommit[_Result, bool]:
        return GroupCommit(
            self._save_results,
            lambda result: len(result.total or b""),
            lambda result: result.cohort.study,
        )

    @write_transaction
    def _save_results(
        self, session: Session, results: Sequence[_Result]
    ) -> Sequence[bool | StaleLeaseError]:
        """Store all results whose lease is not stale; return whether the cohort was not over."""
        stale = stale_leases(session, [result.lease for result in results])
        rows = _lock(session, [result.cohort.id for result in results])
        now = self.database.now(session)
        return [
            stale.get(result.lease.job)
            or _end_unmasking(session, rows.get(result.cohort.id), result, now)
            for result in results
        ]

    async def extend_deadlines(self) -> int:
        """Extend deadlines after a time without a server; return the number of cohorts changed.

        An expired deadline gets the whole duration of its phase, and every deadline is at least the
        study's patience away. If the system's clock was set back meanwhile, deadlines are at most
        the duration of their phase away, and no message has arrived in the future.
        """
        snapshot, count = await self.snapshot(), 0
        for due in snapshot.cohorts:
            status, now = due.phase_status, snapshot.now
            duration = timedelta(seconds=getattr(due.timeouts, status.phase.value))
            patience = min(duration, timedelta(seconds=due.timeouts.idle))
            earliest = now + (patience if status.deadline > now else duration)
            deadline = min(max(status.deadline, earliest), now + duration)
            last_received = min(status.last_received, now)
            if (deadline, last_received) != (status.deadline, status.last_received):
                count += await self._set_times(due, deadline, last_received)
        return count

    @write_transaction
    def _set_times(
        self, session: Session, due: PendingCohort, deadline: datetime, last_received: datetime
    ) -> bool:
        """Set the times of a cohort, if it has not changed since it was read; return whether."""
        row = _lock(session, [due.id]).get(due.id)
        if row is None or _has_changed(row, due):
            return False
        row.deadline, row.last_received = deadline, min(row.last_received, last_received)
        notify_on_commit(session, cohort_channel(due.id))
        return True

    @read_transaction
    def finished_with_bodies(self, session: Session) -> Sequence[int]:
        """Return the closed cohorts whose message bodies are not deleted."""
        with_bodies = (
            select(row.cohort)
            .join(CohortRow, CohortRow.id == row.cohort)
            .where(CohortRow.phase.in_(FINAL_PHASES))
            for row in (BodyRow, OneShotBodyRow)
        )
        return session.scalars(union(*with_bodies)).all()

    @write_transaction
    def delete_one_shot_bodies(self, session: Session, cohorts: Sequence[int]) -> bool:
        """Delete up to `_BODIES_PER_TRANSACTION` bodies of a one-shot sum of `cohorts`.

        Returns whether there were any. `cohorts` are at most `COHORTS_PER_DELETION`.
        """
        row = OneShotBodyRow
        is_over = (CohortRow.id.in_(cohorts), CohortRow.phase.in_(FINAL_PHASES))
        with_body = select(row.cohort).join(CohortRow, CohortRow.id == row.cohort)
        cohort = session.scalar(with_body.where(*is_over).limit(1))
        if cohort is None:
            return False
        of_cohort = select(row.identity).where(row.cohort == cohort)
        some = row.identity.in_(of_cohort.limit(_BODIES_PER_TRANSACTION))
        session.execute(_DELETE_ONE_SHOT_BODIES.where(row.cohort == cohort, some))
        return True

    @write_transaction
    def delete_bodies(self, session: Session, cohorts: Sequence[int]) -> Sequence[int]:
        """Delete the bodies of pairwise sums of the first of `cohorts`, and return these cohorts.

        They have at most `_BODIES_PER_TRANSACTION` bodies, or there is one cohort.
        """
        first = cohorts[:COHORTS_PER_DELETION]
        # Perhaps one is pending again, because the database was restored to an earlier state.
        of_first = (CohortRow.id.in_(first), CohortRow.phase.in_(FINAL_PHASES))
        is_over = BodyRow.cohort.in_(select(CohortRow.id).where(*of_first))
        count = select(BodyRow.cohort, func.count()).where(is_over)
        rows = session.execute(count.group_by(BodyRow.cohort)).all()
        bodies = dict(map(tuple[int, int], rows))
        totals = accumulate(bodies.get(cohort, 0) for cohort in first)
        chosen = first[: max(1, sum(total <= _BODIES_PER_TRANSACTION for total in totals))]
        session.execute(_DELETE_BODIES.where(BodyRow.cohort.in_(chosen), is_over))
        return chosen


def _lock(session: Session, cohorts: Collection[int]) -> dict[int, CohortRow]:
    """Return the cohorts that exist, by row id, locked in the order of their row ids."""
    query = select(CohortRow).where(CohortRow.id.in_(cohorts)).order_by(CohortRow.id)
    return {row.id: row for row in session.scalars(query.with_for_update())}


def _has_changed(row: CohortRow, due: PendingCohort) -> bool:
    """Return whether a cohort has changed since it was read as `due`."""
    status = due.phase_status
    return row.phase is not status.phase or row.deadline != status.deadline


def _make_change(session: Session, row: CohortRow | None, change: _Change, now: datetime) -> bool:
    """Make a change of the locked `row`, unless the row is not as when it was decided."""
    if row is None or _has_changed(row, change.due):
        return False
    count, to = count_received(row), change.to
    if change.received not in (None, count):
        return False
    row.failure = change.failure
    duration = None if to.is_over else timedelta(seconds=getattr(change.due.timeouts, to.value))
    enter_phase(session, row, to, count, now, duration, cause=change.cause)
    if change.checked is not None:
        row.accused = list(change.checked.accused)
        if change.checked.note is not None:
            row.history = [*row.history[:-1], row.history[-1] | {"note": change.checked.note}]
        if change.checked.message_set is not None:
            session.add(MessageSetRow(cohort=row.id, digests=change.checked.message_set))
    return True


def _end_unmasking(session: Session, row: CohortRow | None, result: _Result, now: datetime) -> bool:
    """Store a result in the locked `row`, unless its cohort is over."""
    if row is None or row.phase not in SUMMING_PHASES:
        return False
    row.sum, row.failure = result.total, result.failure
    row.poisoned = result.cause is FailureCause.POISONED
    to = Phase.SUMMED if result.cause is None else Phase.FAILED
    enter_phase(session, row, to, count_received(row), now, cause=result.cause)
    return True
