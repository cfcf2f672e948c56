"""Repository of rounds, and their closing with an answer."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from threading import Lock

from cachetools import LRUCache
from sqlalchemy import and_, exists, or_, select, tuple_, update
from sqlalchemy.orm import Session

from protocol.api.events import EndCause, EventKind
from protocol.api.messages import CohortView, ProblemType, RoundState, RoundView, StudyView
from protocol.api.phases import MessageKind, Phase
from protocol.estimation.estimates import Estimate, ListQuality
from protocol.mechanism import Answer
from protocol.mechanisms.registry import MECHANISMS, AnyPlan, parse_plan
from protocol.question_and_plan import Plan, Terms
from server.db.channels import notify_on_commit, study_channel
from server.db.database import Repository, read_transaction, write_transaction
from server.db.repositories.cohort_phases import count_received, insert_round
from server.db.repositories.events import record_event
from server.db.repositories.leases import Lease, check_lease
from server.db.repositories.studies.answers import save_study_state
from server.db.repositories.studies.studies import end_study, find_study
from server.db.schema import PENDING_PHASES, CohortRow, MessageRow, ParticipantRow, RoundRow
from server.db.serializers import cohort_view, round_view, study_view
from server.errors import ProblemError, not_found

_MAX_CACHED_PLANS = 64
_EXCLUDED_REASON = (
    "its sum cannot be decoded, unlike those of other cohorts: left out of the answer"
)


@dataclass(frozen=True, slots=True)
class ClosedRound:
    """Result of a round: its state and, if it has a sum, its answer.

    `heavy_hitters` are the heavy items by the answer's study state, with the expected `quality` of
    this list. `excluded` are the cohorts
    whose sums could not be decoded, unlike those of others. If it `is_last`, the study has its
    answer.
    """

    state: RoundState
    participants: int = 0
    answer: Answer | None = None
    heavy_hitters: tuple[Estimate, ...] = ()
    quality: ListQuality | None = None
    excluded: frozenset[int] = frozenset()
    is_last: bool = False

    def end_cause(self, study: StudyView, number: int) -> EndCause | None:
        """Return the cause that ends `study` with this result of round `number`, None if none."""
        if study.stop_at and study.stop_at.is_reached(self.state == "decoded", self.quality):
            return EndCause.GOAL
        if self.is_last:
            return EndCause.COMPLETE
        return EndCause.LAST_ROUND if number >= study.rounds else None


class PlanCache:
    """Plans of rounds, which never change, so that a round that is often read is parsed once."""

    def __init__(self) -> None:
        self._plans: LRUCache[tuple[str, int], AnyPlan] = LRUCache(_MAX_CACHED_PLANS)
        self._lock = Lock()  # of the threads that read

    def __call__(self, row: RoundRow) -> AnyPlan:
        """Return the plan of a round."""
        with self._lock:
            plan = self._plans.get((row.study, row.number))
        if plan is None:
            plan = parse_plan(row.plan)
            with self._lock:
                self._plans[row.study, row.number] = plan
        return plan


@dataclass(frozen=True, slots=True)
class RoundRepository(Repository):
    """Repository of rounds."""

    _plan_of: PlanCache = field(default_factory=PlanCache, init=False, repr=False)

    @read_transaction
    def show(self, session: Session, study: str, number: int) -> RoundView:
        find_study(session, study)
        row = session.get(RoundRow, (study, number))
        if row is None:
            raise not_found("round")
        return self._views(session, [row])[0]

    @read_transaction
    def plan(self, session: Session, study: str, number: int) -> AnyPlan:
        """Return the plan of a round, which never changes."""
        row = session.get(RoundRow, (study, number))
        if row is None:
            find_study(session, study)
            raise not_found("round")
        return self._plan_of(row)

    @read_transaction
    def page(self, session: Session, study: str, limit: int, after: int) -> tuple[RoundView, ...]:
        """Return up to `limit` rounds of `study` after number `after`."""
        query = select(RoundRow).where(RoundRow.study == study, RoundRow.number > after)
        find_study(session, study)
        rows = session.scalars(query.order_by(RoundRow.number).limit(limit))
        return self._views(session, rows.all())

    @read_transaction
    def failed(self, session: Session, study: str) -> tuple[int, ...]:
        """Return the numbers of the rounds of `study` that have failed, in order."""
        query = select(RoundRow.number).where(RoundRow.study == study, RoundRow.state == "failed")
        return tuple(session.scalars(query.order_by(RoundRow.number)))

    def _views(self, session: Session, rows: Sequence[RoundRow]) -> tuple[RoundView, ...]:
        if not rows:
            return ()
        plans = {row.number: self._plan_of(row) for row in rows}
        of_rounds = (CohortRow.study == rows[0].study, CohortRow.round.in_(plans))
        query = select(CohortRow).where(*of_rounds).order_by(CohortRow.number)
        cohorts = session.scalars(query).all()
        survivors, blamed = _survivors(session, cohorts), _blamed(session, cohorts)
        views: dict[int, list[CohortView]] = defaultdict(list)
        for cohort in cohorts:
            facts = (count_received(cohort), survivors[cohort.id], blamed[cohort.id])
            view = cohort_view(cohort, plans[cohort.round].terms, *facts)
            views[cohort.round].append(view)
        return tuple(round_view(row, plans[row.number], views[row.number]) for row in rows)

    @read_transaction
    def find_open(self, session: Session, study: str, after: int) -> RoundView | None:
        """Return the next round that takes devices, if any, without its cohorts' survivors.

        Devices read the plan only, and refuse a list of a million survivors. Raises ProblemError
        after the end.
        """
        row = find_study(session, study)
        if row.state in ("finished", "stopped"):
            raise ProblemError(ProblemType.WRONG_STATE, f"the study is {row.state}")
        terms = Terms.model_validate(row.terms)
        size = terms.max_devices if terms.is_seated else terms.cohort_size
        enrolling = and_(CohortRow.phase == Phase.ENROLLING, CohortRow.enrolled < size)
        single_message = CohortRow.phase.in_([Phase.REPORTING, Phase.COLLECTING])
        reporting = and_(single_message, CohortRow.enrolled < terms.max_devices)
        has_open_cohort = exists().where(
            CohortRow.study == study,
            CohortRow.round == RoundRow.number,
            or_(enrolling, reporting),
            CohortRow.deadline > self.database.now_column(),
        )
        running = (RoundRow.study == study, RoundRow.number > after, RoundRow.state == "running")
        open_round = session.scalar(select(RoundRow).where(*running, has_open_cohort))
        if open_round is None:
            return None
        (view,) = self._views(session, [open_round])
        changes: dict[str, object] = {"survivors": (), "blamed": {}}
        cohorts = tuple(cohort.model_copy(update=changes) for cohort in view.cohorts)
        return view.model_copy(update={"cohorts": cohorts})

    @read_transaction
    def ready_to_close(
        self, session: Session, candidates: Collection[tuple[str, int]] | None = None
    ) -> list[tuple[str, int]]:
        """Return the study and the number of each running round whose cohorts are all closed.

        If `candidates` are given, only these rounds are considered.
        """
        has_pending = exists().where(
            CohortRow.study == RoundRow.study,
            CohortRow.round == RoundRow.number,
            CohortRow.phase.in_(PENDING_PHASES),
        )
        rounds = select(RoundRow.study, RoundRow.number)
        query = rounds.where(RoundRow.state == "running", ~has_pending)
        if candidates is not None:
            query = query.where(tuple_(RoundRow.study, RoundRow.number).in_(candidates))
        return [(study, number) for study, number in session.execute(query)]

    @write_transaction
    def close(
        self,
        session: Session,
        study: str,
        number: int,
        outcome: ClosedRound,
        plan: Plan | None,
        lease: Lease,
    ) -> StudyView | None:
        """Store the result of round `number`, and open the round of `plan`.

        After its last round, or if its list reaches its goal, the study is finished; otherwise,
        without a plan, it is stopped. Returns the study, or None if the round is already
        closed, for example by a stop of the study.

        Raises:
            StaleLeaseError: if the job was claimed again.
        """
        check_lease(session, lease)
        row = find_study(session, study, lock=True)
        if not self._close(session, study, number, outcome):
            return None
        now, cause = self.database.now(session), outcome.end_cause(study_view(row), number)
        if cause is EndCause.LAST_ROUND and not _has_answer(session, study):
            cause = EndCause.NO_ANSWER
        if cause is None and plan is not None:
            row.round = plan.round
            insert_round(session, study_view(row), plan, now)
        else:
            end_study(session, row, cause or EndCause.INTERNAL, now)
        notify_on_commit(session, study_channel(study))
        return study_view(row)

    def _close(self, session: Session, study: str, number: int, outcome: ClosedRound) -> bool:
        answer = outcome.answer
        plan = self._plan_of(session.get_one(RoundRow, (study, number)))
        mechanism = MECHANISMS[plan.mechanism]
        values = {
            "state": outcome.state,
            "participants": outcome.participants,
            "distinct": None if answer is None else mechanism.shown_distinct(plan, answer),
            "closed": self.database.now(session),
        }
        running = (RoundRow.study == study, RoundRow.number == number, RoundRow.state == "running")
        query = update(RoundRow).where(*running).values(values).returning(RoundRow.number)
        if session.scalar(query) is None:
            return False
        of_round = (CohortRow.study == study, CohortRow.round == number)
        excluded = CohortRow.number.in_(outcome.excluded)
        session.execute(
            update(CohortRow)
            .where(*of_round, excluded)
            .values(failure=_EXCLUDED_REASON, poisoned=True)
        )
        if plan.question.discards_sums:
            session.execute(update(CohortRow).where(*of_round).values(sum=None))
        if answer is not None:
            save_study_state(session, study, answer.state, outcome.heavy_hitters, outcome.quality)
        self._record_events(session, plan, outcome)
        return True

    def _record_events(self, session: Session, plan: AnyPlan, outcome: ClosedRound) -> None:
        now = self.database.now(session)
        for cohort in sorted(outcome.excluded):
            excluded = {"round": plan.round, "cohort": cohort}
            record_event(session, plan.study, EventKind.COHORT_EXCLUDED, now, **excluded)
        facts = {
            "round": plan.round,
            "state": outcome.state,
            "participants": outcome.participants,
            "sampling_threshold": plan.t,
            "heavy_hitters": None if outcome.answer is None else len(outcome.heavy_hitters),
        }
        record_event(session, plan.study, EventKind.ROUND_CLOSED, now, **facts)


def _has_answer(session: Session, study: str) -> bool:
    decoded = exists().where(RoundRow.study == study, RoundRow.state == "decoded")
    return bool(session.scalar(select(decoded)))


def _blamed(session: Session, cohorts: Sequence[CohortRow]) -> dict[int, dict[int, str]]:
    """Return the participants of closed cohorts that departed from the protocol, by slot."""
    closed = [cohort.id for cohort in cohorts if cohort.phase.is_over]
    blamed: dict[int, dict[int, str]] = defaultdict(dict)
    if closed:
        are_blamed = (ParticipantRow.cohort.in_(closed), ParticipantRow.blamed.is_not(None))
        columns = (ParticipantRow.cohort, ParticipantRow.slot, ParticipantRow.blamed)
        for cohort, slot, offence in session.execute(select(*columns).where(*are_blamed)):
            blamed[cohort][slot] = offence or ""
    return blamed


def _survivors(session: Session, cohorts: Sequence[CohortRow]) -> dict[int, list[int]]:
    """Return the slots of the survivors of summed cohorts."""
    summed = [cohort.id for cohort in cohorts if cohort.phase is Phase.SUMMED]
    survivors: dict[int, list[int]] = defaultdict(list)
    if summed:
        vectors = (MessageRow.cohort.in_(summed), MessageRow.kind == MessageKind.MASKED_INPUT)
        slots = select(MessageRow.cohort, MessageRow.slot).where(*vectors).order_by(MessageRow.slot)
        for cohort, slot in session.execute(slots):
            survivors[cohort].append(slot)
    return survivors
