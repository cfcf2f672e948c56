"""Opening a round, inside whichever transaction decides to: a start, or the last one's end."""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import insert
from sqlalchemy.orm import Session

from protocol.events import EventKind
from protocol.mechanism import Plan
from protocol.mechanisms import SUMMING
from protocol.messages import StudyView
from protocol.round import Phase
from server.schema import Cohort, Round
from server.store.events import tell


def entry(phase: Phase, entered: datetime) -> dict[str, Any]:
    """Return the record of a phase that begins, as a cohort's history keeps it."""
    return {"phase": phase.value, "entered": entered.isoformat(), "heard": 0}


def insert_round(session: Session, study: StudyView, plan: Plan, now: datetime) -> None:
    """Insert the round that `plan` asks for, its cohorts enrolling from `now` on.

    If devices send reports it has one cohort, which takes them from all.
    """
    is_sum = plan.mechanism in SUMMING
    phase = Phase.ENROLLING if is_sum else Phase.REPORTING
    session.add(
        Round(
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
        "history": [entry(phase, now)],
    }
    count = study.terms.cohorts if is_sum else 1
    cohorts = [cohort | {"number": number} for number in range(count)]
    session.execute(insert(Cohort), cohorts)
    facts = {"round": plan.round, "threshold": plan.t}
    tell(session, study.id, EventKind.ROUND_OPENED, now, **facts)
