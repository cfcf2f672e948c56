"""Repository of events, which are recorded in the transaction that they describe.

The event counter of a study is locked until the commit, so events become visible in the order of
their numbers. It is the last row that a transaction locks, because another order could deadlock:
record events at the end.
"""

from collections.abc import Collection
from datetime import datetime
from typing import cast

from sqlalchemy import Table, bindparam, insert, select, update
from sqlalchemy.orm import Session

from protocol.api.events import Event, EventKind
from protocol.api.messages import ProblemType
from server.db.database import Repository, count_on_commit, read_transaction
from server.db.schema import EventCounterRow, EventRow, StudyRow
from server.db.serializers import event_without_sizes, hides_sizes
from server.errors import ProblemError, not_found

MAX_EVENTS_PER_READ = 500
_COUNTERS = cast("Table", EventCounterRow.__table__)
_NEXT_NUMBER = (  # built once, because each phase change takes a number
    update(_COUNTERS)
    .where(_COUNTERS.c.study == bindparam("of_study"))
    .values(last_event=_COUNTERS.c.last_event + 1)
    .returning(_COUNTERS.c.last_event)
)


class EventRepository(Repository):
    """Repository of events."""

    @read_transaction
    def after(self, session: Session, study: str, last: int) -> tuple[Event, ...]:
        """Return at most `MAX_EVENTS_PER_READ` events of `study` after number `last`, in order.

        Raises:
            ProblemError: if there is no such study.
        """
        row = session.get(StudyRow, study)
        if row is None:
            raise not_found("study")
        query = (
            select(EventRow)
            .where(EventRow.study == study, EventRow.id > last)
            .order_by(EventRow.id)
            .limit(MAX_EVENTS_PER_READ)
        )
        events = [
            Event.model_validate(
                {"id": row.id, "study": row.study, "kind": row.kind, "at": row.at} | row.data
            )
            for row in session.scalars(query)
        ]
        if hides_sizes(row):
            events = [event_without_sizes(event) for event in events]
        return tuple(events)

    @read_transaction
    def check_can_follow(self, session: Session, study: str, last: int) -> None:
        """Raise ProblemError if `study` is unknown, or has ended without events after `last`."""
        state = session.scalar(select(StudyRow.state).where(StudyRow.id == study))
        if state is None:
            raise not_found("study")
        query = select(EventCounterRow.last_event).where(EventCounterRow.study == study)
        last_event = session.scalar(query) or 0
        if state in ("finished", "stopped") and last >= last_event:
            detail = f"the study is {state}: there are no events after event {last}"
            raise ProblemError(ProblemType.WRONG_STATE, detail)

    @read_transaction
    def last_numbers(self, session: Session, studies: Collection[str]) -> dict[str, int]:
        """Return the number of the last event of each of `studies`."""
        query = select(EventCounterRow.study, EventCounterRow.last_event).where(
            EventCounterRow.study.in_(studies)
        )
        return {row.study: row.last_event for row in session.execute(query)}


def record_event(
    session: Session, study: str, kind: EventKind, at: datetime, **facts: object
) -> None:
    """Record an event of `study`; `protocol/api/events.py` lists the facts of each kind."""
    connection = session.connection()  # whose statements do not flush the session's rows one by one
    number = connection.scalar(_NEXT_NUMBER, {"of_study": study})
    if number is None:  # the first event
        number = 1
        connection.execute(insert(_COUNTERS), {"study": study, "last_event": number})
    columns = {"id": number, "study": study, "kind": kind, "at": at}
    event = Event.model_validate(columns | facts)
    data = event.model_dump(mode="json", exclude_none=True, exclude=set(columns))
    session.add(EventRow(study=study, id=number, kind=kind.value, at=at, data=data))
    count_on_commit(session, event)
