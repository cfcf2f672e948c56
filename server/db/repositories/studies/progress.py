"""Repository of progress: figures of studies and rounds for the dashboard."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import Row, func, select
from sqlalchemy.orm import Session

from protocol.api.messages import RoundState
from protocol.api.phases import Phase
from protocol.mechanisms.registry import parse_question
from server.db.database import Repository, read_transaction
from server.db.repositories.studies.studies import find_study
from server.db.schema import PENDING_PHASES, CohortRow, HeavyHitterRow, RoundRow, StudyRow
from server.db.serializers import HIDDEN_REASON, hides_sizes

_SUMMED_AND_DECODED = (
    func.count().filter(RoundRow.state.in_(["decoded", "undecoded"])),
    func.count().filter(RoundRow.state == "decoded"),
)


@dataclass(frozen=True, slots=True)
class StudyProgress:
    """Progress of a study.

    `summed_rounds` are those with a sum, `decoded_rounds` those of them whose sum was read.
    `devices` counts the devices in the sums of closed rounds, or in the largest of these sums if
    every device takes part in every round. `enrolling` are those in running rounds. A study that
    hides these numbers has None and 0. `last_state` is the state of the last closed
    round, which closed at `closed`. `heavy_hitters` is their present number.
    """

    closed_rounds: int = 0
    summed_rounds: int = 0
    decoded_rounds: int = 0
    devices: int | None = 0
    enrolling: int = 0
    heavy_hitters: int = 0
    last_state: RoundState | None = None
    closed: datetime | None = None


@dataclass(frozen=True, slots=True)
class RoundSummary:
    """Figures of a round; `excluded` counts the cohorts that are not in its answer.

    `failure` is the reason of one failed cohort. `enrolled` and `participants` are None for a study
    that hides these numbers.
    """

    number: int
    state: RoundState
    sampling_threshold: float
    enrolled: int | None
    participants: int | None
    distinct: float | None
    cohorts: int
    failed_cohorts: int
    failure: str | None
    excluded: int
    opened: datetime
    closed: datetime | None

    @property
    def counted_cohorts(self) -> int:
        """Return the number of cohorts in the sum of a round that is over."""
        return self.cohorts - self.failed_cohorts - self.excluded


class ProgressRepository(Repository):
    """Repository of progress."""

    @read_transaction
    def of_studies(self, session: Session, studies: Collection[str]) -> dict[str, StudyProgress]:
        """Return the progress of each of `studies`."""
        is_closed = RoundRow.state != "running"
        counts = (
            select(
                RoundRow.study,
                func.count().filter(is_closed),
                *_SUMMED_AND_DECODED,
                func.coalesce(func.sum(RoundRow.participants), 0),
                func.coalesce(func.max(RoundRow.participants), 0),
            )
            .where(RoundRow.study.in_(studies))
            .group_by(RoundRow.study)
        )
        enrolled = (
            select(CohortRow.study, func.sum(CohortRow.enrolled))
            .where(CohortRow.study.in_(studies), CohortRow.phase.in_(PENDING_PHASES))
            .group_by(CohortRow.study)
        )
        heavy = (
            select(HeavyHitterRow.study, func.count())
            .where(HeavyHitterRow.study.in_(studies))
            .group_by(HeavyHitterRow.study)
        )
        lasts = _last_closed_rounds(session, studies)
        enrolling = dict(session.execute(enrolled).all())
        heavy_hitters = dict(session.execute(heavy).all())
        rows = session.scalars(select(StudyRow).where(StudyRow.id.in_(studies)))
        questions = {row.id: parse_question(row.question) for row in rows}
        progress = {}
        for study, rounds, summed, decoded, devices, largest in session.execute(counts):
            row, question = lasts.get(study), questions[study]
            counted = largest if question.asks_every_round else devices
            is_hidden = question.hides_device_counts
            progress[study] = StudyProgress(
                closed_rounds=rounds,
                summed_rounds=summed,
                decoded_rounds=decoded,
                devices=None if is_hidden else int(counted or 0),
                enrolling=0 if is_hidden else int(enrolling.get(study) or 0),
                heavy_hitters=heavy_hitters.get(study, 0),
                last_state=row and row.state,
                closed=row and row.closed,
            )
        return {study: progress.get(study, StudyProgress()) for study in studies}

    @read_transaction
    def summed_and_decoded_rounds(self, session: Session, study: str) -> tuple[int, int]:
        """Return the number of rounds of `study` with a sum, and of those whose sum was read."""
        query = select(*_SUMMED_AND_DECODED).where(RoundRow.study == study)
        summed, decoded = session.execute(query).one()
        return summed, decoded

    @read_transaction
    def round_summaries(self, session: Session, study: str, limit: int) -> tuple[RoundSummary, ...]:
        """Return the last `limit` rounds of `study`, the first of them first."""
        is_hidden = hides_sizes(find_study(session, study))
        cohorts = (
            select(
                CohortRow.round,
                func.count().label("cohorts"),
                func.sum(CohortRow.enrolled).label("enrolled"),
                func.count().filter(CohortRow.phase == Phase.FAILED).label("failed"),
                func.min(CohortRow.failure)
                .filter(CohortRow.phase == Phase.FAILED)
                .label("failure"),
                func.count(CohortRow.failure)
                .filter(CohortRow.phase == Phase.SUMMED)
                .label("excluded"),
            )
            .where(CohortRow.study == study)
            .group_by(CohortRow.round)
            .subquery()
        )
        query = (
            select(
                RoundRow.number,
                RoundRow.state,
                # Whole: PostgreSQL cannot extract a part if a string in it contains NUL.
                RoundRow.plan,
                func.coalesce(cohorts.c.enrolled, 0),
                RoundRow.participants,
                RoundRow.distinct,
                func.coalesce(cohorts.c.cohorts, 0),
                func.coalesce(cohorts.c.failed, 0),
                cohorts.c.failure,
                func.coalesce(cohorts.c.excluded, 0),
                RoundRow.opened,
                RoundRow.closed,
            )
            .outerjoin(cohorts, cohorts.c.round == RoundRow.number)
            .where(RoundRow.study == study)
            .order_by(RoundRow.number.desc())
            .limit(limit)
        )
        rows = reversed(session.execute(query).all())
        rounds = [
            RoundSummary(number, state, plan["t"], *rest) for number, state, plan, *rest in rows
        ]
        return tuple(map(_without_sizes, rounds) if is_hidden else rounds)


def _without_sizes(summary: RoundSummary) -> RoundSummary:
    failure = summary.failure and HIDDEN_REASON
    return replace(summary, enrolled=None, participants=None, failure=failure)


def _last_closed_rounds(
    session: Session, studies: Collection[str]
) -> dict[str, Row[str, int, str, datetime | None]]:
    latest = (
        select(RoundRow.study, func.max(RoundRow.number).label("number"))
        .where(RoundRow.study.in_(studies), RoundRow.state != "running")
        .group_by(RoundRow.study)
        .subquery()
    )
    query = select(RoundRow.study, RoundRow.number, RoundRow.state, RoundRow.closed).join(
        latest, (RoundRow.study == latest.c.study) & (RoundRow.number == latest.c.number)
    )
    return {row.study: row for row in session.execute(query)}
