"""Phases of cohorts: openings of rounds, phase changes, and a snapshot of the pending cohorts.

Rounds and phases change inside the transaction that decides on it. The snapshot is one transaction,
which reads the clock and then the rows. So it sees every message up to that time, and a slow
snapshot decides by a time that is too early rather than too late.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, insert, or_, select
from sqlalchemy.orm import Session

from protocol.api.events import EventKind, FailureCause
from protocol.api.messages import StudyView, Timeouts
from protocol.api.phases import Phase, PhaseStatus
from protocol.mechanisms.registry import SUM_MECHANISMS
from protocol.question_and_plan import Plan, Terms
from secagg.parameters import Assumptions
from secagg.seating import cohort_sizes
from server.db.channels import cohort_channel, notify_on_commit, study_channel
from server.db.repositories.events import record_event
from server.db.schema import PENDING_PHASES, CohortRow, RoundRow, StudyRow


def insert_round(session: Session, study: StudyView, plan: Plan, now: datetime) -> None:
    """Insert the round of `plan`, with cohorts that enroll from `now`.

    A round of reports has one cohort, which receives all of them. A round that a registrar seats
    has one cohort until it does, which enrols the joiners of all.
    """
    is_sum = plan.mechanism in SUM_MECHANISMS
    phase = Phase.ENROLLING if is_sum else Phase.REPORTING
    session.add(
        RoundRow(
            study=study.id,
            number=plan.round,
            state="running",
            plan=plan.model_dump(mode="json"),
            opened=now,
        )
    )
    session.flush()
    cohort = {
        "study": study.id,
        "round": plan.round,
        "phase": phase,
        "deadline": now + timedelta(seconds=getattr(study.timeouts, phase.value)),
        "enrolled": 0,
        "received": 0,
        "last_received": now,
        "poisoned": False,
        "history": [_phase_record(phase, now)],
        "accused": [],
    }
    count = study.terms.cohorts if is_sum and not study.terms.is_seated else 1
    session.execute(insert(CohortRow), [cohort | {"number": number} for number in range(count)])
    facts = {"round": plan.round, "sampling_threshold": plan.t}
    record_event(session, study.id, EventKind.ROUND_OPENED, now, **facts)


def _phase_record(phase: Phase, entered: datetime) -> dict[str, Any]:
    return {"phase": phase.value, "entered": entered.isoformat(), "received": 0}


def enter_phase(
    session: Session,
    row: CohortRow,
    phase: Phase,
    received: int,
    now: datetime,
    duration: timedelta | None = None,
    *,
    cause: FailureCause | None = None,
) -> None:
    """Move a locked cohort, which has `received` this many messages, to `phase`; record it.

    The deadline is `duration` after `now`; without a duration it stays.
    """
    previous, closed = row.phase, row.history[-1] | {"received": received}
    seconds = (now - datetime.fromisoformat(closed["entered"])).total_seconds()
    expected = expected_messages(row) if len(row.history) > 1 else None
    row.history = [*row.history[:-1], closed, _phase_record(phase, now)]
    row.phase, row.received, row.last_received = phase, 0, now
    if duration is not None:
        row.deadline = now + duration
    notify_on_commit(session, cohort_channel(row.id), study_channel(row.study))
    record_event(
        session,
        row.study,
        EventKind.COHORT_FAILED if phase is Phase.FAILED else EventKind.COHORT_PHASE_CHANGED,
        now,
        round=row.round,
        cohort=row.number,
        previous_phase=previous,
        phase=phase,
        received=received,
        expected=expected,
        seconds=max(seconds, 0.0),
        cause=cause,
        reason=row.failure,
    )


def expected_messages(row: CohortRow) -> int:
    """Return the number of participants that the present phase of an enrolled cohort waits for.

    These are the senders of the previous phase. In answering they are the accused participants, of
    which those that answered continue with the others.
    """
    if row.phase is Phase.SHARING:
        return row.enrolled
    if row.phase is Phase.ANSWERING:
        return len(row.accused)
    *_, before, previous, _ = [None, *row.history]
    if before is None or previous["phase"] != Phase.ANSWERING:
        return int(previous["received"])
    return int(before["received"]) - len(row.accused) + int(previous["received"])


def count_received(row: CohortRow) -> int:
    """Return the number of messages, or of joiners, in the present phase of a cohort."""
    if row.phase in (Phase.ENROLLING, Phase.REPORTING):
        return row.enrolled
    if row.phase is Phase.SEATING:
        return int(row.seating is not None)
    return row.received


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
class CohortSelection:
    """Cohorts by their row ids, and all cohorts of `studies`."""

    cohorts: frozenset[int]
    studies: frozenset[str]

    @property
    def conditions(self) -> list[ColumnElement[bool]]:
        """Conditions on a row, of which a selected cohort meets one."""
        return [
            column.in_(chosen)
            for column, chosen in ((CohortRow.id, self.cohorts), (CohortRow.study, self.studies))
            if chosen
        ]


@dataclass(frozen=True, slots=True)
class PendingSnapshot:
    """The selected pending cohorts at the time `now`.

    A living process has received without interruption since `receiving_since`, which is None if no
    process is alive. `claimed` has the names of the claimed jobs, and when each lease expires.
    """

    now: datetime
    selection: CohortSelection | None
    cohorts: tuple[PendingCohort, ...]
    receiving_since: datetime | None
    claimed: Mapping[str, datetime]


def read_pending(
    session: Session, selection: CohortSelection | None = None
) -> tuple[PendingCohort, ...]:
    """Return the pending cohorts of `selection`, or all."""
    chosen = None if selection is None else selection.conditions
    if chosen == []:
        return ()
    query = (
        select(CohortRow, StudyRow.terms, StudyRow.timeouts)
        .join(StudyRow, StudyRow.id == CohortRow.study)
        .where(CohortRow.phase.in_(PENDING_PHASES))  # unlike "not in", this uses the index
    )
    if chosen is not None:
        query = query.where(or_(*chosen))
    return tuple(_pending_cohort(*row) for row in session.execute(query))


def _pending_cohort(
    row: CohortRow,
    terms: dict[str, object],
    timeouts: dict[str, object],
) -> PendingCohort:
    """Return the cohort with its phase status (`protocol/api/phases.py`)."""
    rules, limits = Terms.model_validate(terms), Timeouts.model_validate(timeouts)
    expected, quorum = row.enrolled, rules.assumptions.quorum(row.enrolled)
    patience = limits.idle
    if row.phase is Phase.ENROLLING:
        expected, quorum = rules.cohort_size, rules.minimum
        if rules.is_seated:
            expected, quorum = rules.max_devices, rules.cohorts * rules.minimum
        patience = limits.enrolling  # silence does not end it, because a larger cohort hides better
    elif row.phase is Phase.SEATING:
        expected, quorum = 1, 1  # the registrar's seats
    elif row.phase is Phase.REPORTING:
        expected, quorum = rules.max_devices, rules.minimum
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
            received=count_received(row),
            last_received=row.last_received,
            deadline=row.deadline,
            idle=timedelta(seconds=patience),
            is_seated=rules.is_seated,
        ),
        enrolled=row.enrolled,
        assumptions=rules.assumptions,
        timeouts=limits,
        cohorts=rules.cohorts if rules.is_seated else 1,
    )
