"""Studies: created, listed, started and stopped."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from random import Random

from sqlalchemy import select, tuple_, update
from sqlalchemy.orm import Session

from protocol.events import Cause, EventKind
from protocol.hashed import Hashed
from protocol.mechanisms import (
    MECHANISMS,
    REPORTING,
    SUMMING,
    AnyPlan,
    AnyQuestion,
    parse_question,
)
from protocol.messages import ProblemType, StudyRequest, StudyView
from protocol.privacy.entries import Mechanism as Loss
from protocol.privacy.ledger import Ledger
from protocol.report import packed_bytes
from protocol.round import Phase
from secagg.deals import Reveal, SeedDeal
from secagg.keys import SIGNATURE_BYTES
from secagg.parameters import MOST_HOLDERS
from server.database import Database, reading, writing
from server.refusals import Refusal, not_found
from server.schema import Cohort, Round, Study
from server.store.cohorts import enter, heard_in
from server.store.events import tell
from server.store.opening import insert_round
from server.store.populations import afford, ledger_of
from server.store.views import study_view

_STOPPED = "the study was stopped"


def find_study(session: Session, study: str, *, lock: bool = False) -> Study:
    """Return the row of `study`, locked against other writers if asked for.

    Raises:
        Refusal: if there is none.
    """
    query = select(Study).where(Study.id == study)
    if lock:  # what was read before the lock may be of before it
        query = query.with_for_update().execution_options(populate_existing=True)
    row = session.scalar(query)
    if row is None:
        raise not_found("study")
    return row


def _largest_upload(plan: AnyPlan) -> int:
    """Return how many bytes a device may say at once: a vector and a deal, a reveal, a report."""
    if plan.mechanism in REPORTING:
        nbytes: int = REPORTING[plan.mechanism].nbytes(plan)
        return packed_bytes(nbytes, plan.registry is not None)
    size = plan.terms.cohort_size
    deal = SeedDeal.nbytes(min(size - 1, MOST_HOLDERS)) + SIGNATURE_BYTES
    vector: int = SUMMING[plan.mechanism].ring(plan).nbytes
    return max(vector + deal, Reveal.nbytes(size))


@dataclass(frozen=True, slots=True)
class Studies:
    """The book of studies."""

    database: Database
    now: Callable[[], datetime]
    rng: Random

    async def create(
        self, request: StudyRequest, most_bytes: int, most: tuple[float, float]
    ) -> StudyView:
        """Keep a new study, and start it if `request` says so.

        Raises:
            ValueError: if its question cannot be answered under its terms, its devices
                would upload more than `most_bytes` at once, or a report cost them more than
                `most`, an epsilon and a delta.
        """
        name = self.rng.randbytes(8).hex()
        study = Study(
            id=name,
            name=request.name,
            state="created",
            question=_salted(request.question, name).model_dump(mode="json"),
            terms=request.terms.model_dump(mode="json"),
            timeouts=request.timeouts.model_dump(mode="json"),
            rounds=request.rounds,
            round=0,
            created=self.now(),
            population=request.population,
        )
        plan = await self._first_plan(study_view(study))
        loss: Loss = MECHANISMS[plan.mechanism].loss(plan, plan.rounds)
        study.loss = loss.model_dump(mode="json")
        if request.population is not None and getattr(plan.question, "tables", False):
            raise ValueError(
                "tables pay for what they may fail to read by their own epsilon, and that of a "
                "population is more: ask without tables"
            )
        nbytes = _largest_upload(plan)
        if nbytes > most_bytes:
            raise ValueError(f"uploads of {nbytes} bytes: this service accepts {most_bytes}")
        _check_cost(plan, *most)
        while True:
            ledger = await self._afforded(request.population, name, loss)
            view = await self._insert(study, plan if request.start else None, ledger)
            if view is not None:
                return view

    async def _afforded(self, population: str | None, study: str, loss: Loss) -> Ledger | None:
        """Return the ledger that has budget left for `loss`, None if there is no population.

        It is computed in no transaction, as it may take seconds: whoever begins the study looks
        whether the ledger still is the same.

        Raises:
            Refusal: if there is no such population, or not enough budget left.
        """
        if population is None:
            return None
        ledger = await self._ledger(population)
        await asyncio.to_thread(afford, ledger, study, loss)
        return ledger

    @reading
    def _ledger(self, session: Session, population: str) -> Ledger:
        return ledger_of(session, population)

    @writing
    def _insert(
        self, session: Session, study: Study, plan: AnyPlan | None, seen: Ledger | None
    ) -> StudyView | None:
        """Keep a study; None if it begins and its population's ledger is not as was `seen`."""
        begins = plan is not None
        if begins and not _is_unchanged(session, study.population, seen):
            return None
        session.add(study)
        session.flush()
        tell(session, study.id, EventKind.STUDY_CREATED, self.now())
        if plan is not None:
            self._open_first(session, study, plan)
        return study_view(study)

    async def _first_plan(self, study: StudyView) -> AnyPlan:
        """Return the first plan, made in a thread but in no transaction: it may take a while."""
        mechanism = MECHANISMS[study.question.mechanism]
        plan: AnyPlan = await asyncio.to_thread(
            mechanism.first_plan,
            study.question,
            study.terms,
            study.id,
            study.rounds,
            self.rng,
        )
        return plan

    def _open_first(self, session: Session, study: Study, plan: AnyPlan) -> None:
        study.state, study.round = "running", 1
        tell(session, study.id, EventKind.STUDY_STARTED, self.now())
        insert_round(session, study_view(study), plan, self.now())

    @reading
    def show(self, session: Session, study: str) -> StudyView:
        """Return `study`."""
        return study_view(find_study(session, study))

    @reading
    def page(self, session: Session, limit: int, after: str | None) -> tuple[StudyView, ...]:
        """Return up to `limit` studies, newest first, that are older than `after`."""
        query = select(Study).order_by(Study.created.desc(), Study.id.desc()).limit(limit)
        if after is not None:
            last = find_study(session, after)
            older = tuple_(Study.created, Study.id) < tuple_(last.created, last.id)
            query = query.where(older)
        return tuple(study_view(row) for row in session.scalars(query))

    async def start(self, study: str) -> StudyView:
        """Start a created study: its first round opens. A running one is left as it is."""
        view = await self.show(study)
        plan = await self._first_plan(view)
        loss: Loss = MECHANISMS[plan.mechanism].loss(plan, plan.rounds)
        while True:
            is_new = view.state == "created"
            seen = await self._afforded(view.population if is_new else None, study, loss)
            started = await self._start(study, plan, loss, seen)
            if started is not None:
                return started
            view = await self.show(study)

    @writing
    def _start(
        self, session: Session, study: str, plan: AnyPlan, loss: Loss, seen: Ledger | None
    ) -> StudyView | None:
        """Begin a study; None if its population's ledger is not as was `seen`."""
        population = find_study(session, study).population
        unchanged = _is_unchanged(session, population, seen)
        row = find_study(session, study, lock=True)
        if row.state == "created":
            if not unchanged:
                return None
            row.loss = loss.model_dump(mode="json")
            self._open_first(session, row, plan)
        elif row.state != "running":
            raise Refusal(ProblemType.WRONG_STATE, f"the study is {row.state} already")
        return study_view(row)

    @writing
    def stop(self, session: Session, study: str) -> StudyView:
        """Stop a study: its running round fails and no other opens. Twice is once."""
        row = find_study(session, study, lock=True)
        if row.state in ("created", "running"):
            row.state = "stopped"
            cohorts = self._lock_running(session, study)
            if parse_question(row.question).withholds:  # there will be no answer to forget them
                sums = update(Cohort).where(Cohort.study == study).values(sum=None)
                session.execute(sums.execution_options(synchronize_session=False))
            self._fail_running(session, row, cohorts)
            tell(session, study, EventKind.STUDY_ENDED, self.now(), state="stopped")
        return study_view(row)

    def _lock_running(self, session: Session, study: str) -> Sequence[Cohort]:
        """Return the cohorts of a study that wait, all locked: events are told afterwards."""
        waiting = Cohort.phase.not_in((Phase.SUMMED, Phase.FAILED))
        cohorts = select(Cohort).where(Cohort.study == study, waiting).with_for_update()
        return session.scalars(cohorts).all()

    def _fail_running(self, session: Session, study: Study, cohorts: Sequence[Cohort]) -> None:
        running = (Round.study == study.id, Round.state == "running")
        fail = update(Round).where(*running).values(state="failed", closed=self.now())
        numbers = session.scalars(fail.returning(Round.number)).all()
        for cohort in cohorts:
            cohort.failure = _STOPPED
            heard = heard_in(session, cohort)
            enter(session, cohort, Phase.FAILED, heard, self.now(), cause=Cause.STOPPED)
        for number in numbers:
            facts = {"round": number, "state": "failed"}
            tell(session, study.id, EventKind.ROUND_CLOSED, self.now(), **facts)


def _is_unchanged(session: Session, population: str | None, seen: Ledger | None) -> bool:
    """Return whether a ledger still is as it was `seen`, locking it until the study has begun."""
    return population is None or ledger_of(session, population, lock=True) == seen


def _check_cost(plan: AnyPlan, most_epsilon: float, most_delta: float) -> None:
    if plan.mechanism in REPORTING:
        mechanism = REPORTING[plan.mechanism]
        epsilon, delta = mechanism.epsilon(plan), mechanism.delta(plan)
        if not (epsilon <= most_epsilon and delta <= most_delta):
            raise ValueError(
                f"a report would cost epsilon {epsilon:g} and delta {delta:g}: this service lets "
                f"a device spend {most_epsilon:g} and {most_delta:g}"
            )


def _salted(question: AnyQuestion, study: str) -> AnyQuestion:
    """Return `question` with the study's name for a salt if its keys are hashed without one.

    Tables of keys made for one study are then of no use for another.
    """
    if isinstance(question.domain, Hashed) and not question.domain.salt:
        domain = question.domain.model_copy(update={"salt": study})
        return question.model_copy(update={"domain": domain})
    return question
