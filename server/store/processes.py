"""Processes: which servers are there to hear devices, and since when without a break.

Whoever is seen has heard what was said, or has given back the time in which nobody did, up to
the moment it was seen (`server/presence.py` sees to that).
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from server.database import Database, reading, writing
from server.schema import Process

FRESH = timedelta(seconds=3)  # whoever was not seen for longer is not there
_FORGOTTEN = timedelta(days=1)


def earliest(session: Session, now: datetime) -> datetime | None:
    """Return since when somebody who is still there hears without a break; None if nobody is."""
    fresh = Process.seen > now - FRESH
    return session.scalar(select(func.min(Process.since, type_=Process.since.type)).where(fresh))


@dataclass(frozen=True, slots=True)
class Seen:
    """A process as its row has it; it is there if it `is_fresh`, else it died or is cut off."""

    name: str
    since: datetime
    seen: datetime
    is_fresh: bool


@dataclass(frozen=True, slots=True)
class Processes:
    """The book of server processes."""

    database: Database

    @writing
    def beat(self, session: Session, name: str, since: datetime) -> None:
        """Say that process `name` is there, and hears since then."""
        now = self.database.now(session)
        values = {"since": since, "seen": now, "beats": Process.beats + 1}
        query = update(Process).where(Process.name == name).values(values)
        if session.scalar(query.returning(Process.name)) is None:
            session.add(Process(name=name, since=since, seen=now, beats=0))
            session.execute(delete(Process).where(Process.seen < now - _FORGOTTEN))

    @writing
    def leave(self, session: Session, name: str) -> None:
        """Say that process `name` is about to end."""
        session.execute(delete(Process).where(Process.name == name))

    @reading
    def others(self, session: Session, name: str) -> dict[str, int]:
        """Return how often each process but `name` was seen that was seen a moment ago."""
        fresh = (Process.name != name, Process.seen > self.database.now(session) - FRESH)
        rows = session.execute(select(Process.name, Process.beats).where(*fresh))
        return {row.name: row.beats for row in rows}

    @reading
    def every(self, session: Session, limit: int) -> tuple[Seen, ...]:
        """Return the processes that were seen last, at most `limit` of them."""
        now = self.database.now(session)
        rows = session.scalars(select(Process).order_by(Process.seen.desc()).limit(limit))
        return tuple(Seen(r.name, r.since, r.seen, r.seen > now - FRESH) for r in rows)
