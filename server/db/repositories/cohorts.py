"""Repository of cohorts: their phases, sums and message bodies.

Any process makes a light phase change, without a lease: it names the phase and the deadline that it
read, and one of several concurrent processes wins. Only a sum, which takes long, is made under a
lease; its result is stored in one transaction.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import exists, select, update
from sqlalchemy.orm import Session

from protocol.api.events import FailureCause
from protocol.api.phases import Phase
from protocol.mechanisms.registry import parse_plan
from server.db.channels import cohort_channel, notify_on_commit
from server.db.database import Repository, read_transaction, write_transaction
from server.db.database_errors import BusyError
from server.db.repositories.cohort_phases import count_received, enter_phase
from server.db.repositories.committees import convened_committee
from server.db.repositories.leases import Lease, check_lease, claimed_jobs, receiving_since
from server.db.repositories.pending_cohorts import (
    CohortSelection,
    PendingCohort,
    PendingSnapshot,
    read_pending,
)
from server.db.schema import (
    FINAL_PHASES,
    SUMMING_PHASES,
    CohortRow,
    MessageRow,
    MessageSetRow,
    ParticipantRow,
    RoundRow,
)

_MAX_DECISION_SECONDS = 2.0


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

    async def close_enrolling(self, due: PendingCohort) -> bool:
        """Fix the `due.enrolled` joiners; False if the cohort has changed since it was read."""
        return await self._change(due, due.phase_status.next_phase, received=due.enrolled)

    async def move(self, due: PendingCohort, to: Phase) -> bool:
        """Move a cohort to the phase `to`; False if it has changed since it was read as `due`.

        Phases only move forward, so the phase is its own version number. The deadline is compared
        too, because it may have been extended.

        Raises:
            BusyError: if the database took so long that the decision is stale: messages that
                arrived meanwhile wait in the same queue, and must count before it is repeated.
        """
        return await self._change(due, to, self.database.monotonic_seconds())

    @write_transaction
    def convene(self, session: Session, due: PendingCohort) -> bool:
        """Fix the committee of a one-shot sum, and collect messages; False if it has changed."""
        row = _lock(session, due)
        if row is None:
            return False
        plan = parse_plan(session.get_one(RoundRow, (row.study, row.round)).plan)
        committee = convened_committee(session, row, plan)
        assert committee is not None, "keys are never deleted while a round convenes"
        row.seating = committee.pack()
        duration = timedelta(seconds=due.timeouts.collecting)
        now = self.database.now(session)
        enter_phase(session, row, Phase.COLLECTING, count_received(row), now, duration)
        return True

    async def close_collecting(self, due: PendingCohort) -> bool:
        """Fix the `due.enrolled` messages; False if the cohort has changed since it was read."""
        return await self._change(due, Phase.CHECKING, received=due.enrolled)

    async def agree(self, due: PendingCohort, digests: bytes) -> bool:
        """Fix the set of messages of a one-shot sum, by digest, for its members to sign.

        False if the cohort has changed since it was read as `due`. Raises as `move`.
        """
        decided, received = self.database.monotonic_seconds(), due.phase_status.received
        return await self._change(due, Phase.AGREEING, decided, received, message_set=digests)

    async def close_checking(self, due: PendingCohort, accused: Sequence[int]) -> bool:
        """Continue with answering by the `accused`, or with masking if there are none.

        False if the cohort has changed since it was read as `due`: then complaints may have
        arrived. Raises as `move`.
        """
        to = Phase.ANSWERING if accused else Phase.MASKING
        decided, received = self.database.monotonic_seconds(), due.phase_status.received
        return await self._change(due, to, decided, received, accused=list(accused))

    async def fail(
        self,
        due: PendingCohort,
        reason: str,
        received: int | None = None,
        cause: FailureCause = FailureCause.INTERNAL,
    ) -> bool:
        """Fail for `reason`; False if the cohort or `received` has changed. Raises as `move`."""
        decided = self.database.monotonic_seconds()
        return await self._change(due, Phase.FAILED, decided, received, (reason, cause))

    @write_transaction
    def _change(
        self,
        session: Session,
        due: PendingCohort,
        to: Phase,
        decided: float = math.inf,
        received: int | None = None,
        failure: tuple[str | None, FailureCause | None] = (None, None),
        *,
        accused: list[int] | None = None,
        message_set: bytes | None = None,
    ) -> bool:
        """Move a cohort to `to`, if it and the number `received` are as when that was decided."""
        if self.database.monotonic_seconds() - decided > _MAX_DECISION_SECONDS:
            raise BusyError("the database was busy for so long that a decision is stale")
        row = _lock(session, due)
        count = 0 if row is None else count_received(row)
        if row is None or received not in (None, count):
            return False
        row.failure, cause = failure
        duration = None if to.is_over else timedelta(seconds=getattr(due.timeouts, to.value))
        enter_phase(session, row, to, count, self.database.now(session), duration, cause=cause)
        if accused is not None:
            row.accused = accused
        if message_set is not None:
            session.add(MessageSetRow(cohort=row.id, digests=message_set))
        return True

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

    @write_transaction
    def save_sum(self, session: Session, cohort: int, total: bytes, lease: Lease) -> bool:
        """Store the packed sum; False if the cohort is over.

        Raises:
            StaleLeaseError: if the job was claimed again.
        """
        return self._end_unmasking(session, cohort, lease, Phase.SUMMED, total=total)

    @write_transaction
    def fail_unmasking(
        self, session: Session, cohort: int, reason: str, cause: FailureCause, lease: Lease
    ) -> bool:
        """Fail because there is no sum; returns and raises as `save_sum` does."""
        failure = (reason, cause)
        return self._end_unmasking(session, cohort, lease, Phase.FAILED, failure=failure)

    def _end_unmasking(
        self,
        session: Session,
        cohort: int,
        lease: Lease,
        to: Phase,
        total: bytes | None = None,
        failure: tuple[str | None, FailureCause | None] = (None, None),
    ) -> bool:
        check_lease(session, lease)
        query = select(CohortRow).where(CohortRow.id == cohort, CohortRow.phase.in_(SUMMING_PHASES))
        row = session.scalar(query.with_for_update())
        if row is None:
            return False
        row.sum = total
        row.failure, cause = failure
        row.poisoned = cause is FailureCause.POISONED
        received, now = count_received(row), self.database.now(session)
        enter_phase(session, row, to, received, now, cause=cause)
        return True

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
        row = _lock(session, due)
        if row is None:
            return False
        row.deadline, row.last_received = deadline, min(row.last_received, last_received)
        notify_on_commit(session, cohort_channel(due.id))
        return True

    @read_transaction
    def finished_with_bodies(self, session: Session) -> Sequence[int]:
        """Return the closed cohorts whose message bodies are not deleted."""
        query = (
            select(MessageRow.cohort)
            .join(CohortRow, CohortRow.id == MessageRow.cohort)
            .where(CohortRow.phase.in_(FINAL_PHASES), MessageRow.body.is_not(None))
            .distinct()
        )
        return session.scalars(query).all()

    @read_transaction
    def has_no_bodies(self, session: Session, cohort: int) -> bool:
        """Return whether all message bodies of `cohort` are deleted."""
        has_body = exists().where(MessageRow.cohort == cohort, MessageRow.body.is_not(None))
        return not session.scalar(select(has_body))

    @write_transaction
    def delete_bodies(self, session: Session, cohort: int) -> None:
        of_cohort = (MessageRow.cohort == cohort, MessageRow.body.is_not(None))
        session.execute(update(MessageRow).where(*of_cohort).values(body=None))


def _lock(session: Session, due: PendingCohort) -> CohortRow | None:
    """Return the cohort, locked, if it has not changed since it was read as `due`."""
    unchanged = (
        CohortRow.phase == due.phase_status.phase,
        CohortRow.deadline == due.phase_status.deadline,
    )
    query = select(CohortRow).where(CohortRow.id == due.id, *unchanged)
    return session.scalar(query.with_for_update())
