"""What a cohort's rows say, read back: rosters, bodies and sums."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from sqlalchemy import func, select
from sqlalchemy.orm import Session, undefer

from protocol.mechanisms import SUMMING, AnyPlan, parse_plan
from protocol.messages import ProblemType
from protocol.round import Phase
from secagg.cohort import Cohort as Sum
from secagg.ring import Ring
from server.database import Database, reading
from server.refusals import Refusal, cohort_failed, not_found
from server.schema import Cohort, Message, Participant, Round
from server.store.participants import entry_of
from server.store.views import has_enrolled

_BATCH = 16  # vectors read at a time: 6 MB of the usual 400 kB


@dataclass(frozen=True, slots=True)
class Facts:
    """What is settled once a cohort has enrolled: its plan, its ring, its sum's public facts."""

    plan: AnyPlan
    ring: Ring
    sum: Sum = field(repr=False)


@dataclass(frozen=True, slots=True)
class Messages:
    """The book of what was said."""

    database: Database

    @reading
    def facts(self, session: Session, cohort: int) -> Facts:
        """Return the facts of a cohort that has enrolled.

        Raises:
            Refusal: if it has not, or failed before it had.
        """
        row = session.get_one(Cohort, cohort)
        if not has_enrolled(row):
            raise _not_enrolled(row)
        plan = parse_plan(session.get_one(Round, (row.study, row.round)).plan)
        ring = SUMMING[plan.mechanism].ring(plan)
        seated = select(Participant).where(Participant.cohort == cohort).order_by(Participant.slot)
        roster = tuple(entry_of(seat) for seat in session.scalars(seated))
        assumptions, registry = plan.terms.assumptions, plan.registry
        return Facts(plan, ring, Sum(plan.digest(), row.number, roster, assumptions, registry))

    @reading
    def said(self, session: Session, cohort: int, kind: str) -> frozenset[int]:
        """Return the slots that sent a message of `kind`."""
        query = select(Message.slot).where(Message.cohort == cohort, Message.kind == kind)
        return frozenset(session.scalars(query))

    async def bodies(self, cohort: int, kind: str) -> AsyncIterator[list[tuple[int, bytes]]]:
        """Yield slots and bodies of a closed phase, some at a time, holding no connection.

        Raises:
            Refusal: if the cohort is over, so that bodies are forgotten: nothing may be made
                of those that were read before.
        """
        last = -1
        while batch := await self._batch(cohort, kind, last):
            yield batch
            last = batch[-1][0]

    @reading
    def _batch(
        self, session: Session, cohort: int, kind: str, last: int
    ) -> list[tuple[int, bytes]]:
        mine = (Message.cohort == cohort, Message.kind == kind, Message.slot > last)
        query = select(Message.slot, Message.body).where(*mine)
        rows = session.execute(query.order_by(Message.slot).limit(_BATCH))
        batch = []
        for slot, body in rows:
            if body is None:
                raise _forgotten(session.get_one(Cohort, cohort))
            batch.append((slot, body))
        return batch

    @reading
    def sums(self, session: Session, study: str, number: int) -> dict[int, tuple[bytes, int]]:
        """Return the packed sum of each of a round's cohorts, and how many vectors are in it."""
        summed = (Cohort.study == study, Cohort.round == number, Cohort.phase == Phase.SUMMED)
        vectors = (Message.cohort == Cohort.id, Message.kind == "vector")
        count = select(func.count()).where(*vectors).scalar_subquery()
        rows = session.execute(select(Cohort.number, Cohort.sum, count).where(*summed))
        return {cohort: (packed, n) for cohort, packed, n in rows if packed is not None}

    @reading
    def sum(self, session: Session, study: str, number: int, cohort: int) -> bytes:
        """Return the packed sum of one cohort.

        Raises:
            Refusal: if there is no such cohort, or it has no sum yet, or never will.
        """
        of_round = (Cohort.study == study, Cohort.round == number, Cohort.number == cohort)
        query = select(Cohort).where(*of_round).options(undefer(Cohort.sum))
        row = session.scalar(query)
        if row is None:
            raise not_found("cohort")
        if parse_plan(session.get_one(Round, (study, number)).plan).question.withholds:
            detail = "this study publishes no sums: they hold counts that are to be suppressed"
            raise Refusal(ProblemType.WRONG_STATE, detail)
        if row.phase is Phase.FAILED:
            raise cohort_failed(row.failure)
        if row.sum is None:
            detail = f"the cohort is {row.phase}: there is no sum yet"
            raise Refusal(ProblemType.WRONG_PHASE, detail, phase=row.phase)
        return row.sum


def _forgotten(row: Cohort) -> Refusal:
    if row.phase is Phase.FAILED:
        return cohort_failed(row.failure)
    detail = f"the cohort is {row.phase}: what was said in it is forgotten"
    return Refusal(ProblemType.WRONG_PHASE, detail, phase=row.phase)


def _not_enrolled(row: Cohort) -> Refusal:
    if row.phase is Phase.FAILED:
        return cohort_failed(row.failure)
    return Refusal(ProblemType.WRONG_PHASE, "the cohort is still enrolling", phase=row.phase)
