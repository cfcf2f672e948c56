"""The one way to receive: messages of participants, of other devices, and of committees' members.

Messages that arrive together are stored in one transaction (`server/db/group_commit.py`). It locks
their cohorts, so that no phase ends meanwhile. In the order of their arrival

    a message that is stored already is accepted again, without an effect
    a second message of its sender with other content is refused
    a message to a deleted or failed cohort, or in another phase, is refused
    a message is refused if it is late, if enough have arrived, or for a reason of its kind
    any other message is stored, and counted in its cohort

Each kind of messages has a subclass of `Arrival`, with the values that its route has checked, and a
subclass of `ArrivalGroup`, with its rules.

The kinds have different tables, because their keys differ. A participant sends six messages, so
their key is its slot, a small number. A device without a slot has an identity of 64 characters. It
sends one report in a study, and one message in a one-shot round. A member sends one of each kind.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar, cast

from sqlalchemy import Connection, Table, bindparam, select, update
from sqlalchemy.orm import Session

from protocol.api.messages import ProblemType
from protocol.api.phases import Phase
from server.db.database import Repository, write_transaction
from server.db.group_commit import GroupCommit
from server.db.repositories.cohort_phases import COUNTED_AS_ENROLLED
from server.db.schema import CohortRow
from server.errors import ProblemError, cohort_failed, late, not_found, out_of_phase, time_lost

_COHORTS = cast("Table", CohortRow.__table__)
# Built once: building these statements takes longer than running them.
_LOCKED_COHORTS = (
    select(
        _COHORTS.c.id,
        _COHORTS.c.phase,
        _COHORTS.c.deadline,
        _COHORTS.c.failure,
        _COHORTS.c.enrolled,
        _COHORTS.c.received,
    )
    .where(_COHORTS.c.id.in_(bindparam("cohorts")))
    .order_by(_COHORTS.c.id)  # two groups lock several cohorts in one order
    .with_for_update(key_share=True)
)
# By whether each message is that of a new device.
_COUNT = {
    is_new_device: update(_COHORTS)
    .where(_COHORTS.c.id == bindparam("cohort"))
    .values({column: bindparam("count"), "last_received": bindparam("now")})
    for is_new_device, column in ((True, "enrolled"), (False, "received"))
}


@dataclass(frozen=True, slots=True)
class Arrival(ABC):
    """Checked message to the cohort with this row id.

    `digest` names its content. Its phase takes `max_messages` at most; None if there is no limit.
    """

    cohort: int
    digest: bytes
    max_messages: int | None = field(default=None, kw_only=True)

    @property
    @abstractmethod
    def key(self) -> Hashable:
        """Return the key, which is different for each stored message of its kind."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Return the name of the message in a refusal."""

    @property
    @abstractmethod
    def phase(self) -> Phase:
        """Return the phase in which the message is accepted."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Return the size of the message."""


M = TypeVar("M", bound=Arrival)


@dataclass(slots=True)
class LockedCohort:
    """Locked cohort that has `received` this many messages in its phase."""

    phase: Phase
    deadline: datetime
    failure: str | None
    received: int


class ArrivalGroup(ABC, Generic[M]):
    """Rules for messages of one kind, in a transaction that has locked their cohorts.

    `stored` has the digests of the messages that their senders have sent before, by key.
    """

    receiver: ClassVar[str]  # does not exist if the cohort does not

    def __init__(self, connection: Connection, arrivals: Sequence[M]) -> None:
        self.connection, self.arrivals = connection, arrivals
        self.stored = self.read_stored()
        self.accepted = list[M]()

    @abstractmethod
    def read_stored(self) -> dict[Hashable, bytes]:
        """Return the digests of the stored messages that have the keys of `arrivals`."""

    @abstractmethod
    def store(self, now: datetime) -> None:
        """Store the accepted messages, which were received at `now`."""

    def rows(self, now: datetime, *columns: str) -> list[dict[str, Any]]:
        """Return a row of these columns for each accepted message, which was received at `now`."""
        return [
            {name: getattr(arrival, name) for name in columns} | {"received_at": now}
            for arrival in self.accepted
        ]

    def check(self, arrival: M) -> None:
        """Raise ProblemError if a message is refused for a reason of its kind."""

    def other_content(self, arrival: M, phase: Phase) -> ProblemError:
        """Return the refusal of a message whose sender has sent another one before."""
        detail = f"{arrival.name} with other content was sent before"
        return ProblemError(ProblemType.CONFLICT, detail, phase=phase)

    def closed(self, arrival: M, cohort: LockedCohort) -> ProblemError:
        """Return the refusal of a message in another phase than its own."""
        if cohort.phase is Phase.FAILED:
            return cohort_failed(cohort.failure)
        return out_of_phase(arrival.name, arrival.phase, cohort.phase)

    def late(self, _arrival: M, cohort: LockedCohort) -> ProblemError:
        """Return the refusal of a message after the deadline of its phase."""
        return late(cohort.phase, cohort.deadline)

    def full(self, arrival: M) -> ProblemError:
        """Return the refusal of a message after `max_messages` others."""
        raise NotImplementedError(f"{arrival.name} has no limit")


@dataclass(frozen=True)
class Arrivals(Repository, Generic[M]):
    """Repository that receives the messages of one kind by the rules of `group_of`."""

    group_of: Callable[[Connection, Sequence[M]], ArrivalGroup[M]]

    async def accept(self, arrival: M) -> int:
        """Store a message; the same message may be sent again.

        Returns the number of messages in the present phase of the cohort.

        Raises:
            ProblemError: if it is refused.
        """
        arrived = self.database.monotonic_seconds()  # time in the writers' queue does not count
        return await self.groups((arrival, arrived))

    @cached_property
    def groups(self) -> GroupCommit[tuple[M, float], int]:
        return GroupCommit(self._accept, lambda arrived: arrived[0].nbytes)

    @write_transaction
    def _accept(
        self, session: Session, arrived: Sequence[tuple[M, float]]
    ) -> Sequence[ProblemError | int]:
        """Store all messages that are not refused; return the refusal or the result of each."""
        connection, began = session.connection(), self.database.monotonic_seconds()
        now = self.database.now(session)  # before the locks, for which nobody is late
        cohorts = _lock_cohorts(connection, {arrival.cohort for arrival, _ in arrived})
        group = self.group_of(connection, [arrival for arrival, _ in arrived])
        results = list[ProblemError | LockedCohort]()
        for arrival, seconds in arrived:
            at = now - timedelta(seconds=began - seconds)
            try:
                results.append(self._receive(group, arrival, cohorts.get(arrival.cohort), at))
            except ProblemError as error:
                results.append(error)
        if group.accepted:
            group.store(now)
            _store_counts(connection, group.accepted, cohorts, now)
        return [each if isinstance(each, ProblemError) else each.received for each in results]

    def _receive(
        self, group: ArrivalGroup[M], arrival: M, cohort: LockedCohort | None, at: datetime
    ) -> LockedCohort:
        """Accept a message that arrived at this time, or a repetition; return its cohort.

        Raises:
            ProblemError: if it is refused.
        """
        if cohort is None:  # the study was deleted
            raise not_found(group.receiver)
        stored = group.stored.get(arrival.key)
        if stored == arrival.digest:
            return cohort
        if stored is not None:
            raise group.other_content(arrival, cohort.phase)
        if cohort.phase is not arrival.phase:
            raise group.closed(arrival, cohort)
        if at >= cohort.deadline:
            is_lost = self.database.has_lost_time
            raise time_lost(cohort.phase) if is_lost else group.late(arrival, cohort)
        if arrival.max_messages is not None and cohort.received >= arrival.max_messages:
            raise group.full(arrival)
        group.check(arrival)
        group.stored[arrival.key] = arrival.digest
        group.accepted.append(arrival)
        cohort.received += 1
        return cohort


def _lock_cohorts(connection: Connection, cohorts: Collection[int]) -> dict[int, LockedCohort]:
    rows = connection.execute(_LOCKED_COHORTS, {"cohorts": [*cohorts]})
    return {
        row.id: LockedCohort(
            row.phase,
            row.deadline,
            row.failure,
            row.enrolled if row.phase in COUNTED_AS_ENROLLED else row.received,
        )
        for row in rows
    }


def _store_counts(
    connection: Connection,
    accepted: Sequence[Arrival],
    cohorts: Mapping[int, LockedCohort],
    now: datetime,
) -> None:
    """Store the numbers of messages in the cohorts of accepted messages, which are of one kind."""
    counts = [
        {"cohort": cohort, "count": cohorts[cohort].received, "now": now}
        for cohort in sorted({arrival.cohort for arrival in accepted})
    ]
    connection.execute(_COUNT[accepted[0].phase in COUNTED_AS_ENROLLED], counts)
