"""Repository of seatings: the joiners of a round that wait for its registrar, and their seats.

While devices join, all of them are in the first cohort of the round, in the order of joining. One
transaction makes the other cohorts, moves each joiner to the seat that the registrar drew, and
starts sharing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

from sqlalchemy import Table, bindparam, func, insert, select, update
from sqlalchemy.orm import Session

from protocol.api.events import EventKind
from protocol.api.messages import PendingSeating, Timeouts
from protocol.api.phases import Phase
from protocol.study import Terms
from secagg.seating import CohortSeating, cohort_sizes
from server.db.database import Repository, read_transaction, write_transaction
from server.db.repositories.cohort_phases import enter_phase
from server.db.repositories.events import record_event
from server.db.repositories.studies import find_study
from server.db.schema import CohortRow, ParticipantRow, StudyRow
from server.errors import not_found, out_of_phase

_PARTICIPANTS = cast("Table", ParticipantRow.__table__)
_TAKE_SEAT = (
    update(_PARTICIPANTS)
    .where(_PARTICIPANTS.c.cohort == bindparam("lobby"), _PARTICIPANTS.c.slot == bindparam("left"))
    .values(cohort=bindparam("to_cohort"), slot=bindparam("to_slot"))
)


@dataclass(frozen=True, slots=True)
class Lobby:
    """The first cohort of a round, in its present `phase`, and the joiners of the whole round."""

    cohort: int
    phase: Phase
    joiners: int


@dataclass(frozen=True, slots=True)
class SeatingRepository(Repository):
    """Repository of seatings."""

    @read_transaction
    def pending(self, session: Session, registrar: str) -> tuple[PendingSeating, ...]:
        """Return the rounds that wait for `registrar`, an Ed25519 key in hexadecimal."""
        query = select(CohortRow, StudyRow.terms).join(StudyRow, StudyRow.id == CohortRow.study)
        rows = session.execute(query.where(CohortRow.phase == Phase.SEATING)).all()
        return tuple(
            PendingSeating(
                study=row.study, round=row.round, joiners=row.enrolled, deadline=row.deadline
            )
            for row, terms in rows
            if Terms.model_validate(terms).registrar == registrar
        )

    @read_transaction
    def lobby(self, session: Session, study: str, number: int) -> Lobby:
        """Return the lobby of a round that its registrar seats, when enrolling is over.

        Raises:
            ProblemError: if there is no such round, or it is still enrolling.
        """
        row = _find_lobby(session, study, number)
        of_round = (CohortRow.study == study, CohortRow.round == number)
        joiners = session.scalar(select(func.sum(CohortRow.enrolled)).where(*of_round))
        return Lobby(row.id, row.phase, int(joiners or 0))

    @read_transaction
    def joiners(
        self, session: Session, lobby: int, after: int, limit: int
    ) -> Sequence[tuple[str, bytes]]:
        """Return identities and enrolments in the order of joining, without the first `after`."""
        columns = (ParticipantRow.identity, ParticipantRow.registrar_signature)
        query = select(*columns).where(ParticipantRow.cohort == lobby, ParticipantRow.slot >= after)
        rows = session.execute(query.order_by(ParticipantRow.slot).limit(limit))
        return [(identity, signature) for identity, signature in rows]

    @write_transaction
    def seat(
        self,
        session: Session,
        study: str,
        number: int,
        order: Sequence[int],
        seatings: Sequence[CohortSeating],
    ) -> bool:
        """Seat the joiners, in the `order` of cohorts and slots; False if this was done before.

        Raises:
            ProblemError: if the round is not seating, or was seated otherwise.
        """
        lobby = _find_lobby(session, study, number, lock=True)
        if lobby.phase is not Phase.SEATING:
            if _stored_seatings(session, study, number) == [each.pack() for each in seatings]:
                return False
            raise out_of_phase("the seating of a round", Phase.SEATING, lobby.phase)
        now = self.database.now(session)
        timeouts = Timeouts.model_validate(find_study(session, study).timeouts)
        duration = timedelta(seconds=timeouts.sharing)
        sizes = cohort_sizes(lobby.enrolled, len(seatings))
        ids = _start_sharing(session, lobby, sizes, seatings, now, duration)
        _move_joiners(session, ids, sizes, order)
        return True


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


def _stored_seatings(session: Session, study: str, number: int) -> list[bytes | None]:
    of_round = (CohortRow.study == study, CohortRow.round == number)
    query = select(CohortRow.seating).where(*of_round).order_by(CohortRow.number)
    return list(session.scalars(query))


def _start_sharing(
    session: Session,
    lobby: CohortRow,
    sizes: Sequence[int],
    seatings: Sequence[CohortSeating],
    now: datetime,
    duration: timedelta,
) -> list[int]:
    """Start sharing in the lobby and in new cohorts of these sizes; return the ids of all."""
    before = lobby.history
    lobby.enrolled, lobby.seating = sizes[0], seatings[0].pack()
    lobby.history = [record | {"received": sizes[0]} for record in before]
    enter_phase(session, lobby, Phase.SHARING, sizes[0], now, duration)
    sharing = lobby.history[-1]
    rows = [
        {
            "study": lobby.study,
            "round": lobby.round,
            "number": number,
            "phase": Phase.SHARING,
            "deadline": lobby.deadline,
            "enrolled": sizes[number],
            "poisoned": False,
            "history": [*(r | {"received": sizes[number]} for r in before), sharing],
            "accused": [],
            "seating": seatings[number].pack(),
        }
        for number in range(1, len(sizes))
    ]
    session.execute(insert(CohortRow), rows)
    for row in rows:
        facts: dict[str, Any] = {"round": lobby.round, "cohort": row["number"]}
        facts |= {"previous_phase": Phase.SEATING, "phase": Phase.SHARING, "seconds": 0.0}
        facts |= {"received": row["enrolled"], "expected": row["enrolled"]}
        record_event(session, lobby.study, EventKind.COHORT_PHASE_CHANGED, now, **facts)
    of_round = (CohortRow.study == lobby.study, CohortRow.round == lobby.round)
    return list(session.scalars(select(CohortRow.id).where(*of_round).order_by(CohortRow.number)))


def _move_joiners(
    session: Session, cohorts: Sequence[int], sizes: Sequence[int], order: Sequence[int]
) -> None:
    """Give joiner `order[i]` the i-th seat; `cohorts` are row ids, of which the first is the lobby.

    No two ever have the same place: most joiners leave the lobby for empty cohorts, and then those
    that stay leave their places for negative ones before they take their seats.
    """
    places = [(cohort, slot) for cohort, n in zip(cohorts, sizes, strict=True) for slot in range(n)]
    lobby, stay = cohorts[0], sizes[0]
    _take_seats(session, lobby, order[stay:], places[stay:])
    left = update(_PARTICIPANTS).where(_PARTICIPANTS.c.cohort == lobby)
    session.execute(left.values(slot=-1 - _PARTICIPANTS.c.slot))
    _take_seats(session, lobby, [-1 - joiner for joiner in order[:stay]], places[:stay])


def _take_seats(
    session: Session, lobby: int, slots: Sequence[int], places: Sequence[tuple[int, int]]
) -> None:
    """Move the participants of the lobby in `slots` to `places`, each a cohort and a slot."""
    rows = [
        {"lobby": lobby, "left": left, "to_cohort": cohort, "to_slot": slot}
        for left, (cohort, slot) in zip(slots, places, strict=True)
    ]
    session.connection().execute(_TAKE_SEAT, rows)
