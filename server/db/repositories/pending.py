"""Snapshot of the pending cohorts at one time of the database's clock.

One transaction reads the clock and then the rows. So it sees every message up to that time, and a
slow snapshot decides by a time that is too early rather than too late.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from protocol.api.messages import Timeouts
from protocol.api.phases import MESSAGE_KIND, Phase, PhaseStatus
from protocol.study import Terms
from secagg.parameters import Assumptions
from secagg.seating import cohort_sizes
from server.db.repositories.transitions import expected_messages
from server.db.schema import PENDING_PHASES, CohortRow, MessageRow, StudyRow


@dataclass(frozen=True, slots=True)
class PendingCohort:
    """Pending cohort, with the facts on which its next phase change depends."""

    id: int
    study: str
    round: int
    number: int
    phase_status: PhaseStatus
    enrolled: int
    assumptions: Assumptions
    timeouts: Timeouts
    cohorts: int = 1  # into which a registrar divides the joiners

    @property
    def sum_sizes(self) -> tuple[int, ...]:
        """Return the numbers of participants that its sums would have with the present joiners."""
        return tuple(dict.fromkeys(cohort_sizes(self.enrolled, self.cohorts)))


@dataclass(frozen=True, slots=True)
class PendingSnapshot:
    """All pending cohorts at the time `now`.

    A living process has received without interruption since `receiving_since`, which is None if no
    process is alive. `claimed` has the names of the claimed jobs, and when each lease expires.
    """

    now: datetime
    cohorts: tuple[PendingCohort, ...]
    receiving_since: datetime | None
    claimed: Mapping[str, datetime]


def read_pending(session: Session) -> tuple[PendingCohort, ...]:
    """Return all pending cohorts."""
    kind = case({phase.value: kind for phase, kind in MESSAGE_KIND.items()}, value=CohortRow.phase)
    of_phase = (MessageRow.cohort == CohortRow.id, MessageRow.kind == kind)
    count = select(func.count()).where(*of_phase).scalar_subquery()
    last = select(func.max(MessageRow.received_at)).where(*of_phase).scalar_subquery()
    query = (
        select(CohortRow, StudyRow.terms, StudyRow.timeouts, count, last)
        .join(StudyRow, StudyRow.id == CohortRow.study)
        .where(CohortRow.phase.in_(PENDING_PHASES))  # unlike "not in", this uses the index
    )
    return tuple(_pending_cohort(*row) for row in session.execute(query))


def _pending_cohort(
    row: CohortRow,
    terms: dict[str, object],
    timeouts: dict[str, object],
    messages: int,
    last: datetime | None,
) -> PendingCohort:
    """Return the cohort with its phase status (`protocol/api/phases.py`)."""
    rules, limits = Terms.model_validate(terms), Timeouts.model_validate(timeouts)
    received, expected, quorum = messages, row.enrolled, rules.assumptions.quorum(row.enrolled)
    patience = limits.idle
    if row.phase is Phase.ENROLLING:
        received, expected, quorum = row.enrolled, rules.cohort_size, rules.minimum
        if rules.is_seated:
            expected, quorum = rules.max_devices, rules.cohorts * rules.minimum
        patience = limits.enrolling  # silence does not end it, because a larger cohort hides better
    elif row.phase is Phase.SEATING:
        expected = quorum = 1  # the registrar's answer, which moves the cohort itself
    elif row.phase is Phase.REPORTING:
        received, expected, quorum = row.enrolled, rules.max_devices, rules.minimum
        patience = limits.reporting  # devices report when they can
    else:
        expected = expected_messages(row)
    if row.phase is Phase.ANSWERING:  # the others continue without an answer
        quorum = max(quorum - (row.history[-2]["received"] - expected), 0)
    return PendingCohort(
        id=row.id,
        study=row.study,
        round=row.round,
        number=row.number,
        phase_status=PhaseStatus(
            phase=row.phase,
            mode=rules.mode,
            expected=expected,
            quorum=quorum,
            received=received,
            last_received=last or datetime.fromisoformat(row.history[-1]["entered"]),
            deadline=row.deadline,
            idle=timedelta(seconds=patience),
            is_seated=rules.is_seated,
        ),
        enrolled=row.enrolled,
        assumptions=rules.assumptions,
        timeouts=limits,
        cohorts=rules.cohorts if rules.is_seated else 1,
    )
