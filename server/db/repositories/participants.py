"""Repository of participants: devices that join, and the messages that they upload."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from random import Random

from sqlalchemy import Select, bindparam, exists, or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from protocol.api.messages import ProblemType, SlotAssignment
from protocol.api.phases import MessageKind, Phase
from protocol.mechanisms.registry import parse_plan, parse_question
from protocol.study import Terms
from secagg.keys import PublicKeys
from secagg.roster import RosterEntry
from secagg.seating import MAX_DRAWS
from server.db.database import Repository, read_transaction, write_transaction
from server.db.repositories.studies import find_study
from server.db.schema import CohortRow, MessageRow, ParticipantRow, RoundRow, StudyRow
from server.errors import ProblemError, not_found

# Masks hide whose vector spoils a sum, so every device with a vector in it is kept out.
_POISONED_DETAIL = (
    "the sum of this device's cohort could not be used, so no device with a vector in it joins "
    "this study again; this does not mean that this device lied"
)
_COHORT_STATUS = select(CohortRow.phase, CohortRow.deadline, CohortRow.failure)
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
        ParticipantRow.identity == bindparam("of_identity"),
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
_DUPLICATE_KEY = select(
    or_(  # each column has its own index, and there is none for both
        *(
            exists().where(
                ParticipantRow.cohort == bindparam("in_cohort"),
                column.in_(bindparam("keys", expanding=True)),
            )
            for column in (ParticipantRow.mask_key, ParticipantRow.encryption_key)
        )
    )
)


@dataclass(frozen=True, slots=True)
class JoiningDevice:
    """Request of a device to join: the SHA-256 of its credential, and its roster entry."""

    credential_digest: bytes = field(repr=False)
    roster_entry: RosterEntry


@dataclass(frozen=True, slots=True)
class ParticipantSlot:
    """Cohort and slot of a participant, which never change once they are final.

    In a round that a registrar seats they are final when it has, and the order of joining before.
    """

    participant: str
    cohort: int
    slot: int
    credential_digest: bytes = field(repr=False)
    is_final: bool = True


@dataclass(frozen=True, slots=True)
class CohortStatus:
    """Phase of a cohort, its deadline, and the reason if it failed."""

    phase: Phase
    deadline: datetime
    failure: str | None


@dataclass(frozen=True, slots=True)
class ParticipantRepository(Repository):
    """Repository of participants and their uploads."""

    rng: Random

    async def join(
        self, study: str, number: int, device: JoiningDevice, *, by_coin: bool
    ) -> tuple[SlotAssignment, bool]:
        """Assign a slot in round `number` to a device; return it, and whether it is new.

        `by_coin`: whether devices join at random.

        Raises:
            ProblemError: if no cohort of the round takes devices, the device joined with other keys
                before, it was counted in an earlier round, its vector is in a poisoned cohort, or a
                key belongs to another device.
        """
        query = _EMPTIEST_OPEN_COHORT if by_coin else _FIRST_OPEN_COHORT
        try:
            return await self._join(study, number, device, query)
        except IntegrityError:  # a concurrent request has joined the same device
            return await self._join(study, number, device, query)

    @write_transaction
    def _join(
        self,
        session: Session,
        study: str,
        number: int,
        device: JoiningDevice,
        query: Select[CohortRow],
    ) -> tuple[SlotAssignment, bool]:
        identity = device.roster_entry.identity.hex()
        known = _find_participant(session, study, identity, number)
        if known is not None:
            return _confirm_same_slot(*known, device), False
        cohort = self._lock_open_cohort(session, study, number, query)
        # The device may have joined while this waited for the lock.
        known = _find_participant(session, study, identity, number)
        if known is not None:
            return _confirm_same_slot(*known, device), False
        if cohort is None:
            raise ProblemError(ProblemType.NO_ROUND, f"round {number} takes no more devices")
        keys = device.roster_entry.keys
        parameters = {"in_cohort": cohort.id, "keys": (keys.mask, keys.encryption)}
        if session.scalar(_DUPLICATE_KEY, parameters):  # devices would refuse the whole roster
            detail = "a key of another participant was advertised"
            raise ProblemError(ProblemType.CONFLICT, detail)
        row = ParticipantRow(
            id=self.rng.randbytes(16).hex(),
            cohort=cohort.id,
            slot=cohort.enrolled,
            study=study,
            round=number,
            identity=identity,
            signature=device.roster_entry.signature,
            registrar_signature=device.roster_entry.registrar_signature,
            credential_digest=device.credential_digest,
            mask_key=keys.mask,
            encryption_key=keys.encryption,
            joined=self.database.now_column(),
        )
        session.add(row)
        cohort.enrolled += 1
        session.flush()
        return _slot_assignment(row, cohort), True

    def _lock_open_cohort(
        self, session: Session, study: str, number: int, query: Select[CohortRow]
    ) -> CohortRow | None:
        """Return the first enrolling cohort of `query`, locked; None if all are full."""
        row = session.execute(_ROUND_STATUS, {"of_study": study, "in_round": number}).one_or_none()
        if row is None:
            raise not_found("study")
        if row.state != "running":
            raise ProblemError(ProblemType.WRONG_STATE, f"the study is {row.state}")
        if not row.has_round:
            raise not_found("round")
        terms = Terms.model_validate(row.terms)
        size = terms.max_devices if terms.is_seated else terms.cohort_size
        parameters = {"of_study": study, "in_round": number, "size": size}
        open_cohorts = query.where(CohortRow.deadline > self.database.now_column())
        # If a cohort fills while PostgreSQL waits for its lock, PostgreSQL returns no row although
        # the next cohort is open: then try again.
        for _ in range(terms.cohorts):
            cohort = session.scalar(open_cohorts.with_for_update(), parameters)
            if cohort is not None:
                return cohort
            if session.scalar(open_cohorts.with_only_columns(CohortRow.id), parameters) is None:
                break
        return None

    @read_transaction
    def slot(self, session: Session, participant: str) -> ParticipantSlot:
        """Return the cohort and the slot of `participant`."""
        columns = (ParticipantRow.cohort, ParticipantRow.slot, ParticipantRow.credential_digest)
        query = select(*columns, CohortRow.phase).where(ParticipantRow.id == participant)
        row = session.execute(query.join(CohortRow)).one_or_none()
        if row is None:
            raise not_found("participant")
        is_final = row.phase not in (Phase.ENROLLING, Phase.SEATING)
        return ParticipantSlot(participant, row.cohort, row.slot, row.credential_digest, is_final)

    @read_transaction
    def status(self, session: Session, cohort: int) -> CohortStatus:
        """Return the phase of `cohort`, its deadline, and the reason if it failed."""
        return CohortStatus(*session.execute(_COHORT_STATUS.where(CohortRow.id == cohort)).one())


def _find_participant(
    session: Session, study: str, identity: str, number: int
) -> tuple[ParticipantRow, CohortRow] | None:
    """Return the device's row in round `number`, None if it has none.

    Raises:
        ProblemError: if in an earlier round it was counted, departed from the protocol, or gave a
            vector to a poisoned cohort.
    """
    rows = session.execute(_PARTICIPATIONS, {"of_study": study, "of_identity": identity}).all()
    for participant, cohort, _ in rows:
        if participant.round == number:
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
        if is_counted and not parse_question(find_study(session, study).question).asks_every_round:
            detail = f"this device was counted in round {participant.round}"
            raise ProblemError(ProblemType.ALREADY_COUNTED, detail)
    _check_draws(session, study, [cohort for _, cohort, _ in rows])
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


def _confirm_same_slot(
    row: ParticipantRow, cohort: CohortRow, device: JoiningDevice
) -> SlotAssignment:
    known = JoiningDevice(row.credential_digest, roster_entry(row))
    if known != device:
        detail = "this device joined the round with another key, registrar signature or credential"
        raise ProblemError(ProblemType.CONFLICT, detail, phase=cohort.phase)
    return _slot_assignment(row, cohort)


def roster_entry(row: ParticipantRow) -> RosterEntry:
    keys = PublicKeys(row.mask_key, row.encryption_key)
    return RosterEntry(bytes.fromhex(row.identity), keys, row.signature, row.registrar_signature)


def _slot_assignment(row: ParticipantRow, cohort: CohortRow) -> SlotAssignment:
    return SlotAssignment(
        participant=row.id, cohort=cohort.number, slot=row.slot, deadline=cohort.deadline
    )
