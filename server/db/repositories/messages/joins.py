"""Repository of joins: each device gets a slot in a cohort of the round.

Joins that arrive together are stored in one transaction (`server/db/group_commit.py`). It locks the
cohort that takes devices before it looks for the devices' earlier participations.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from random import Random
from typing import Any, TypeAlias, cast

from sqlalchemy import Connection, Table, bindparam, exists, or_, select, update
from sqlalchemy.orm import Session

from protocol.api.messages import ProblemType, SlotAssignment
from protocol.api.phases import MessageKind, Phase
from protocol.question_and_plan import Plan
from secagg.keys import PublicKeys
from server.db.database import Repository, write_transaction
from server.db.group_commit import GroupCommit, PreparedInsert
from server.db.repositories.messages.participants import (
    JoiningDevice,
    ParticipantSlot,
    roster_entry,
)
from server.db.schema import CohortRow, MessageRow, ParticipantRow, StudyRow
from server.errors import ProblemError, not_found

# Masks hide whose vector spoils a sum, so every device with a vector in it is kept out.
_POISONED_DETAIL = (
    "the sum of this device's cohort could not be used, so no device with a vector in it joins "
    "this study again; this does not mean that this device lied"
)
_COHORTS = cast("Table", CohortRow.__table__)
_INSERT = PreparedInsert(ParticipantRow)
# Columns, because to load whole rows takes longer than the queries.
_OPEN_COHORT = (CohortRow.id, CohortRow.number, CohortRow.enrolled, CohortRow.deadline)
_PARTICIPATIONS = (
    select(
        ParticipantRow.id,
        ParticipantRow.slot,
        ParticipantRow.round,
        ParticipantRow.identity,
        ParticipantRow.signature,
        ParticipantRow.registrar_signature,
        ParticipantRow.credential_digest,
        ParticipantRow.mask_key,
        ParticipantRow.encryption_key,
        ParticipantRow.blamed,
        CohortRow.id.label("cohort"),
        CohortRow.number,
        CohortRow.phase,
        CohortRow.deadline,
        CohortRow.poisoned,
        CohortRow.seating.is_not(None).label("is_seated"),
        exists()
        .where(
            MessageRow.cohort == ParticipantRow.cohort,
            MessageRow.slot == ParticipantRow.slot,
            MessageRow.kind == MessageKind.MASKED_INPUT,
        )
        .label("has_vector"),
    )
    .join(CohortRow, CohortRow.id == ParticipantRow.cohort)
    .where(
        ParticipantRow.study == bindparam("of_study"),
        ParticipantRow.identity.in_(bindparam("identities")),
    )
)
_STUDY_STATE = select(StudyRow.state).where(StudyRow.id == bindparam("of_study"))
_FIRST_OPEN_COHORT = (
    select(*_OPEN_COHORT)
    .where(
        CohortRow.study == bindparam("of_study"),
        CohortRow.round == bindparam("in_round"),
        CohortRow.phase == Phase.ENROLLING,
        CohortRow.enrolled < bindparam("size"),
        CohortRow.deadline > bindparam("now"),
    )
    .order_by(CohortRow.number)
    .limit(1)
)
# For devices that join at random, a full or empty cohort would reveal how many of them joined.
_EMPTIEST_OPEN_COHORT = _FIRST_OPEN_COHORT.order_by(None).order_by(
    CohortRow.enrolled, CohortRow.number
)
# By whether devices join by coins.
_LOCK = {False: _FIRST_OPEN_COHORT.with_for_update(), True: _EMPTIEST_OPEN_COHORT.with_for_update()}
_ANY_OPEN_COHORT = _FIRST_OPEN_COHORT.with_only_columns(CohortRow.id)
_TAKEN_KEYS = select(ParticipantRow.mask_key, ParticipantRow.encryption_key).where(
    ParticipantRow.cohort == bindparam("in_cohort"),
    or_(  # each column has its own index, and there is none for both
        *(
            column.in_(bindparam("keys"))
            for column in (ParticipantRow.mask_key, ParticipantRow.encryption_key)
        )
    ),
)
_COUNT = (
    update(_COHORTS)
    .where(_COHORTS.c.id == bindparam("cohort"))
    .values(enrolled=bindparam("new_count"))
)
_Participation: TypeAlias = Any  # a row of `_PARTICIPATIONS`


@dataclass(frozen=True, slots=True)
class Join:
    """Wish of `device` to join the round of `plan`."""

    plan: Plan
    device: JoiningDevice

    @property
    def identity(self) -> str:
        return self.device.roster_entry.identity.hex()


@dataclass(frozen=True, slots=True)
class JoinedDevice:
    """Slot of a device, and whether it has just joined."""

    assignment: SlotAssignment
    slot: ParticipantSlot
    is_new: bool


@dataclass
class _OpenCohort:
    """Locked cohort that takes devices, of which it has `enrolled`; its row has `stored`."""

    id: int
    number: int
    stored: int
    deadline: datetime

    def __post_init__(self) -> None:
        self.enrolled = self.stored


@dataclass(frozen=True, slots=True)
class _Seat:
    """Slot of `device` in a cohort of its round, whose number and phase it has."""

    participant: str
    slot: int
    device: JoiningDevice
    cohort: int
    number: int
    phase: Phase
    deadline: datetime


@dataclass(frozen=True)
class JoinRepository(Repository):
    """Repository of joins; `rng` makes the ids of participants."""

    rng: Random

    async def join(self, join: Join) -> JoinedDevice:
        """Assign a slot to a device.

        Raises:
            ProblemError: if no cohort of the round takes devices, the device joined with other keys
                before, it was counted in an earlier round, its vector is in a poisoned cohort, or a
                key belongs to another device.
        """
        return await self.groups(join)

    @cached_property
    def groups(self) -> GroupCommit[Join, JoinedDevice]:
        return GroupCommit(self._join)

    @write_transaction
    def _join(self, session: Session, joins: Sequence[Join]) -> Sequence[JoinedDevice | Exception]:
        """Join all devices that are not refused; return the slot or the refusal of each."""
        by_round = defaultdict(list)
        for join in joins:
            by_round[join.plan.study, join.plan.round].append(join)
        # In one order, because two groups may lock the same cohorts.
        results = {key: self._join_round(session, by_round[key]) for key in sorted(by_round)}
        return [next(results[join.plan.study, join.plan.round]) for join in joins]

    def _join_round(
        self, session: Session, joins: Sequence[Join]
    ) -> Iterator[JoinedDevice | Exception]:
        """Return the slot or the refusal of each device, which all join one round."""
        connection = session.connection()  # a session takes longer for each statement
        cohorts = _OpenCohorts(connection, self.database.now(session), joins)
        with suppress(ProblemError):
            cohorts.lock_next()  # before their devices are looked up, which may be joining
        earlier, entered = _participations(connection, joins), dict[str, _Seat]()
        results, rows = list[JoinedDevice | Exception](), list[dict[str, Any]]()
        for join in joins:
            try:
                seat = entered.get(join.identity)
                seat = seat or _find_seat(join, earlier[join.identity])
                is_new = seat is None
                if seat is None:
                    seat = entered[join.identity] = self._enter(join, cohorts)
                    rows.append(_participant_row(join, seat, cohorts.now))
                else:
                    _check_same_device(seat, join.device)
            except ProblemError as error:
                results.append(error)
            else:
                results.append(_joined_device(seat, is_new=is_new))
        cohorts.store_count()
        if rows:
            _INSERT(connection, rows)
        return iter(results)

    def _enter(self, join: Join, cohorts: "_OpenCohorts") -> "_Seat":
        """Return the next slot, which a new device gets."""
        cohort = cohorts.lock_next()
        cohorts.take_keys(cohort, join.device.roster_entry.keys)
        seat = _Seat(
            participant=self.rng.randbytes(16).hex(),
            slot=cohort.enrolled,
            device=join.device,
            cohort=cohort.id,
            number=cohort.number,
            phase=Phase.ENROLLING,
            deadline=cohort.deadline,
        )
        cohort.enrolled += 1
        return seat


@dataclass
class _OpenCohorts:
    """Cohorts of one round that take the devices of `joins` at `now`, locked one by one."""

    connection: Connection
    now: datetime
    joins: Sequence[Join]
    _present: _OpenCohort | None = field(default=None, init=False)
    _taken_keys: dict[int, set[bytes]] = field(default_factory=dict, init=False)  # by cohort

    @property
    def _plan(self) -> Plan:
        return self.joins[0].plan

    @cached_property
    def _size(self) -> int:
        """Size of a cohort; raises ProblemError if the study is not running."""
        state = self.connection.scalar(_STUDY_STATE, {"of_study": self._plan.study})
        if state is None:
            raise not_found("study")
        if state != "running":
            raise ProblemError(ProblemType.WRONG_STATE, f"the study is {state}")
        terms = self._plan.terms
        return terms.max_devices if terms.is_seated else terms.cohort_size

    @property
    def _joins_by_coin(self) -> bool:
        return self._plan.join_probability < 1

    def lock_next(self) -> _OpenCohort:
        """Return the cohort of the next device, locked.

        Raises:
            ProblemError: if the round takes no more devices.
        """
        size = self._size
        if self._present is None or self._joins_by_coin or self._present.enrolled >= size:
            self.store_count()  # by which the next cohort is chosen
            self._present = self._lock()
        if self._present is None:
            detail = f"round {self._plan.round} takes no more devices"
            raise ProblemError(ProblemType.NO_ROUND, detail)
        return self._present

    def _lock(self) -> _OpenCohort | None:
        parameters = {
            "of_study": self._plan.study,
            "in_round": self._plan.round,
            "size": self._size,
            "now": self.now,
        }
        # If a cohort fills while PostgreSQL waits for its lock, PostgreSQL returns no row although
        # the next cohort is open: then try again.
        for _ in range(self._plan.terms.cohorts):
            row = self.connection.execute(_LOCK[self._joins_by_coin], parameters).one_or_none()
            if row is not None:
                return _OpenCohort(*row)
            if self.connection.scalar(_ANY_OPEN_COHORT, parameters) is None:
                break
        return None

    def store_count(self) -> None:
        """Store the number of devices in the present cohort."""
        present = self._present
        if present is not None and present.enrolled > present.stored:
            parameters = {"cohort": present.id, "new_count": present.enrolled}
            self.connection.execute(_COUNT, parameters)
            present.stored = present.enrolled

    def take_keys(self, cohort: _OpenCohort, keys: PublicKeys) -> None:
        """Reserve keys in `cohort`; raises ProblemError if another participant has one of them."""
        if cohort.id not in self._taken_keys:
            entries = (join.device.roster_entry.keys for join in self.joins)
            wanted = [key for entry in entries for key in (entry.mask, entry.encryption)]
            rows = self.connection.execute(_TAKEN_KEYS, {"in_cohort": cohort.id, "keys": wanted})
            self._taken_keys[cohort.id] = {key for row in rows for key in row}
        taken = self._taken_keys[cohort.id]
        if not taken.isdisjoint((keys.mask, keys.encryption)):  # devices would refuse the roster
            detail = "a key of another participant was advertised"
            raise ProblemError(ProblemType.CONFLICT, detail)
        taken.update((keys.mask, keys.encryption))


def _participations(
    connection: Connection, joins: Sequence[Join]
) -> defaultdict[str, list[_Participation]]:
    """Return the participations of the devices in all rounds of the study, by identity."""
    parameters = {"of_study": joins[0].plan.study, "identities": [join.identity for join in joins]}
    by_identity = defaultdict[str, list[_Participation]](list)
    for row in connection.execute(_PARTICIPATIONS, parameters):
        by_identity[row.identity].append(row)
    return by_identity


def _find_seat(join: Join, rows: Sequence[_Participation]) -> _Seat | None:
    """Return the seat of a device in its round, None if it has none.

    `rows` are its participations in all rounds of the study.

    Raises:
        ProblemError: if in an earlier round it was counted, departed from the protocol, or gave a
            vector to a poisoned cohort.
    """
    for row in rows:
        if row.round == join.plan.round:
            device = JoiningDevice(row.credential_digest, roster_entry(row))
            return _Seat(row.id, row.slot, device, row.cohort, row.number, row.phase, row.deadline)
    for row in rows:
        if row.blamed is not None:
            detail = f"in round {row.round} this device {row.blamed}"
            raise ProblemError(ProblemType.BARRED, detail)
        if row.has_vector and row.poisoned:
            raise ProblemError(
                ProblemType.POISONED_COHORT, f"in round {row.round} {_POISONED_DETAIL}"
            )
        is_counted = row.has_vector and row.phase is not Phase.FAILED
        if is_counted and not join.plan.question.asks_every_round:
            detail = f"this device was counted in round {row.round}"
            raise ProblemError(ProblemType.ALREADY_COUNTED, detail)
    _check_draws(join.plan, sum(row.is_seated for row in rows))
    return None


def _check_draws(plan: Plan, draws: int) -> None:
    """Refuse a device that the registrar seats no more, which would refuse its whole round.

    `draws` are those of its earlier rounds. Seats that came too late were drawn as well.
    """
    if draws >= plan.max_draws:
        detail = f"this device was seated {draws} times without finishing, as often as it may be"
        raise ProblemError(ProblemType.ALREADY_COUNTED, detail)


def _check_same_device(seat: _Seat, device: JoiningDevice) -> None:
    if seat.device != device:
        detail = "this device joined the round with another key, registrar signature or credential"
        raise ProblemError(ProblemType.CONFLICT, detail, phase=seat.phase)


def _participant_row(join: Join, seat: _Seat, now: datetime) -> dict[str, Any]:
    entry = join.device.roster_entry
    return {
        "id": seat.participant,
        "cohort": seat.cohort,
        "slot": seat.slot,
        "study": join.plan.study,
        "round": join.plan.round,
        "identity": join.identity,
        "signature": entry.signature,
        "registrar_signature": entry.registrar_signature,
        "credential_digest": join.device.credential_digest,
        "mask_key": entry.keys.mask,
        "encryption_key": entry.keys.encryption,
        "blamed": None,
        "joined": now,
    }


def _joined_device(seat: _Seat, *, is_new: bool) -> JoinedDevice:
    assignment = SlotAssignment(
        participant=seat.participant, cohort=seat.number, slot=seat.slot, deadline=seat.deadline
    )
    slot = ParticipantSlot(seat.participant, seat.cohort, seat.slot, seat.device.credential_digest)
    return JoinedDevice(assignment, slot, is_new)
