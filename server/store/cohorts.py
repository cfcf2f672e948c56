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

from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy.orm import Session

from protocol.round import Phase
from server.database import BusyError, Database, reading, writing
from server.listener import announce
from server.schema import Cohort, Message, Participant
from server.store.due import Due, Look, read_due
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
        self._enter(session, row, Phase.SHARING, row.enrolled, _lasting(due, Phase.SHARING))
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
        self._enter(session, row, to, _heard(session, row), _lasting(due, to))
        return True

    async def fail(self, due: Due, reason: str, heard: int | None = None) -> bool:
        """Fail for `reason`; False if it was moved on or, given `heard`, somebody was heard since.

        Raises:
            BusyError: as `move`.
        """
        return await self._fail(due, reason, heard, self.database.seconds())

    @writing
    def _fail(
        self, session: Session, due: Due, reason: str, heard: int | None, decided: float
    ) -> bool:
        self._refuse_stale(decided)
        row = _lock(session, due)
        if row is None or (heard is not None and heard != _heard(session, row)):
            return False
        self._end(session, row, Phase.FAILED, failure=reason)
        return True

    def _refuse_stale(self, decided: float) -> None:
        if self.database.seconds() - decided > _STALE:
            raise BusyError("the database was busy for so long that a decision is stale")

    @writing
    def blame(
        self, session: Session, cohort: int, culprits: Mapping[int, str], lease: Lease
    ) -> None:
        """Keep who departed from the protocol and how: they are barred from the study.

        Raises:
            StaleLeaseError: if the sum was claimed again since.
        """
        check(session, lease)
        for slot, what in culprits.items():
            seat = (Participant.cohort == cohort, Participant.slot == slot)
            session.execute(update(Participant).where(*seat).values(blamed=what))

    @writing
    def finish(self, session: Session, cohort: int, total: bytes, lease: Lease) -> bool:
        """Keep the packed sum; False if the cohort is no longer unmasking.

        Raises:
            StaleLeaseError: if the sum was claimed again since.
        """
        check(session, lease)
        row = _lock_unmasking(session, cohort)
        if row is None:
            return False
        row.sum = total
        self._end(session, row, Phase.SUMMED)
        return True

    @writing
    def give_up(self, session: Session, cohort: int, reason: str, lease: Lease) -> bool:
        """Fail for want of a sum; False if the cohort is no longer unmasking.

        Raises:
            StaleLeaseError: if the sum was claimed again since.
        """
        check(session, lease)
        row = _lock_unmasking(session, cohort)
        if row is None:
            return False
        self._end(session, row, Phase.FAILED, failure=reason)
        return True

    def _end(self, session: Session, row: Cohort, phase: Phase, failure: str | None = None) -> None:
        row.failure = failure
        self._enter(session, row, phase, _heard(session, row), None)

    def _enter(
        self, session: Session, row: Cohort, phase: Phase, heard: int, lasts: timedelta | None
    ) -> None:
        """Enter a phase that `lasts` so long from now; the deadline stays if it does not."""
        now = self.database.now(session)
        closed = row.history[-1] | {"heard": heard}
        row.history = [*row.history[:-1], closed, entry(phase, now)]
        row.phase = phase
        if lasts is not None:
            row.deadline = now + lasts
        announce(session, cohort_bell(row.id), study_bell(row.study))

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


def _lock_unmasking(session: Session, cohort: int) -> Cohort | None:
    query = select(Cohort).where(Cohort.id == cohort, Cohort.phase == Phase.UNMASKING)
    return session.scalar(query.with_for_update())


def _heard(session: Session, row: Cohort) -> int:
    """Return how many were heard in the present phase of a locked cohort: nobody else will."""
    if row.phase in (Phase.ENROLLING, Phase.REPORTING):
        return row.enrolled
    mine = (Message.cohort == row.id, Message.kind == KIND[row.phase])
    return session.scalar(select(func.count()).select_from(Message).where(*mine)) or 0
