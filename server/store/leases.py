"""Leases: who does a piece of work, until when, and which claim of it counts.

    claim -> renew, renew, ... -> publish (checks the version) -> release

A claim is granted if the work is still to be done and nobody's lease of it lasts: whoever died
lets it run out. Each claim raises the version by one. `check` reads it in the transaction that
publishes, with the row locked: so of all who ever claimed the work only the last one publishes,
and that a lease lasts, by whose clock ever, is nothing that safety hangs on. A holder that
comes too late for its own lease, which nobody else took up, publishes as if in time.

Source: a row as a queue, `FOR UPDATE SKIP LOCKED` [PostgreSQL, SELECT, "The Locking Clause"].
SQLite's BEGIN IMMEDIATE excludes other writers, so there the same statements need no lock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, exists, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from protocol.round import Phase
from server.database import Database, reading, writing
from server.schema import Cohort, Message, Round
from server.schema import Lease as Row


class StaleLeaseError(Exception):
    """The work was claimed by another process since: what was made of it is not published."""


@dataclass(frozen=True, slots=True)
class Work:
    """A piece of work, and how to see whether it is still to be done."""

    name: str
    is_due: ColumnElement[bool] = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Lease:
    """One claim of a piece of work; `version` is the fence."""

    work: str
    holder: str
    version: int


@dataclass(frozen=True, slots=True)
class Claim:
    """A lease as its row has it: it `holds` until `until`, if it was not released."""

    work: str
    holder: str
    version: int
    until: datetime
    holds: bool


def summing(cohort: int) -> Work:
    """Return the work of taking the masks off a cohort's sum."""
    due = exists().where(Cohort.id == cohort, Cohort.phase == Phase.UNMASKING)
    return Work(f"sum {cohort}", due)


def closing(study: str, number: int) -> Work:
    """Return the work of decoding a round and opening the next."""
    due = exists().where(Round.study == study, Round.number == number, Round.state == "running")
    return Work(f"close {study} {number}", due)


def forgetting(cohort: int) -> Work:
    """Return the work of dropping the bodies of a cohort that is over."""
    due = exists().where(Message.cohort == cohort, Message.body.is_not(None))
    return Work(f"forget {cohort}", due)


def check(session: Session, lease: Lease) -> None:
    """Lock `lease` until the transaction ends.

    Raises:
        StaleLeaseError: if its work was claimed again since.
    """
    query = select(Row.version).where(Row.work == lease.work).with_for_update()
    if session.scalar(query) != lease.version:
        raise StaleLeaseError(f"{lease.work} was claimed again after version {lease.version}")


def taken(session: Session, now: datetime) -> Mapping[str, datetime]:
    """Return the work that somebody has claimed, and until when that holds."""
    rows = session.execute(select(Row.work, Row.until).where(Row.until > now))
    return {row.work: row.until for row in rows}


@dataclass(frozen=True, slots=True)
class Leases:
    """The book of leases."""

    database: Database

    async def claim(self, work: Work, holder: str, seconds: float) -> Lease | None:
        """Return a lease of `work` for so long; None if it is done, or another one's."""
        try:
            return await self._claim(work, holder, seconds)
        except IntegrityError:  # another process claimed it first, this very moment
            return None

    @writing
    def _claim(self, session: Session, work: Work, holder: str, seconds: float) -> Lease | None:
        mine = Row.work == work.name
        row = session.scalar(select(Row).where(mine).with_for_update(skip_locked=True))
        is_locked = row is None and session.scalar(select(exists().where(mine)))
        # Looked at behind the lock: what its last holder published is seen.
        if is_locked or not session.scalar(select(work.is_due)):
            return None
        now = self.database.now(session)
        if row is None:
            row = Row(work=work.name, version=0)
            session.add(row)
        elif row.until > now:
            return None
        row.holder, row.version = holder, row.version + 1
        row.until = now + timedelta(seconds=seconds)
        session.flush()
        return Lease(work.name, holder, row.version)

    @writing
    def renew(self, session: Session, lease: Lease, seconds: float) -> bool:
        """Let `lease` last so long from now on; False if its work was claimed again since."""
        until = self.database.now(session) + timedelta(seconds=seconds)
        query = update(Row).where(*_of(lease)).values(until=until).returning(Row.version)
        return session.scalar(query) is not None

    @writing
    def release(self, session: Session, lease: Lease) -> None:
        """Let anybody claim the work, if there is any left."""
        values = {"until": self.database.now(session)}
        session.execute(update(Row).where(*_of(lease)).values(values))

    @writing
    def release_others(self, session: Session, holder: str) -> None:
        """Release what all but `holder` have claimed: for when no other process is there."""
        now = self.database.now(session)
        theirs = (Row.holder != holder, Row.until > now)
        session.execute(update(Row).where(*theirs).values(until=now))

    @reading
    def claims(self, session: Session) -> dict[str, int]:
        """Return how often each piece of work was claimed."""
        rows = session.execute(select(Row.work, Row.version))
        return {row.work: row.version for row in rows}

    @reading
    def latest(self, session: Session, limit: int) -> tuple[Claim, ...]:
        """Return the leases that end last, at most `limit` of them."""
        now = self.database.now(session)
        rows = session.scalars(select(Row).order_by(Row.until.desc(), Row.work).limit(limit))
        return tuple(Claim(r.work, r.holder, r.version, r.until, r.until > now) for r in rows)


def _of(lease: Lease) -> tuple[ColumnElement[bool], ...]:
    return Row.work == lease.work, Row.version == lease.version
