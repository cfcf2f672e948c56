"""Repository of seatings: the joiners of a round that wait for its registrar, and their seats.

While devices join, all of them are in the first cohort of the round, the lobby, in the order of
joining. Then

    accept         stores the seats of all joiners, and makes the other cohorts
    take_seats     moves some joiners to their seats, in each of many short transactions
    start_sharing  starts sharing in all cohorts, once every joiner has its seat

Each transaction may be repeated. So after a kill any process continues: until sharing starts, the
lobby's slots below the number of joiners are those of joiners that still have to move.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Table, and_, bindparam, exists, func, insert, or_, select, update
from sqlalchemy.orm import Session

from protocol.api.events import FailureCause
from protocol.api.messages import PendingSeating, ProblemType, Timeouts
from protocol.api.phases import Phase
from protocol.question_and_plan import Terms
from secagg.seating import CohortSeating, cohort_sizes
from server.db.database import Repository, read_transaction, write_transaction
from server.db.repositories.cohort_phases import enter_phase
from server.db.repositories.studies.studies import find_study
from server.db.schema import CohortRow, ParticipantRow, StudyRow
from server.errors import ProblemError, not_found, out_of_phase

_PARTICIPANTS = cast("Table", ParticipantRow.__table__)
_TAKE_SEAT = (
    update(_PARTICIPANTS)
    .where(_PARTICIPANTS.c.cohort == bindparam("lobby"), _PARTICIPANTS.c.slot == bindparam("left"))
    .values(cohort=bindparam("to_cohort"), slot=bindparam("to_slot"))
)


@dataclass(frozen=True, slots=True)
class Lobby:
    """The first cohort of a round, and the joiners of the whole round.

    `is_waiting`: whether it still waits for the registrar's seats; `is_late`: whether it failed
    while it did.
    """

    cohort: int
    is_waiting: bool
    is_late: bool
    joiners: int


@dataclass(frozen=True, slots=True, eq=False)
class Seats:
    """The seats of a round: the row id of the cohort and the slot, by the number of the joiner.

    Joiners that stay in the lobby first take slots behind all joiners, because their seats may
    still be taken: `number of joiners + seat`.
    """

    lobby: int
    cohorts: NDArray[np.int64]
    slots: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SeatingRepository(Repository):
    """Repository of seatings."""

    @read_transaction
    def pending(self, session: Session, registrar: str) -> tuple[PendingSeating, ...]:
        """Return the rounds that wait for `registrar`, an Ed25519 key in hexadecimal."""
        query = select(CohortRow, StudyRow.terms).join(StudyRow, StudyRow.id == CohortRow.study)
        is_seating = and_(CohortRow.phase == Phase.SEATING, CohortRow.seating.is_(None))
        is_waiting = or_(is_seating, CohortRow.phase == Phase.DRAWING)
        return tuple(
            PendingSeating(
                study=row.study,
                round=row.round,
                joiners=_joiners_of(row),
                deadline=row.deadline,
                is_committee=row.phase is Phase.DRAWING,
            )
            for row, terms in session.execute(query.where(is_waiting))
            if Terms.model_validate(terms).registrar == registrar
        )

    @read_transaction
    def lobby(self, session: Session, study: str, number: int) -> Lobby:
        """Return the lobby of a round that its registrar seats, when enrolling is over.

        Raises:
            ProblemError: if there is no such round, or it is still enrolling.
        """
        row = _find_lobby(session, study, number)
        return Lobby(row.id, _is_waiting(row), _is_late(row), _count_joiners(session, row))

    @read_transaction
    def joiners(
        self, session: Session, lobby: int, after: int, limit: int
    ) -> Sequence[tuple[str, bytes]]:
        """Return identities and enrolments in the order of joining, without the first `after`.

        The lobby must be waiting for the seats.
        """
        columns = (ParticipantRow.identity, ParticipantRow.registrar_signature)
        query = select(*columns).where(ParticipantRow.cohort == lobby, ParticipantRow.slot >= after)
        rows = session.execute(query.order_by(ParticipantRow.slot).limit(limit))
        return [(identity, signature) for identity, signature in rows]

    @write_transaction
    def accept(
        self,
        session: Session,
        study: str,
        number: int,
        order: Sequence[int],
        seatings: Sequence[CohortSeating],
    ) -> Phase:
        """Store the seats of joiners in the `order` of cohorts and slots; return the round's phase.

        Of a round that failed while it waited, only the fact is stored that its registrar drew.

        Raises:
            ProblemError: if the round is not seating, or was seated otherwise.
        """
        lobby = _find_lobby(session, study, number, lock=True)
        if _is_late(lobby):
            lobby.seating = seatings[0].pack()
            return lobby.phase
        if not _is_waiting(lobby):
            if _stored_seatings(session, study, number) == list(seatings):
                return lobby.phase
            if lobby.phase is Phase.SEATING:
                detail = "the registrar sent other seats before"
                raise ProblemError(ProblemType.CONFLICT, detail, phase=lobby.phase)
            raise out_of_phase("the seating of a round", Phase.SEATING, lobby.phase)
        _make_cohorts(session, lobby, seatings)
        lobby.seating, lobby.seats = seatings[0].pack(), np.array(order, ">u4").tobytes()
        return lobby.phase

    @read_transaction
    def seats(self, session: Session, study: str, number: int) -> Seats | None:
        """Return the seats that joiners have to take; None if the round has none or is sharing."""
        lobby = _find_lobby(session, study, number)
        if lobby.phase is not Phase.SEATING or lobby.seats is None:
            return None
        of_round = (CohortRow.study == study, CohortRow.round == number)
        query = select(CohortRow.id, CohortRow.enrolled).where(*of_round)
        rows = session.execute(query.order_by(CohortRow.number)).all()
        order = np.frombuffer(lobby.seats, ">u4").astype(np.int64)
        cohorts, slots = np.empty_like(order), np.empty_like(order)
        cohorts[order] = np.repeat([cohort for cohort, _ in rows], [n for _, n in rows])
        slots[order] = np.concatenate([np.arange(n) for _, n in rows])
        slots[cohorts == lobby.id] += len(order)
        return Seats(lobby.id, cohorts, slots)

    @write_transaction
    def take_seats(self, session: Session, seats: Seats, limit: int) -> int:
        """Move the next `limit` joiners of the lobby to `seats`; return the number that moved."""
        lobby = (CohortRow.id == seats.lobby, CohortRow.phase == Phase.SEATING)
        if session.scalar(select(CohortRow.id).where(*lobby).with_for_update()) is None:
            return 0
        unseated = (ParticipantRow.cohort == seats.lobby, ParticipantRow.slot < len(seats.slots))
        query = select(ParticipantRow.slot).where(*unseated).order_by(ParticipantRow.slot)
        joiners = session.scalars(query.limit(limit)).all()
        rows = [
            {
                "lobby": seats.lobby,
                "left": joiner,
                "to_cohort": int(seats.cohorts[joiner]),
                "to_slot": int(seats.slots[joiner]),
            }
            for joiner in joiners
        ]
        if rows:
            session.connection().execute(_TAKE_SEAT, rows)
        return len(rows)

    @write_transaction
    def start_sharing(self, session: Session, study: str, number: int) -> Sequence[int]:
        """Start sharing in all cohorts of a round, and return their row ids.

        It returns none if the round is not seating, or some joiners have not taken their seats.
        """
        cohorts = _lock_seating(session, study, number)
        if not cohorts or cohorts[0].number != 0 or cohorts[0].seating is None:
            return []
        lobby, joiners = cohorts[0], _count_joiners(session, cohorts[0])
        of_lobby = ParticipantRow.cohort == lobby.id
        if session.scalar(select(exists().where(of_lobby, ParticipantRow.slot < joiners))):
            return []
        in_order = update(_PARTICIPANTS).where(_PARTICIPANTS.c.cohort == lobby.id)
        session.execute(in_order.values(slot=_PARTICIPANTS.c.slot - joiners))
        lobby.seats = None
        now = self.database.now(session)
        timeouts = Timeouts.model_validate(find_study(session, study).timeouts)
        duration = timedelta(seconds=timeouts.sharing)
        for row in cohorts:
            enter_phase(session, row, Phase.SHARING, row.enrolled, now, duration)
        return [row.id for row in cohorts]

    @write_transaction
    def fail(self, session: Session, study: str, number: int, reason: str) -> None:
        """Fail all cohorts of a round that are seating, because of a fault of this program."""
        now = self.database.now(session)
        for row in _lock_seating(session, study, number):
            row.failure = reason
            enter_phase(session, row, Phase.FAILED, 0, now, cause=FailureCause.INTERNAL)


def _find_lobby(session: Session, study: str, number: int, *, lock: bool = False) -> CohortRow:
    query = select(CohortRow).where(
        CohortRow.study == study, CohortRow.round == number, CohortRow.number == 0
    )
    row = session.scalar(query.with_for_update() if lock else query)
    if row is None or not Terms.model_validate(find_study(session, study).terms).is_seated:
        raise not_found("round that a registrar seats")
    if row.phase is Phase.ENROLLING:
        raise out_of_phase("the seating of a round", Phase.SEATING, row.phase)
    return row


def _joiners_of(row: CohortRow) -> int:
    """Return the number of joiners, or of volunteers, that wait for the registrar."""
    return int(row.history[0]["received"]) if row.phase is Phase.DRAWING else row.enrolled


def _is_waiting(lobby: CohortRow) -> bool:
    return lobby.phase is Phase.SEATING and lobby.seating is None


def _is_late(lobby: CohortRow) -> bool:
    is_failed = lobby.phase is Phase.FAILED and lobby.seating is None
    return is_failed and lobby.history[-2]["phase"] == Phase.SEATING


def _count_joiners(session: Session, lobby: CohortRow) -> int:
    of_round = (CohortRow.study == lobby.study, CohortRow.round == lobby.round)
    return int(session.scalar(select(func.sum(CohortRow.enrolled)).where(*of_round)) or 0)


def _stored_seatings(session: Session, study: str, number: int) -> list[CohortSeating | None]:
    of_round = (CohortRow.study == study, CohortRow.round == number)
    query = select(CohortRow.seating).where(*of_round).order_by(CohortRow.number)
    stored = session.scalars(query)
    return [None if packed is None else CohortSeating.split(packed)[0] for packed in stored]


def _lock_seating(session: Session, study: str, number: int) -> Sequence[CohortRow]:
    """Return the cohorts of a round that are seating, all locked."""
    seating = (CohortRow.round == number, CohortRow.phase == Phase.SEATING)
    query = select(CohortRow).where(CohortRow.study == study, *seating).order_by(CohortRow.number)
    return session.scalars(query.with_for_update()).all()


def _make_cohorts(session: Session, lobby: CohortRow, seatings: Sequence[CohortSeating]) -> None:
    """Make the other cohorts of the round of `lobby`, which are seating as it is."""
    sizes = cohort_sizes(lobby.enrolled, len(seatings))
    enrolling, seating = lobby.history
    facts = {"study": lobby.study, "round": lobby.round, "phase": lobby.phase}
    facts["protocol"] = lobby.protocol
    facts |= {"deadline": lobby.deadline, "poisoned": False, "accused": []}
    facts |= {"received": 0, "last_received": lobby.last_received}
    rows: list[dict[str, Any]] = [
        facts
        | {
            "number": number,
            "enrolled": size,
            "history": [enrolling | {"received": size}, seating],
            "seating": seatings[number].pack(),
        }
        for number, size in enumerate(sizes)
    ]
    session.execute(insert(CohortRow), rows[1:])
    lobby.enrolled, lobby.history = sizes[0], rows[0]["history"]
