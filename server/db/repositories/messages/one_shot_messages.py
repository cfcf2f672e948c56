"""Messages of devices to one-shot sums, one for each device, and the rules for them."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, cast

from sqlalchemy import Table, and_, bindparam, func, or_, select
from sqlalchemy.orm import Session

from protocol.api.messages import ProblemType
from protocol.api.phases import Phase
from secagg.roster import DIGEST_BYTES
from server.db.database import Repository, read_transaction
from server.db.group_commit import PreparedInsert
from server.db.repositories.arrivals import Arrival, ArrivalGroup, LockedCohort
from server.db.schema import CohortRow, MessageSetRow, OneShotBodyRow, OneShotMessageRow
from server.errors import ProblemError, not_found

_COHORTS = cast("Table", CohortRow.__table__)
_MESSAGES = cast("Table", OneShotMessageRow.__table__)
_EARLIER = (
    select(
        _MESSAGES.c.identity,
        _MESSAGES.c.cohort,
        _MESSAGES.c.round,
        _MESSAGES.c.digest,
        _COHORTS.c.phase,
        _COHORTS.c.poisoned,
    )
    .join(_COHORTS, _COHORTS.c.id == _MESSAGES.c.cohort)
    .where(
        _MESSAGES.c.study == bindparam("of_study"),
        _MESSAGES.c.identity.in_(bindparam("identities")),
    )
)
_INSERT = PreparedInsert(OneShotMessageRow)
_INSERT_BODIES = PreparedInsert(OneShotBodyRow)


@dataclass(frozen=True, slots=True)
class OneShotMessage(Arrival):
    """Message of a device; `counts_once`: a device counts in one round of the study only."""

    name: ClassVar[str] = "a device's message"
    phase: ClassVar[Phase] = Phase.COLLECTING
    study: str
    round: int
    identity: str
    body: bytes = field(repr=False)
    counts_once: bool

    @property
    def key(self) -> tuple[int, str]:
        return self.cohort, self.identity

    @property
    def nbytes(self) -> int:
        return len(self.body)


class OneShotMessageGroup(ArrivalGroup[OneShotMessage]):
    """Rules for messages to one-shot sums, which also depend on earlier rounds of the study."""

    receiver = "round"

    def read_stored(self) -> dict[Hashable, bytes]:
        identities = defaultdict[str, list[str]](list)
        for message in self.arrivals:
            identities[message.study].append(message.identity)
        self._sent = defaultdict[tuple[str, str], list[Any]](list)
        for study, of_study in identities.items():
            parameters = {"of_study": study, "identities": of_study}
            for row in self.connection.execute(_EARLIER, parameters):
                self._sent[study, row.identity].append(row)
        rows = (row for sent in self._sent.values() for row in sent)
        return {(row.cohort, row.identity): row.digest for row in rows}

    def check(self, arrival: OneShotMessage) -> None:
        for row in self._sent[arrival.study, arrival.identity]:
            if row.poisoned:
                detail = (
                    f"in round {row.round} the sum with this device's message could not be used, "
                    "so no device in it takes part again; this does not mean that this device lied"
                )
                raise ProblemError(ProblemType.POISONED_COHORT, detail)
            if arrival.counts_once and row.phase is not Phase.FAILED:
                detail = f"this device was counted in round {row.round}"
                raise ProblemError(ProblemType.ALREADY_COUNTED, detail)

    def full(self, arrival: OneShotMessage) -> ProblemError:
        detail = f"round {arrival.round} takes no more messages"
        return ProblemError(ProblemType.NO_ROUND, detail)

    def late(self, arrival: OneShotMessage, _cohort: LockedCohort) -> ProblemError:
        return self.full(arrival)

    def store(self, now: datetime) -> None:
        rows = self.rows(now, "cohort", "identity", "study", "round", "digest", "body")
        _INSERT(self.connection, rows)
        _INSERT_BODIES(self.connection, rows)


class OneShotMessageRepository(Repository):
    """Repository that reads the messages of devices to one-shot sums, and their sets."""

    @read_transaction
    def page(
        self, session: Session, cohort: int, after: str, limit: int
    ) -> list[tuple[str, bytes | None]]:
        """Return identities and bodies of the next messages after an identity, in their order.

        A body is None if it is deleted.
        """
        of_message = (
            OneShotBodyRow.cohort == OneShotMessageRow.cohort,
            OneShotBodyRow.identity == OneShotMessageRow.identity,
        )
        query = (
            select(OneShotMessageRow.identity, OneShotBodyRow.body)
            .outerjoin(OneShotBodyRow, and_(*of_message))
            .where(OneShotMessageRow.cohort == cohort, OneShotMessageRow.identity > after)
            .order_by(OneShotMessageRow.identity)
            .limit(limit)
        )
        return [(identity, body) for identity, body in session.execute(query)]

    @read_transaction
    def page_ends(self, session: Session, cohort: int, size: int) -> Sequence[str]:
        """Return the last identity of each page of `size` messages, of which the last has fewer."""
        identity = OneShotMessageRow.identity
        place = func.row_number().over(order_by=identity).label("place")
        count = func.count().over().label("count")
        of_cohort = select(identity, place, count).where(OneShotMessageRow.cohort == cohort)
        row = of_cohort.subquery().c
        is_end = or_(row.place % size == 0, row.place == row.count)
        return session.scalars(select(row.identity).where(is_end)).all()

    @read_transaction
    def digests(self, session: Session, cohort: int) -> Sequence[bytes]:
        """Return the digests of all messages, in no order."""
        query = select(OneShotMessageRow.digest).where(OneShotMessageRow.cohort == cohort)
        return session.scalars(query).all()

    @read_transaction
    def message_set(self, session: Session, cohort: int) -> bytes:
        """Return the set of messages that the members sum; raises ProblemError if none is fixed."""
        row = session.get(MessageSetRow, cohort)
        if row is None:
            raise not_found("set of messages")
        return row.digests


def set_size(session: Session, cohort: int) -> int:
    """Return the number of messages in the set of a one-shot sum, 0 if there is none."""
    size = select(func.length(MessageSetRow.digests)).where(MessageSetRow.cohort == cohort)
    return (session.scalar(size) or 0) // DIGEST_BYTES
