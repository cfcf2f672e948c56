"""Locally private reports: taken once a device and study, added up by device, read in batches."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from protocol.messages import ProblemType
from protocol.report import Report as Signed
from protocol.round import Phase
from server.database import Database, reading, writing
from server.refusals import Refusal
from server.schema import Account, Cohort, Report
from server.store.studies import find_study

_BATCH = 8192  # reports read at a time
_TRIES = 3  # at a report while others of its device are kept
_MOST_BYTES = 4 * 2**20  # and their bytes


@dataclass(frozen=True, slots=True)
class Charge:
    """What a report costs its device, and what that may spend in all studies together."""

    epsilon: float
    delta: float
    most_epsilon: float
    most_delta: float

    def check(self, epsilon: float, delta: float) -> None:
        """Check that a device which has spent so much may spend this as well.

        Raises:
            Refusal: if not.
        """
        for name, before, more, most in (
            ("epsilon", epsilon, self.epsilon, self.most_epsilon),
            ("delta", delta, self.delta, self.most_delta),
        ):
            if not before + more <= most * (1 + 1e-9):
                has = f"this device has spent {name} {before:g} of {most:g}"
                raise Refusal(ProblemType.BUDGET_SPENT, f"{has}: {more:g} more is too much")


@dataclass(frozen=True, slots=True)
class Reports:
    """The book of reports."""

    database: Database

    async def accept(self, study: str, number: int, report: Signed, charge: Charge) -> None:
        """Keep a report to round `number` of `study`.

        Raises:
            Refusal: if the round takes no more reports, the device reported to this study
                before, or it would have spent more than its budget.
        """
        arrived = self.database.seconds()  # a queue of writers is no reason to be late
        for _ in range(_TRIES):
            try:
                return await self._accept(study, number, report, charge, arrived)
            except IntegrityError:  # the same device was heard this very moment
                continue
        return await self._accept(study, number, report, charge, arrived)

    @writing
    def _accept(
        self,
        session: Session,
        study: str,
        number: int,
        report: Signed,
        charge: Charge,
        arrived: float,
    ) -> None:
        identity = report.identity.hex()
        if _said_before(session, study, number, report):
            return
        waited = timedelta(seconds=self.database.seconds() - arrived)
        cohort = _cohort_with_room(session, study, number, self.database.now(session) - waited)
        if _said_before(session, study, number, report):  # heard while this waited for the lock
            return
        account = _account(session, identity)
        charge.check(account.epsilon, account.delta)
        account.epsilon += charge.epsilon
        account.delta += charge.delta
        row = Report(
            study=study,
            identity=identity,
            cohort=cohort,
            epsilon=charge.epsilon,
            delta=charge.delta,
            received=self.database.instant(),
            digest=report.fingerprint,
            body=report.body,
        )
        session.add(row)
        session.execute(
            update(Cohort).where(Cohort.id == cohort).values(enrolled=Cohort.enrolled + 1)
        )

    @reading
    def spent(self, session: Session, identity: str) -> float:
        """Return the epsilon that a device has spent in all studies."""
        account = session.get(Account, identity)
        return 0.0 if account is None else account.epsilon

    async def bodies(self, study: str, number: int, nbytes: int, most: int) -> AsyncIterator[bytes]:
        """Yield the reports of `nbytes` to a round, joined, up to `most` at a time, in order.

        There are fewer of them where they take more than 4 MB.
        """
        most = max(1, min(most, _MOST_BYTES // max(1, nbytes)))
        last, joined = "", bytearray()
        while batch := await self._batch(study, number, last, min(_BATCH, most)):
            joined += b"".join(body for _, body in batch)
            last = batch[-1][0]
            if len(joined) + min(_BATCH, most) * nbytes > most * nbytes:
                yield bytes(joined)
                joined.clear()
        if joined:
            yield bytes(joined)

    @reading
    def _batch(
        self, session: Session, study: str, number: int, last: str, most: int
    ) -> list[tuple[str, bytes]]:
        of_round = (Cohort.study == study, Cohort.round == number)
        query = (
            select(Report.identity, Report.body)
            .join(Cohort, Cohort.id == Report.cohort)
            .where(*of_round, Report.identity > last)
            .order_by(Report.identity)
            .limit(most)
        )
        return [(identity, body) for identity, body in session.execute(query)]


def _said_before(session: Session, study: str, number: int, report: Signed) -> bool:
    """Return whether this very report is kept; refuse another of the same device."""
    row = session.get(Report, (study, report.identity.hex()), populate_existing=True)
    if row is None:
        return False
    if row.digest == report.fingerprint:
        return True
    if session.get_one(Cohort, row.cohort).round != number:
        raise Refusal(ProblemType.ALREADY_COUNTED, "this device reported in an earlier round")
    raise Refusal(ProblemType.CONFLICT, "this device reported something else before")


def _account(session: Session, identity: str) -> Account:
    """Return a device's account, locked: its reports to other studies wait for this one.

    It is the last row that is locked, after those of the study.
    """
    query = select(Account).where(Account.identity == identity).with_for_update()
    found = session.scalar(query.execution_options(populate_existing=True))
    if found is None:
        found = Account(identity=identity, epsilon=0.0, delta=0.0)
        session.add(found)
        session.flush()  # IntegrityError if another transaction has made it meanwhile
    return found


def _cohort_with_room(session: Session, study: str, number: int, arrived: datetime) -> int:
    """Return the cohort that takes a round's reports, locked."""
    row = find_study(session, study)
    if row.state != "running":
        raise Refusal(ProblemType.WRONG_STATE, f"the study is {row.state}")
    query = select(Cohort).where(Cohort.study == study, Cohort.round == number)
    cohort = session.scalar(query.with_for_update())
    most = row.terms["cohort_size"] * row.terms["cohorts"]
    is_open = cohort is not None and cohort.phase is Phase.REPORTING and arrived < cohort.deadline
    if cohort is None or not is_open or cohort.enrolled >= most:
        raise Refusal(ProblemType.NO_ROUND, f"round {number} takes no more reports")
    return cohort.id
