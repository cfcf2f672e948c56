"""Rounds: shown, opened to devices, and closed with what their sums said."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import and_, exists, func, or_, select, update
from sqlalchemy.orm import Session

from protocol.events import EventKind
from protocol.mechanism import Answer, Estimate, Plan, Terms
from protocol.mechanisms import AnyPlan, parse_plan
from protocol.messages import CohortView, ProblemType, RoundState, RoundView, StudyView
from protocol.round import Phase
from server.database import Database, reading, writing
from server.listener import announce
from server.refusals import Refusal, not_found
from server.schema import Cohort, Message, Participant, Round
from server.store.answers import keep_tally
from server.store.events import tell
from server.store.leases import Lease, check
from server.store.opening import insert_round
from server.store.studies import find_study
from server.store.views import KIND, cohort_view, round_view, study_view
from server.watch import study_bell

_LEFT_OUT = "its sum cannot be read, where those of other cohorts can: left out of the answer"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a round came to: its state and, if it has a sum, what that said.

    `heavy` are the items that are heavy after it, by the answer's tally; `left_out` are the
    cohorts whose sums could not be read, where the others' could. If it `is_last`, nothing is
    left to ask.
    """

    state: RoundState
    participants: int = 0
    answer: Answer | None = None
    heavy: tuple[Estimate, ...] = ()
    left_out: frozenset[int] = frozenset()
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class Rounds:
    """The book of rounds."""

    database: Database

    @reading
    def show(self, session: Session, study: str, number: int) -> RoundView:
        """Return one round of `study`."""
        find_study(session, study)
        row = session.get(Round, (study, number))
        if row is None:
            raise not_found("round")
        return _views(session, [row])[0]

    @reading
    def plan(self, session: Session, study: str, number: int) -> AnyPlan:
        """Return what one round of `study` asks; it never changes."""
        row = session.get(Round, (study, number))
        if row is None:
            find_study(session, study)
            raise not_found("round")
        return parse_plan(row.plan)

    @reading
    def page(self, session: Session, study: str, limit: int, after: int) -> tuple[RoundView, ...]:
        """Return up to `limit` rounds of `study` from the one after number `after`."""
        query = select(Round).where(Round.study == study, Round.number > after)
        find_study(session, study)
        rows = session.scalars(query.order_by(Round.number).limit(limit))
        return _views(session, rows.all())

    @reading
    def open(self, session: Session, study: str, after: int) -> RoundView | None:
        """Return the round after number `after` that takes devices now, None if none does.

        Raises:
            Refusal: if the study is over and no round will take devices again.
        """
        row = find_study(session, study)
        if row.state in ("finished", "stopped"):
            raise Refusal(ProblemType.WRONG_STATE, f"the study is {row.state}")
        size, cohorts = row.terms["cohort_size"], row.terms["cohorts"]
        enrolling = and_(Cohort.phase == Phase.ENROLLING, Cohort.enrolled < size)
        reporting = and_(Cohort.phase == Phase.REPORTING, Cohort.enrolled < size * cohorts)
        room = exists().where(
            Cohort.study == study,
            Cohort.round == Round.number,
            or_(enrolling, reporting),
            Cohort.deadline > self.database.instant(),
        )
        mine = (Round.study == study, Round.number > after, Round.state == "running")
        found = session.scalar(select(Round).where(*mine, room))
        return None if found is None else _views(session, [found])[0]

    @reading
    def complete(self, session: Session) -> Sequence[tuple[str, int]]:
        """Return study and number of each running round whose cohorts are all over."""
        waiting = exists().where(
            Cohort.study == Round.study,
            Cohort.round == Round.number,
            Cohort.phase.not_in((Phase.SUMMED, Phase.FAILED)),
        )
        query = select(Round.study, Round.number).where(Round.state == "running", ~waiting)
        return [(study, number) for study, number in session.execute(query)]

    @writing
    def close(
        self,
        session: Session,
        study: str,
        number: int,
        outcome: Outcome,
        plan: Plan | None,
        lease: Lease,
    ) -> StudyView | None:
        """Keep what round `number` came to and open the round that `plan` asks for.

        The study is finished if this was its last round; else it stops without a plan. Returns
        the study, or None if the round is closed already, as by whoever stopped the study.

        Raises:
            StaleLeaseError: if closing it was claimed again since `lease` was.
        """
        check(session, lease)
        row = find_study(session, study, lock=True)
        if not self._close(session, study, number, outcome):
            return None
        if number >= row.rounds or outcome.is_last:
            row.state = "finished"
        elif plan is None:
            row.state = "stopped"
        else:
            row.round = plan.round
            insert_round(session, study_view(row), plan, self.database.now(session))
        if row.state != "running":
            now = self.database.now(session)
            tell(session, study, EventKind.STUDY_ENDED, now, state=row.state)
        announce(session, study_bell(study))
        return study_view(row)

    def _close(self, session: Session, study: str, number: int, outcome: Outcome) -> bool:
        answer = outcome.answer
        values = {
            "state": outcome.state,
            "participants": outcome.participants,
            "distinct": None if answer is None else answer.distinct,
            "closed": self.database.now(session),
        }
        running = (Round.study == study, Round.number == number, Round.state == "running")
        query = update(Round).where(*running).values(values).returning(Round.number)
        if session.scalar(query) is None:
            return False
        left_out = (
            Cohort.study == study,
            Cohort.round == number,
            Cohort.number.in_(outcome.left_out),
        )
        session.execute(update(Cohort).where(*left_out).values(failure=_LEFT_OUT))
        plan = parse_plan(session.get_one(Round, (study, number)).plan)
        if plan.question.withholds:
            every = (Cohort.study == study, Cohort.round == number)
            session.execute(update(Cohort).where(*every).values(sum=None))
        if answer is not None:
            keep_tally(session, study, answer.tally, outcome.heavy)
        self._tell(session, study, number, outcome, plan.t)
        return True

    def _tell(
        self,
        session: Session,
        study: str,
        number: int,
        outcome: Outcome,
        threshold: float | None,
    ) -> None:
        now = self.database.now(session)
        for cohort in sorted(outcome.left_out):
            facts = {"round": number, "cohort": cohort}
            tell(session, study, EventKind.COHORT_LEFT_OUT, now, **facts)
        tell(
            session,
            study,
            EventKind.ROUND_CLOSED,
            now,
            round=number,
            state=outcome.state,
            participants=outcome.participants,
            threshold=threshold,
            found=None if outcome.answer is None else len(outcome.heavy),
        )


def _views(session: Session, rows: Sequence[Round]) -> tuple[RoundView, ...]:
    if not rows:
        return ()
    numbers = [row.number for row in rows]
    of_rounds = (Cohort.study == rows[0].study, Cohort.round.in_(numbers))
    cohorts = session.scalars(select(Cohort).where(*of_rounds).order_by(Cohort.number)).all()
    heard, survivors = _messages(session, cohorts)
    blamed = _blamed(session, cohorts)
    terms = {row.number: Terms.model_validate(row.plan["terms"]) for row in rows}
    views: dict[int, list[CohortView]] = defaultdict(list)
    for cohort in cohorts:
        said = heard[cohort.id, KIND.get(cohort.phase, "")]
        count = cohort.enrolled if cohort.phase in (Phase.ENROLLING, Phase.REPORTING) else said
        of = (terms[cohort.round], count, survivors[cohort.id], blamed[cohort.id])
        views[cohort.round].append(cohort_view(cohort, *of))
    return tuple(round_view(row, views[row.number]) for row in rows)


def _blamed(session: Session, cohorts: Sequence[Cohort]) -> dict[int, dict[int, str]]:
    """Return who departed from the protocol in cohorts that are over."""
    over = [cohort.id for cohort in cohorts if cohort.phase.is_over]
    blamed: dict[int, dict[int, str]] = defaultdict(dict)
    if over:
        named = (Participant.cohort.in_(over), Participant.blamed.is_not(None))
        columns = (Participant.cohort, Participant.slot, Participant.blamed)
        for cohort, slot, what in session.execute(select(*columns).where(*named)):
            blamed[cohort][slot] = what or ""
    return blamed


def _messages(
    session: Session, cohorts: Sequence[Cohort]
) -> tuple[Counter[tuple[int, str]], dict[int, list[int]]]:
    """Return how many messages of each kind running cohorts have; survivors of summed ones."""
    running = [cohort.id for cohort in cohorts if not cohort.phase.is_over]
    summed = [cohort.id for cohort in cohorts if cohort.phase is Phase.SUMMED]
    counts = select(Message.cohort, Message.kind, func.count()).where(Message.cohort.in_(running))
    heard: Counter[tuple[int, str]] = Counter()
    if running:
        grouped = counts.group_by(Message.cohort, Message.kind)
        for cohort, kind, count in session.execute(grouped):
            heard[cohort, kind] = count
    survivors: dict[int, list[int]] = defaultdict(list)
    if summed:
        vectors = (Message.cohort.in_(summed), Message.kind == "vector")
        slots = select(Message.cohort, Message.slot).where(*vectors).order_by(Message.slot)
        for cohort, slot in session.execute(slots):
            survivors[cohort].append(slot)
    return heard, survivors
