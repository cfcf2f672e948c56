"""How far studies are: what their rounds came to, without their plans, which may be large."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import Row, func, select
from sqlalchemy.orm import Session

from protocol.messages import RoundState
from protocol.round import Phase
from server.database import Database, reading
from server.schema import Cohort, HeavyHitter, Round, Study
from server.store.studies import find_study
from server.store.views import UNTOLD, hides_sizes


@dataclass(frozen=True, slots=True)
class Progress:
    """What the rounds of a study came to so far.

    `devices` are those in sums that were made, `enrolling` those that sit in rounds that run; None
    and 0 where that is not told.
    `last` is the state of the round that closed last, at `closed`; `found` how many items are
    heavy now.
    """

    over: int = 0
    decoded: int = 0
    devices: int | None = 0
    enrolling: int = 0
    found: int = 0
    last: RoundState | None = None
    last_number: int | None = None
    closed: datetime | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One round in figures; `left_out` counts the cohorts that are not in its answer.

    `failure` is why a cohort failed, one of them if several did; `enrolled` and `participants` are
    None where they are not told.
    """

    number: int
    state: RoundState
    t: float
    enrolled: int | None
    participants: int | None
    distinct: float | None
    cohorts: int
    failed: int
    failure: str | None
    left_out: int
    opened: datetime
    closed: datetime | None


@dataclass(frozen=True, slots=True)
class Overview:
    """The book of how far studies are."""

    database: Database

    @reading
    def now(self, session: Session) -> datetime:
        """Return what time it is by the database, which deadlines are told by."""
        return self.database.now(session)

    @reading
    def of(self, session: Session, studies: Collection[str]) -> dict[str, Progress]:
        """Return how far each of `studies` is."""
        over = Round.state != "running"
        counts = (
            select(
                Round.study,
                func.count().filter(over),
                func.count().filter(Round.state == "decoded"),
                func.coalesce(func.sum(Round.participants), 0),
            )
            .where(Round.study.in_(studies))
            .group_by(Round.study)
        )
        waiting = Cohort.phase.not_in((Phase.SUMMED, Phase.FAILED))
        seated = (
            select(Cohort.study, func.sum(Cohort.enrolled))
            .where(Cohort.study.in_(studies), waiting)
            .group_by(Cohort.study)
        )
        heavy = (
            select(HeavyHitter.study, func.count())
            .where(HeavyHitter.study.in_(studies))
            .group_by(HeavyHitter.study)
        )
        lasts = _closed_last(session, studies)
        enrolling = dict(session.execute(seated).all())
        found = dict(session.execute(heavy).all())
        known = {}
        for study, rounds, decoded, devices in session.execute(counts):
            row = lasts.get(study)
            known[study] = Progress(
                over=rounds,
                decoded=decoded,
                devices=int(devices or 0),
                enrolling=int(enrolling.get(study) or 0),
                found=found.get(study, 0),
                last=row and row.state,
                last_number=row and row.number,
                closed=row and row.closed,
            )
        for asked in session.scalars(select(Study).where(Study.id.in_(known))):
            if hides_sizes(asked):
                known[asked.id] = replace(known[asked.id], devices=None, enrolling=0)
        return {study: known.get(study, Progress()) for study in studies}

    @reading
    def steps(self, session: Session, study: str, most: int) -> tuple[Step, ...]:
        """Return the last `most` rounds of `study`, first to last."""
        hidden = hides_sizes(find_study(session, study))
        mine = Cohort.study == study
        cohorts = (
            select(
                Cohort.round,
                func.count().label("cohorts"),
                func.sum(Cohort.enrolled).label("enrolled"),
                func.count().filter(Cohort.phase == Phase.FAILED).label("failed"),
                func.min(Cohort.failure).filter(Cohort.phase == Phase.FAILED).label("failure"),
                func.count(Cohort.failure).filter(Cohort.phase == Phase.SUMMED).label("left_out"),
            )
            .where(mine)
            .group_by(Cohort.round)
            .subquery()
        )
        query = (
            select(
                Round.number,
                Round.state,
                # Whole: PostgreSQL reads no part of it if a string in it has a zero character.
                Round.plan,
                func.coalesce(cohorts.c.enrolled, 0),
                Round.participants,
                Round.distinct,
                func.coalesce(cohorts.c.cohorts, 0),
                func.coalesce(cohorts.c.failed, 0),
                cohorts.c.failure,
                func.coalesce(cohorts.c.left_out, 0),
                Round.opened,
                Round.closed,
            )
            .outerjoin(cohorts, cohorts.c.round == Round.number)
            .where(Round.study == study)
            .order_by(Round.number.desc())
            .limit(most)
        )
        found = reversed(session.execute(query).all())
        steps = [Step(number, state, plan["t"], *rest) for number, state, plan, *rest in found]
        if hidden:
            steps = [_without_sizes(step) for step in steps]
        return tuple(steps)


def _without_sizes(step: Step) -> Step:
    return replace(step, enrolled=None, participants=None, failure=step.failure and UNTOLD)


def _closed_last(
    session: Session, studies: Collection[str]
) -> dict[str, Row[str, int, str, datetime | None]]:
    """Return the number, state and time of the round of each study that closed last, if any."""
    latest = (
        select(Round.study, func.max(Round.number).label("number"))
        .where(Round.study.in_(studies), Round.state != "running")
        .group_by(Round.study)
        .subquery()
    )
    query = select(Round.study, Round.number, Round.state, Round.closed).join(
        latest, (Round.study == latest.c.study) & (Round.number == latest.c.number)
    )
    return {row.study: row for row in session.execute(query)}
