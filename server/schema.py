"""The tables: what was said, by whom, and how far each cohort is.

    studies 1---* rounds 1---* cohorts 1---* participants 1---* messages
    studies 1---1 tallies, 1---* heavy_hitters (what the rounds so far say together)
    populations 1---* studies (what they tell of a device together has a budget)
    studies 1---1 feeds, 1---* events (what happened, as it happened)
    enrolment_tokens 1---* devices; api_keys; audit (who may do what, and who did)

The rows are all there is: a server that starts over continues from them alone. Bodies of
messages are kept while their cohort runs and forgotten once it is over; that they came, and
their SHA-256, stays. Drawn with its reasons in `docs/data-model.md`.
"""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    Dialect,
    Enum,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    LargeBinary,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

from protocol.round import Phase

PHASE = Enum(
    Phase, native_enum=False, length=16, values_callable=lambda phases: [p.value for p in phases]
)


class Utc(TypeDecorator[datetime]):
    """An instant: aware in Python, UTC in the database, whose SQLite form knows no zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return the instant in UTC."""
        del dialect
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return the instant with its zone."""
        del dialect
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Utf8(TypeDecorator[str]):
    """Text kept as its UTF-8 bytes.

    PostgreSQL's text refuses NUL and is ordered by somebody's locale; bytes take any
    character, and have one order in every database.
    """

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> bytes | None:
        """Return the bytes to keep."""
        del dialect
        return None if value is None else value.encode("utf-8", "surrogatepass")

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> str | None:
        """Return the text that was kept."""
        del dialect
        return None if value is None else bytes(value).decode("utf-8", "surrogatepass")


class Table(DeclarativeBase):
    """What all tables share: how Python's types are kept."""

    type_annotation_map = {  # noqa: RUF012  (SQLAlchemy's own way to say it)
        datetime: Utc(),
        bytes: LargeBinary(),
        dict[str, Any]: JSON(),
        list[dict[str, Any]]: JSON(),
        list[str]: JSON(),
        Phase: PHASE,
    }


class Population(Table):
    """Devices that several studies ask, and what they may learn of one together.

    What was spent is not here: it follows from the studies that have begun.
    """

    __tablename__ = "populations"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    budget: Mapped[dict[str, Any]]
    created: Mapped[datetime]


class Study(Table):
    """An analyst's question; `round` is the number of its latest round, 0 before the first.

    `loss` is what all of its rounds tell of a device, None if it is from before that was kept.
    """

    __tablename__ = "studies"
    __table_args__ = (
        Index("studies_by_age", "created", "id"),
        Index("studies_by_population", "population"),
    )

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(Utf8())
    state: Mapped[str] = mapped_column(String(16))
    question: Mapped[dict[str, Any]]
    terms: Mapped[dict[str, Any]]
    timeouts: Mapped[dict[str, Any]]
    rounds: Mapped[int]
    round: Mapped[int]
    created: Mapped[datetime]
    population: Mapped[str | None] = mapped_column(String(64))
    loss: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))


class Round(Table):
    """One round of a study: what it asked, and what its sum said."""

    __tablename__ = "rounds"
    __table_args__ = (Index("rounds_by_state", "state"),)

    study: Mapped[str] = mapped_column(ForeignKey("studies.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    state: Mapped[str] = mapped_column(String(16))
    plan: Mapped[dict[str, Any]]
    distinct: Mapped[float | None]
    participants: Mapped[int | None]
    opened: Mapped[datetime]
    closed: Mapped[datetime | None]


class Cohort(Table):
    """One secure sum of a round. `phase` only moves forward, so it is its own version.

    `history` is a list of phase records, the last of them open. All that a sum needs to know
    besides (parameters, roster, graph) follows from the plan and from what was said.
    """

    __tablename__ = "cohorts"
    __table_args__ = (
        UniqueConstraint("study", "round", "number"),
        ForeignKeyConstraint(["study", "round"], ["rounds.study", "rounds.number"]),
        Index("cohorts_by_phase", "phase"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    study: Mapped[str] = mapped_column(String(64))
    round: Mapped[int]
    number: Mapped[int]
    phase: Mapped[Phase]
    deadline: Mapped[datetime]
    enrolled: Mapped[int]
    failure: Mapped[str | None] = mapped_column(Text)
    history: Mapped[list[dict[str, Any]]]
    sum: Mapped[bytes | None] = mapped_column(deferred=True)


class Participant(Table):
    """One device in one cohort; `ticket` is the SHA-256 of what only the device knows.

    `identity` is its public key in hexadecimal; `blamed` says what it did, if it departed from
    the protocol: then it takes no part in this study again.
    """

    __tablename__ = "participants"
    __table_args__ = (
        UniqueConstraint("cohort", "slot"),
        UniqueConstraint("cohort", "mask_key"),
        UniqueConstraint("cohort", "seal_key"),
        UniqueConstraint("study", "identity", "round"),
    )

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    cohort: Mapped[int] = mapped_column(ForeignKey("cohorts.id"))
    slot: Mapped[int]
    study: Mapped[str] = mapped_column(String(64))
    round: Mapped[int]
    identity: Mapped[str] = mapped_column(String(64))
    signature: Mapped[bytes]
    enrolment: Mapped[bytes]
    ticket: Mapped[bytes]
    mask_key: Mapped[bytes]
    seal_key: Mapped[bytes]
    blamed: Mapped[str | None] = mapped_column(Text)
    joined: Mapped[datetime]


class Message(Table):
    """What one participant said in one phase: once, whole, and for good."""

    __tablename__ = "messages"
    __table_args__ = (
        ForeignKeyConstraint(["cohort", "slot"], ["participants.cohort", "participants.slot"]),
    )

    cohort: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    slot: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    received: Mapped[datetime]
    digest: Mapped[bytes]
    body: Mapped[bytes | None] = mapped_column(deferred=True)


class Report(Table):
    """One device's locally private report: one a study, and what it cost the device."""

    __tablename__ = "reports"
    __table_args__ = (Index("reports_by_cohort", "cohort", "identity"),)

    study: Mapped[str] = mapped_column(ForeignKey("studies.id"), primary_key=True)
    identity: Mapped[str] = mapped_column(String(64), primary_key=True)
    cohort: Mapped[int] = mapped_column(ForeignKey("cohorts.id"))
    epsilon: Mapped[float]
    delta: Mapped[float]
    received: Mapped[datetime]
    digest: Mapped[bytes]
    body: Mapped[bytes]


class Account(Table):
    """What a device has spent on reports, in all studies: the row that its reports wait for."""

    __tablename__ = "accounts"

    identity: Mapped[str] = mapped_column(String(64), primary_key=True)
    epsilon: Mapped[float]
    delta: Mapped[float]


class Issued:
    """What the operator gives out; `digest` is the SHA-256 of its text, which is not kept."""

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    name: Mapped[str] = mapped_column(Utf8())
    digest: Mapped[bytes] = mapped_column(unique=True)
    created: Mapped[datetime]
    expires: Mapped[datetime | None]
    revoked: Mapped[datetime | None]

    def is_good(self, now: datetime) -> bool:
        """Return whether it was not revoked and is not over."""
        return self.revoked is None and (self.expires is None or now < self.expires)


class ApiKey(Issued, Table):
    """An operator's or analyst's key."""

    __tablename__ = "api_keys"

    scopes: Mapped[list[str]]


class EnrolmentToken(Issued, Table):
    """What lets so many identities in."""

    __tablename__ = "enrolment_tokens"

    uses: Mapped[int]
    used: Mapped[int]


class EnrolledDevice(Table):
    """An identity that a token let in, and the SHA-256 of the credential that it shows."""

    __tablename__ = "devices"

    identity: Mapped[str] = mapped_column(String(64), primary_key=True)
    digest: Mapped[bytes] = mapped_column(unique=True)
    token: Mapped[str] = mapped_column(ForeignKey("enrolment_tokens.id"))
    created: Mapped[datetime]
    revoked: Mapped[datetime | None]


class AuditEntry(Table):
    """Who did what to whom, or was not let: never changed, and free of secrets."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime]
    actor: Mapped[str] = mapped_column(String(100))
    action: Mapped[str] = mapped_column(String(32))
    subject: Mapped[str] = mapped_column(Utf8())
    outcome: Mapped[str] = mapped_column(String(16))


class StudyTally(Table):
    """What the rounds of a study have said so far, as its mechanism reads it."""

    __tablename__ = "tallies"

    study: Mapped[str] = mapped_column(ForeignKey("studies.id"), primary_key=True)
    body: Mapped[bytes]


class Feed(Table):
    """How many events a study has told: the last row that a transaction locks.

    It names its study without a foreign key, and so do events: PostgreSQL would lock the study
    for it, after its cohort, and a stop locks them the other way round.
    """

    __tablename__ = "feeds"

    study: Mapped[str] = mapped_column(String(64), primary_key=True)
    last: Mapped[int]


class Event(Table):
    """Something that happened in a study: numbered from 1, without a gap."""

    __tablename__ = "events"

    study: Mapped[str] = mapped_column(String(64), primary_key=True)
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[str] = mapped_column(String(32))
    at: Mapped[datetime]
    facts: Mapped[dict[str, Any]]


class IdempotencyKey(Table):
    """A key that somebody created something by: what it asked, as a SHA-256, and the answer."""

    __tablename__ = "idempotency_keys"
    __table_args__ = (Index("idempotency_keys_by_age", "created"),)

    scope: Mapped[str] = mapped_column(String(128), primary_key=True)
    key: Mapped[str] = mapped_column(String(200), primary_key=True)
    digest: Mapped[bytes]
    answer: Mapped[dict[str, Any]]
    created: Mapped[datetime]


class HeavyHitter(Table):
    """An item that is heavy by its study's tally."""

    __tablename__ = "heavy_hitters"
    __table_args__ = (Index("heavy_hitters_by_rank", "study", "estimate", "item"),)

    study: Mapped[str] = mapped_column(ForeignKey("studies.id"), primary_key=True)
    item: Mapped[str] = mapped_column(Utf8(), primary_key=True)
    estimate: Mapped[float]
    variance: Mapped[float]


class Lease(Table):
    """Work that one process at a time does, and which: `holder`, unless `until` has passed.

    `version` grows by one with each claim. Who publishes what it made names the version that it
    claimed, so nothing is published by a holder whose work another one has taken up since.
    """

    __tablename__ = "leases"
    __table_args__ = (Index("leases_by_end", "until"),)

    work: Mapped[str] = mapped_column(String(96), primary_key=True)
    holder: Mapped[str] = mapped_column(String(64))
    version: Mapped[int]
    until: Mapped[datetime]


class Process(Table):
    """A server process that hears devices: without a break from `since` until it was last `seen`.

    `beats` counts how often it was seen, which tells a living one from one that just died.
    """

    __tablename__ = "processes"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    since: Mapped[datetime]
    seen: Mapped[datetime]
    beats: Mapped[int] = mapped_column(BigInteger)
