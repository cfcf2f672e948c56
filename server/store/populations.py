"""Populations: what their studies may tell of any one device, and what they have told.

A ledger is not kept but read: its entries are the studies that have begun, each with what its
rounds tell of a device. So a crash spends nothing twice and forgets nothing, as long as the row
that begins a study is there or not. A study that is over is charged for the rounds that it
opened, one that runs for all that it may.
"""

from dataclasses import dataclass
from typing import TypeAlias

from pydantic import TypeAdapter
from sqlalchemy import select
from sqlalchemy.orm import Session

from protocol.mechanisms import parse_question
from protocol.messages import PopulationRequest, PopulationView, ProblemType
from protocol.privacy.entries import Entry, ExactSum
from protocol.privacy.entries import Mechanism as Loss
from protocol.privacy.ledger import Budget, BudgetError, Ledger
from server.database import Database, reading, writing
from server.refusals import Refusal, not_found
from server.schema import Population, Study

Spent: TypeAlias = Ledger | None  # of a study without a population: nothing counts against it
_LOSS: TypeAdapter[Loss] = TypeAdapter(Loss)


@dataclass(frozen=True, slots=True)
class Populations:
    """The book of populations."""

    database: Database

    @writing
    def create(
        self, session: Session, name: str, request: PopulationRequest
    ) -> tuple[PopulationView, bool]:
        """Keep a new population; True if it is new.

        Raises:
            Refusal: if there is one of this name with another budget: budgets do not change.
        """
        row = find(session, name, lock=True)
        is_new = row is None
        if row is None:
            budget = request.budget.model_dump(mode="json")
            row = Population(name=name, budget=budget, created=self.database.now(session))
            session.add(row)
            session.flush()
        view = _view(row)
        if view.budget != request.budget:
            raise Refusal(ProblemType.CONFLICT, "this population has another budget, for good")
        return view, is_new

    @reading
    def page(self, session: Session, limit: int, after: str = "") -> tuple[PopulationView, ...]:
        """Return up to `limit` populations by name, of those behind `after`."""
        query = select(Population).where(Population.name > after).order_by(Population.name)
        return tuple(_view(row) for row in session.scalars(query.limit(limit)))

    @reading
    def ledger(self, session: Session, name: str) -> Ledger:
        """Return what the studies of a population tell of a device.

        Raises:
            Refusal: if there is no such population.
        """
        return ledger_of(session, name)

    @reading
    def of_study(self, session: Session, study: str) -> Ledger:
        """Return what one study tells of a device, by itself, if all its rounds are run.

        Raises:
            Refusal: if there is no such study.
        """
        return Ledger(entries=(_entry_of(session, study),))

    @reading
    def entry(self, session: Session, study: str) -> Entry:
        """Return what one study tells of a device, as its ledger has it; raises as `of_study`."""
        return _entry_of(session, study)


def find(session: Session, name: str, *, lock: bool = False) -> Population | None:
    """Return the row of a population, locked against studies that begin if asked for."""
    query = select(Population).where(Population.name == name)
    if lock:  # what was read before the lock may be of before it
        query = query.with_for_update().execution_options(populate_existing=True)
    return session.scalar(query)


def ledger_of(session: Session, name: str, *, lock: bool = False) -> Ledger:
    """Return the ledger of a population; with its row locked, no study of it begins meanwhile.

    Raises:
        Refusal: if there is no such population.
    """
    row = find(session, name, lock=lock)
    if row is None:
        raise not_found("population")
    begun = (Study.population == name, Study.round > 0)
    studies = session.scalars(select(Study).where(*begun).order_by(Study.created, Study.id))
    budget = Budget.model_validate(row.budget)
    return Ledger(entries=tuple(_entry(study) for study in studies), budget=budget)


def afford(ledger: Ledger, study: str, loss: Loss) -> None:
    """Check that a ledger has budget left for a study.

    Raises:
        Refusal: if it has not; says what would meet it.
    """
    try:
        ledger.spend(Entry(name=study, mechanism=loss))
    except BudgetError as error:
        raise Refusal(ProblemType.BUDGET_SPENT, str(error)) from None


def _entry_of(session: Session, study: str) -> Entry:
    row = session.get(Study, study)
    if row is None:
        raise not_found("study")
    return _entry(row)


def _entry(row: Study) -> Entry:
    loss = ExactSum() if row.loss is None else _LOSS.validate_python(row.loss)
    is_over = row.state in ("finished", "stopped")
    if is_over and row.round and parse_question(row.question).repeats:
        a_round = -(-loss.releases // row.rounds)  # a tree is released level by level
        loss = loss.model_copy(update={"releases": a_round * row.round})
    return Entry(name=row.id, mechanism=loss)


def _view(row: Population) -> PopulationView:
    budget = Budget.model_validate(row.budget)
    return PopulationView(name=row.name, budget=budget, created=row.created)
