"""Repository of populations, their privacy budgets and their ledgers.

A ledger is derived from the studies that have started, and not stored: so a crash spends nothing
twice. A study that has ended is charged for the rounds that it opened, and a running study for all.
A study that was deleted is charged as before its deletion.
"""

from datetime import datetime, timedelta
from typing import Final

from pydantic import TypeAdapter
from sqlalchemy import ScalarSelect, SQLColumnExpression, and_, func, or_, select
from sqlalchemy.orm import Session

from protocol.api.messages import PopulationRequest, PopulationView, ProblemType
from protocol.api.phases import Phase
from protocol.mechanisms.registry import parse_question
from protocol.privacy.events import DpEvent, LedgerEntry
from protocol.privacy.ledger import BudgetError, Ledger
from server.db.clock import confirmed_time
from server.db.database import Repository, read_transaction, write_transaction
from server.db.schema import CohortRow, DeletedStudyRow, PopulationRow, RoundRow, StudyRow
from server.errors import ProblemError, not_found

EXACT_SUM_PERIOD: Final = timedelta(days=30)  # as in a device's default policy
_ROUND_OF_COHORT: Final = and_(
    RoundRow.study == CohortRow.study, RoundRow.number == CohortRow.round
)
_DP_EVENT: TypeAdapter[DpEvent] = TypeAdapter(DpEvent)


class PopulationRepository(Repository):
    """Repository of populations."""

    @write_transaction
    def create(
        self, session: Session, name: str, request: PopulationRequest
    ) -> tuple[PopulationView, bool]:
        """Store a population; return it, and whether it is new.

        Raises:
            ProblemError: if it exists with another budget, because budgets do not change.
        """
        row = find_population(session, name, lock=True)
        is_new = row is None
        if row is None:
            budget = request.model_dump(mode="json")["budget"]
            row = PopulationRow(name=name, budget=budget, created=self.database.now(session))
            session.add(row)
            session.flush()
        view = _view(row)
        if view.budget != request.budget:
            raise ProblemError(
                ProblemType.CONFLICT, "this population has another budget, which cannot change"
            )
        return view, is_new

    @read_transaction
    def page(self, session: Session, limit: int, after: str = "") -> tuple[PopulationView, ...]:
        """Return up to `limit` populations in the order of their names, after the name `after`."""
        query = select(PopulationRow).where(PopulationRow.name > after).order_by(PopulationRow.name)
        return tuple(_view(row) for row in session.scalars(query.limit(limit)))

    @read_transaction
    def ledger(self, session: Session, name: str) -> Ledger:
        return ledger_of(session, name)

    @read_transaction
    def ledger_entry(self, session: Session, study: str) -> LedgerEntry:
        """Return the ledger entry of a study; raises ProblemError if it is unknown."""
        row = session.get(StudyRow, study)
        if row is None:
            raise not_found("study")
        return LedgerEntry(name=row.id, event=charged_event(row))


def find_population(session: Session, name: str, *, lock: bool = False) -> PopulationRow | None:
    """Return the row of a population; a lock keeps studies from starting."""
    query = select(PopulationRow).where(PopulationRow.name == name)
    if lock:  # and replace values that were read before the lock
        query = query.with_for_update().execution_options(populate_existing=True)
    return session.scalar(query)


def ledger_of(session: Session, name: str, *, lock: bool = False) -> Ledger:
    """Return the ledger of a population; with a lock none of its studies can start.

    Raises:
        ProblemError: if the population is unknown.
    """
    row = find_population(session, name, lock=lock)
    if row is None:
        raise not_found("population")
    started = select(StudyRow).where(StudyRow.population == name, StudyRow.round > 0)
    deleted = select(DeletedStudyRow).where(DeletedStudyRow.population == name)
    studies: list[StudyRow | DeletedStudyRow] = [
        *session.scalars(started),
        *session.scalars(deleted),
    ]
    studies.sort(key=lambda study: (study.created, study.id))
    entries = tuple(LedgerEntry(name=each.id, event=charged_event(each)) for each in studies)
    return Ledger(entries=entries, budget=_view(row).budget)


def check_budget(ledger: Ledger, study: str, event: DpEvent) -> None:
    """Raise ProblemError, with parameters that fit, if a budget does not suffice for a study."""
    try:
        ledger.spend(LedgerEntry(name=study, event=event))
    except BudgetError as error:
        raise ProblemError(ProblemType.BUDGET_SPENT, str(error)) from None


def check_exact_sums(session: Session, study: StudyRow, now: datetime) -> None:
    """Raise ProblemError if `study` has exact sums, and another study of its population as well.

    Two exact sums over devices that differ in one device reveal that device by subtraction. A study
    counts while it runs, and until two readings of the clock agree that its last round with a sum
    is 30 days old. The transaction must hold the population's lock, so that no other study starts
    meanwhile.
    """
    if study.population is None or study.dp_event["kind"] != "exact":
        return
    earliest = confirmed_time(session, now) - EXACT_SUM_PERIOD
    others = select(StudyRow).where(
        StudyRow.population == study.population,
        StudyRow.id != study.id,
        or_(StudyRow.state == "running", last_sum(StudyRow.id) > earliest),
    )
    deleted = select(DeletedStudyRow).where(
        DeletedStudyRow.population == study.population, DeletedStudyRow.last_sum > earliest
    )
    rows: list[StudyRow | DeletedStudyRow] = [*session.scalars(others), *session.scalars(deleted)]
    for other in sorted(rows, key=lambda row: (row.created, row.id), reverse=True):
        if other.dp_event["kind"] == "exact":
            raise ProblemError(
                ProblemType.BUDGET_SPENT,
                f"study {other.id} has exact sums of population {study.population}, and the "
                "difference of two exact sums may reveal one device: start this study "
                f"{EXACT_SUM_PERIOD.days} days after the last sum of that study (up to two more, "
                "until `blindtally clock` shows them as confirmed), or choose a mechanism with "
                "noise, or reports",
            )


def last_sum(study: SQLColumnExpression[str]) -> ScalarSelect[datetime | None]:
    """Return the time of the last round with a sum of a `study`, null if it has none."""
    closed = select(func.max(RoundRow.closed, type_=RoundRow.closed.type)).join(
        CohortRow, _ROUND_OF_COHORT
    )
    of_study = closed.where(RoundRow.study == study, CohortRow.phase == Phase.SUMMED)
    return of_study.correlate(StudyRow).scalar_subquery()


def charged_event(row: StudyRow | DeletedStudyRow) -> DpEvent:
    """Return the event that a study is charged for: all its rounds, or those before its end."""
    event = _DP_EVENT.validate_python(row.dp_event)
    if isinstance(row, DeletedStudyRow):
        return event
    has_ended = row.state in ("finished", "stopped")
    if has_ended and row.round and parse_question(row.question).asks_every_round:
        per_round = -(-event.releases // row.rounds)  # a tree is released level by level
        event = event.model_copy(update={"releases": per_round * row.round})
    return event


def _view(row: PopulationRow) -> PopulationView:
    return PopulationView.model_validate(row, from_attributes=True)
