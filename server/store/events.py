"""Events: told in the transaction that makes them true, numbered one by one in each study.

The number is taken from the study's feed, a row that is locked until the commit, so events show
in the order of their numbers: who has read up to one misses none before it. It is the last row
that a transaction locks: tell when all else is done, or another that waits for a row locked
later would wait in a circle.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import insert, select, update
from sqlalchemy.orm import Session

from protocol.events import Event, EventKind
from protocol.messages import ProblemType
from server.database import Database, once_committed, reading
from server.refusals import Refusal, not_found
from server.schema import Event as Row
from server.schema import Feed, Study
from server.store.views import event_without_sizes, hides_sizes

MOST = 500  # events read at a time


@dataclass(frozen=True, slots=True)
class Events:
    """The book of events."""

    database: Database

    @reading
    def after(self, session: Session, study: str, last: int) -> tuple[Event, ...]:
        """Return the events of `study` after number `last`, in order, `MOST` at most."""
        query = select(Row).where(Row.study == study, Row.id > last).order_by(Row.id).limit(MOST)
        events = [_event(row) for row in session.scalars(query)]
        of = session.get(Study, study)
        if of is not None and hides_sizes(of):
            events = [event_without_sizes(event) for event in events]
        return tuple(events)

    @reading
    def check(self, session: Session, study: str, last: int) -> None:
        """Check that `study` has events after number `last`, or may have.

        Raises:
            Refusal: if there is no such study, or it is over and has told everything.
        """
        state = session.scalar(select(Study.state).where(Study.id == study))
        if state is None:
            raise not_found("study")
        told = session.scalar(select(Feed.last).where(Feed.study == study)) or 0
        if state in ("finished", "stopped") and last >= told:
            detail = f"the study is {state}: nothing happens after event {last}"
            raise Refusal(ProblemType.WRONG_STATE, detail)

    @reading
    def last(self, session: Session, studies: Collection[str]) -> dict[str, int]:
        """Return the number of the last event of each of `studies`."""
        query = select(Feed.study, Feed.last).where(Feed.study.in_(studies))
        return {row.study: row.last for row in session.execute(query)}


def tell(session: Session, study: str, kind: EventKind, at: datetime, **facts: object) -> None:
    """Keep that something happened in `study`: see `protocol/events.py` for the facts of a kind."""
    mine = update(Feed).where(Feed.study == study).values(last=Feed.last + 1)
    number = session.scalar(mine.returning(Feed.last))
    if number is None:  # its first
        number = 1
        session.execute(insert(Feed).values(study=study, last=number))
    own = {"id": number, "study": study, "kind": kind, "at": at}
    event = Event.model_validate(own | facts)
    said = event.model_dump(mode="json", exclude_none=True, exclude={"id", "study", "kind", "at"})
    session.add(Row(study=study, id=number, kind=kind.value, at=at, facts=said))
    once_committed(session, event)


def _event(row: Row) -> Event:
    own = {"id": row.id, "study": row.study, "kind": row.kind, "at": row.at}
    return Event.model_validate(own | row.facts)
