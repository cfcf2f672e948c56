"""Repository of uploads: the messages that participants send in the phases of their cohort.

Uploads that arrive together are stored in one transaction (`server/db/group_commit.py`). It locks
their cohorts, so no phase ends meanwhile, and counts the messages of each.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from hashlib import sha256
from typing import Any, TypeAlias, cast

from sqlalchemy import Connection, Row, Table, bindparam, select, update
from sqlalchemy.orm import Session

from protocol.api.messages import ProblemType
from protocol.api.phases import MESSAGE_KIND, MessageKind, Phase
from server.db.database import Repository, write_transaction
from server.db.group_commit import GroupCommit
from server.db.prepared_insert import PreparedInsert
from server.db.repositories.devices.participants import ParticipantSlot
from server.db.schema import CohortRow, MessageRow
from server.errors import ProblemError, cohort_failed, late, not_found, out_of_phase

_PHASE_OF_KIND = {kind: phase for phase, kind in MESSAGE_KIND.items()}
_COHORTS = cast("Table", CohortRow.__table__)
_MESSAGES = cast("Table", MessageRow.__table__)
# Built once: building these statements takes longer than running them.
_LOCKED_COHORTS = (
    select(
        _COHORTS.c.id,
        _COHORTS.c.phase,
        _COHORTS.c.deadline,
        _COHORTS.c.failure,
        _COHORTS.c.received,
    )
    .where(_COHORTS.c.id.in_(bindparam("cohorts")))
    .order_by(_COHORTS.c.id)  # two groups lock several cohorts in one order
    .with_for_update(key_share=True)
)
_STORED_DIGESTS = select(_MESSAGES.c.slot, _MESSAGES.c.digest).where(
    _MESSAGES.c.cohort == bindparam("cohort"),
    _MESSAGES.c.kind == bindparam("kind"),
    _MESSAGES.c.slot.in_(bindparam("slots")),
)
_INSERT = PreparedInsert(MessageRow)
_COUNT = (
    update(_COHORTS)
    .where(_COHORTS.c.id == bindparam("cohort"))
    .values(received=_COHORTS.c.received + bindparam("new"), last_received=bindparam("now"))
)
_Cohort: TypeAlias = Row[int, Phase, datetime, str | None, int]  # of `_LOCKED_COHORTS`


@dataclass(frozen=True, slots=True)
class DeviceUpload:
    """Upload of a participant, stored as one row, or as two of different kinds.

    `kind` is the kind of the phase. That the participant sent the message of the phase before is
    checked with its content, since it cannot change any more.
    """

    kind: MessageKind
    bodies: Mapping[MessageKind, bytes | memoryview] = field(repr=False)
    digest: bytes  # SHA-256 of all bodies

    @classmethod
    def of(cls, kind: MessageKind, body: bytes) -> "DeviceUpload":
        """Return the upload of a message that is stored as one row."""
        return cls(kind, {kind: body}, sha256(body).digest())

    @property
    def phase(self) -> Phase:
        """Return the phase in which the message is accepted."""
        return _PHASE_OF_KIND[self.kind]


@dataclass(frozen=True, slots=True)
class _Arrival:
    """Upload of the participant in `slot`, which arrived at this monotonic time in seconds."""

    slot: ParticipantSlot
    upload: DeviceUpload
    seconds: float

    @property
    def key(self) -> tuple[int, MessageKind, int]:
        return self.slot.cohort, self.upload.kind, self.slot.slot

    @property
    def nbytes(self) -> int:
        return sum(len(body) for body in self.upload.bodies.values())


class UploadRepository(Repository):
    """Repository of uploads."""

    async def accept(self, slot: ParticipantSlot, upload: DeviceUpload) -> int:
        """Store the upload of a participant, if its cohort is in the right phase.

        Returns the number of messages in the present phase of the cohort.

        Raises:
            ProblemError: if the participant uploaded other content before, the cohort is in another
                phase or its deadline has passed, or the cohort failed.
        """
        arrived = self.database.monotonic_seconds()  # time in the writers' queue does not count
        return await self.groups(_Arrival(slot, upload, arrived))

    @cached_property
    def groups(self) -> GroupCommit[_Arrival, int]:
        return GroupCommit(self._accept, lambda arrival: arrival.nbytes)

    @write_transaction
    def _accept(
        self, session: Session, arrivals: Sequence[_Arrival]
    ) -> Sequence[ProblemError | int]:
        """Store all uploads that are not refused; return the refusal or the result of each."""
        connection, waited = session.connection(), self.database.monotonic_seconds()
        now = self.database.now(session)  # before the lock, for which no device is late
        cohorts = {arrival.slot.cohort for arrival in arrivals}
        locked = connection.execute(_LOCKED_COHORTS, {"cohorts": [*cohorts]})
        statuses = {row.id: row for row in locked}
        stored = _stored_digests(connection, arrivals)
        refusals, rows, counts = list[ProblemError | None](), list[dict[str, Any]](), Counter[int]()
        for arrival in arrivals:
            digest = stored.get(arrival.key)
            if digest == arrival.upload.digest:  # a repetition
                refusals.append(None)
                continue
            at = now - timedelta(seconds=waited - arrival.seconds)
            status = statuses.get(arrival.slot.cohort)
            refusal = _refusal(status, arrival.upload, digest) or self._lateness(status, at)
            refusals.append(refusal)
            if refusal is None:
                stored[arrival.key] = arrival.upload.digest
                counts[arrival.slot.cohort] += 1
                rows += _rows(arrival, now)
        if rows:
            _INSERT(connection, rows)
            new = [{"cohort": cohort, "new": n, "now": now} for cohort, n in counts.items()]
            connection.execute(_COUNT, new)
        return [
            refusal or _received(statuses, arrival) + counts[arrival.slot.cohort]
            for arrival, refusal in zip(arrivals, refusals, strict=True)
        ]

    def _lateness(self, status: _Cohort | None, arrived: datetime) -> ProblemError | None:
        """Return the refusal of an upload after the deadline, None if it is in time."""
        if status is None or arrived < status.deadline:
            return None
        return late(status.phase, status.deadline, has_lost_time=self.database.has_lost_time)


def _stored_digests(
    connection: Connection, arrivals: Sequence[_Arrival]
) -> dict[tuple[int, MessageKind, int], bytes]:
    """Return the digests of the messages that are already stored, by cohort, kind and slot."""
    slots = defaultdict(list)
    for cohort, kind, slot in (arrival.key for arrival in arrivals):
        slots[cohort, kind].append(slot)
    stored = {}
    for (cohort, kind), of_kind in slots.items():
        parameters = {"cohort": cohort, "kind": kind, "slots": of_kind}
        for slot, digest in connection.execute(_STORED_DIGESTS, parameters):
            stored[cohort, kind, slot] = digest
    return stored


def _refusal(
    status: _Cohort | None,
    upload: DeviceUpload,
    stored_digest: bytes | None,
) -> ProblemError | None:
    """Return the refusal of an upload that is not stored yet, None if it can be, if in time."""
    if status is None:  # the study was deleted
        return not_found("participant")
    kind, phase = upload.kind, status.phase
    if stored_digest is not None:
        detail = f"{kind} with other content was sent before"
        return ProblemError(ProblemType.CONFLICT, detail, phase=phase)
    if phase is Phase.FAILED:
        return cohort_failed(status.failure)
    if phase is not upload.phase:
        return out_of_phase(kind, upload.phase, phase)
    return None


def _received(statuses: Mapping[int, _Cohort], arrival: _Arrival) -> int:
    """Return the number of messages in the phase of a cohort before this group of uploads."""
    status = statuses.get(arrival.slot.cohort)
    return 0 if status is None else status.received


def _rows(arrival: _Arrival, now: datetime) -> list[dict[str, Any]]:
    """Return the rows of an upload; each has the digest of the whole upload."""
    row: dict[str, Any] = {"cohort": arrival.slot.cohort, "slot": arrival.slot.slot}
    row |= {"received_at": now, "digest": arrival.upload.digest}
    return [row | {"kind": kind, "body": body} for kind, body in arrival.upload.bodies.items()]
