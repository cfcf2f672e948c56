"""Leases of jobs, and the heartbeats of the server processes that claim them.

    claim -> renew, renew, ... -> publish (checks the version) -> release

A claim is granted if the job is still due and no lease of it is active, and increments the version.
`check_lease` reads the version, with the row locked, in the transaction that publishes: among all
processes that ever claimed the job only the last one publishes. Safety depends on no clock.

Source: a row as a queue, `FOR UPDATE SKIP LOCKED` [PostgreSQL, SELECT, "The Locking Clause"].
SQLite's BEGIN IMMEDIATE excludes other writers, so there the same statements need no lock.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import cast

from sqlalchemy import ColumnElement, Table, bindparam, delete, exists, func, select, true, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from protocol.api.phases import Phase
from server.db.database import Repository, read_transaction, write_transaction
from server.db.group_commit import GroupCommit
from server.db.schema import SUMMING_PHASES, CohortRow, LeaseRow, ProcessRow, RoundRow

ALIVE_WITHIN = timedelta(seconds=3)  # a process with an older heartbeat is not alive
_DELETE_AFTER = timedelta(days=1)
# Of tables, because statements of rows take longer to make; built once for each poll.
_COHORTS, _LEASES, _PROCESSES = (
    cast("Table", row.__table__) for row in (CohortRow, LeaseRow, ProcessRow)
)
_CLAIMED_JOBS = select(_LEASES.c.job, _LEASES.c.expires).where(_LEASES.c.expires > bindparam("now"))
_RELEASE = (
    update(_LEASES)
    .where(_LEASES.c.job == bindparam("of"), _LEASES.c.version == bindparam("last"))
    .values(expires=bindparam("now"))
)
_RECEIVING_SINCE = select(
    func.min(_PROCESSES.c.receiving_since, type_=_PROCESSES.c.receiving_since.type)
).where(_PROCESSES.c.last_seen > bindparam("last"))


class StaleLeaseError(Exception):
    """The job was claimed again by another process, so its result is not published."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job: its name, its `kind` for metrics, and the condition that it is still due.

    The condition takes long to make, and only a claim needs it.
    """

    name: str
    is_due: Callable[[], ColumnElement[bool]] = field(repr=False, compare=False)

    @property
    def kind(self) -> str:
        return self.name.partition(" ")[0]


DELETE_BODIES_JOB = Job("delete-bodies", true)  # a process starts it if it knows of bodies


@dataclass(frozen=True, slots=True)
class Lease:
    """One claim of a job; `version` is the fencing token."""

    job: str
    holder: str
    version: int


@dataclass(frozen=True, slots=True)
class _Claim:
    job: Job
    holder: str
    duration: timedelta


def seat_job(study: str, number: int) -> Job:
    """Return the job that moves the joiners of a round to their seats."""

    def is_due() -> ColumnElement[bool]:
        of_round = (CohortRow.study == study, CohortRow.round == number)
        is_seated = CohortRow.seating.is_not(None)
        return exists().where(*of_round, CohortRow.phase == Phase.SEATING, is_seated)

    return Job(f"seat-round {study} {number}", is_due)


def sum_job(cohort: int) -> Job:
    def is_due() -> ColumnElement[bool]:
        return exists().where(_COHORTS.c.id == cohort, _COHORTS.c.phase.in_(SUMMING_PHASES))

    return Job(f"sum-cohort {cohort}", is_due)


def close_round_job(study: str, number: int) -> Job:
    """Return the job that decodes a round and opens the next."""

    def is_due() -> ColumnElement[bool]:
        of_round = (RoundRow.study == study, RoundRow.number == number)
        return exists().where(*of_round, RoundRow.state == "running")

    return Job(f"close-round {study} {number}", is_due)


def check_lease(session: Session, lease: Lease) -> None:
    """Lock `lease` until the transaction ends; raises StaleLeaseError if it is not the last one."""
    for error in stale_leases(session, [lease]).values():
        raise error


def stale_leases(session: Session, leases: Sequence[Lease]) -> dict[str, StaleLeaseError]:
    """Lock `leases` until the transaction ends; return the error of each that is not the last one.

    They are of different jobs, by whose names the errors are.
    """
    jobs = LeaseRow.job.in_([lease.job for lease in leases])
    query = select(LeaseRow.job, LeaseRow.version).where(jobs).order_by(LeaseRow.job)
    versions = {row.job: row.version for row in session.execute(query.with_for_update())}
    return {
        lease.job: StaleLeaseError(f"{lease.job} was claimed again after version {lease.version}")
        for lease in leases
        if versions.get(lease.job) != lease.version
    }


def claimed_jobs(session: Session, now: datetime) -> Mapping[str, datetime]:
    """Return the names of the claimed jobs, and when each lease expires."""
    claimed = session.connection().execute(_CLAIMED_JOBS, {"now": now})
    return {row.job: row.expires for row in claimed}


def receiving_since(session: Session, now: datetime) -> datetime | None:
    """Return since when a living process has received without interruption, None if none lives."""
    since: datetime | None = session.connection().scalar(
        _RECEIVING_SINCE, {"last": now - ALIVE_WITHIN}
    )
    return since


class LeaseRepository(Repository):
    """Repository of leases."""

    async def claim(self, job: Job, holder: str, seconds: float) -> Lease | None:
        """Return a lease of `job`, or None if the job is done or another process has its lease.

        Claims that arrive together share a transaction, as releases do.
        """
        return await self._claims(_Claim(job, holder, timedelta(seconds=seconds)))

    @cached_property
    def _claims(self) -> GroupCommit[_Claim, Lease | None]:
        return GroupCommit(self._claim, order=lambda claim: claim.job.name)

    @write_transaction
    def _claim(self, session: Session, claims: Sequence[_Claim]) -> Sequence[Lease | None]:
        jobs, connection = {claim.job.name: claim.job for claim in claims}, session.connection()
        are_named = LeaseRow.job.in_(jobs)
        query = select(LeaseRow).where(are_named).order_by(LeaseRow.job)
        rows = {row.job: row for row in session.scalars(query.with_for_update(skip_locked=True))}
        locked = set(session.scalars(select(LeaseRow.job).where(are_named))) - rows.keys()
        # Read after the lock, to see what the last holder has published.
        due = [
            name
            for name, job in jobs.items()
            if name not in locked and connection.scalar(select(job.is_due()))
        ]
        now = self.database.now(session)
        new = _insert_leases(session, [name for name in due if name not in rows], now)
        free = {name: row for name, row in (rows | new).items() if name in due}
        return [_claim_row(free.get(claim.job.name), claim, now) for claim in claims]

    @write_transaction
    def renew(self, session: Session, lease: Lease, seconds: float) -> bool:
        """Let `lease` expire after `seconds` from now; False if its job was claimed again."""
        expires = self.database.now(session) + timedelta(seconds=seconds)
        is_same = LeaseRow.job == lease.job, LeaseRow.version == lease.version
        query = update(LeaseRow).where(*is_same).values(expires=expires)
        return session.scalar(query.returning(LeaseRow.version)) is not None

    async def release(self, lease: Lease) -> None:
        """Let any process claim the job, if it is not done."""
        await self._releases(lease)

    @cached_property
    def _releases(self) -> GroupCommit[Lease, None]:
        return GroupCommit(self._release, order=lambda lease: lease.job)

    @write_transaction
    def _release(self, session: Session, leases: Sequence[Lease]) -> Sequence[None]:
        now = self.database.now(session)
        rows = [{"of": lease.job, "last": lease.version, "now": now} for lease in leases]
        session.connection().execute(_RELEASE, rows)
        return [None] * len(leases)

    @write_transaction
    def release_others(self, session: Session, holder: str) -> None:
        """Release all leases of processes other than `holder`, for when no other one is alive."""
        now = self.database.now(session)
        others = (LeaseRow.holder != holder, LeaseRow.expires > now)
        session.execute(update(LeaseRow).where(*others).values(expires=now))

    @read_transaction
    def latest(self, session: Session, limit: int) -> Sequence[LeaseRow]:
        """Return at most `limit` leases, the last ones to expire first."""
        query = select(LeaseRow).order_by(LeaseRow.expires.desc(), LeaseRow.job).limit(limit)
        return session.scalars(query).all()


class ProcessRepository(Repository):
    """Repository of server processes and their heartbeats.

    Until its last heartbeat a process either received all messages, or has extended the deadlines
    for the time in which no process could receive (`server/rounds/heartbeat.py`).
    """

    @write_transaction
    def beat(self, session: Session, name: str, since: datetime) -> None:
        """Write a heartbeat of the process `name`, which has been receiving `since` then."""
        now = self.database.now(session)
        values = {
            "receiving_since": since,
            "last_seen": now,
            "heartbeats": ProcessRow.heartbeats + 1,
        }
        query = update(ProcessRow).where(ProcessRow.name == name).values(values)
        if session.scalar(query.returning(ProcessRow.name)) is None:
            session.add(ProcessRow(name=name, receiving_since=since, last_seen=now, heartbeats=0))
            session.execute(delete(ProcessRow).where(ProcessRow.last_seen < now - _DELETE_AFTER))

    @write_transaction
    def remove(self, session: Session, name: str) -> None:
        """Remove the process `name`, which is about to stop."""
        session.execute(delete(ProcessRow).where(ProcessRow.name == name))

    @read_transaction
    def other_heartbeats(self, session: Session, name: str) -> dict[str, int]:
        """Return the number of heartbeats of each recently seen process other than `name`."""
        alive = ProcessRow.last_seen > self.database.now(session) - ALIVE_WITHIN
        query = select(ProcessRow.name, ProcessRow.heartbeats).where(ProcessRow.name != name, alive)
        return {row.name: row.heartbeats for row in session.execute(query)}

    @read_transaction
    def latest(self, session: Session, limit: int) -> Sequence[ProcessRow]:
        """Return at most `limit` processes, the last ones seen first."""
        query = select(ProcessRow).order_by(ProcessRow.last_seen.desc()).limit(limit)
        return session.scalars(query).all()


def _insert_leases(session: Session, jobs: Sequence[str], now: datetime) -> dict[str, LeaseRow]:
    """Insert the first leases of `jobs`, which have expired; return those that are new, by job."""
    if not jobs:
        return {}
    # Another process may claim a job for the first time, too: PostgreSQL would log an error for a
    # plain insert.
    is_postgresql = session.get_bind().dialect.name == "postgresql"
    insert = postgresql.insert if is_postgresql else sqlite.insert
    rows = [{"job": job, "holder": "", "version": 0, "expires": now} for job in jobs]
    new = insert(LeaseRow).values(rows).on_conflict_do_nothing()
    return {row.job: row for row in session.scalars(new.returning(LeaseRow))}


def _claim_row(row: LeaseRow | None, claim: _Claim, now: datetime) -> Lease | None:
    """Return a lease in the locked `row` of a job that is due, None if there is another lease."""
    if row is None or row.expires > now:
        return None
    row.holder, row.version = claim.holder, row.version + 1
    row.expires = now + claim.duration
    return Lease(row.job, row.holder, row.version)
