"""Rows as the service shows them.

Where devices join by coins that must stay secret, how many of them did is shown to nobody, nor
what would tell it: who sits where, who was heard, how many hold a share.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

from protocol.events import Event
from protocol.mechanism import Terms
from protocol.mechanisms import parse_plan, parse_question
from protocol.messages import (
    CohortView,
    PhaseRecord,
    RoundView,
    StudyView,
)
from protocol.round import Phase
from secagg.parameters import parameters
from server.schema import Cohort, Round, Study

KIND = {  # what a cohort hears in each phase; in enrolling, the participants themselves
    Phase.SHARING: "shares",
    Phase.MASKING: "vector",
    Phase.CONFIRMING: "confirmation",
    Phase.UNMASKING: "reveal",
}
UNTOLD = "why is not told, as it would tell how many devices joined"


def has_enrolled(row: Cohort) -> bool:
    """Return whether the roster of a cohort is settled."""
    return any(record["phase"] == Phase.SHARING for record in row.history)


def study_view(row: Study) -> StudyView:
    """Return `row` as the service shows it."""
    names = StudyView.model_fields
    return StudyView.model_validate({name: getattr(row, name) for name in names})


def round_view(row: Round, cohorts: Sequence[CohortView]) -> RoundView:
    """Return `row` and its cohorts as the service shows them."""
    plan = parse_plan(row.plan)
    hidden = plan.question.hides_sizes
    return RoundView.model_validate(
        {
            "number": row.number,
            "state": row.state,
            "plan": plan,
            "cohorts": tuple(_without_sizes(one) if hidden else one for one in cohorts),
            "participants": None if hidden else row.participants,
            "distinct": row.distinct,
            "opened": row.opened,
            "closed": row.closed,
        }
    )


def _without_sizes(view: CohortView) -> CohortView:
    records = tuple(record.model_copy(update={"heard": 0}) for record in view.history)
    untold = {"enrolled": 0, "holders": 0, "threshold": 0, "survivors": (), "blamed": {}}
    failure = view.failure and UNTOLD
    return view.model_copy(update=untold | {"history": records, "failure": failure})


def event_without_sizes(event: Event) -> Event:
    """Return `event` without what tells how many devices joined."""
    untold = {"heard": None, "expected": None, "participants": None, "cause": None}
    return event.model_copy(update=untold | {"reason": event.reason and UNTOLD})


def hides_sizes(row: Study) -> bool:
    """Return whether nobody may learn how many devices join a study's rounds."""
    return "invited" in row.question and parse_question(row.question).hides_sizes


def cohort_view(
    row: Cohort,
    terms: Terms,
    heard: int,
    survivors: Sequence[int],
    blamed: Mapping[int, str],
) -> CohortView:
    """Return `row`, with so many `heard` in its present phase, as the service shows it."""
    settled = parameters(row.enrolled, terms.assumptions) if has_enrolled(row) else None
    records = [
        PhaseRecord(
            phase=Phase(record["phase"]),
            entered=datetime.fromisoformat(record["entered"]),
            heard=record["heard"],
        )
        for record in row.history
    ]
    if not row.phase.is_over:
        records[-1] = records[-1].model_copy(update={"heard": heard})
    return CohortView(
        number=row.number,
        phase=row.phase,
        deadline=row.deadline,
        enrolled=row.enrolled,
        holders=settled.holders if settled else 0,
        threshold=settled.threshold if settled else 0,
        history=tuple(records),
        survivors=tuple(survivors),
        failure=row.failure,
        blamed=blamed,
    )
