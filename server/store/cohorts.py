"""Cohorts: how far each is, moved on by whoever sees first that it is due.

Most moves are light: rows are counted and a phase is written. Any process makes them, without
a lease, naming the phase and the deadline that it saw. Of those who see the same one wins, and
what the others wasted is one look at a row; a lease would cost each move another commit. Only a
sum, which takes long, is made under a lease, and what comes of it is kept with it in one
transaction: the sum, who is blamed, or why it failed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, exists, func, select, update
from sqlalchemy.orm import Session

from protocol.events import Cause, EventKind
from protocol.round import Phase
from server.database import BusyError, Database, reading, writing
from server.listener import announce
from server.schema import Cohort, Message, Participant
from server.store.due import Due, Look, read_due
from server.store.events import tell
from server.store.leases import Lease, check, taken
from server.store.opening import entry
from server.store.processes import earliest
from server.store.views import KIND
from server.watch import cohort_bell, study_bell

_OVER = tuple(phase for phase in Phase if phase.is_over)
_STALE = 2.0  # seconds


@dataclass(frozen=True, slots=True)
class Cohorts:
    """The book of cohorts."""

    database: Database

    @reading
    def look(self, session: Session) -> Look:
        """Return every cohort that waits for somebody, and all that its next move depends on."""
        now = self.database.now(session)
        return Look(now, read_due(session), earliest(session, now), taken(session, now))

    @reading
    def waiting(self, session: Session) -> tuple[Due, ...]:
        """Return every cohort that waits for somebody."""
        return read_due(session)

    async def close_enrolling(self, due: Due) -> bool:
        """Move on to sharing among `due.enrolled`; False if it moved, or somebody joined since."""
        return await self._close_enrolling(due)

    @writing
    def _close_enrolling(self, session: Session, due: Due) -> bool:
        row = _lock(session, due)
        if row is None or row.enrolled != due.enrolled:
            return False
        now, lasts = self.database.now(session), _lasting(due, Phase.SHARING)
        enter(session, row, Phase.SHARING, row.enrolled, now, lasts)
        return True

    async def move(self, due: Due, to: Phase) -> bool:
        """Move on, freezing what was heard; False if it is not as it was `due` any more.

        Phases only move forward, so the phase is its own version number; the deadline is
        named too, for it may be set anew.

        Raises:
            BusyError: if the database took so long that the decision is stale: whoever spoke
                meanwhile waits in the same queue, and must be heard before it is made again.
        """
        return await self._move(due, to, self.database.seconds())

    @writing
    def _move(self, session: Session, due: Due, to: Phase, decided: float) -> bool:
        self._refuse_stale(decided)
        row = _lock(session, due)
        if row is None:
            return False
        now, lasts = self.database.now(session), _lasting(due, to)
        enter(session, row, to, heard_in(session, row), now, lasts)
        return True

    async def fail(
        self, due: Due, reason: str, heard: int | None = None, cause: Cause = Cause.INTERNAL
    ) -> bool:
        """Fail for `reason`; False if it was moved on or, given `heard`, somebody was heard since.

        Raises:
            BusyError: as `move`.
        """
        return await self._fail(due, (reason, cause), heard, self.database.seconds())

    @writing
    def _fail(
        self,
        session: Session,
        due: Due,
        why: tuple[str, Cause],
        heard: int | None,
        decided: float,
    ) -> bool:
        self._refuse_stale(decided)
        row = _lock(session, due)
        if row is None:
            return False
        frozen = heard_in(session, row)
        if heard not in (None, frozen):
            return False
        row.failure, cause = why
        now = self.database.now(session)
        enter(session, row, Phase.FAILED, frozen, now, cause=cause)
        return True

    def _refuse_stale(self, decided: float) -> None:
        if self.database.seconds() - decided > _STALE:
            raise BusyError("the database was busy for so long that a decision is stale")

    @writing
    def blame(
        self, session: Session, cohort: int, culprits: Mapping[int, str], lease: Lease
    ) -> int:
        """Keep who departed from the protocol and how: they are barred from the study.

        Returns how many were not blamed before: work that is done again blames them again.

        Raises:
            StaleLeaseError: if the sum was claimed again since.
        """
        check(session, lease)
        count = 0
        for slot, what in culprits.items():
            seat = (Participant.cohort == cohort, Participant.slot == slot)
            fresh = update(Participant).where(*seat, Participant.blamed.is_(None))
            blamed = session.scalar(fresh.values(blamed=what).returning(Participant.slot))
            count += blamed is not None
        return count

    @writing
    def finish(self, session: Session, cohort: int, total: bytes, lease: Lease) -> bool:
        """Keep the packed sum; False if the cohort is no longer unmasking.

        Raises:
            StaleLeaseError: if the sum was claimed again since.
        """
        row = _lock_unmasking(session, cohort, lease)
        if row is None:
            return False
        row.sum = total
        enter(session, row, Phase.SUMMED, heard_in(session, row), self.database.now(session))
        return True

    @writing
    def give_up(
        self, session: Session, cohort: int, reason: str, cause: Cause, lease: Lease
    ) -> bool:
        """Fail for want of a sum; False if the cohort is no longer unmasking.

        Raises:
            StaleLeaseError: if the sum was claimed again since.
        """
        row = _lock_unmasking(session, cohort, lease)
        if row is None:
            return False
        row.failure = reason
        heard, now = heard_in(session, row), self.database.now(session)
        enter(session, row, Phase.FAILED, heard, now, cause=cause)
        return True

    async def resume(self) -> int:
        """Give what waited while no server ran its time back; return how many cohorts.

        A deadline that passed is set anew, and none is nearer than the study's patience.
        """
        look, count = await self.look(), 0
        for due in look.due:
            seconds = getattr(due.timeouts, due.waiting.phase.value)
            if due.waiting.deadline > look.now:
                seconds = min(seconds, due.timeouts.patience)
            fresh = look.now + timedelta(seconds=seconds)
            earlier = (
                Cohort.id == due.id,
                Cohort.phase == due.waiting.phase,
                Cohort.deadline < fresh,
            )
            count += await self._postpone(earlier, fresh)
        return count

    @writing
    def _postpone(
        self, session: Session, which: tuple[ColumnElement[bool], ...], deadline: datetime
    ) -> bool:
        query = update(Cohort).where(*which).values(deadline=deadline).returning(Cohort.id)
        return session.scalar(query) is not None

    @reading
    def over(self, session: Session) -> Sequence[int]:
        """Return the cohorts that are over but whose messages have bodies still."""
        query = (
            select(Message.cohort)
            .join(Cohort, Cohort.id == Message.cohort)
            .where(Cohort.phase.in_(_OVER), Message.body.is_not(None))
            .distinct()
        )
        return session.scalars(query).all()

    @reading
    def is_forgotten(self, session: Session, cohort: int) -> bool:
        """Return whether no message of `cohort` has its body still."""
        kept = exists().where(Message.cohort == cohort, Message.body.is_not(None))
        return not session.scalar(select(kept))

    @writing
    def forget(self, session: Session, cohort: int) -> None:
        """Drop the bodies of what a cohort that is over was told."""
        mine = (Message.cohort == cohort, Message.body.is_not(None))
        session.execute(update(Message).where(*mine).values(body=None))


def _lasting(due: Due, phase: Phase) -> timedelta | None:
    """Return how long `phase` may last, None if it is no phase that waits."""
    return None if phase.is_over else timedelta(seconds=getattr(due.timeouts, phase.value))


def _lock(session: Session, due: Due) -> Cohort | None:
    """Return the cohort, locked, if it is as it was due still."""
    seen = (Cohort.phase == due.waiting.phase, Cohort.deadline == due.waiting.deadline)
    query = select(Cohort).where(Cohort.id == due.id, *seen)
    return session.scalar(query.with_for_update())


def _lock_unmasking(session: Session, cohort: int, lease: Lease) -> Cohort | None:
    """Return the cohort, locked, if it waits for the sum that `lease` is for, which must hold."""
    check(session, lease)
    query = select(Cohort).where(Cohort.id == cohort, Cohort.phase == Phase.UNMASKING)
    return session.scalar(query.with_for_update())


def enter(
    session: Session,
    row: Cohort,
    phase: Phase,
    heard: int,
    now: datetime,
    lasts: timedelta | None = None,
    *,
    cause: Cause | None = None,
) -> None:
    """Move a locked cohort on to `phase`, now that so many were `heard`, and tell of it.

    The phase `lasts` so long from `now`; without that the deadline stays as it was.
    """
    before, closed = row.phase, row.history[-1] | {"heard": heard}
    seconds = (now - datetime.fromisoformat(closed["entered"])).total_seconds()
    expected = row.history[-2]["heard"] if len(row.history) > 1 else None
    row.history = [*row.history[:-1], closed, entry(phase, now)]
    row.phase = phase
    if lasts is not None:
        row.deadline = now + lasts
    announce(session, cohort_bell(row.id), study_bell(row.study))
    tell(
        session,
        row.study,
        EventKind.COHORT_FAILED if phase is Phase.FAILED else EventKind.COHORT_MOVED,
        now,
        round=row.round,
        cohort=row.number,
        before=before,
        phase=phase,
        heard=heard,
        expected=expected,
        seconds=max(seconds, 0.0),
        cause=cause,
        reason=row.failure,
    )


def heard_in(session: Session, row: Cohort) -> int:
    """Return how many were heard in the present phase of a locked cohort: nobody else will."""
    if row.phase in (Phase.ENROLLING, Phase.REPORTING):
        return row.enrolled
    mine = (Message.cohort == row.id, Message.kind == KIND[row.phase])
    return session.scalar(select(func.count()).select_from(Message).where(*mine)) or 0
