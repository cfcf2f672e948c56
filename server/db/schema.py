"""Tables of the service, which are its whole state: a restarted server continues from them alone.

    studies 1---* rounds 1---* cohorts 1---* participants 1---* messages 1---1 bodies
    studies 1---1 study_states, 1---* heavy_hitters (the answer so far)
    populations 1---* studies (which share a privacy budget)
    studies 1---1 event_counters, 1---* events
    cohorts 1---* one_shot_messages 1---1 one_shot_bodies (of one-shot sums)
    cohorts 1---* committee_members, 1---* member_messages, 1---1 message_sets (of one-shot sums)
    studies 1---* shared_links, 1---1 webhooks
    enrolment_tokens 1---* devices; api_keys; audit_entries (access, and its history)

Message bodies are deleted when their cohort is closed; the message and its SHA-256 stay. Bodies
have their own tables, because SQLite uses the pages of deleted rows again, but not the space of
values that are set to null.
`docs/data-model.md` has a drawing and the reasons.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import Mapped, mapped_column

from protocol.api.phases import Phase
from server.db.columns import Base, Utf8Bytes

FINAL_PHASES = tuple(phase for phase in Phase if phase.is_over)
PENDING_PHASES = tuple(phase for phase in Phase if not phase.is_over)
SUMMING_PHASES = (Phase.UNMASKING, Phase.RELEASING)  # that a job ends, with a sum


class PopulationRow(Base):
    """Devices that several studies share, and the privacy budget of these studies together, if any.

    The spending is not stored: it follows from the studies that have started, also deleted ones.
    """

    __tablename__ = "populations"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    budget: Mapped[dict[str, Any] | None] = mapped_column(nullable=False)  # JSON's null is a value
    created: Mapped[datetime]


class StudyRow(Base):
    """Study of an analyst; `round` is the number of its latest round, 0 before the first.

    `search` has the texts that a search finds (`repositories/studies/study_filter.py`).
    `dp_event` is what all of its rounds reveal about a device. `end_cause` is null until it ends.
    """

    __tablename__ = "studies"
    __table_args__ = (
        Index("studies_by_age", "created", "id"),
        Index("studies_by_population", "population"),
        Index("studies_by_name", "name"),
        Index("studies_by_owner", "owner", "created", "id"),
        Index("studies_by_state", "state", "created", "id"),
    )

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(Utf8Bytes())
    search: Mapped[str] = mapped_column(Utf8Bytes())
    state: Mapped[str] = mapped_column(String(16))
    question: Mapped[dict[str, Any]]
    terms: Mapped[dict[str, Any]]
    timeouts: Mapped[dict[str, Any]]
    rounds: Mapped[int]
    round: Mapped[int]
    created: Mapped[datetime]
    population: Mapped[str | None] = mapped_column(String(64))
    dp_event: Mapped[dict[str, Any]]
    stop_at: Mapped[dict[str, Any] | None] = mapped_column(nullable=False)  # JSON's null is a value
    end_cause: Mapped[str | None] = mapped_column(String(16))
    tags: Mapped[list[str]]
    owner: Mapped[str | None] = mapped_column(Utf8Bytes())


class DeletedStudyRow(Base):
    """Budget of a population that a deleted study has spent: all that is kept of the study.

    `last_sum` is the time of its last round with a sum, null if it had none.
    """

    __tablename__ = "deleted_studies"
    __table_args__ = (Index("deleted_studies_by_population", "population"),)

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    population: Mapped[str] = mapped_column(String(64))
    created: Mapped[datetime]
    dp_event: Mapped[dict[str, Any]]
    last_sum: Mapped[datetime | None]


class RoundRow(Base):
    """Round of a study: its plan and its result."""

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


class CohortRow(Base):
    """One sum of a round, by the `protocol` with this name (`protocol.api.phases`).

    `phase` only moves forward, so it is its own version.
    `received` counts the messages of the present phase; `last_received` is the time of the last, or
    of the start of the phase. `history` is a list of phase records, the last of them open.
    `enrolled` counts its devices: those that joined, reported, or sent their one-shot message.
    `seating` is the registrar's word on a cohort that it seated, as it precedes the roster. While
    the round is seating, `seats` of the first cohort has the number of the joiner in each seat of
    the round (u32). `committee` is the packed committee of a one-shot sum.
    `accused` are the slots of the participants with complaints about their shares. A cohort is
    `poisoned` if no honest vectors have its sum, or if its sum was excluded from the answer. All
    other facts of the sum (parameters, roster, graph) follow from the plan and the messages.
    No `id` is used again after a deletion, so a late message finds no other cohort.
    """

    __tablename__ = "cohorts"
    __table_args__ = (
        UniqueConstraint("study", "round", "number"),
        ForeignKeyConstraint(["study", "round"], ["rounds.study", "rounds.number"]),
        Index("cohorts_by_phase", "phase"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    study: Mapped[str] = mapped_column(String(64))
    round: Mapped[int]
    number: Mapped[int]
    protocol: Mapped[str] = mapped_column(String(16))
    phase: Mapped[Phase]
    deadline: Mapped[datetime]
    enrolled: Mapped[int]
    received: Mapped[int]
    last_received: Mapped[datetime]
    failure: Mapped[str | None] = mapped_column(Text)
    poisoned: Mapped[bool]
    history: Mapped[list[dict[str, Any]]]
    accused: Mapped[list[int]]
    sum: Mapped[bytes | None] = mapped_column(deferred=True)
    seating: Mapped[bytes | None]
    seats: Mapped[bytes | None]
    committee: Mapped[bytes | None]


class ParticipantRow(Base):
    """Device in a cohort; `credential_digest` is the SHA-256 of its secret credential.

    `identity` is its public key in hexadecimal. `blamed` describes how it departed from the
    protocol, if it did: then it takes no part in this study again.
    """

    __tablename__ = "participants"
    __table_args__ = (
        UniqueConstraint("cohort", "slot"),
        UniqueConstraint("cohort", "mask_key"),
        UniqueConstraint("cohort", "encryption_key"),
        UniqueConstraint("study", "identity", "round"),
    )

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    cohort: Mapped[int] = mapped_column(ForeignKey("cohorts.id"))
    slot: Mapped[int]
    study: Mapped[str] = mapped_column(String(64))
    round: Mapped[int]
    identity: Mapped[str] = mapped_column(String(64))
    signature: Mapped[bytes]
    registrar_signature: Mapped[bytes]
    credential_digest: Mapped[bytes]
    mask_key: Mapped[bytes]
    encryption_key: Mapped[bytes]
    blamed: Mapped[str | None] = mapped_column(Text)
    joined: Mapped[datetime]


class MessageRow(Base):
    """Message of a participant in a phase, which never changes, without its body."""

    __tablename__ = "messages"
    __table_args__ = (
        ForeignKeyConstraint(["cohort", "slot"], ["participants.cohort", "participants.slot"]),
    )

    cohort: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    slot: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    received_at: Mapped[datetime]
    digest: Mapped[bytes]


class BodyRow(Base):
    """Body of a message, until its cohort is closed.

    A foreign key would make PostgreSQL lock the message for each body, in the same transaction.
    """

    __tablename__ = "bodies"

    cohort: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    slot: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    body: Mapped[bytes]


class ReportRow(Base):
    """Locally private report of a device, one per study, and its privacy cost.

    `study` has no foreign key: PostgreSQL would lock the study for each report, after the cohort,
    but stopping a study locks them in the other order.
    """

    __tablename__ = "reports"
    __table_args__ = (Index("reports_by_cohort", "cohort", "identity"),)

    study: Mapped[str] = mapped_column(String(64), primary_key=True)
    identity: Mapped[str] = mapped_column(String(64), primary_key=True)
    cohort: Mapped[int] = mapped_column(ForeignKey("cohorts.id"))
    epsilon: Mapped[float]
    delta: Mapped[float]
    received_at: Mapped[datetime]
    digest: Mapped[bytes]
    body: Mapped[bytes]


class OneShotMessageRow(Base):
    """Message of a device to a one-shot sum, which never changes; `digest` names it in sets.

    A device sends one per study, or one per round if the study asks it in every round.
    """

    __tablename__ = "one_shot_messages"
    __table_args__ = (UniqueConstraint("study", "identity", "round"),)

    cohort: Mapped[int] = mapped_column(ForeignKey("cohorts.id"), primary_key=True)
    identity: Mapped[str] = mapped_column(String(64), primary_key=True)
    study: Mapped[str] = mapped_column(String(64))
    round: Mapped[int]
    received_at: Mapped[datetime]
    digest: Mapped[bytes]


class OneShotBodyRow(Base):
    """Body of a message of a device to a one-shot sum, until the sum is over."""

    __tablename__ = "one_shot_bodies"

    cohort: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    identity: Mapped[str] = mapped_column(String(64), primary_key=True)
    body: Mapped[bytes]


class MemberMessageRow(Base):
    """Message of a committee's member in a phase of a one-shot sum, which never changes."""

    __tablename__ = "member_messages"

    cohort: Mapped[int] = mapped_column(ForeignKey("cohorts.id"), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    identity: Mapped[str] = mapped_column(String(64), primary_key=True)
    received_at: Mapped[datetime]
    digest: Mapped[bytes]
    body: Mapped[bytes | None]


class CommitteeMemberRow(Base):
    """Member of a one-shot sum's committee; while the round convenes, operator that may be one."""

    __tablename__ = "committee_members"

    identity: Mapped[str] = mapped_column(String(64), primary_key=True)
    cohort: Mapped[int] = mapped_column(ForeignKey("cohorts.id"), primary_key=True)


class MessageSetRow(Base):
    """The one set of messages of a one-shot sum: their digests of 32 bytes, in rising order."""

    __tablename__ = "message_sets"

    cohort: Mapped[int] = mapped_column(ForeignKey("cohorts.id"), primary_key=True)
    digests: Mapped[bytes]


class DeviceSpendingRow(Base):
    """Spending of a device on reports to all studies: the row that serializes its reports."""

    __tablename__ = "device_spending"

    identity: Mapped[str] = mapped_column(String(64), primary_key=True)
    epsilon: Mapped[float]
    delta: Mapped[float]


class IssuedCredential:
    """Credential that the operator issues; `digest` is the SHA-256 of its text."""

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    name: Mapped[str] = mapped_column(Utf8Bytes())
    digest: Mapped[bytes] = mapped_column(unique=True)
    created: Mapped[datetime]
    expires: Mapped[datetime | None]
    revoked: Mapped[datetime | None]

    def is_valid(self, now: datetime) -> bool:
        """Return whether it is neither revoked nor expired."""
        return self.revoked is None and (self.expires is None or now < self.expires)


class ApiKeyRow(IssuedCredential, Base):
    """API key of an operator or analyst, limited to one `study` if there is one.

    The study may be deleted, so the column is not a foreign key.
    """

    __tablename__ = "api_keys"

    scopes: Mapped[list[str]]
    study: Mapped[str | None] = mapped_column(String(64))


class LoginSessionRow(Base):
    """Session of a browser, by the SHA-256 of its secret.

    The browser logged in with an API key, or as the person with this `email` at the OpenID
    provider; then the session has its own `scopes`.
    """

    __tablename__ = "login_sessions"

    digest: Mapped[bytes] = mapped_column(primary_key=True)
    key: Mapped[str | None] = mapped_column(ForeignKey("api_keys.id"))
    email: Mapped[str | None] = mapped_column(Utf8Bytes())
    scopes: Mapped[list[str] | None]
    created: Mapped[datetime]
    last_used: Mapped[datetime]


class SharedLinkRow(Base):
    """Link that lets everybody read one study until it expires, by the SHA-256 of its secret.

    `maker` is the id of an API key, the e-mail address of a person, or "anonymous".
    """

    __tablename__ = "shared_links"
    __table_args__ = (Index("shared_links_by_study", "study"),)

    digest: Mapped[bytes] = mapped_column(primary_key=True)
    study: Mapped[str] = mapped_column(ForeignKey("studies.id"))
    maker: Mapped[str] = mapped_column(String(320))
    expires: Mapped[datetime]


class WebhookRow(Base):
    """Address that gets a message when its study has ended, until it was sent or is given up."""

    __tablename__ = "webhooks"

    study: Mapped[str] = mapped_column(ForeignKey("studies.id"), primary_key=True)
    url: Mapped[str] = mapped_column(String(500))
    secret: Mapped[str] = mapped_column(String(64))
    tries: Mapped[int]
    next_try: Mapped[datetime]


class EnrolmentTokenRow(IssuedCredential, Base):
    """Token that lets a limited number of devices in."""

    __tablename__ = "enrolment_tokens"

    max_uses: Mapped[int]
    used: Mapped[int]


class DeviceRow(Base):
    """Identity that a token has let in, with the SHA-256 of its credential."""

    __tablename__ = "devices"

    identity: Mapped[str] = mapped_column(String(64), primary_key=True)
    digest: Mapped[bytes] = mapped_column(unique=True)
    token: Mapped[str] = mapped_column(ForeignKey("enrolment_tokens.id"))
    created: Mapped[datetime]
    revoked: Mapped[datetime | None]


class AuditEntryRow(Base):
    """Entry of the audit trail: an action or its refusal. It never changes and has no secrets."""

    __tablename__ = "audit_entries"

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime]
    actor: Mapped[str] = mapped_column(String(100))
    action: Mapped[str] = mapped_column(String(32))
    subject: Mapped[str] = mapped_column(Utf8Bytes())
    outcome: Mapped[str] = mapped_column(String(16))


class StudyStateRow(Base):
    """State of a study after its closed rounds, in the form of its mechanism."""

    __tablename__ = "study_states"

    study: Mapped[str] = mapped_column(ForeignKey("studies.id"), primary_key=True)
    body: Mapped[bytes]
    quality: Mapped[str | None]


class EventCounterRow(Base):
    """Number of the last event of a study: the last row that a transaction locks.

    It has no foreign key to its study, and neither has an event. PostgreSQL would lock the study
    for it, after the cohort, but stopping a study locks them in the other order.
    """

    __tablename__ = "event_counters"

    study: Mapped[str] = mapped_column(String(64), primary_key=True)
    last_event: Mapped[int]


class EventRow(Base):
    """Event of a study; events are numbered from 1 without gaps."""

    __tablename__ = "events"

    study: Mapped[str] = mapped_column(String(64), primary_key=True)
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[str] = mapped_column(String(32))
    at: Mapped[datetime]
    data: Mapped[dict[str, Any]]


class IdempotencyKeyRow(Base):
    """Idempotency key of a creation, with the SHA-256 of the request and the response."""

    __tablename__ = "idempotency_keys"
    __table_args__ = (Index("idempotency_keys_by_age", "created"),)

    scope: Mapped[str] = mapped_column(String(128), primary_key=True)
    key: Mapped[str] = mapped_column(String(200), primary_key=True)
    request_digest: Mapped[bytes]
    response: Mapped[dict[str, Any]]
    created: Mapped[datetime]


class HeavyHitterRow(Base):
    """Item that is heavy by the state of its study."""

    __tablename__ = "heavy_hitters"
    __table_args__ = (Index("heavy_hitters_by_rank", "study", "estimate", "item"),)

    study: Mapped[str] = mapped_column(ForeignKey("studies.id"), primary_key=True)
    item: Mapped[str] = mapped_column(Utf8Bytes(), primary_key=True)
    estimate: Mapped[float]
    variance: Mapped[float]
    cohort_p_value: Mapped[float | None]
    probability: Mapped[float | None]


class LeaseRow(Base):
    """Job of which `holder` has the lease, until it expires.

    Each claim increments `version`. A holder publishes its result under the version that it
    claimed, so a holder whose job was claimed again publishes nothing.
    """

    __tablename__ = "leases"
    __table_args__ = (Index("leases_by_expiry", "expires"),)

    job: Mapped[str] = mapped_column(String(96), primary_key=True)
    holder: Mapped[str] = mapped_column(String(64))
    version: Mapped[int]
    expires: Mapped[datetime]


class ProcessRow(Base):
    """Server process that has received messages without interruption since `receiving_since`.

    `heartbeats` counts its heartbeats, which distinguishes a living process from one that has just
    died.
    """

    __tablename__ = "processes"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    receiving_since: Mapped[datetime]
    last_seen: Mapped[datetime]
    heartbeats: Mapped[int] = mapped_column(BigInteger)


class ClockReadingRow(Base):
    """The only row: the latest reading of the clock, and the time that two readings confirm."""

    __tablename__ = "clock_readings"

    id: Mapped[int] = mapped_column(primary_key=True)
    latest: Mapped[datetime]
    confirmed: Mapped[datetime]
