"""Stored readings of the database's clock, which decide what is old enough to be deleted.

One reading deletes nothing. A time counts as past once two readings confirm it, of which the second
is a day later (`protocol/clock_readings.py`). A clock that is more than a week after the latest
reading is not trusted at all: it may be wrong, or no server has run for that long. Then an operator
compares it with another clock, and confirms it by `blindtally clock --confirm`.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from protocol.clock_readings import ClockReadings
from server.db.schema import AuditEntryRow, ClockReadingRow, EventRow

MAX_GAP: Final = timedelta(days=7)
_NEVER: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ONLY_ROW: Final = 1


@dataclass(frozen=True, slots=True)
class ClockState:
    """The clock `now`, the latest reading that was stored, and the time that is confirmed."""

    now: datetime
    latest: datetime
    confirmed: datetime

    @property
    def is_trusted(self) -> bool:
        return self.now - self.latest <= MAX_GAP

    @property
    def has_confirmed(self) -> bool:
        return self.confirmed > _NEVER


def clock_state(session: Session, now: datetime) -> ClockState:
    """Return the state of the clock; without a reading, the newest row counts as the latest one."""
    row = session.get(ClockReadingRow, _ONLY_ROW)
    if row is not None:
        return ClockState(now, row.latest, row.confirmed)
    times = (func.max(column, type_=column.type) for column in (EventRow.at, AuditEntryRow.at))
    stored = [at for at in map(session.scalar, map(select, times)) if at is not None]
    return ClockState(now, max(stored, default=now), _NEVER)


def store_reading(session: Session, now: datetime) -> ClockState:
    """Store a reading, unless the clock is not trusted; return the state after it."""
    state = clock_state(session, now)
    if not state.is_trusted:
        return state
    readings = ClockReadings(state.latest.timestamp(), state.confirmed.timestamp())
    after = readings.after(now.timestamp())
    latest, confirmed = (datetime.fromtimestamp(t, UTC) for t in (after.latest, after.confirmed))
    return _store(session, now, latest, confirmed)


def confirm_clock(session: Session, now: datetime) -> ClockState:
    """Confirm the time `now`, which a person has compared with another clock."""
    return _store(session, now, now, now)


def confirmed_time(session: Session, now: datetime) -> datetime:
    """Return the time that has certainly passed, long ago if none is confirmed."""
    return min(now, clock_state(session, now).confirmed)


def _store(session: Session, now: datetime, latest: datetime, confirmed: datetime) -> ClockState:
    session.merge(ClockReadingRow(id=_ONLY_ROW, latest=latest, confirmed=confirmed))
    return ClockState(now, latest, confirmed)
