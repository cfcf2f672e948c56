"""Pending cohorts, with the facts on which their next phase change depends.

The snapshot is one transaction, which reads the clock and then the rows. So it sees every message
up to that time, and a slow snapshot decides by a time that is too early rather than too late.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias, cast

from sqlalchemy import Row, Table, bindparam, or_, select
from sqlalchemy.orm import Session

from protocol.api.messages import Timeouts
from protocol.api.phases import PROTOCOLS, SEATED_SUM, Phase, PhaseStatus
from protocol.committee_terms import VolunteerTerms
from protocol.question_and_plan import Terms
from secagg.parameters import Assumptions
from secagg.seating import cohort_sizes
from server.db.repositories.cohort_phases import (
    COUNTED_AS_ENROLLED,
    count_received,
    expected_messages,
)
from server.db.schema import PENDING_PHASES, CohortRow, StudyRow

_COHORTS = cast("Table", CohortRow.__table__)
_STUDIES = cast("Table", StudyRow.__table__)
# Columns of tables, because to load rows takes longer than the query.
_PENDING = (
    select(*(column for column in _COHORTS.c if column.key != "sum"))
    .add_columns(_STUDIES.c.terms, _STUDIES.c.timeouts)
    .join(_STUDIES, _STUDIES.c.id == _COHORTS.c.study)
    .where(_COHORTS.c.phase.in_(PENDING_PHASES))  # unlike "not in", this uses the index
)
_CHOSEN_COHORT = _COHORTS.c.id.in_(bindparam("cohorts"))
_CHOSEN_STUDY = _COHORTS.c.study.in_(bindparam("studies"))
# By whether cohorts and studies are chosen: an empty choice in the condition prevents an index.
_PENDING_OF_CHOICE = {
    (True, False): _PENDING.where(_CHOSEN_COHORT),
    (False, True): _PENDING.where(_CHOSEN_STUDY),
    (True, True): _PENDING.where(or_(_CHOSEN_COHORT, _CHOSEN_STUDY)),
}


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
    if selection is None:
        return tuple(map(_pending_cohort, session.connection().execute(_PENDING)))
    chosen = {"cohorts": selection.cohorts, "studies": selection.studies}
    parameters = {name: [*values] for name, values in chosen.items() if values}
    if not parameters:
        return ()
    query = _PENDING_OF_CHOICE["cohorts" in parameters, "studies" in parameters]
    return tuple(map(_pending_cohort, session.connection().execute(query, parameters)))


def _pending_cohort(row: Row[Any]) -> PendingCohort:
    """Return the cohort with its phase status (`protocol/api/phases.py`)."""
    rules, limits = Terms.model_validate(row.terms), Timeouts.model_validate(row.timeouts)
    protocol = PROTOCOLS[row.protocol]
    expected, quorum = (_COUNTS.get(row.phase) or _COUNTS_OF_KIND[protocol.kind])(row, rules)
    patience = limits.idle
    if row.phase in COUNTED_AS_ENROLLED:
        # Devices come when they can, and a larger cohort hides better, so silence does not end it.
        patience = getattr(limits, row.phase.value)
    return PendingCohort(
        id=row.id,
        study=row.study,
        round=row.round,
        number=row.number,
        phase_status=PhaseStatus(
            phase=row.phase,
            expected=expected,
            quorum=quorum,
            received=count_received(row),
            last_received=row.last_received,
            deadline=row.deadline,
            idle=timedelta(seconds=patience),
            protocol=protocol,
        ),
        enrolled=row.enrolled,
        assumptions=rules.assumptions,
        timeouts=limits,
        cohorts=rules.cohorts if protocol is SEATED_SUM else 1,
    )


# Each returns the number of messages that ends the phase, and the number that the sum needs.


def _count_joiners(row: Row[Any], rules: Terms) -> tuple[int, int]:
    if row.protocol == SEATED_SUM.name:
        return rules.max_devices, rules.cohorts * rules.minimum
    return rules.cohort_size, rules.minimum


def _count_keys(_row: Row[Any], rules: Terms) -> tuple[int, int]:
    assert rules.committee is not None
    if isinstance(rules.committee, VolunteerTerms):
        return rules.committee.volunteers, rules.committee.volunteers
    return rules.committee.parameters.members, rules.committee.parameters.needed_sums


def _count_members(row: Row[Any], rules: Terms) -> tuple[int, int]:
    assert rules.committee is not None
    return expected_messages(row), rules.committee.parameters.needed_sums


def _count_participants(row: Row[Any], rules: Terms) -> tuple[int, int]:
    expected, quorum = expected_messages(row), rules.assumptions.quorum(row.enrolled)
    if row.phase is Phase.ANSWERING:  # the others continue without an answer
        quorum = max(quorum - (row.history[-2]["received"] - expected), 0)
    return expected, quorum


_Count: TypeAlias = Callable[[Row[Any], Terms], tuple[int, int]]
_COUNTS: Mapping[Phase, _Count] = {
    Phase.ENROLLING: _count_joiners,
    Phase.SEATING: lambda _row, _rules: (1, 1),  # the registrar's seats
    Phase.CONVENING: _count_keys,
    Phase.DRAWING: lambda _row, _rules: (1, 1),  # the committee that the registrar draws
    Phase.COLLECTING: lambda _row, rules: (rules.cohort_size, rules.minimum),
    Phase.REPORTING: lambda _row, rules: (rules.max_devices, rules.minimum),
}
_COUNTS_OF_KIND: Mapping[str, _Count] = {
    "pairwise": _count_participants,
    "one-shot": _count_members,
}
