"""Views of rows, as the API and the pages show them.

If devices join at random and their number must stay secret, the views show neither that number nor
facts that would reveal it: slots, message counts, the number of holders.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Row

from protocol.api.events import Event
from protocol.api.messages import CohortView, RoundView, StudyView
from protocol.api.phases import Phase
from protocol.mechanisms.registry import AnyPlan, parse_question
from protocol.public_model import PublicModel
from protocol.question_and_plan import Terms
from secagg.parameters import choose_parameters
from server.db.columns import Base
from server.db.schema import CohortRow, RoundRow, StudyRow

HIDDEN_REASON = "the reason is hidden, because it would reveal how many devices joined"


def has_enrolled(row: CohortRow | Row[Any]) -> bool:
    """Return whether the roster of a cohort is final."""
    return any(record["phase"] == Phase.SHARING for record in row.history)


def study_view(row: StudyRow) -> StudyView:
    return StudyView.model_validate(_columns(StudyView, row))


def round_view(row: RoundRow, plan: AnyPlan, cohorts: Sequence[CohortView]) -> RoundView:
    facts = {"plan": plan, "cohorts": tuple(cohorts)}
    view = RoundView.model_validate(_columns(RoundView, row) | facts)
    if not view.plan.question.hides_device_counts:
        return view
    hidden = {"cohorts": tuple(map(_without_sizes, cohorts)), "participants": None}
    return view.model_copy(update=hidden)


def _columns(model: type[PublicModel], row: Base) -> dict[str, Any]:
    return {name: getattr(row, name) for name in model.model_fields if hasattr(row, name)}


def _without_sizes(view: CohortView) -> CohortView:
    records = tuple(record.model_copy(update={"received": 0}) for record in view.history)
    hidden = {"enrolled": 0, "holders": 0, "threshold": 0, "survivors": (), "blamed": {}}
    failure = view.failure and HIDDEN_REASON
    return view.model_copy(update=hidden | {"history": records, "failure": failure})


def event_without_sizes(event: Event) -> Event:
    """Return `event` without the facts that reveal how many devices joined."""
    hidden = {"received": None, "expected": None, "participants": None, "cause": None}
    return event.model_copy(update=hidden | {"reason": event.reason and HIDDEN_REASON})


def hides_sizes(row: StudyRow) -> bool:
    return parse_question(row.question).hides_device_counts


def cohort_view(
    row: CohortRow, terms: Terms, received: int, survivors: Sequence[int], blamed: Mapping[int, str]
) -> CohortView:
    """Return the view of a cohort that has `received` this many messages in its present phase."""
    parameters = choose_parameters(row.enrolled, terms.assumptions) if has_enrolled(row) else None
    history = row.history
    if not row.phase.is_over:
        history = [*history[:-1], history[-1] | {"received": received}]
    facts = {
        "holders": parameters.holders if parameters else 0,
        "threshold": parameters.threshold if parameters else 0,
        "history": history,
        "survivors": survivors,
        "blamed": blamed,
        "committee": row.committee and row.committee.hex(),
    }
    return CohortView.model_validate(_columns(CohortView, row) | facts)
