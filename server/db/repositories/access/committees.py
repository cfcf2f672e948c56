"""Repository of committees: the messages of their members in the phases of one-shot sums.

A row never changes. The committee of a round follows from the keys that operators registered while
it convened, in the order of the plan's terms. It is stored when the round starts to collect. A
registrar draws a committee of volunteers instead (`server/db/repositories/access/committees.py`).

A registrar draws the committee of a sum from volunteers. While the round is drawing, the list of
volunteers is fixed, and waits for the committee that the registrar signs.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from typing import cast

from sqlalchemy import Table, case, exists, func, select, tuple_
from sqlalchemy.orm import Session

from protocol.api.messages import CommitteeRound, ProblemType, Timeouts
from protocol.api.one_shot import SUM_NUMBER, committee_terms
from protocol.api.phases import MEMBER_MESSAGE_KIND, PROTOCOLS, MemberMessageKind, Phase
from protocol.committee_terms import CommitteeTerms
from protocol.mechanisms.registry import AnyPlan
from protocol.question_and_plan import Terms
from secagg.keys import KEY_BYTES
from secagg.oneshot.committee import Committee, MemberEntry
from server.db.database import Repository, read_transaction, write_transaction
from server.db.group_commit import PreparedInsert
from server.db.repositories.arrivals import Arrival, ArrivalGroup
from server.db.repositories.cohort_phases import enter_phase, fix_committee
from server.db.repositories.studies.studies import find_study
from server.db.schema import CohortRow, CommitteeMemberRow, MemberMessageRow
from server.errors import ProblemError, cohort_failed, not_found, out_of_phase

_MESSAGES = cast("Table", MemberMessageRow.__table__)
_INSERT = PreparedInsert(MemberMessageRow)
_PHASE_OF_KIND = {kind: phase for phase, kind in MEMBER_MESSAGE_KIND.items()}
_RESOURCE = "the draw of a committee"


@dataclass(frozen=True, slots=True)
class OneShotStatus:
    """Status of the cohort of a one-shot round."""

    cohort: int
    phase: Phase
    deadline: datetime
    failure: str | None


@dataclass(frozen=True, slots=True)
class MemberMessage(Arrival):
    """Checked message of a member, by its identity in hexadecimal."""

    kind: MemberMessageKind
    identity: str
    body: bytes = field(repr=False)

    @classmethod
    def of(
        cls,
        cohort: int,
        kind: MemberMessageKind,
        identity: str,
        body: bytes,
        max_messages: int | None = None,
    ) -> "MemberMessage":
        """Return a message; a phase takes `max_messages` of them at most."""
        digest = sha256(body).digest()
        return cls(cohort, digest, kind, identity, body, max_messages=max_messages)

    @property
    def key(self) -> tuple[int, MemberMessageKind, str]:
        return self.cohort, self.kind, self.identity

    @property
    def name(self) -> str:
        return self.kind

    @property
    def phase(self) -> Phase:
        return _PHASE_OF_KIND[self.kind]

    @property
    def nbytes(self) -> int:
        return len(self.body)

    @property
    def public_key(self) -> tuple[int, bytes] | None:
        """Return the encryption key that the message registers in its cohort, if it does."""
        if self.kind is not MemberMessageKind.KEY:
            return None
        return self.cohort, self.body[KEY_BYTES : 2 * KEY_BYTES]


class MemberMessageGroup(ArrivalGroup[MemberMessage]):
    """Rules for messages of members: a committee has different keys."""

    receiver = "round"

    def read_stored(self) -> dict[Hashable, bytes]:
        columns = (_MESSAGES.c.cohort, _MESSAGES.c.kind, _MESSAGES.c.identity, _MESSAGES.c.digest)
        keys = [message.key for message in self.arrivals]
        query = select(*columns).where(tuple_(*columns[:3]).in_(keys))
        rows = self.connection.execute(query)
        self._taken = self._taken_keys()
        return {(row.cohort, row.kind, row.identity): row.digest for row in rows}

    def _taken_keys(self) -> set[tuple[int, bytes]]:
        """Return those keys of `arrivals` that members of their cohorts have registered."""
        wanted = [each.public_key for each in self.arrivals if each.public_key is not None]
        key = func.substr(_MESSAGES.c.body, KEY_BYTES + 1, KEY_BYTES)  # counts from 1
        query = (
            select(_MESSAGES.c.cohort, key)
            .where(_MESSAGES.c.cohort.in_({cohort for cohort, _ in wanted}))
            .where(_MESSAGES.c.kind == MemberMessageKind.KEY, key.in_([each for _, each in wanted]))
        )
        return {(cohort, taken) for cohort, taken in self.connection.execute(query)}

    def check(self, arrival: MemberMessage) -> None:
        if arrival.public_key is None:
            return
        if arrival.public_key in self._taken:
            detail = "another member has registered this key"
            raise ProblemError(ProblemType.CONFLICT, detail, phase=arrival.phase)
        self._taken.add(arrival.public_key)

    def full(self, _arrival: MemberMessage) -> ProblemError:
        return ProblemError(ProblemType.NO_ROUND, "enough devices have volunteered")

    def store(self, now: datetime) -> None:
        rows = self.rows(now, "cohort", "kind", "identity", "digest", "body")
        _INSERT(self.connection, rows)


class CommitteeRepository(Repository):
    """Repository of committees."""

    @read_transaction
    def status(self, session: Session, study: str, number: int) -> OneShotStatus:
        """Return the status of a one-shot round; raises ProblemError if it is of another kind."""
        row = _one_shot_cohort(session, study, number)
        return OneShotStatus(row.id, row.phase, row.deadline, row.failure)

    @read_transaction
    def committee(self, session: Session, study: str, number: int) -> tuple[int, Committee]:
        """Return the cohort of a one-shot round, and its committee.

        Raises:
            ProblemError: if the members still register their keys, or too few of them did.
        """
        row = _one_shot_cohort(session, study, number)
        if row.committee is None:
            raise _no_committee(row)
        return row.id, Committee.unpack(row.committee)

    @read_transaction
    def bodies(self, session: Session, cohort: int, kind: MemberMessageKind) -> dict[bytes, bytes]:
        """Return the messages of a kind by the identity of the member."""
        return _bodies(session, cohort, kind)

    @read_transaction
    def pending(
        self, session: Session, identity: str, study: str | None = None
    ) -> tuple[CommitteeRound, ...]:
        """Return the rounds that wait for a message of the member `identity`.

        With a `study` they are those of this study, also if it asks for volunteers.
        """
        columns = (CohortRow.study, CohortRow.round, CohortRow.phase, CohortRow.deadline)
        of_cohort = CommitteeMemberRow.cohort == CohortRow.id
        has_sent = exists().where(
            MemberMessageRow.cohort == CohortRow.id,
            MemberMessageRow.identity == identity,
            MemberMessageRow.kind == case(MEMBER_MESSAGE_KIND, value=CohortRow.phase),
        )
        waiting = select(*columns).where(CohortRow.phase.in_(MEMBER_MESSAGE_KIND), ~has_sent)
        query = waiting.join(CommitteeMemberRow, of_cohort)
        query = query.where(CommitteeMemberRow.identity == identity)
        if study is not None:
            query = query.where(CohortRow.study == study)
        rows = [*session.execute(query)]
        if study is not None:
            is_for_volunteers = (CohortRow.phase == Phase.CONVENING, ~exists().where(of_cohort))
            rows += session.execute(waiting.where(CohortRow.study == study, *is_for_volunteers))
        rounds = (CommitteeRound.model_validate(row, from_attributes=True) for row in rows)
        return tuple(sorted(rounds, key=lambda each: each.deadline))


def convened_committee(session: Session, row: CohortRow, plan: AnyPlan) -> Committee | None:
    """Return the committee of the operators that registered keys, None if they are too few."""
    keys = _bodies(session, row.id, MemberMessageKind.KEY)
    terms = committee_terms(plan)
    assert isinstance(terms, CommitteeTerms), "the registrar draws volunteers"
    present = terms.present([identity.hex() for identity in keys])
    if len(present) < terms.parameters.needed_sums:
        return None
    entries = tuple(MemberEntry.unpack(keys[bytes.fromhex(each)]) for each in present)
    return Committee(plan.digest(), SUM_NUMBER, terms.parameters_of(len(present)), entries)


def _bodies(session: Session, cohort: int, kind: MemberMessageKind) -> dict[bytes, bytes]:
    of_kind = (MemberMessageRow.cohort == cohort, MemberMessageRow.kind == kind)
    query = select(MemberMessageRow.identity, MemberMessageRow.body).where(*of_kind)
    rows: Sequence[tuple[str, bytes | None]] = [(i, b) for i, b in session.execute(query)]
    return {bytes.fromhex(identity): body for identity, body in rows if body is not None}


def _one_shot_cohort(session: Session, study: str, number: int) -> CohortRow:
    find_study(session, study)
    query = select(CohortRow).where(CohortRow.study == study, CohortRow.round == number)
    row = session.scalar(query.limit(1))
    if row is None:
        raise not_found("round")
    if PROTOCOLS[row.protocol].kind != "one-shot":
        raise ProblemError(ProblemType.WRONG_STATE, "this round has no one-shot sum")
    return row


def _no_committee(row: CohortRow) -> ProblemError:
    if row.phase is Phase.FAILED:
        return cohort_failed(row.failure)
    detail = "the committee is not complete yet"
    return ProblemError(ProblemType.WRONG_PHASE, detail, phase=row.phase)


class VolunteerRepository(Repository):
    """Repository of volunteers."""

    @read_transaction
    def keys(self, session: Session, study: str, number: int) -> Sequence[bytes]:
        """Return the keys of all volunteers of a round, as they sent them, by their identities.

        Raises:
            ProblemError: if no registrar draws a committee in this round, or devices still
                volunteer.
        """
        row = _find_drawn(session, study, number)
        if row.phase is Phase.CONVENING:
            raise out_of_phase(_RESOURCE, Phase.DRAWING, row.phase)
        of_kind = (
            MemberMessageRow.cohort == row.id,
            MemberMessageRow.kind == MemberMessageKind.KEY,
        )
        query = select(MemberMessageRow.body).where(*of_kind).order_by(MemberMessageRow.identity)
        return [body for body in session.scalars(query) if body is not None]

    @write_transaction
    def convene(self, session: Session, study: str, number: int, committee: Committee) -> int:
        """Store the checked committee and collect messages; return the row id of the cohort.

        The same committee may be sent again.

        Raises:
            ProblemError: if the round is in another phase, or has another committee.
        """
        row = _find_drawn(session, study, number, lock=True)
        if row.committee == committee.pack():
            return row.id
        if row.committee is not None:
            detail = "the registrar sent another committee before"
            raise ProblemError(ProblemType.CONFLICT, detail, phase=row.phase)
        if row.phase is Phase.FAILED:
            raise cohort_failed(row.failure)
        if row.phase is not Phase.DRAWING:
            raise out_of_phase(_RESOURCE, Phase.DRAWING, row.phase)
        fix_committee(session, row, committee)
        timeouts = Timeouts.model_validate(find_study(session, study).timeouts)
        duration, now = timedelta(seconds=timeouts.collecting), self.database.now(session)
        enter_phase(session, row, Phase.COLLECTING, 1, now, duration)
        return row.id


def _find_drawn(session: Session, study: str, number: int, *, lock: bool = False) -> CohortRow:
    query = select(CohortRow).where(CohortRow.study == study, CohortRow.round == number)
    terms = Terms.model_validate(find_study(session, study).terms)
    row = session.scalar(query.with_for_update() if lock else query)
    if row is None or not terms.draws_committee:
        raise not_found("round whose committee a registrar draws")
    return row
