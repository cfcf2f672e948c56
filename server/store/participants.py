"""Participants: devices that join, and what each says in each phase."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from random import Random

from sqlalchemy import ColumnElement, Select, bindparam, exists, insert, or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from protocol.mechanisms import parse_question
from protocol.messages import ProblemType, Seat
from protocol.round import Phase
from secagg.cohort import Entry
from secagg.keys import PublicKeys
from server.database import Database, reading, writing
from server.refusals import Refusal, cohort_failed, left_out, not_found, out_of_phase
from server.schema import Cohort, Message, Participant, Round, Study
from server.store.studies import find_study
from server.store.views import KIND

_PHASE = {kind: phase for phase, kind in KIND.items()}
_STANDING = select(Cohort.phase, Cohort.deadline, Cohort.failure)
_MINE = (Message.cohort == bindparam("in_cohort"), Message.slot == bindparam("of_slot"))
# Made once: to put these together takes longer than to ask them, and every device does.
_RECORD = (
    _STANDING.add_columns(
        exists().where(*_MINE, Message.kind == bindparam("of_kind_before")),
        select(Message.digest)
        .where(*_MINE, Message.kind == bindparam("of_kind"))
        .scalar_subquery(),
    )
    .where(Cohort.id == bindparam("in_cohort"))
    .with_for_update(read=True, of=Cohort)
)
_SEATS = (
    select(
        Participant,
        Cohort,
        exists().where(
            Message.cohort == Participant.cohort,
            Message.slot == Participant.slot,
            Message.kind == "vector",
        ),
    )
    .join(Cohort, Cohort.id == Participant.cohort)
    .where(
        Participant.study == bindparam("of_study"), Participant.identity == bindparam("of_identity")
    )
)
_ROUND = select(
    Study.state,
    Study.terms,
    exists()
    .where(Round.study == Study.id, Round.number == bindparam("in_round"))
    .label("is_there"),
).where(Study.id == bindparam("of_study"))
_ROOM = (
    select(Cohort)
    .where(
        Cohort.study == bindparam("of_study"),
        Cohort.round == bindparam("in_round"),
        Cohort.phase == Phase.ENROLLING,
        Cohort.enrolled < bindparam("size"),
    )
    .order_by(Cohort.number)
    .limit(1)
)
# Where devices join by coins, a cohort that is full, or empty, would tell how many of them did.
_LEAST_FULL = _ROOM.order_by(None).order_by(Cohort.enrolled, Cohort.number)
_BORROWED = select(
    or_(  # each has an index of its own, and neither one for both
        *(
            exists().where(
                Participant.cohort == bindparam("in_cohort"),
                column.in_(bindparam("keys", expanding=True)),
            )
            for column in (Participant.mask_key, Participant.seal_key)
        )
    )
)


@dataclass(frozen=True, slots=True)
class Application:
    """A device's wish to take part: its ticket's SHA-256, and what it advertises."""

    ticket: bytes = field(repr=False)
    entry: Entry


@dataclass(frozen=True, slots=True)
class Place:
    """Where a participant sits; it never changes."""

    participant: str
    cohort: int
    slot: int
    ticket: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Said:
    """What a participant says: one upload, kept as rows of one kind or two.

    `kind` is that of the phase; who did not say `before` was left out.
    """

    kind: str
    before: str | None
    bodies: Mapping[str, bytes | memoryview] = field(repr=False)

    def digest(self) -> bytes:
        """Return the SHA-256 of all that is said."""
        said = sha256()
        for body in self.bodies.values():  # joined they would be copied, and vectors are long
            said.update(body)
        return said.digest()


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a cohort is."""

    phase: Phase
    deadline: datetime
    failure: str | None


@dataclass(frozen=True, slots=True)
class _Record:
    """A cohort's standing `now`; whether a participant spoke in the phase before, and in it."""

    now: datetime
    standing: Standing
    was_heard: bool
    said: bytes | None  # the digest


@dataclass(frozen=True, slots=True)
class Participants:
    """The book of participants and their messages."""

    database: Database
    rng: Random

    async def join(
        self, study: str, number: int, wish: Application, *, by_coin: bool
    ) -> tuple[Seat, bool]:
        """Give a device its seat in round `number`, which it joins `by_coin`; True if it is new.

        Raises:
            Refusal: if no cohort of the round takes devices, the device said something else
                before or was counted in an earlier round, or a key is somebody else's.
        """
        room = _LEAST_FULL if by_coin else _ROOM
        try:
            return await self._join(study, number, wish, room)
        except IntegrityError:  # the same device was let in this very moment
            return await self._join(study, number, wish, room)

    @writing
    def _join(
        self,
        session: Session,
        study: str,
        number: int,
        wish: Application,
        room: Select[Cohort],
    ) -> tuple[Seat, bool]:
        identity = wish.entry.identity.hex()
        known = _known(session, study, identity, number)
        if known is not None:
            return _same_seat(*known, wish), False
        cohort = self._cohort_with_room(session, study, number, room)
        known = _known(session, study, identity, number)  # let in while this waited for the lock
        if known is not None:
            return _same_seat(*known, wish), False
        if cohort is None:
            raise Refusal(ProblemType.NO_ROUND, f"round {number} takes no more devices")
        _refuse_borrowed_keys(session, cohort.id, wish.entry.keys)
        row = Participant(
            id=self.rng.randbytes(16).hex(),
            cohort=cohort.id,
            slot=cohort.enrolled,
            study=study,
            round=number,
            identity=identity,
            signature=wish.entry.signature,
            enrolment=wish.entry.enrolment,
            ticket=wish.ticket,
            mask_key=wish.entry.keys.mask,
            seal_key=wish.entry.keys.seal,
            joined=self.database.instant(),
        )
        session.add(row)
        cohort.enrolled += 1
        session.flush()
        return _seat(row, cohort), True

    def _cohort_with_room(
        self, session: Session, study: str, number: int, room: Select[Cohort]
    ) -> Cohort | None:
        """Return the first enrolling cohort by `room`, locked; None if all are full."""
        row = session.execute(_ROUND, {"of_study": study, "in_round": number}).one_or_none()
        if row is None:
            raise not_found("study")
        if row.state != "running":
            raise Refusal(ProblemType.WRONG_STATE, f"the study is {row.state}")
        if not row.is_there:
            raise not_found("round")
        which = {"of_study": study, "in_round": number, "size": row.terms["cohort_size"]}
        query = room.where(Cohort.deadline > self.database.instant())
        # PostgreSQL, having waited for the lock of a cohort that filled meanwhile, returns
        # no row although the next cohort has room: then look again.
        for _ in range(int(row.terms["cohorts"])):
            cohort = session.scalar(query.with_for_update(), which)
            if cohort is not None:
                return cohort
            if session.scalar(query.with_only_columns(Cohort.id), which) is None:
                break
        return None

    @reading
    def place(self, session: Session, participant: str) -> Place:
        """Return where `participant` sits."""
        columns = (Participant.cohort, Participant.slot, Participant.ticket)
        query = select(*columns).where(Participant.id == participant)
        row = session.execute(query).one_or_none()
        if row is None:
            raise not_found("participant")
        return Place(participant, *row)

    @reading
    def standing(self, session: Session, cohort: int) -> Standing:
        """Return how far `cohort` is."""
        return Standing(*session.execute(_STANDING.where(Cohort.id == cohort)).one())

    async def accept(self, place: Place, said: Said) -> None:
        """Keep what a participant says, if its cohort is in the phase for it.

        Raises:
            Refusal: if it said something else before, the phase is another or its deadline
                passed, or the cohort failed or went on without the participant.
        """
        arrived = self.database.seconds()  # a queue of writers is no reason to be late
        digest = said.digest()  # before the queue, for of SQLite's writers there is one at a time
        try:
            await self._accept(place, said, digest, arrived)
        except IntegrityError:  # the same message was kept this very moment
            await self._accept(place, said, digest, arrived)

    @writing
    def _accept(
        self, session: Session, place: Place, said: Said, digest: bytes, arrived: float
    ) -> None:
        waited = timedelta(seconds=self.database.seconds() - arrived)
        record = _look(session, place, said, self.database.instant())
        if record.said == digest:
            return
        _check(record, said.kind, record.now - waited)
        row = {"cohort": place.cohort, "slot": place.slot, "received": record.now, "digest": digest}
        rows = [row | {"kind": kind, "body": body} for kind, body in said.bodies.items()]
        session.execute(insert(Message), rows)


def _check(record: _Record, kind: str, arrived: datetime) -> None:
    phase, deadline = record.standing.phase, record.standing.deadline
    if record.said is not None:
        detail = f"{kind} of other content was sent before"
        raise Refusal(ProblemType.CONFLICT, detail, phase=phase)
    if phase is Phase.FAILED:
        raise cohort_failed(record.standing.failure)
    if phase is not _PHASE[kind]:
        raise out_of_phase(kind, _PHASE[kind], phase)
    if not record.was_heard:
        raise left_out(phase)
    if arrived >= deadline:
        detail = f"the deadline of {phase} has passed: {deadline.isoformat()}"
        raise Refusal(ProblemType.WRONG_PHASE, detail, phase=phase)


def _look(session: Session, place: Place, what: Said, now: ColumnElement[datetime]) -> _Record:
    """Return what the cohort and the participant have come to; no phase moves meanwhile."""
    whose = {"in_cohort": place.cohort, "of_slot": place.slot}
    kinds = {"of_kind": what.kind, "of_kind_before": what.before or ""}
    row = session.execute(_RECORD.add_columns(now), whose | kinds).one()
    phase, deadline, failure, was_heard, digest, at = row
    standing = Standing(phase, deadline, failure)
    return _Record(at, standing, was_heard or what.before is None, digest)


def _known(
    session: Session, study: str, identity: str, number: int
) -> tuple[Participant, Cohort] | None:
    """Return the device's row in round `number`, None if it has none.

    Raises:
        Refusal: if it was counted in an earlier round, or departed from the protocol there.
    """
    rows = session.execute(_SEATS, {"of_study": study, "of_identity": identity}).all()
    for participant, cohort, _ in rows:
        if participant.round == number:
            return participant, cohort
    for participant, cohort, has_vector in rows:
        if participant.blamed is not None:
            detail = f"in round {participant.round} this device {participant.blamed}"
            raise Refusal(ProblemType.BARRED, detail)
        if has_vector and cohort.phase is not Phase.FAILED and not _repeats(session, study):
            detail = f"this device was counted in round {participant.round}"
            raise Refusal(ProblemType.ALREADY_COUNTED, detail)
    return None


def _repeats(session: Session, study: str) -> bool:
    """Return whether a device takes part in each round of `study`."""
    return parse_question(find_study(session, study).question).repeats


def _same_seat(row: Participant, cohort: Cohort, wish: Application) -> Seat:
    if (entry_of(row), row.ticket) != (wish.entry, wish.ticket):
        detail = "this device joined the round with other keys, enrolment or ticket"
        raise Refusal(ProblemType.CONFLICT, detail, phase=cohort.phase)
    return _seat(row, cohort)


def entry_of(row: Participant) -> Entry:
    """Return what the roster says of a participant."""
    keys = PublicKeys(row.mask_key, row.seal_key)
    return Entry(bytes.fromhex(row.identity), keys, row.signature, row.enrolment)


def _seat(row: Participant, cohort: Cohort) -> Seat:
    return Seat(participant=row.id, cohort=cohort.number, slot=row.slot, deadline=cohort.deadline)


def _refuse_borrowed_keys(session: Session, cohort: int, keys: PublicKeys) -> None:
    """Refuse keys of another participant: its neighbours would refuse the whole roster."""
    both = {"in_cohort": cohort, "keys": (keys.mask, keys.seal)}
    if session.scalar(_BORROWED, both):
        raise Refusal(ProblemType.CONFLICT, "a key of another participant was advertised")
