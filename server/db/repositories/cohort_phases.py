"""Phases of cohorts: the first, when a round opens, and their changes.

Rounds and phases change inside the transaction that decides on it.
"""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, insert, update
from sqlalchemy.orm import Session

from protocol.api.events import EventKind, FailureCause
from protocol.api.messages import StudyView
from protocol.api.phases import MemberMessageKind, Phase
from protocol.mechanisms.registry import SUM_MECHANISMS
from protocol.question_and_plan import Plan
from secagg.oneshot.committee import packed_identities
from server.db.channels import (
    COMMITTEES_CHANNEL,
    cohort_channel,
    cohorts_channel,
    notify_on_commit,
    study_channel,
)
from server.db.repositories.events import record_event
from server.db.schema import CohortRow, MemberMessageRow, RoundRow


def insert_round(session: Session, study: StudyView, plan: Plan, now: datetime) -> None:
    """Insert the round of `plan`, with cohorts that enroll from `now`.

    A round of reports has one cohort, which receives all of them. A round that a registrar seats
    has one cohort until it does, which enrols the joiners of all. In a one-shot round the members
    of its committee register their keys first.
    """
    is_sum = plan.mechanism in SUM_MECHANISMS
    phase = Phase.ENROLLING if is_sum else Phase.REPORTING
    if is_sum and plan.terms.is_one_shot:
        phase = Phase.CONVENING
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
    notify_on_commit(session, cohorts_channel(study.id))
    if phase is Phase.CONVENING:
        notify_on_commit(session, COMMITTEES_CHANNEL)
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
    if is_one_shot(row):
        notify_on_commit(session, COMMITTEES_CHANNEL)
        if phase.is_over:
            _delete_member_sums(session, row.id)
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


def is_one_shot(row: CohortRow | Row[Any]) -> bool:
    """Return whether a cohort has a one-shot sum."""
    return bool(row.history[0]["phase"] == Phase.CONVENING)


def _delete_member_sums(session: Session, cohort: int) -> None:
    """Delete the sums that open the total of a one-shot sum; a job deletes devices' messages."""
    of_sums = (MemberMessageRow.cohort == cohort, MemberMessageRow.kind == MemberMessageKind.SUM)
    erase = update(MemberMessageRow).where(*of_sums).values(body=None)
    session.execute(erase.execution_options(synchronize_session=False))


def expected_messages(row: CohortRow | Row[Any]) -> int:
    """Return the number of participants that the present phase of an enrolled cohort waits for.

    These are the senders of the previous phase. In answering they are the accused participants, of
    which those that answered continue with the others.
    """
    if row.phase is Phase.SHARING:
        return row.enrolled
    if row.phase is Phase.CHECKING and is_one_shot(row):
        if row.seating is None:  # of a round that version 0.2.0 opened
            return int(row.history[0]["received"])  # the members that registered keys
        return len(packed_identities(row.seating))
    if row.phase is Phase.ANSWERING:
        return len(row.accused)
    history: list[dict[str, Any]] = row.history
    *_, before, previous, _ = [None, *history]
    if before is None or previous["phase"] != Phase.ANSWERING:
        return int(previous["received"])
    return int(before["received"]) - len(row.accused) + int(previous["received"])


def count_received(row: CohortRow | Row[Any]) -> int:
    """Return the number of messages, or of joiners, in the present phase of a cohort."""
    if row.phase in (Phase.COLLECTING, Phase.ENROLLING, Phase.REPORTING):
        return row.enrolled
    if row.phase is Phase.SEATING:
        return int(row.seating is not None)
    return row.received
