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
from typing import TypeAlias

from sqlalchemy import bindparam, exists, or_, select
from sqlalchemy.orm import Session

from protocol.api.messages import ProblemType, SlotAssignment
from protocol.api.phases import MessageKind, Phase
from protocol.mechanisms.registry import parse_plan, parse_question
from protocol.question_and_plan import Terms
from secagg.keys import PublicKeys
from secagg.seating import MAX_DRAWS
from server.db.database import Repository, write_transaction
from server.db.group_commit import GroupCommit
from server.db.repositories.devices.participants import JoiningDevice, ParticipantSlot, roster_entry
from server.db.repositories.studies import find_study
from server.db.schema import CohortRow, MessageRow, ParticipantRow, RoundRow, StudyRow
from server.errors import ProblemError, not_found

# Masks hide whose vector spoils a sum, so every device with a vector in it is kept out.
_POISONED_DETAIL = (
    "the sum of this device's cohort could not be used, so no device with a vector in it joins "
    "this study again; this does not mean that this device lied"
)
_PARTICIPATIONS = (
    select(
        ParticipantRow,
        CohortRow,
        exists().where(
            MessageRow.cohort == ParticipantRow.cohort,
            MessageRow.slot == ParticipantRow.slot,
            MessageRow.kind == MessageKind.MASKED_INPUT,
        ),
    )
    .join(CohortRow, CohortRow.id == ParticipantRow.cohort)
    .where(
        ParticipantRow.study == bindparam("of_study"),
        ParticipantRow.identity.in_(bindparam("identities")),
    )
)
_ROUND_STATUS = select(
    StudyRow.state,
    StudyRow.terms,
    exists()
    .where(RoundRow.study == StudyRow.id, RoundRow.number == bindparam("in_round"))
    .label("has_round"),
).where(StudyRow.id == bindparam("of_study"))
_FIRST_OPEN_COHORT = (
    select(CohortRow)
    .where(
        CohortRow.study == bindparam("of_study"),
        CohortRow.round == bindparam("in_round"),
        CohortRow.phase == Phase.ENROLLING,
        CohortRow.enrolled < bindparam("size"),
    )
    .order_by(CohortRow.number)
    .limit(1)
)
# For devices that join at random, a full or empty cohort would reveal how many of them joined.
_EMPTIEST_OPEN_COHORT = _FIRST_OPEN_COHORT.order_by(None).order_by(
    CohortRow.enrolled, CohortRow.number
)
_TAKEN_KEYS = select(ParticipantRow.mask_key, ParticipantRow.encryption_key).where(
    ParticipantRow.cohort == bindparam("in_cohort"),
    or_(  # each column has its own index, and there is none for both
        *(
            column.in_(bindparam("keys"))
            for column in (ParticipantRow.mask_key, ParticipantRow.encryption_key)
        )
    ),
)
_Participation: TypeAlias = tuple[ParticipantRow, CohortRow, bool]  # and whether it has a vector


@dataclass(frozen=True, slots=True)
class Join:
    """Wish of `device` to join round `number`; `by_coin`: whether devices join at random."""

    study: str
    number: int
    device: JoiningDevice
    by_coin: bool = False

    @property
    def identity(self) -> str:
        return self.device.roster_entry.identity.hex()


@dataclass(frozen=True, slots=True)
class JoinedDevice:
    """Slot of a device, and whether it has just joined."""

    assignment: SlotAssignment
    slot: ParticipantSlot
    is_new: bool


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
        return await self._groups(join)

    @cached_property
    def _groups(self) -> GroupCommit[Join, JoinedDevice]:
        return GroupCommit(self._join)

    @write_transaction
    def _join(self, session: Session, joins: Sequence[Join]) -> Sequence[JoinedDevice | Exception]:
        """Join all devices that are not refused; return the slot or the refusal of each."""
        by_round = defaultdict(list)
        for join in joins:
            by_round[join.study, join.number].append(join)
        # In one order, because two groups may lock the same cohorts.
        results = {key: self._join_round(session, by_round[key]) for key in sorted(by_round)}
        return [next(results[join.study, join.number]) for join in joins]

    def _join_round(
        self, session: Session, joins: Sequence[Join]
    ) -> Iterator[JoinedDevice | Exception]:
        """Return the slot or the refusal of each device, which all join one round."""
        cohorts = _OpenCohorts(session, self.database.now(session), joins)
        with suppress(ProblemError):
            cohorts.lock_next()  # before their devices are looked up, which may be joining
        earlier = _participations(session, joins)
        results = list[JoinedDevice | Exception]()
        for join in joins:
            try:
                known = _find_participant(session, join, earlier[join.identity])
                if known is None:
                    row, cohort = self._enter(session, join, cohorts)
                    earlier[join.identity].append((row, cohort, False))
                else:
                    row, cohort = known
                    _check_same_device(row, cohort, join.device)
            except ProblemError as error:
                results.append(error)
            else:
                results.append(_joined_device(row, cohort, is_new=known is None))
        return iter(results)

    def _enter(
        self, session: Session, join: Join, cohorts: "_OpenCohorts"
    ) -> tuple[ParticipantRow, CohortRow]:
        """Give a new device the next slot."""
        cohort, entry = cohorts.lock_next(), join.device.roster_entry
        cohorts.take_keys(cohort, entry.keys)
        row = ParticipantRow(
            id=self.rng.randbytes(16).hex(),
            cohort=cohort.id,
            slot=cohort.enrolled,
            study=join.study,
            round=join.number,
            identity=join.identity,
            signature=entry.signature,
            registrar_signature=entry.registrar_signature,
            credential_digest=join.device.credential_digest,
            mask_key=entry.keys.mask,
            encryption_key=entry.keys.encryption,
            joined=cohorts.now,
        )
        session.add(row)
        cohort.enrolled += 1
        return row, cohort


@dataclass
class _OpenCohorts:
    """Cohorts of one round that take the devices of `joins` at `now`, locked one by one."""

    session: Session
    now: datetime
    joins: Sequence[Join]
    _present: CohortRow | None = field(default=None, init=False)
    _taken_keys: dict[int, set[bytes]] = field(default_factory=dict, init=False)  # by cohort

    @cached_property
    def _terms(self) -> Terms:
        """Terms of the study; raises ProblemError if it has no such round or is not running."""
        parameters = {"of_study": self.joins[0].study, "in_round": self.joins[0].number}
        row = self.session.execute(_ROUND_STATUS, parameters).one_or_none()
        if row is None:
            raise not_found("study")
        if row.state != "running":
            raise ProblemError(ProblemType.WRONG_STATE, f"the study is {row.state}")
        if not row.has_round:
            raise not_found("round")
        return Terms.model_validate(row.terms)

    @property
    def _size(self) -> int:
        return self._terms.max_devices if self._terms.is_seated else self._terms.cohort_size

    def lock_next(self) -> CohortRow:
        """Return the cohort of the next device, locked.

        Raises:
            ProblemError: if the round takes no more devices.
        """
        size, by_coin = self._size, self.joins[0].by_coin
        if self._present is None or by_coin or self._present.enrolled >= size:
            self._present = self._lock()
        if self._present is None:
            detail = f"round {self.joins[0].number} takes no more devices"
            raise ProblemError(ProblemType.NO_ROUND, detail)
        return self._present

    def _lock(self) -> CohortRow | None:
        join = self.joins[0]
        parameters = {"of_study": join.study, "in_round": join.number, "size": self._size}
        query = _EMPTIEST_OPEN_COHORT if join.by_coin else _FIRST_OPEN_COHORT
        open_cohorts = query.where(CohortRow.deadline > self.now)
        any_open = open_cohorts.with_only_columns(CohortRow.id)
        # If a cohort fills while PostgreSQL waits for its lock, PostgreSQL returns no row although
        # the next cohort is open: then try again.
        for _ in range(self._terms.cohorts):
            cohort = self.session.scalar(open_cohorts.with_for_update(), parameters)
            if cohort is not None:
                return cohort
            if self.session.scalar(any_open, parameters) is None:
                break
        return None

    def take_keys(self, cohort: CohortRow, keys: PublicKeys) -> None:
        """Reserve keys in `cohort`; raises ProblemError if another participant has one of them."""
        if cohort.id not in self._taken_keys:
            entries = (join.device.roster_entry.keys for join in self.joins)
            wanted = [key for entry in entries for key in (entry.mask, entry.encryption)]
            rows = self.session.execute(_TAKEN_KEYS, {"in_cohort": cohort.id, "keys": wanted})
            self._taken_keys[cohort.id] = {key for row in rows for key in row}
        taken = self._taken_keys[cohort.id]
        if not taken.isdisjoint((keys.mask, keys.encryption)):  # devices would refuse the roster
            detail = "a key of another participant was advertised"
            raise ProblemError(ProblemType.CONFLICT, detail)
        taken.update((keys.mask, keys.encryption))


def _participations(
    session: Session, joins: Sequence[Join]
) -> defaultdict[str, list[_Participation]]:
    """Return the participations of the devices in all rounds of the study, by identity."""
    parameters = {"of_study": joins[0].study, "identities": [join.identity for join in joins]}
    by_identity = defaultdict(list)
    for participant, cohort, has_vector in session.execute(_PARTICIPATIONS, parameters):
        by_identity[participant.identity].append((participant, cohort, has_vector))
    return by_identity


def _find_participant(
    session: Session, join: Join, rows: Sequence[_Participation]
) -> tuple[ParticipantRow, CohortRow] | None:
    """Return the row of a device in its round, None if it has none.

    `rows` are its participations in all rounds of the study.

    Raises:
        ProblemError: if in an earlier round it was counted, departed from the protocol, or gave a
            vector to a poisoned cohort.
    """
    for participant, cohort, _ in rows:
        if participant.round == join.number:
            return participant, cohort
    for participant, cohort, has_vector in rows:
        if participant.blamed is not None:
            detail = f"in round {participant.round} this device {participant.blamed}"
            raise ProblemError(ProblemType.BARRED, detail)
        if has_vector and cohort.poisoned:
            raise ProblemError(
                ProblemType.POISONED_COHORT, f"in round {participant.round} {_POISONED_DETAIL}"
            )
        is_counted = has_vector and cohort.phase is not Phase.FAILED
        question = find_study(session, join.study).question
        if is_counted and not parse_question(question).asks_every_round:
            detail = f"this device was counted in round {participant.round}"
            raise ProblemError(ProblemType.ALREADY_COUNTED, detail)
    _check_draws(session, join.study, [cohort for _, cohort, _ in rows])
    return None


def _check_draws(session: Session, study: str, cohorts: Sequence[CohortRow]) -> None:
    """Refuse a device that the registrar seats no more, which would refuse its whole round.

    `cohorts` are those of its earlier rounds. Seats that came too late were drawn as well.
    """
    draws = sum(cohort.seating is not None for cohort in cohorts)
    if draws < MAX_DRAWS:
        return
    plan = parse_plan(session.get_one(RoundRow, (study, 1)).plan)
    if draws >= plan.max_draws:
        detail = f"this device was seated {draws} times without finishing, as often as it may be"
        raise ProblemError(ProblemType.ALREADY_COUNTED, detail)


def _check_same_device(row: ParticipantRow, cohort: CohortRow, device: JoiningDevice) -> None:
    if JoiningDevice(row.credential_digest, roster_entry(row)) != device:
        detail = "this device joined the round with another key, registrar signature or credential"
        raise ProblemError(ProblemType.CONFLICT, detail, phase=cohort.phase)


def _joined_device(row: ParticipantRow, cohort: CohortRow, *, is_new: bool) -> JoinedDevice:
    assignment = SlotAssignment(
        participant=row.id, cohort=cohort.number, slot=row.slot, deadline=cohort.deadline
    )
    slot = ParticipantSlot(row.id, cohort.id, row.slot, row.credential_digest)
    return JoinedDevice(assignment, slot, is_new)
