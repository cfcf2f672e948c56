"""Repository of locally private reports, and of what devices have spent on them."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from protocol.api.device_messages import SignedReport
from protocol.api.messages import ProblemType
from protocol.api.phases import Phase
from server.db.database import Repository, read_transaction, write_transaction
from server.db.repositories.studies import find_study
from server.db.schema import CohortRow, DeviceSpendingRow, ReportRow
from server.errors import ProblemError

_REPORTS_PER_QUERY = 8192
_MAX_ATTEMPTS = 3  # to store a report, while others of its device are stored
_MAX_BATCH_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class ReportCost:
    """Privacy cost of a report, and the budget of its device for all studies."""

    epsilon: float
    delta: float
    max_epsilon: float
    max_delta: float

    def check(self, epsilon: float, delta: float) -> None:
        """Raise ProblemError if a device that has spent this much cannot afford the report."""
        for name, spent, cost, budget in (
            ("epsilon", epsilon, self.epsilon, self.max_epsilon),
            ("delta", delta, self.delta, self.max_delta),
        ):
            if not spent + cost <= budget * (1 + 1e-9):
                detail = f"this device has spent {name} {spent:g} of {budget:g}"
                raise ProblemError(ProblemType.BUDGET_SPENT, f"{detail}: {cost:g} more is too much")


class ReportRepository(Repository):
    """Repository of reports."""

    async def accept(self, study: str, number: int, report: SignedReport, cost: ReportCost) -> None:
        """Store a report to round `number` of `study`.

        Raises:
            ProblemError: if the round takes no more reports, the device has reported to this study
                before, or the report would exceed its budget.
        """
        arrived = self.database.monotonic_seconds()  # time in the writers' queue does not count
        for _ in range(_MAX_ATTEMPTS):
            try:
                return await self._accept(study, number, report, cost, arrived)
            except IntegrityError:  # a concurrent request has stored a report of this device
                continue
        return await self._accept(study, number, report, cost, arrived)

    @write_transaction
    def _accept(
        self,
        session: Session,
        study: str,
        number: int,
        report: SignedReport,
        cost: ReportCost,
        arrived: float,
    ) -> None:
        identity = report.identity.hex()
        if _is_duplicate(session, study, number, report):
            return
        waited = timedelta(seconds=self.database.monotonic_seconds() - arrived)
        cohort = _open_cohort(session, study, number, self.database.now(session) - waited)
        if _is_duplicate(session, study, number, report):  # stored during the wait for the lock
            return
        spending = _lock_device_spending(session, identity)
        cost.check(spending.epsilon, spending.delta)
        spending.epsilon += cost.epsilon
        spending.delta += cost.delta
        row = ReportRow(
            study=study,
            identity=identity,
            cohort=cohort,
            epsilon=cost.epsilon,
            delta=cost.delta,
            received_at=self.database.now_column(),
            digest=report.content_digest,
            body=report.body,
        )
        session.add(row)
        session.execute(
            update(CohortRow).where(CohortRow.id == cohort).values(enrolled=CohortRow.enrolled + 1)
        )

    async def bodies(
        self, study: str, number: int, nbytes: int, batch_size: int
    ) -> AsyncIterator[bytes]:
        """Yield the reports of `nbytes` bytes to a round, joined in batches, in a fixed order.

        A batch has at most `batch_size` reports and 4 MB.
        """
        batch_size = max(1, min(batch_size, _MAX_BATCH_BYTES // max(1, nbytes)))
        query_size = min(_REPORTS_PER_QUERY, batch_size)
        last, joined = "", bytearray()
        while rows := await self._batch(study, number, last, query_size):
            joined += b"".join(body for _, body in rows)
            last = rows[-1][0]
            if len(joined) + query_size * nbytes > batch_size * nbytes:
                yield bytes(joined)
                joined.clear()
        if joined:
            yield bytes(joined)

    @read_transaction
    def _batch(
        self, session: Session, study: str, number: int, last: str, limit: int
    ) -> list[tuple[str, bytes]]:
        of_round = (CohortRow.study == study, CohortRow.round == number)
        query = (
            select(ReportRow.identity, ReportRow.body)
            .join(CohortRow, CohortRow.id == ReportRow.cohort)
            .where(*of_round, ReportRow.identity > last)
            .order_by(ReportRow.identity)
            .limit(limit)
        )
        return [(identity, body) for identity, body in session.execute(query)]


def _is_duplicate(session: Session, study: str, number: int, report: SignedReport) -> bool:
    """Return whether this report is stored already; refuse another one of its device."""
    row = session.get(ReportRow, (study, report.identity.hex()), populate_existing=True)
    if row is None:
        return False
    if row.digest == report.content_digest:
        return True
    if session.get_one(CohortRow, row.cohort).round != number:
        raise ProblemError(ProblemType.ALREADY_COUNTED, "this device reported in an earlier round")
    raise ProblemError(ProblemType.CONFLICT, "this device has sent another report before")


def _lock_device_spending(session: Session, identity: str) -> DeviceSpendingRow:
    """Return the spending of a device, locked, so that its reports to all studies are serialized.

    It is the last row that the transaction locks, after the rows of the study.
    """
    query = (
        select(DeviceSpendingRow).where(DeviceSpendingRow.identity == identity).with_for_update()
    )
    row = session.scalar(query.execution_options(populate_existing=True))
    if row is None:
        row = DeviceSpendingRow(identity=identity, epsilon=0.0, delta=0.0)
        session.add(row)
        session.flush()  # IntegrityError if another transaction has inserted it meanwhile
    return row


def _open_cohort(session: Session, study: str, number: int, arrived: datetime) -> int:
    row = find_study(session, study)
    if row.state != "running":
        raise ProblemError(ProblemType.WRONG_STATE, f"the study is {row.state}")
    query = select(CohortRow).where(CohortRow.study == study, CohortRow.round == number)
    cohort = session.scalar(query.with_for_update())
    max_reports = row.terms["cohort_size"] * row.terms["cohorts"]
    is_open = cohort is not None and cohort.phase is Phase.REPORTING and arrived < cohort.deadline
    if cohort is None or not is_open or cohort.enrolled >= max_reports:
        raise ProblemError(ProblemType.NO_ROUND, f"round {number} takes no more reports")
    return cohort.id
