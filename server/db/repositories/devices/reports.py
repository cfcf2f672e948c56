"""Repository of locally private reports, and of what devices have spent on them.

Reports that arrive together are stored in one transaction (`server/db/group_commit.py`). It locks
the rows of their studies, then of their cohorts, then of what their devices have spent, each in the
order of keys, and counts the reports of each cohort.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, TypeAlias, cast

from sqlalchemy import Connection, Table, bindparam, select, tuple_, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from protocol.api.device_messages import SignedReport
from protocol.api.messages import ProblemType
from protocol.api.phases import Phase
from server.db.database import Repository, read_transaction, write_transaction
from server.db.group_commit import GroupCommit
from server.db.prepared_insert import PreparedInsert
from server.db.repositories.devices.device_spending import LockedSpending, ReportCost
from server.db.schema import CohortRow, ReportRow, StudyRow
from server.errors import ProblemError, not_found, time_lost

_REPORTS_PER_QUERY = 8192
_MAX_ATTEMPTS = 3  # to store reports, while the first ones of their devices are stored elsewhere
_MAX_BATCH_BYTES = 4 * 2**20
_STUDIES = cast("Table", StudyRow.__table__)
_COHORTS = cast("Table", CohortRow.__table__)
_REPORTS = cast("Table", ReportRow.__table__)
# As the foreign key of a report locks its study, but before the cohort.
_LOCKED_STUDIES = (
    select(_STUDIES.c.id, _STUDIES.c.state, _STUDIES.c.terms)
    .where(_STUDIES.c.id.in_(bindparam("studies")))
    .order_by(_STUDIES.c.id)
    .with_for_update(read=True, key_share=True)
)
_LOCKED_COHORTS = (
    select(
        _COHORTS.c.id,
        _COHORTS.c.study,
        _COHORTS.c.round,
        _COHORTS.c.phase,
        _COHORTS.c.deadline,
        _COHORTS.c.enrolled,
    )
    .where(tuple_(_COHORTS.c.study, _COHORTS.c.round).in_(bindparam("rounds", expanding=True)))
    .order_by(_COHORTS.c.id)
    .with_for_update(key_share=True)
)
_STORED_REPORTS = (
    select(_REPORTS.c.identity, _REPORTS.c.digest, _COHORTS.c.round)
    .join(_COHORTS, _COHORTS.c.id == _REPORTS.c.cohort)
    .where(
        _REPORTS.c.study == bindparam("of_study"),
        _REPORTS.c.identity.in_(bindparam("identities")),
    )
)
_INSERT = PreparedInsert(ReportRow)
_COUNT = (
    update(_COHORTS)
    .where(_COHORTS.c.id == bindparam("cohort"))
    .values(enrolled=bindparam("new_count"))
)
_RoundKey: TypeAlias = tuple[str, int]  # a study, and the number of its round


@dataclass(frozen=True, slots=True)
class ReportUpload:
    """Checked report to round `number` of `study`, and its cost."""

    study: str
    number: int
    report: SignedReport = field(repr=False)
    cost: ReportCost

    @property
    def identity(self) -> str:
        return self.report.identity.hex()

    @property
    def round_key(self) -> _RoundKey:
        return self.study, self.number


@dataclass(frozen=True, slots=True)
class _Arrival:
    """Upload and the seconds at which it arrived: time in the queue of writers does not count."""

    upload: ReportUpload
    seconds: float


@dataclass
class _Cohort:
    """Locked cohort of a round of reports, of which it has `enrolled`."""

    id: int
    phase: Phase
    deadline: datetime
    enrolled: int


class ReportRepository(Repository):
    """Repository of reports."""

    async def accept(self, upload: ReportUpload) -> tuple[int, int]:
        """Store a report; the same report may be sent again.

        Returns the row id of the cohort, and the number of reports in it.

        Raises:
            ProblemError: if the round takes no more reports, the device has reported to this study
                before, or the report would exceed its budget.
        """
        return await self.groups(_Arrival(upload, self.database.monotonic_seconds()))

    @cached_property
    def groups(self) -> GroupCommit[_Arrival, tuple[int, int]]:
        return GroupCommit(self._store, lambda arrival: len(arrival.upload.report.body))

    async def _store(
        self, arrivals: Sequence[_Arrival]
    ) -> Sequence[tuple[int, int] | ProblemError]:
        """Store all reports that are not refused; return the result or the refusal of each."""
        for _ in range(_MAX_ATTEMPTS):
            try:
                return await self._accept(arrivals)
            except IntegrityError:  # another process has stored the first report of a device
                continue
        return await self._accept(arrivals)

    @write_transaction
    def _accept(
        self, session: Session, arrivals: Sequence[_Arrival]
    ) -> Sequence[tuple[int, int] | ProblemError]:
        connection, waited = session.connection(), self.database.monotonic_seconds()
        now = self.database.now(session)  # before the locks, for which no device is late
        uploads = [arrival.upload for arrival in arrivals]
        group = _LockedGroup(connection, uploads, has_lost_time=self.database.has_lost_time)
        results = list[tuple[int, int] | ProblemError]()
        for arrival in arrivals:
            at = now - timedelta(seconds=waited - arrival.seconds)
            try:
                cohort = group.accept(arrival.upload, at)
            except ProblemError as error:
                results.append(error)
            else:
                results.append((cohort.id, cohort.enrolled))
        group.store(now)
        return results

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


class _LockedGroup:
    """Reports of one transaction, which has locked all rows that they change."""

    def __init__(
        self, connection: Connection, uploads: Sequence[ReportUpload], *, has_lost_time: bool
    ) -> None:
        self._connection, self._has_lost_time = connection, has_lost_time
        studies = {"studies": [*{upload.study for upload in uploads}]}
        rounds = {"rounds": [*{upload.round_key for upload in uploads}]}
        self._studies = {row.id: row for row in connection.execute(_LOCKED_STUDIES, studies)}
        self._cohorts = {
            (row.study, row.round): _Cohort(row.id, row.phase, row.deadline, row.enrolled)
            for row in connection.execute(_LOCKED_COHORTS, rounds)
        }
        self._stored = _stored_reports(connection, uploads)
        self._spending = LockedSpending(connection, {upload.identity for upload in uploads})
        self._accepted = list[tuple[ReportUpload, _Cohort]]()

    def accept(self, upload: ReportUpload, arrived: datetime) -> _Cohort:
        """Count a report, unless it is a repetition, and what it costs its device.

        Raises:
            ProblemError: if it is refused; then nothing is counted.
        """
        key = upload.study, upload.identity
        if key in self._stored:
            _check_repetition(upload, *self._stored[key])
            return self._cohorts[upload.round_key]
        cohort = self._open_cohort(upload, arrived)
        self._spending.charge(upload.identity, upload.cost)
        cohort.enrolled += 1
        self._stored[key] = upload.report.content_digest, upload.number
        self._accepted.append((upload, cohort))
        return cohort

    def _open_cohort(self, upload: ReportUpload, arrived: datetime) -> _Cohort:
        study = self._studies.get(upload.study)
        if study is None:
            raise not_found("study")
        if study.state != "running":
            raise ProblemError(ProblemType.WRONG_STATE, f"the study is {study.state}")
        cohort = self._cohorts.get(upload.round_key)
        max_reports = study.terms["cohort_size"] * study.terms["cohorts"]
        is_open = cohort is not None and cohort.phase is Phase.REPORTING
        if cohort is None or not is_open or cohort.enrolled >= max_reports:
            raise _no_more_reports(upload)
        if arrived >= cohort.deadline:
            raise time_lost(cohort.phase) if self._has_lost_time else _no_more_reports(upload)
        return cohort

    def store(self, now: datetime) -> None:
        """Store the accepted reports, received at `now`.

        Raises:
            IntegrityError: if another transaction has stored the first report of a device.
        """
        if not self._accepted:
            return
        self._spending.store()
        _INSERT(self._connection, [_row(*each, now) for each in self._accepted])
        cohorts = {cohort.id: cohort for _, cohort in self._accepted}.values()
        counts = [{"cohort": each.id, "new_count": each.enrolled} for each in cohorts]
        self._connection.execute(_COUNT, counts)


def _no_more_reports(upload: ReportUpload) -> ProblemError:
    return ProblemError(ProblemType.NO_ROUND, f"round {upload.number} takes no more reports")


def _stored_reports(
    connection: Connection, uploads: Sequence[ReportUpload]
) -> dict[tuple[str, str], tuple[bytes, int]]:
    """Return digest and round of the reports of devices to their studies, by study and identity."""
    identities = defaultdict[str, list[str]](list)
    for upload in uploads:
        identities[upload.study].append(upload.identity)
    return {
        (study, row.identity): (row.digest, row.round)
        for study, of_study in identities.items()
        for row in connection.execute(_STORED_REPORTS, {"of_study": study, "identities": of_study})
    }


def _check_repetition(upload: ReportUpload, stored_digest: bytes, stored_round: int) -> None:
    """Raise ProblemError if a device has sent another report to the study before."""
    if stored_digest == upload.report.content_digest:
        return
    if stored_round != upload.number:
        raise ProblemError(ProblemType.ALREADY_COUNTED, "this device reported in an earlier round")
    raise ProblemError(ProblemType.CONFLICT, "this device has sent another report before")


def _row(upload: ReportUpload, cohort: _Cohort, now: datetime) -> dict[str, Any]:
    return {
        "study": upload.study,
        "identity": upload.identity,
        "cohort": cohort.id,
        "epsilon": upload.cost.epsilon,
        "delta": upload.cost.delta,
        "received_at": now,
        "digest": upload.report.content_digest,
        "body": upload.report.body,
    }
