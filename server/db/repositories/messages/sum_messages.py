"""Repository that reads messages, rosters and sums of cohorts; `participants.py` adds them."""

from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias, cast

from sqlalchemy import LargeBinary, Row, Table, and_, bindparam, func, select
from sqlalchemy.orm import Session, undefer

from protocol.api.messages import ProblemType
from protocol.api.phases import MessageKind, Phase
from protocol.mechanisms.registry import SUM_MECHANISMS, AnyPlan, parse_plan
from secagg.ring import Ring
from secagg.roster import Roster, RosterEntry
from secagg.session import Session as SumSession
from server.db.database import Repository, read_transaction
from server.db.group_commit import GroupCommit
from server.db.repositories.messages.one_shot_messages import set_size
from server.db.repositories.messages.participants import roster_entry
from server.db.schema import BodyRow, CohortRow, MessageRow, ParticipantRow, RoundRow
from server.db.serializers import has_enrolled
from server.errors import ProblemError, cohort_failed, not_found

_VECTORS_PER_BATCH = 16  # 6 MB of the usual 400 kB each; more if they are shorter
_BATCH_BYTES = 6 * 2**20
_SHORT_PER_BATCH = 1_000  # about 100 bytes each, except those of malicious devices
_MAX_SMALL_DEVICES = 64
_MAX_SMALL_BYTES = 4 * 2**20  # of the vectors of a small cohort
# Built once, and of tables: to build statements or to load rows takes longer than the query.
_COHORTS, _ROUNDS, _PARTICIPANTS, _MESSAGES, _BODIES = (
    cast("Table", row.__table__)
    for row in (CohortRow, RoundRow, ParticipantRow, MessageRow, BodyRow)
)
_COHORTS_WITHOUT_SUMS = select(*(column for column in _COHORTS.c if column.key != "sum")).where(
    _COHORTS.c.id.in_(bindparam("cohorts", expanding=True))
)
_PLAN = select(_ROUNDS.c.plan).where(
    _ROUNDS.c.study == bindparam("study"), _ROUNDS.c.number == bindparam("number")
)
_ROSTERS = (
    select(_PARTICIPANTS)
    .where(_PARTICIPANTS.c.cohort.in_(bindparam("cohorts", expanding=True)))
    .order_by(_PARTICIPANTS.c.cohort, _PARTICIPANTS.c.slot)
)
_SENDERS = select(_MESSAGES.c.slot).where(
    _MESSAGES.c.cohort == bindparam("cohort"), _MESSAGES.c.kind == bindparam("kind")
)
# A message whose body is deleted has NULL there.
_MESSAGE_BODIES = _MESSAGES.outerjoin(
    _BODIES, and_(*(_MESSAGES.c[key.name] == key for key in _BODIES.primary_key))
)
_ALL_BODIES = (
    select(_MESSAGES.c.cohort, _MESSAGES.c.kind, _MESSAGES.c.slot, _BODIES.c.body)
    .select_from(_MESSAGE_BODIES)
    .where(_MESSAGES.c.cohort.in_(bindparam("cohorts", expanding=True)))
)
_BODIES_OF = (
    select(_MESSAGES.c.slot, _BODIES.c.body)
    .select_from(_MESSAGE_BODIES)
    .where(
        _MESSAGES.c.cohort == bindparam("cohort"),
        _MESSAGES.c.kind == bindparam("kind"),
        _MESSAGES.c.slot.in_(bindparam("slots", expanding=True)),
    )
)
_NEXT_BODIES = (
    select(_MESSAGES.c.slot, _BODIES.c.body)
    .select_from(_MESSAGE_BODIES)
    .where(
        _MESSAGES.c.cohort == bindparam("cohort"),
        _MESSAGES.c.kind == bindparam("kind"),
        _MESSAGES.c.slot > bindparam("last"),
    )
    .order_by(_MESSAGES.c.slot)
    .limit(bindparam("size"))
)
_SHORT_KINDS = (MessageKind.COMPLAINTS, MessageKind.CONFIRMATION, MessageKind.INPUT_SIGNATURE)
BodiesByKind: TypeAlias = Mapping[str, Sequence[tuple[int, bytes]]]  # with their slots
_EQUAL_KINDS = (MessageKind.KEY_SHARES, MessageKind.MASKED_INPUT)  # of one size in a cohort


@dataclass(frozen=True, slots=True)
class EnrolledCohort:
    """Fixed facts of an enrolled cohort: its plan, its ring, and the session of its sum.

    `seating` precedes the entries of its roster, if a registrar has seated the cohort.
    """

    plan: AnyPlan
    ring: Ring
    session: SumSession = field(repr=False)
    seating: bytes = b""

    @property
    def is_small(self) -> bool:
        """Return whether all messages of the cohort may be in memory at once."""
        n = self.session.n
        return n <= _MAX_SMALL_DEVICES and n * self.ring.nbytes <= _MAX_SMALL_BYTES


@dataclass(frozen=True, slots=True)
class ClosingCohort:
    """A cohort whose sum is due; `bodies` has all its messages by kind, if it is small."""

    enrolled: EnrolledCohort
    bodies: BodiesByKind | None = field(repr=False)


class MessageRepository(Repository):
    """Repository of messages."""

    @read_transaction
    def enrolled_cohort(self, session: Session, cohort: int) -> EnrolledCohort:
        """Return the facts of an enrolled cohort; raises ProblemError if it is not enrolled."""
        enrolled = _enrolled_cohorts(session, [cohort])[cohort]
        if isinstance(enrolled, ProblemError):
            raise enrolled
        return enrolled

    async def closing_cohort(self, cohort: int) -> ClosingCohort:
        """Return the facts of a cohort, and all its messages if it is small.

        Cohorts that are asked for together share a transaction.

        Raises:
            ProblemError: if a body is deleted.
        """
        return await self._closing(cohort)

    @cached_property
    def _closing(self) -> GroupCommit[int, ClosingCohort]:
        return GroupCommit(self._closing_cohorts)

    @read_transaction
    def _closing_cohorts(
        self, session: Session, cohorts: Sequence[int]
    ) -> Sequence[ClosingCohort | ProblemError]:
        enrolled = _enrolled_cohorts(session, cohorts)
        small = [
            cohort
            for cohort, facts in enrolled.items()
            if isinstance(facts, EnrolledCohort) and facts.is_small
        ]
        bodies = _all_bodies(session, small)
        closing = list[ClosingCohort | ProblemError]()
        for cohort in cohorts:
            facts, of_cohort = enrolled[cohort], bodies.get(cohort)
            if isinstance(facts, ProblemError):
                closing.append(facts)
            elif isinstance(of_cohort, ProblemError):
                closing.append(of_cohort)
            else:
                closing.append(ClosingCohort(facts, of_cohort))
        return closing

    @read_transaction
    def senders(self, session: Session, cohort: int, kind: MessageKind) -> frozenset[int]:
        parameters = {"cohort": cohort, "kind": kind}
        return frozenset(session.connection().scalars(_SENDERS, parameters))

    async def bodies(
        self, cohort: int, kind: MessageKind
    ) -> AsyncIterator[list[tuple[int, bytes]]]:
        """Yield slots and bodies of a closed phase in batches, without holding a connection.

        Raises:
            ProblemError: if the cohort was closed meanwhile and its bodies deleted: discard the
                batches that were read before.
        """
        last, size = -1, _SHORT_PER_BATCH if kind in _SHORT_KINDS else _VECTORS_PER_BATCH
        while batch := await self.batch_of_bodies(cohort, kind, last, size):
            yield batch
            if len(batch) < size:
                return
            last, body = batch[-1]
            if kind in _EQUAL_KINDS:
                size = max(size, _BATCH_BYTES // len(body))

    @read_transaction
    def batch_of_bodies(
        self, session: Session, cohort: int, kind: MessageKind, last: int, size: int
    ) -> list[tuple[int, bytes]]:
        parameters = {"cohort": cohort, "kind": kind, "last": last, "size": size}
        rows = session.connection().execute(_NEXT_BODIES, parameters)
        return _undeleted(session, cohort, rows)

    @read_transaction
    def prefixes(
        self, session: Session, cohort: int, kind: MessageKind, size: int
    ) -> list[tuple[int, bytes]]:
        """Return slots and the first `size` bytes of all bodies of a closed phase.

        Raises:
            ProblemError: if the bodies are deleted.
        """
        prefix = func.substr(_BODIES.c.body, 1, size, type_=LargeBinary)
        of_kind = (_MESSAGES.c.cohort == cohort, _MESSAGES.c.kind == kind)
        query = select(_MESSAGES.c.slot, prefix).select_from(_MESSAGE_BODIES).where(*of_kind)
        return _undeleted(session, cohort, session.execute(query))

    @read_transaction
    def bodies_of(
        self, session: Session, cohort: int, kind: MessageKind, slots: Collection[int]
    ) -> list[tuple[int, bytes]]:
        """Return slots and bodies of the messages of `slots`.

        Raises:
            ProblemError: if the bodies are deleted.
        """
        parameters = {"cohort": cohort, "kind": kind, "slots": [*slots]}
        return _undeleted(session, cohort, session.connection().execute(_BODIES_OF, parameters))

    @read_transaction
    def body(self, session: Session, cohort: int, kind: MessageKind, slot: int) -> bytes | None:
        """Return the message of one participant, None if it sent none or its body is deleted."""
        row = session.get(BodyRow, (cohort, kind, slot))
        return None if row is None else row.body

    @read_transaction
    def sums(self, session: Session, study: str, number: int) -> dict[int, tuple[bytes, int]]:
        """Return the packed sum of each cohort of a round, and the number of its vectors."""
        summed = (
            CohortRow.study == study,
            CohortRow.round == number,
            CohortRow.phase == Phase.SUMMED,
        )
        vectors = (MessageRow.cohort == CohortRow.id, MessageRow.kind == MessageKind.MASKED_INPUT)
        count = select(func.count()).where(*vectors).scalar_subquery()
        columns = CohortRow.id, CohortRow.number, CohortRow.committee, CohortRow.sum, count
        sums = {}
        for row in session.execute(select(*columns).where(*summed)):
            if row.sum is not None:
                n = row[-1] if row.committee is None else set_size(session, row.id)
                sums[row.number] = row.sum, n
        return sums

    @read_transaction
    def sum(self, session: Session, study: str, number: int, cohort: int) -> bytes:
        """Return the packed sum of one cohort; raises ProblemError if there is none."""
        of_round = (CohortRow.study == study, CohortRow.round == number, CohortRow.number == cohort)
        query = select(CohortRow).where(*of_round).options(undefer(CohortRow.sum))
        row = session.scalar(query)
        if row is None:
            raise not_found("cohort")
        if parse_plan(session.get_one(RoundRow, (study, number)).plan).question.discards_sums:
            detail = "this study does not publish sums: they contain counts that must be suppressed"
            raise ProblemError(ProblemType.WRONG_STATE, detail)
        if row.phase is Phase.FAILED or row.sum is None:
            raise _unreadable(row, f"the cohort is {row.phase}: there is no sum yet")
        return row.sum


def _enrolled_cohorts(
    session: Session, cohorts: Sequence[int]
) -> dict[int, EnrolledCohort | ProblemError]:
    """Return the facts of each of `cohorts`, or why it has none.

    Rosters are read after the rows that show which are final: another one would be incomplete.
    """
    connection = session.connection()
    rows = connection.execute(_COHORTS_WITHOUT_SUMS, {"cohorts": cohorts}).all()
    entries: dict[int, list[RosterEntry]] = {row.id: [] for row in rows if has_enrolled(row)}
    if entries:
        for participant in connection.execute(_ROSTERS, {"cohorts": [*entries]}):
            entries[participant.cohort].append(roster_entry(participant))
    rounds = dict[tuple[str, int], tuple[AnyPlan, Ring, bytes]]()
    # A cohort without a row is one of a study that was deleted.
    facts: dict[int, EnrolledCohort | ProblemError]
    facts = {cohort: not_found("participant") for cohort in cohorts}
    for row in rows:
        if row.id not in entries:
            facts[row.id] = _unreadable(row, f"the cohort is still {row.phase}")
            continue
        key = row.study, row.round
        if key not in rounds:
            of_round = {"study": row.study, "number": row.round}
            plan = parse_plan(connection.execute(_PLAN, of_round).scalar_one())
            rounds[key] = plan, SUM_MECHANISMS[plan.mechanism].ring(plan), plan.digest()
        plan, ring, digest = rounds[key]
        roster = Roster.of(entries[row.id])
        terms = plan.terms.assumptions
        sum_session = SumSession(digest, row.number, roster, terms, plan.registry)
        facts[row.id] = EnrolledCohort(plan, ring, sum_session, row.seating or b"")
    return facts


def _all_bodies(session: Session, cohorts: Sequence[int]) -> dict[int, BodiesByKind | ProblemError]:
    """Return all slots and bodies of each of `cohorts` by kind, or why one has none."""
    rows: defaultdict[int, defaultdict[str, list[tuple[int, bytes | None]]]]
    rows = defaultdict(lambda: defaultdict(list))
    for cohort, kind, slot, body in session.connection().execute(_ALL_BODIES, {"cohorts": cohorts}):
        rows[cohort][kind].append((slot, body))
    bodies = dict[int, BodiesByKind | ProblemError]()
    for cohort, by_kind in rows.items():
        try:
            bodies[cohort] = {
                kind: _undeleted(session, cohort, of_kind) for kind, of_kind in by_kind.items()
            }
        except ProblemError as error:
            bodies[cohort] = error
    return bodies


def _undeleted(
    session: Session, cohort: int, rows: Iterable[Row[int, bytes | None] | tuple[int, bytes | None]]
) -> list[tuple[int, bytes]]:
    """Return `rows` of slots and bodies; raises ProblemError if a body is deleted."""
    bodies = []
    for slot, body in rows:
        if body is None:
            closed = session.get_one(CohortRow, cohort)
            detail = f"the cohort is {closed.phase}: its message bodies are deleted"
            raise _unreadable(closed, detail)
        bodies.append((slot, body))
    return bodies


def _unreadable(row: CohortRow | Row[Any], detail: str) -> ProblemError:
    """Return the refusal of what a cohort in this phase does not have."""
    if row.phase is Phase.FAILED:
        return cohort_failed(row.failure)
    return ProblemError(ProblemType.WRONG_PHASE, detail, phase=row.phase)
