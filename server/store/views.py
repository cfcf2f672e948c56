"""Rows as the service shows them."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from protocol.mechanism import Terms
from protocol.mechanisms import parse_plan
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


def has_enrolled(row: Cohort) -> bool:
    """Return whether the roster of a cohort is settled."""
    return any(record["phase"] == Phase.SHARING for record in row.history)


def study_view(row: Study) -> StudyView:
    """Return `row` as the service shows it."""
    names = StudyView.model_fields
    return StudyView.model_validate({name: getattr(row, name) for name in names})


def round_view(row: Round, cohorts: Sequence[CohortView]) -> RoundView:
    """Return `row` and its cohorts as the service shows them."""
    return RoundView.model_validate(
        {
            "number": row.number,
            "state": row.state,
            "plan": parse_plan(row.plan),
            "cohorts": tuple(cohorts),
            "participants": row.participants,
            "distinct": row.distinct,
            "opened": row.opened,
            "closed": row.closed,
        }
    )


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
