"""Cohorts: how far each is, moved on by whoever sees first that it is due."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, case, func, select, update
from sqlalchemy.orm import Session

from protocol.events import Cause, EventKind
from protocol.mechanism import Terms
from protocol.messages import Timeouts
from protocol.round import Phase, Waiting
from secagg.parameters import Assumptions
from server.database import BusyError, Database, reading, writing
from server.schema import Cohort, Message, Participant, Study
from server.store.events import tell
from server.store.opening import entry
from server.store.views import KIND

_OVER = tuple(phase for phase in Phase if phase.is_over)
_WAITING = tuple(phase for phase in Phase if not phase.is_over)

_STALE = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class Due:
    """A cohort that waits, with all that its next move depends on."""

    id: int
    study: str
    round: int
    number: int
    waiting: Waiting
    enrolled: int
    assumptions: Assumptions
    timeouts: Timeouts


@dataclass(frozen=True, slots=True)
class Cohorts:
    """The book of cohorts."""

    database: Database
    now: Callable[[], datetime]

    @reading
    def waiting(self, session: Session) -> tuple[Due, ...]:
        """Return every cohort that waits for somebody."""
        kind = case({phase.value: kind for phase, kind in KIND.items()}, value=Cohort.phase)
        mine = (Message.cohort == Cohort.id, Message.kind == kind)
        said = select(func.count()).where(*mine).scalar_subquery()
        last = select(func.max(Message.received)).where(*mine).scalar_subquery()
        query = (
            select(Cohort, Study.terms, Study.timeouts, said, last)
            .join(Study, Study.id == Cohort.study)
            .where(Cohort.phase.in_(_WAITING))  # not "not over": an index finds what is there
        )
        return tuple(_due(*row) for row in session.execute(query))

    @writing
    def close_enrolling(
        self, session: Session, cohort: int, enrolled: int, deadline: datetime
    ) -> bool:
        """Move on to sharing among `enrolled`; False if somebody else did, or joined since."""
        row = _lock(session, cohort, Phase.ENROLLING)
        if row is None or row.enrolled != enrolled:
            return False
        enter(session, row, Phase.SHARING, row.enrolled, self.now(), deadline)
        return True

    async def move(self, cohort: int, seen: Phase, to: Phase, deadline: datetime) -> bool:
        """Move on from `seen`, freezing what was heard in it; False if somebody else did.

        Phases only move forward, so the phase is its own version number.

        Raises:
            BusyError: if the database took so long that the decision is stale: whoever spoke
                meanwhile waits in the same queue, and must be heard before it is made again.
        """
        return await self._move(cohort, seen, to, deadline, self.now())

    @writing
    def _move(
        self,
        session: Session,
        cohort: int,
        seen: Phase,
        to: Phase,
        deadline: datetime,
        decided: datetime,
    ) -> bool:
        self._refuse_stale(decided)
        row = _lock(session, cohort, seen)
        if row is None:
            return False
        enter(session, row, to, heard_in(session, row), self.now(), deadline)
        return True

    async def fail(
        self,
        cohort: int,
        seen: Phase,
        reason: str,
        heard: int | None = None,
        cause: Cause = Cause.INTERNAL,
    ) -> bool:
        """Fail for `reason`; False if somebody moved it on or, given `heard`, was heard since.

        Raises:
            BusyError: as `move`.
        """
        return await self._fail(cohort, seen, (reason, cause), heard, self.now())

    @writing
    def blame(self, session: Session, cohort: int, culprits: Mapping[int, str]) -> None:
        """Keep who departed from the protocol and how: they are barred from the study."""
        for slot, what in culprits.items():
            seat = (Participant.cohort == cohort, Participant.slot == slot)
            session.execute(update(Participant).where(*seat).values(blamed=what))

    @writing
    def _fail(
        self,
        session: Session,
        cohort: int,
        seen: Phase,
        why: tuple[str, Cause],
        heard: int | None,
        decided: datetime,
    ) -> bool:
        self._refuse_stale(decided)
        row = _lock(session, cohort, seen)
        if row is None:
            return False
        frozen = heard_in(session, row)
        if heard not in (None, frozen):
            return False
        row.failure, cause = why
        enter(session, row, Phase.FAILED, frozen, self.now(), cause=cause)
        return True

    def _refuse_stale(self, decided: datetime) -> None:
        if self.now() - decided > _STALE:
            raise BusyError("the database was busy for so long that a decision is stale")

    @writing
    def finish(self, session: Session, cohort: int, total: bytes) -> bool:
        """Keep the packed sum; False if the cohort is no longer unmasking."""
        row = _lock(session, cohort, Phase.UNMASKING)
        if row is None:
            return False
        row.sum = total
        enter(session, row, Phase.SUMMED, heard_in(session, row), self.now())
        return True

    async def resume(self) -> int:
        """Give what waited while no server ran its time back; return how many cohorts.

        A deadline that passed is set anew, and none is nearer than the study's patience.
        """
        now, count = self.now(), 0
        for due in await self.waiting():
            seconds = getattr(due.timeouts, due.waiting.phase.value)
            if due.waiting.deadline > now:
                seconds = min(seconds, due.timeouts.patience)
            fresh = now + timedelta(seconds=seconds)
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


def _due(
    row: Cohort,
    terms: dict[str, object],
    timeouts: dict[str, object],
    said: int,
    last: datetime | None,
) -> Due:
    """Return the cohort with its waiting rule: see `protocol/round.py`."""
    rules, limits = Terms.model_validate(terms), Timeouts.model_validate(timeouts)
    heard, expected, quorum = said, row.enrolled, rules.assumptions.quorum(row.enrolled)
    patience = limits.patience
    if row.phase is Phase.ENROLLING:
        heard, expected, quorum = row.enrolled, rules.cohort_size, rules.minimum
        patience = limits.enrolling  # a larger cohort hides better: silence ends nothing
    elif row.phase is Phase.REPORTING:
        heard, expected, quorum = row.enrolled, rules.devices, rules.minimum
        patience = limits.reporting  # devices come when they can
    elif row.phase is not Phase.SHARING:
        expected = row.history[-2]["heard"]  # those who were heard in the phase before
    return Due(
        id=row.id,
        study=row.study,
        round=row.round,
        number=row.number,
        waiting=Waiting(
            phase=row.phase,
            mode=rules.mode,
            expected=expected,
            quorum=quorum,
            heard=heard,
            last=last or datetime.fromisoformat(row.history[-1]["entered"]),
            deadline=row.deadline,
            patience=timedelta(seconds=patience),
        ),
        enrolled=row.enrolled,
        assumptions=rules.assumptions,
        timeouts=limits,
    )


def _lock(session: Session, cohort: int, seen: Phase) -> Cohort | None:
    """Return the cohort, locked, if it is in phase `seen` still."""
    query = select(Cohort).where(Cohort.id == cohort, Cohort.phase == seen)
    return session.scalar(query.with_for_update())


def enter(
    session: Session,
    row: Cohort,
    phase: Phase,
    heard: int,
    now: datetime,
    deadline: datetime | None = None,
    *,
    cause: Cause | None = None,
) -> None:
    """Move a locked cohort on to `phase`, now that so many were `heard`, and tell of it."""
    before, closed = row.phase, row.history[-1] | {"heard": heard}
    seconds = (now - datetime.fromisoformat(closed["entered"])).total_seconds()
    expected = row.history[-2]["heard"] if len(row.history) > 1 else None
    row.history = [*row.history[:-1], closed, entry(phase, now)]
    row.phase, row.deadline = phase, deadline or row.deadline
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
