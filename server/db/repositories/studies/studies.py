"""Repository of studies: creation, start, stop and pages of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from random import Random

from sqlalchemy import select, tuple_, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from protocol.api.events import EndCause, EventKind, FailureCause
from protocol.api.messages import ProblemType, StudyRequest, StudyView
from protocol.api.phases import Phase
from protocol.mechanisms.registry import MECHANISMS, AnyPlan, parse_question
from protocol.privacy.events import DpEvent
from protocol.privacy.ledger import Ledger
from server.db.channels import notify_on_commit, study_channel
from server.db.database import Repository, read_transaction, write_transaction
from server.db.idempotency import IdempotentRequest, find_response, save_response
from server.db.repositories.cohort_phases import count_received, enter_phase, insert_round
from server.db.repositories.events import record_event
from server.db.repositories.studies.populations import check_budget, check_exact_sums, ledger_of
from server.db.repositories.studies.study_filter import NO_FILTER, StudyFilter, search_text
from server.db.repositories.studies.webhooks import new_webhook
from server.db.schema import PENDING_PHASES, CohortRow, RoundRow, StudyRow
from server.db.serializers import study_view
from server.errors import ProblemError, malformed, not_found
from server.first_plan import (
    DeviceLimits,
    PlanningQueue,
    PlanRequest,
    first_plan,
    unchecked_first_plan,
    with_salt,
)

_STOPPED_REASON = "the study was stopped"


def find_study(session: Session, study: str, *, lock: bool = False) -> StudyRow:
    """Return the row of `study`, locked on request; raises ProblemError if it is unknown."""
    query = select(StudyRow).where(StudyRow.id == study)
    if lock:  # and replace values that were read before the lock
        query = query.with_for_update().execution_options(populate_existing=True)
    row = session.scalar(query)
    if row is None:
        raise not_found("study")
    return row


def find_named_study(session: Session, name: str) -> StudyRow:
    """Return the row with this id, or else the only one with this name.

    Raises:
        ProblemError: if there is none, or there are several.
    """
    rows = session.scalars(select(StudyRow).where(StudyRow.name == name)).all()
    if not rows or session.get(StudyRow, name) is not None:
        return find_study(session, name)
    if len(rows) > 1:
        ids = ", ".join(row.id for row in rows)
        detail = f"{len(rows)} studies have the name {name!r}: use an id, {ids}"
        raise ProblemError(ProblemType.CONFLICT, detail)
    return rows[0]


def end_study(session: Session, row: StudyRow, cause: EndCause, now: datetime) -> None:
    """End the study of `row`, which is locked, and record the event."""
    row.state = "stopped" if cause in (EndCause.STOPPED, EndCause.INTERNAL) else "finished"
    row.end_cause = cause.value
    facts = {"state": row.state, "end_cause": cause, "round": row.round or None}
    record_event(session, row.id, EventKind.STUDY_ENDED, now, **facts)


@dataclass(frozen=True, slots=True)
class StudyRepository(Repository):
    """Repository of studies."""

    rng: Random
    planning_queue: PlanningQueue = field(default_factory=PlanningQueue, repr=False)

    async def create(
        self,
        request: StudyRequest,
        limits: DeviceLimits,
        intent: IdempotentRequest | None = None,
        owner: str | None = None,
    ) -> tuple[StudyView, bool]:
        """Store a new study, and start it if requested; return it, and whether `intent` is new.

        Raises:
            ProblemError: if its question cannot be answered under its terms and within `limits`,
                with every error; if its population has not enough budget left, or exact sums of
                another study; if the key of `intent` was used for another request.
        """
        if (known := await self._previous_response(intent)) is not None:
            return known, False
        try:
            return await self._create(request, limits, intent, owner), True
        except (IntegrityError, ProblemError):  # perhaps a concurrent request created it
            if (known := await self._previous_response(intent)) is None:
                raise
            return known, False

    @read_transaction
    def _previous_response(
        self, session: Session, intent: IdempotentRequest | None
    ) -> StudyView | None:
        """Return the study that `intent` has created, None if `intent` is new or None."""
        if intent is None:
            return None
        response = find_response(session, intent, self.database.now(session))
        return None if response is None else StudyView.model_validate(response)

    async def _create(
        self,
        request: StudyRequest,
        limits: DeviceLimits,
        intent: IdempotentRequest | None,
        owner: str | None,
    ) -> StudyView:
        name = self.rng.randbytes(8).hex()
        salted = {"question": with_salt(request.question, name)}
        plan_request = _plan_request(request).model_copy(update=salted)
        plan = await self.planning_queue.run(first_plan, plan_request, name, limits, self.rng)
        event: DpEvent = MECHANISMS[plan.mechanism].dp_event(plan, plan.rounds)
        document = request.model_dump(mode="json")
        text = search_text(request.name, document.pop("question"), request.tags)
        url = document.pop("webhook")
        del document["start"]
        study = StudyRow(
            **document,
            id=name,
            search=text,
            owner=owner,
            state="created",
            question=plan_request.question.model_dump(mode="json"),
            round=0,
            created=await self.database.read_now(),
            dp_event=event.model_dump(mode="json"),
        )
        while True:
            ledger = await self._ledger_with_budget(request.population, name, event)
            first = plan if request.start else None
            view = await self._insert(study, first, ledger, intent, url)
            if view is not None:
                return view

    async def _ledger_with_budget(
        self, population: str | None, study: str, event: DpEvent
    ) -> Ledger | None:
        """Return the ledger, whose budget suffices for `event`; None without a population.

        This may take seconds, so it is not part of a transaction: the transaction that starts the
        study checks that the ledger is unchanged.

        Raises:
            ProblemError: if the population is unknown or has not enough budget left.
        """
        if population is None:
            return None
        ledger = await self._ledger(population)
        await self.planning_queue.run(check_budget, ledger, study, event)
        return ledger

    @read_transaction
    def _ledger(self, session: Session, population: str) -> Ledger:
        return ledger_of(session, population)

    @write_transaction
    def _insert(
        self,
        session: Session,
        study: StudyRow,
        plan: AnyPlan | None,
        ledger: Ledger | None,
        intent: IdempotentRequest | None,
        url: str | None,
    ) -> StudyView | None:
        """Store a study with the `url` of its webhook, and start it if it has a plan.

        None if `ledger` has changed.
        """
        if plan is not None and not _is_unchanged(session, study.population, ledger):
            return None
        session.add(study)
        session.flush()
        now = self.database.now(session)
        if url is not None:
            session.add(new_webhook(study, url, self.rng))
        record_event(session, study.id, EventKind.STUDY_CREATED, now)  # locks no existing row
        if plan is not None:
            self._open_first(session, study, plan)
        view = study_view(study)
        if intent is not None:
            save_response(session, intent, view.model_dump(mode="json"), now)
        return view

    def _open_first(self, session: Session, study: StudyRow, plan: AnyPlan) -> None:
        now = self.database.now(session)
        check_exact_sums(session, study, now)
        study.state, study.round = "running", 1
        record_event(session, study.id, EventKind.STUDY_STARTED, now)
        insert_round(session, study_view(study), plan, now)
        notify_on_commit(session, study_channel(study.id))

    @read_transaction
    def show(self, session: Session, study: str) -> StudyView:
        return study_view(find_study(session, study))

    @read_transaction
    def page(
        self,
        session: Session,
        limit: int,
        after: str | None,
        only: str | None = None,
        chosen: StudyFilter = NO_FILTER,
    ) -> tuple[StudyView, ...]:
        """Return up to `limit` `chosen` studies that are older than `after`, newest first.

        `only` is the one study that may be among them, None for all.
        """
        query = select(StudyRow).order_by(StudyRow.created.desc(), StudyRow.id.desc()).limit(limit)
        query = query.where(*chosen.conditions(is_sqlite=self.database.is_sqlite))
        if only is not None:
            query = query.where(StudyRow.id == only)
        if after is not None:
            last = session.get(StudyRow, after)
            if last is None or only not in (None, after):  # as if it were unknown
                raise malformed("not the `next` of a page", location="query.after")
            older = tuple_(StudyRow.created, StudyRow.id) < tuple_(last.created, last.id)
            query = query.where(older)
        return tuple(study_view(row) for row in session.scalars(query))

    async def start(self, study: str) -> StudyView:
        """Start a created study, which opens its first round; a running study stays as it is.

        Raises:
            ProblemError: if the study has ended, or its population has not enough budget left, or
                exact sums of another study.
        """
        view = await self.show(study)
        plan = await self.planning_queue.run(
            unchecked_first_plan, _plan_request(view), study, self.rng
        )
        event: DpEvent = MECHANISMS[plan.mechanism].dp_event(plan, plan.rounds)
        while True:
            population = view.population if view.state == "created" else None
            ledger = await self._ledger_with_budget(population, study, event)
            started = await self._start(study, plan, ledger)
            if started is not None:
                return started
            view = await self.show(study)

    @write_transaction
    def _start(
        self, session: Session, study: str, plan: AnyPlan, ledger: Ledger | None
    ) -> StudyView | None:
        """Start a study; None if `ledger` has changed meanwhile."""
        population = find_study(session, study).population
        unchanged = _is_unchanged(session, population, ledger)
        row = find_study(session, study, lock=True)
        if row.state == "created":
            if not unchanged:
                return None
            self._open_first(session, row, plan)
        elif row.state != "running":
            raise ProblemError(ProblemType.WRONG_STATE, f"the study is {row.state} already")
        return study_view(row)

    @write_transaction
    def stop(self, session: Session, study: str) -> StudyView:
        """Stop a study: its running round fails, and no other opens. A repetition has no effect."""
        row = find_study(session, study, lock=True)
        if row.state in ("created", "running"):
            cohorts = self._lock_running(session, study)
            if parse_question(row.question).discards_sums:  # which otherwise the answer does
                sums = update(CohortRow).where(CohortRow.study == study).values(sum=None)
                session.execute(sums.execution_options(synchronize_session=False))
            now = self.database.now(session)
            self._fail_running(session, row, cohorts, now)
            end_study(session, row, EndCause.STOPPED, now)
            notify_on_commit(session, study_channel(study))
        return study_view(row)

    def _lock_running(self, session: Session, study: str) -> Sequence[CohortRow]:
        """Return the pending cohorts of a study, all locked before events are recorded."""
        is_pending = CohortRow.phase.in_(PENDING_PHASES)
        cohorts = select(CohortRow).where(CohortRow.study == study, is_pending)
        cohorts = cohorts.order_by(CohortRow.id)  # as moves that share a transaction lock them
        return session.scalars(cohorts.with_for_update()).all()

    def _fail_running(
        self, session: Session, study: StudyRow, cohorts: Sequence[CohortRow], now: datetime
    ) -> None:
        running = (RoundRow.study == study.id, RoundRow.state == "running")
        fail = update(RoundRow).where(*running).values(state="failed", closed=now)
        numbers = session.scalars(fail.returning(RoundRow.number)).all()
        for cohort in cohorts:
            cohort.failure = _STOPPED_REASON
            received = count_received(cohort)
            enter_phase(session, cohort, Phase.FAILED, received, now, cause=FailureCause.STOPPED)
        for number in numbers:
            record_event(
                session, study.id, EventKind.ROUND_CLOSED, now, round=number, state="failed"
            )


def _plan_request(study: StudyRequest | StudyView) -> PlanRequest:
    return PlanRequest.model_validate(study, from_attributes=True)


def _is_unchanged(session: Session, population: str | None, ledger: Ledger | None) -> bool:
    """Return whether `ledger` is unchanged, and lock it until the transaction ends."""
    return population is None or ledger_of(session, population, lock=True) == ledger
