"""What waits, at one moment of the database's clock: all that a look at the cohorts needs.

One transaction reads the clock first and then the rows, so whatever was said by then is seen,
and a look that took long decides by a time that is early rather than late.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from protocol.mechanism import Terms
from protocol.messages import Timeouts
from protocol.round import Phase, Waiting
from secagg.parameters import Assumptions
from server.schema import Cohort, Message, Study
from server.store.views import KIND

_WAITING = tuple(phase for phase in Phase if not phase.is_over)


@dataclass(frozen=True, slots=True)
class Due:
    """A cohort that waits, with all that its next move depends on."""

    id: int
    study: str
    round: int
    number: int
    waiting: Waiting
    enrolled: int
    assumptions: Assumptions
    timeouts: Timeouts


@dataclass(frozen=True, slots=True)
class Look:
    """Every cohort that waits, `now`.

    `heard_since` is since when another process hears without a break, None if no other is
    there; `taken` is the work that somebody has claimed, and until when.
    """

    now: datetime
    due: tuple[Due, ...]
    heard_since: datetime | None
    taken: Mapping[str, datetime]


def read_due(session: Session) -> tuple[Due, ...]:
    """Return every cohort that waits for somebody."""
    kind = case({phase.value: kind for phase, kind in KIND.items()}, value=Cohort.phase)
    mine = (Message.cohort == Cohort.id, Message.kind == kind)
    said = select(func.count()).where(*mine).scalar_subquery()
    last = select(func.max(Message.received)).where(*mine).scalar_subquery()
    query = (
        select(Cohort, Study.terms, Study.timeouts, said, last)
        .join(Study, Study.id == Cohort.study)
        .where(Cohort.phase.in_(_WAITING))  # not "not over": an index finds what is there
    )
    return tuple(_due(*row) for row in session.execute(query))


def _due(
    row: Cohort,
    terms: dict[str, object],
    timeouts: dict[str, object],
    said: int,
    last: datetime | None,
) -> Due:
    """Return the cohort with its waiting rule: see `protocol/round.py`."""
    rules, limits = Terms.model_validate(terms), Timeouts.model_validate(timeouts)
    heard, expected, quorum = said, row.enrolled, rules.assumptions.quorum(row.enrolled)
    patience = limits.patience
    if row.phase is Phase.ENROLLING:
        heard, expected, quorum = row.enrolled, rules.cohort_size, rules.minimum
        patience = limits.enrolling  # a larger cohort hides better: silence ends nothing
    elif row.phase is Phase.REPORTING:
        heard, expected, quorum = row.enrolled, rules.devices, rules.minimum
        patience = limits.reporting  # devices come when they can
    elif row.phase is not Phase.SHARING:
        expected = row.history[-2]["heard"]  # those who were heard in the phase before
    return Due(
        id=row.id,
        study=row.study,
        round=row.round,
        number=row.number,
        waiting=Waiting(
            phase=row.phase,
            mode=rules.mode,
            expected=expected,
            quorum=quorum,
            heard=heard,
            last=last or datetime.fromisoformat(row.history[-1]["entered"]),
            deadline=row.deadline,
            patience=timedelta(seconds=patience),
        ),
        enrolled=row.enrolled,
        assumptions=rules.assumptions,
        timeouts=limits,
    )
