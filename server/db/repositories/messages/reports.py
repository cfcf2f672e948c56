"""Locally private reports, one for each device and study, and the rules for them."""

from collections import defaultdict
from collections.abc import AsyncIterator, Hashable
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, cast

from sqlalchemy import Table, bindparam, select
from sqlalchemy.orm import Session

from protocol.api.messages import ProblemType
from protocol.api.phases import Phase
from server.db.database import Repository, read_transaction
from server.db.group_commit import PreparedInsert
from server.db.repositories.arrivals import Arrival, ArrivalGroup, LockedCohort
from server.db.repositories.messages.device_spending import LockedSpending, ReportCost
from server.db.schema import CohortRow, ReportRow, StudyRow
from server.errors import ProblemError, not_found

_REPORTS_PER_QUERY = 8192
_MAX_BATCH_BYTES = 4 * 2**20
_COHORTS = cast("Table", CohortRow.__table__)
_REPORTS = cast("Table", ReportRow.__table__)
_STORED_REPORTS = (
    select(_REPORTS.c.identity, _REPORTS.c.digest, _COHORTS.c.round)
    .join(_COHORTS, _COHORTS.c.id == _REPORTS.c.cohort)
    .where(
        _REPORTS.c.study == bindparam("of_study"), _REPORTS.c.identity.in_(bindparam("identities"))
    )
)
_INSERT = PreparedInsert(ReportRow)


@dataclass(frozen=True, slots=True)
class Report(Arrival):
    """Report to a round of `study`, and its cost."""

    name: ClassVar[str] = "a report"
    phase: ClassVar[Phase] = Phase.REPORTING
    study: str
    round: int
    identity: str
    body: bytes = field(repr=False)
    cost: ReportCost

    @property
    def key(self) -> tuple[str, str]:
        return self.study, self.identity

    @property
    def nbytes(self) -> int:
        return len(self.body)


class ReportGroup(ArrivalGroup[Report]):
    """Rules for reports, which charge the budgets of devices.

    The budgets are locked before the stored reports are read: then no other process stores a report
    of the same device meanwhile.
    """

    receiver = "study"

    def read_stored(self) -> dict[Hashable, bytes]:
        self._spending = LockedSpending(self.connection, {each.identity for each in self.arrivals})
        identities = defaultdict[str, list[str]](list)
        for report in self.arrivals:
            identities[report.study].append(report.identity)
        self._rounds, stored = dict[Hashable, int](), dict[Hashable, bytes]()
        for study, of_study in identities.items():
            parameters = {"of_study": study, "identities": of_study}
            for row in self.connection.execute(_STORED_REPORTS, parameters):
                self._rounds[study, row.identity] = row.round
                stored[study, row.identity] = row.digest
        return stored

    def check(self, arrival: Report) -> None:
        """Charge the device for a report; raises ProblemError if it cannot afford it."""
        self._spending.charge(arrival.identity, arrival.cost)

    def other_content(self, arrival: Report, phase: Phase) -> ProblemError:
        if self._rounds.get(arrival.key, arrival.round) != arrival.round:
            detail = "this device reported in an earlier round"
            return ProblemError(ProblemType.ALREADY_COUNTED, detail)
        return super().other_content(arrival, phase)

    def full(self, arrival: Report) -> ProblemError:
        return ProblemError(ProblemType.NO_ROUND, f"round {arrival.round} takes no more reports")

    def late(self, arrival: Report, _cohort: LockedCohort) -> ProblemError:
        return self.full(arrival)

    def closed(self, arrival: Report, _cohort: LockedCohort) -> ProblemError:
        state = self.connection.scalar(select(StudyRow.state).where(StudyRow.id == arrival.study))
        if state != "running":
            return ProblemError(ProblemType.WRONG_STATE, f"the study is {state}")
        return self.full(arrival)

    def store(self, now: datetime) -> None:
        """Store the accepted reports and what they cost.

        Raises:
            IntegrityError: if another transaction has stored the first report of a device, whose
                row therefore could not be locked.
        """
        self._spending.store()
        rows = [
            {
                "study": report.study,
                "identity": report.identity,
                "cohort": report.cohort,
                "epsilon": report.cost.epsilon,
                "delta": report.cost.delta,
                "received_at": now,
                "digest": report.digest,
                "body": report.body,
            }
            for report in self.accepted
        ]
        _INSERT(self.connection, rows)


class ReportRepository(Repository):
    """Repository that reads reports."""

    @read_transaction
    def cohort(self, session: Session, study: str, number: int) -> int:
        """Return the row id of the cohort with the reports to a round."""
        of_round = (CohortRow.study == study, CohortRow.round == number)
        cohort = session.scalar(select(CohortRow.id).where(*of_round))
        if cohort is None:
            raise not_found("study")
        return cohort

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
