"""Repository of the messages of devices to one-shot sums: one per device, stored before its answer.

Messages that arrive together are stored in one transaction (`server/db/group_commit.py`). It locks
their cohorts, so that no sum closes meanwhile, and counts the messages of each.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, TypeAlias, cast

from sqlalchemy import Connection, Row, Table, bindparam, func, or_, select, update
from sqlalchemy.orm import Session

from protocol.api.messages import ProblemType
from protocol.api.phases import Phase
from secagg.roster import DIGEST_BYTES
from server.db.database import Repository, read_transaction, write_transaction
from server.db.group_commit import GroupCommit
from server.db.prepared_insert import PreparedInsert
from server.db.schema import CohortRow, MessageSetRow, OneShotMessageRow
from server.errors import ProblemError, cohort_failed, not_found, out_of_phase, time_lost

_COHORTS = cast("Table", CohortRow.__table__)
_MESSAGES = cast("Table", OneShotMessageRow.__table__)
_LOCKED_COHORTS = (
    select(
        _COHORTS.c.id,
        _COHORTS.c.phase,
        _COHORTS.c.deadline,
        _COHORTS.c.failure,
        _COHORTS.c.enrolled,
    )
    .where(_COHORTS.c.id.in_(bindparam("cohorts")))
    .order_by(_COHORTS.c.id)  # two groups lock several cohorts in one order
    .with_for_update(key_share=True)
)
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
_Cohort: TypeAlias = Row[int, Phase, datetime, str | None, int]  # of `_LOCKED_COHORTS`
_INSERT = PreparedInsert(OneShotMessageRow)
_COUNT = (
    update(_COHORTS)
    .where(_COHORTS.c.id == bindparam("cohort"))
    .values(enrolled=_COHORTS.c.enrolled + bindparam("new"), last_received=bindparam("now"))
)


@dataclass(frozen=True, slots=True)
class OneShotUpload:
    """Checked message of a device; `max_messages` is the size of the sum.

    `counts_once`: a device counts in one round of the study only.
    """

    cohort: int
    study: str
    round: int
    identity: str
    digest: bytes
    body: bytes = field(repr=False)
    max_messages: int
    counts_once: bool


@dataclass(frozen=True, slots=True)
class _Arrival:
    """Upload and the seconds at which it arrived: time in the queue of writers does not count."""

    upload: OneShotUpload
    seconds: float


@dataclass(frozen=True)
class OneShotMessageRepository(Repository):
    """Repository of one-shot messages."""

    async def accept(self, upload: OneShotUpload) -> int:
        """Store a message; the same message may be sent again.

        Returns the number of messages in the sum.

        Raises:
            ProblemError: if the sum takes no more messages, the device has sent another one, or it
                was counted in an earlier round.
        """
        return await self.groups(_Arrival(upload, self.database.monotonic_seconds()))

    @cached_property
    def groups(self) -> GroupCommit[_Arrival, int]:
        return GroupCommit(self._accept, lambda arrival: len(arrival.upload.body))

    @write_transaction
    def _accept(
        self, session: Session, arrivals: Sequence[_Arrival]
    ) -> Sequence[ProblemError | int]:
        """Store all messages that are not refused; return the refusal or the result of each."""
        connection, waited = session.connection(), self.database.monotonic_seconds()
        now = self.database.now(session)  # before the lock, for which no device is late
        cohorts = {arrival.upload.cohort for arrival in arrivals}
        locked = connection.execute(_LOCKED_COHORTS, {"cohorts": [*cohorts]})
        statuses = {row.id: row for row in locked}
        earlier = _earlier_messages(connection, arrivals)
        refusals, rows, counts = list[ProblemError | None](), list[dict[str, Any]](), Counter[int]()
        accepted = dict[tuple[int, str], bytes]()
        for upload, seconds in ((each.upload, each.seconds) for each in arrivals):
            key = upload.cohort, upload.identity
            of_device = earlier[upload.study, upload.identity]
            stored = accepted.get(key) or _stored_digest(upload, of_device)
            if stored == upload.digest:  # a repetition
                refusals.append(None)
                continue
            at, status = now - timedelta(seconds=waited - seconds), statuses.get(upload.cohort)
            refusal = (
                _refusal(upload, status, stored, counts)
                or self._lateness(upload, status, at)
                or _earlier_refusal(upload, of_device)
            )
            refusals.append(refusal)
            if refusal is None:
                accepted[key] = upload.digest
                counts[upload.cohort] += 1
                rows.append(_row(upload, now))
        if rows:
            _INSERT(connection, rows)
            new = [{"cohort": cohort, "new": n, "now": now} for cohort, n in counts.items()]
            connection.execute(_COUNT, new)
        return [
            refusal or _received(statuses, each.upload.cohort) + counts[each.upload.cohort]
            for each, refusal in zip(arrivals, refusals, strict=True)
        ]

    def _lateness(
        self, upload: OneShotUpload, status: _Cohort | None, arrived: datetime
    ) -> ProblemError | None:
        """Return the refusal of a message after the deadline, None if it is in time."""
        if status is None or arrived < status.deadline:
            return None
        is_lost = self.database.has_lost_time
        return time_lost(status.phase) if is_lost else _no_more_messages(upload)

    @read_transaction
    def page(
        self, session: Session, cohort: int, after: str, limit: int
    ) -> list[tuple[str, bytes | None]]:
        """Return identities and bodies of the next messages after an identity, in their order."""
        query = (
            select(OneShotMessageRow.identity, OneShotMessageRow.body)
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


def _earlier_messages(
    connection: Connection, arrivals: Sequence[_Arrival]
) -> defaultdict[tuple[str, str], list[Any]]:
    """Return the messages that devices have sent to their studies, by study and identity."""
    identities = defaultdict[str, list[str]](list)
    for arrival in arrivals:
        identities[arrival.upload.study].append(arrival.upload.identity)
    messages = defaultdict[tuple[str, str], list[Any]](list)
    for study, of_study in identities.items():
        parameters = {"of_study": study, "identities": of_study}
        for row in connection.execute(_EARLIER, parameters):
            messages[study, row.identity].append(row)
    return messages


def _stored_digest(upload: OneShotUpload, of_device: Sequence[Any]) -> bytes | None:
    return next((row.digest for row in of_device if row.cohort == upload.cohort), None)


def _received(statuses: Mapping[int, _Cohort], cohort: int) -> int:
    """Return the number of messages in a sum before this group of uploads."""
    status = statuses.get(cohort)
    return 0 if status is None else status.enrolled


def _refusal(
    upload: OneShotUpload,
    status: _Cohort | None,
    stored_digest: bytes | None,
    counts: Counter[int],
) -> ProblemError | None:
    """Return the refusal of a message that is not stored yet, None if it can be, if in time."""
    if status is None:  # the study was deleted
        return not_found("round")
    if stored_digest is not None:
        detail = "this device has sent another message before"
        return ProblemError(ProblemType.CONFLICT, detail, phase=status.phase)
    if status.phase is Phase.FAILED:
        return cohort_failed(status.failure)
    if status.phase is not Phase.COLLECTING:
        return out_of_phase("a device's message", Phase.COLLECTING, status.phase)
    if status.enrolled + counts[upload.cohort] >= upload.max_messages:
        return _no_more_messages(upload)
    return None


def _no_more_messages(upload: OneShotUpload) -> ProblemError:
    return ProblemError(ProblemType.NO_ROUND, f"round {upload.round} takes no more messages")


def _earlier_refusal(upload: OneShotUpload, of_device: Sequence[Any]) -> ProblemError | None:
    """Return the refusal of a device because of its messages to other rounds of the study."""
    for row in of_device:
        if row.poisoned:
            detail = (
                f"in round {row.round} the sum with this device's message could not be used, so no "
                "device in it takes part again; this does not mean that this device lied"
            )
            return ProblemError(ProblemType.POISONED_COHORT, detail)
        if upload.counts_once and row.phase is not Phase.FAILED:
            detail = f"this device was counted in round {row.round}"
            return ProblemError(ProblemType.ALREADY_COUNTED, detail)
    return None


def _row(upload: OneShotUpload, now: datetime) -> dict[str, Any]:
    return {
        "cohort": upload.cohort,
        "identity": upload.identity,
        "study": upload.study,
        "round": upload.round,
        "received_at": now,
        "digest": upload.digest,
        "body": upload.body,
    }
