"""Studies: created, listed, started and stopped."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from random import Random

from sqlalchemy import select, tuple_, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from protocol.events import Cause, EventKind
from protocol.mechanisms import MECHANISMS, AnyPlan, parse_question
from protocol.messages import ProblemType, StudyRequest, StudyView
from protocol.privacy.entries import Mechanism as Loss
from protocol.privacy.ledger import Ledger
from protocol.round import Phase
from server.database import Database, reading, writing
from server.listener import announce
from server.refusals import Refusal, malformed, not_found
from server.schema import Cohort, Round, Study
from server.store.asking import Asked, Limits, first_plan, plan_of, salted
from server.store.cohorts import enter, heard_in
from server.store.creations import Intent, answered, keep
from server.store.events import tell
from server.store.opening import insert_round
from server.store.populations import afford, ledger_of
from server.store.views import study_view
from server.watch import study_bell

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


@dataclass(frozen=True, slots=True)
class Studies:
    """The book of studies."""

    database: Database
    rng: Random

    async def create(
        self, request: StudyRequest, limits: Limits, intent: Intent | None = None
    ) -> tuple[StudyView, bool]:
        """Keep a new study, and start it if `request` says so; False if `intent` is not new.

        Raises:
            Refusal: if its question cannot be answered under its terms and within `limits`, with
                every fault; if its population has not enough budget left; if the key of `intent`
                was used for something else.
        """
        if (known := await self._answered(intent)) is not None:
            return known, False
        try:
            return await self._create(request, limits, intent), True
        except (IntegrityError, Refusal):  # perhaps because it was created, and paid for, meanwhile
            if (known := await self._answered(intent)) is None:
                raise
            return known, False

    @reading
    def _answered(self, session: Session, intent: Intent | None) -> StudyView | None:
        """Return the study that `intent` created, None if it is new, or there is none."""
        if intent is None:
            return None
        answer = answered(session, intent, self.database.now(session))
        return None if answer is None else StudyView.model_validate(answer)

    async def _create(
        self, request: StudyRequest, limits: Limits, intent: Intent | None
    ) -> StudyView:
        name = self.rng.randbytes(8).hex()
        asked = _asked(request).model_copy(update={"question": salted(request.question, name)})
        plan = await asyncio.to_thread(first_plan, asked, name, limits, self.rng)
        study = Study(
            id=name,
            name=request.name,
            state="created",
            question=asked.question.model_dump(mode="json"),
            terms=request.terms.model_dump(mode="json"),
            timeouts=request.timeouts.model_dump(mode="json"),
            rounds=request.rounds,
            round=0,
            created=await self.database.read(self.database.now),
            population=request.population,
        )
        loss: Loss = MECHANISMS[plan.mechanism].loss(plan, plan.rounds)
        study.loss = loss.model_dump(mode="json")
        while True:
            ledger = await self._afforded(request.population, name, loss)
            begun = plan if request.start else None
            view = await self._insert(study, begun, ledger, intent)
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
        self,
        session: Session,
        study: Study,
        plan: AnyPlan | None,
        seen: Ledger | None,
        intent: Intent | None,
    ) -> StudyView | None:
        """Keep a study; None if it begins and its population's ledger is not as was `seen`."""
        begins = plan is not None
        if begins and not _is_unchanged(session, study.population, seen):
            return None
        session.add(study)
        session.flush()
        now = self.database.now(session)
        tell(session, study.id, EventKind.STUDY_CREATED, now)  # to nobody yet: no lock to wait for
        if plan is not None:
            self._open_first(session, study, plan)
        view = study_view(study)
        if intent is not None:
            keep(session, intent, view.model_dump(mode="json"), now)
        return view

    def _open_first(self, session: Session, study: Study, plan: AnyPlan) -> None:
        study.state, study.round = "running", 1
        now = self.database.now(session)
        tell(session, study.id, EventKind.STUDY_STARTED, now)
        insert_round(session, study_view(study), plan, now)
        announce(session, study_bell(study.id))

    @reading
    def show(self, session: Session, study: str) -> StudyView:
        """Return `study`."""
        return study_view(find_study(session, study))

    @reading
    def page(self, session: Session, limit: int, after: str | None) -> tuple[StudyView, ...]:
        """Return up to `limit` studies, newest first, that are older than `after`."""
        query = select(Study).order_by(Study.created.desc(), Study.id.desc()).limit(limit)
        if after is not None:
            last = session.get(Study, after)
            if last is None:
                raise malformed("not the `next` of a page", at="query.after")
            older = tuple_(Study.created, Study.id) < tuple_(last.created, last.id)
            query = query.where(older)
        return tuple(study_view(row) for row in session.scalars(query))

    async def start(self, study: str) -> StudyView:
        """Start a created study: its first round opens. A running one is left as it is.

        Raises:
            Refusal: if it is over, or its population has not enough budget left.
            ValueError: if there is no plan for it: an older program accepted it.
        """
        view = await self.show(study)
        plan = await asyncio.to_thread(plan_of, _asked(view), study, self.rng)
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
            now = self.database.now(session)
            self._fail_running(session, row, cohorts, now)
            tell(session, study, EventKind.STUDY_ENDED, now, state="stopped")
            announce(session, study_bell(study))
        return study_view(row)

    def _lock_running(self, session: Session, study: str) -> Sequence[Cohort]:
        """Return the cohorts of a study that wait, all locked: events are told afterwards."""
        waiting = Cohort.phase.not_in((Phase.SUMMED, Phase.FAILED))
        cohorts = select(Cohort).where(Cohort.study == study, waiting).with_for_update()
        return session.scalars(cohorts).all()

    def _fail_running(
        self, session: Session, study: Study, cohorts: Sequence[Cohort], now: datetime
    ) -> None:
        running = (Round.study == study.id, Round.state == "running")
        fail = update(Round).where(*running).values(state="failed", closed=now)
        numbers = session.scalars(fail.returning(Round.number)).all()
        for cohort in cohorts:
            cohort.failure = _STOPPED
            heard = heard_in(session, cohort)
            enter(session, cohort, Phase.FAILED, heard, now, cause=Cause.STOPPED)
        for number in numbers:
            tell(session, study.id, EventKind.ROUND_CLOSED, now, round=number, state="failed")


def _asked(study: StudyRequest | StudyView) -> Asked:
    return Asked.model_construct(
        question=study.question,
        terms=study.terms,
        rounds=study.rounds,
        population=study.population,
    )


def _is_unchanged(session: Session, population: str | None, seen: Ledger | None) -> bool:
    """Return whether a ledger still is as it was `seen`, locking it until the study has begun."""
    return population is None or ledger_of(session, population, lock=True) == seen
