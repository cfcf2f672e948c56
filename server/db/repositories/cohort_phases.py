"""Phases of cohorts: the first, when a round opens, and their changes.

Rounds and phases change inside the transaction that decides on it.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, delete, insert, update
from sqlalchemy.orm import Session

from protocol.api.events import EventKind, FailureCause
from protocol.api.messages import StudyView
from protocol.api.phases import (
    PAIRWISE_SUM,
    PROTOCOLS,
    REPORTS,
    MemberMessageKind,
    Phase,
    sum_protocol,
)
from protocol.committee_terms import CommitteeTerms
from protocol.mechanisms.registry import SUM_MECHANISMS
from protocol.question_and_plan import Plan
from secagg.oneshot.committee import Committee, packed_identities
from server.db.channels import (
    COMMITTEES_CHANNEL,
    cohort_channel,
    cohorts_channel,
    notify_on_commit,
    study_channel,
)
from server.db.repositories.events import record_event
from server.db.schema import CohortRow, CommitteeMemberRow, MemberMessageRow, RoundRow

# Phases in which `CohortRow.enrolled` counts the messages: each is that of another device.
COUNTED_AS_ENROLLED = (Phase.COLLECTING, Phase.ENROLLING, Phase.REPORTING)


def insert_round(session: Session, study: StudyView, plan: Plan, now: datetime) -> None:
    """Insert the round of `plan`, with cohorts that enroll from `now`.

    A round of reports has one cohort, which receives all of them. A round that a registrar seats
    has one cohort until it does, which enrols the joiners of all. In a one-shot round the members
    of its committee register their keys first.
    """
    is_sum = plan.mechanism in SUM_MECHANISMS
    protocol = sum_protocol(plan.terms) if is_sum else REPORTS
    phase = protocol.phases[0]
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
        "protocol": protocol.name,
        "phase": phase,
        "deadline": now + timedelta(seconds=getattr(study.timeouts, phase.value)),
        "enrolled": 0,
        "received": 0,
        "last_received": now,
        "poisoned": False,
        "history": [_phase_record(phase, now)],
        "accused": [],
    }
    count = study.terms.cohorts if protocol is PAIRWISE_SUM else 1
    query = insert(CohortRow).returning(CohortRow.id)
    rows = [cohort | {"number": number} for number in range(count)]
    cohorts = session.scalars(query, rows).all()
    if isinstance(plan.terms.committee, CommitteeTerms):
        set_members(session, cohorts[0], plan.terms.committee.members)
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
    if PROTOCOLS[row.protocol].kind == "one-shot":
        notify_on_commit(session, COMMITTEES_CHANNEL)
        if phase.is_over:
            _delete_member_sums(session, row.id)
            set_members(session, row.id, ())
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


def set_members(session: Session, cohort: int, identities: Iterable[str]) -> None:
    """Store for whose messages a one-shot sum waits, by identities in hexadecimal."""
    of_cohort = CommitteeMemberRow.cohort == cohort
    session.execute(
        delete(CommitteeMemberRow).where(of_cohort).execution_options(synchronize_session=False)
    )
    if rows := [{"cohort": cohort, "identity": identity} for identity in identities]:
        session.execute(insert(CommitteeMemberRow), rows)


def fix_committee(session: Session, row: CohortRow, committee: Committee) -> None:
    """Store the committee of a locked one-shot cohort."""
    row.committee = committee.pack()
    set_members(session, row.id, (entry.identity.hex() for entry in committee.entries))


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
    if row.phase is Phase.CHECKING and row.committee is not None:
        return len(packed_identities(row.committee))
    if row.phase is Phase.ANSWERING:
        return len(row.accused)
    history: list[dict[str, Any]] = row.history
    *_, before, previous, _ = [None, *history]
    if before is None or previous["phase"] != Phase.ANSWERING:
        return int(previous["received"])
    return int(before["received"]) - len(row.accused) + int(previous["received"])


def count_received(row: CohortRow | Row[Any]) -> int:
    """Return the number of messages, or of joiners, in the present phase of a cohort."""
    if row.phase in COUNTED_AS_ENROLLED:
        return row.enrolled
    if row.phase is Phase.SEATING:
        return int(row.seating is not None)
    return row.received
