"""The schema of version 0.1: studies, cohorts, messages, answers, events, access, processes."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001_initial"
down_revision = None

_UTC = sa.DateTime(timezone=True)
_PHASE = sa.Enum(
    *("enrolling", "seating", "sharing", "checking", "answering", "masking"),
    *("confirming", "unmasking"),
    *("reporting", "summed", "failed"),
    name="phase",
    native_enum=False,
    length=16,
)


def upgrade() -> None:
    """Create the tables as `server/db/schema.py` describes them."""
    _create_studies()
    _create_cohorts()
    _create_messages()
    _create_answers()
    _create_events()
    _create_access()
    _create_processes()


def _create_studies() -> None:
    op.create_table(
        "populations",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("budget", sa.JSON(), nullable=False),
        sa.Column("created", _UTC, nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "studies",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.LargeBinary(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("question", sa.JSON(), nullable=False),
        sa.Column("terms", sa.JSON(), nullable=False),
        sa.Column("timeouts", sa.JSON(), nullable=False),
        sa.Column("rounds", sa.Integer(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("created", _UTC, nullable=False),
        sa.Column("population", sa.String(length=64), nullable=True),
        sa.Column("dp_event", sa.JSON(), nullable=False),
        sa.Column("stop_at", sa.JSON(), nullable=False),
        sa.Column("end_cause", sa.String(length=16), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("studies_by_age", "studies", ["created", "id"])
    op.create_index("studies_by_population", "studies", ["population"])
    op.create_table(
        "rounds",
        sa.Column("study", sa.String(length=64), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.Column("distinct", sa.Double(), nullable=True),
        sa.Column("participants", sa.Integer(), nullable=True),
        sa.Column("opened", _UTC, nullable=False),
        sa.Column("closed", _UTC, nullable=True),
        sa.ForeignKeyConstraint(["study"], ["studies.id"]),
        sa.PrimaryKeyConstraint("study", "number"),
    )
    op.create_index("rounds_by_state", "rounds", ["state"])


def _create_cohorts() -> None:
    op.create_table(
        "cohorts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study", sa.String(length=64), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("phase", _PHASE, nullable=False),
        sa.Column("deadline", _UTC, nullable=False),
        sa.Column("enrolled", sa.Integer(), nullable=False),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.Column("received", sa.Integer(), nullable=False),
        sa.Column("last_received", _UTC, nullable=False),
        sa.Column("poisoned", sa.Boolean(), nullable=False),
        sa.Column("history", sa.JSON(), nullable=False),
        sa.Column("accused", sa.JSON(), nullable=False),
        sa.Column("sum", sa.LargeBinary(), nullable=True),
        sa.Column("seating", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(["study", "round"], ["rounds.study", "rounds.number"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("study", "round", "number"),
    )
    op.create_index("cohorts_by_phase", "cohorts", ["phase"])
    op.create_table(
        "participants",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("cohort", sa.Integer(), nullable=False),
        sa.Column("slot", sa.Integer(), nullable=False),
        sa.Column("study", sa.String(length=64), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("identity", sa.String(length=64), nullable=False),
        sa.Column("signature", sa.LargeBinary(), nullable=False),
        sa.Column("registrar_signature", sa.LargeBinary(), nullable=False),
        sa.Column("credential_digest", sa.LargeBinary(), nullable=False),
        sa.Column("mask_key", sa.LargeBinary(), nullable=False),
        sa.Column("encryption_key", sa.LargeBinary(), nullable=False),
        sa.Column("blamed", sa.Text(), nullable=True),
        sa.Column("joined", _UTC, nullable=False),
        sa.ForeignKeyConstraint(["cohort"], ["cohorts.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("cohort", "encryption_key"),
        sa.UniqueConstraint("cohort", "mask_key"),
        sa.UniqueConstraint("cohort", "slot"),
        sa.UniqueConstraint("study", "identity", "round"),
    )


def _create_messages() -> None:
    op.create_table(
        "messages",
        sa.Column("cohort", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("slot", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("received_at", _UTC, nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(["cohort", "slot"], ["participants.cohort", "participants.slot"]),
        sa.PrimaryKeyConstraint("cohort", "kind", "slot"),
    )
    op.create_table(
        "reports",
        sa.Column("study", sa.String(length=64), nullable=False),
        sa.Column("identity", sa.String(length=64), nullable=False),
        sa.Column("cohort", sa.Integer(), nullable=False),
        sa.Column("epsilon", sa.Double(), nullable=False),
        sa.Column("delta", sa.Double(), nullable=False),
        sa.Column("received_at", _UTC, nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["cohort"], ["cohorts.id"]),
        sa.ForeignKeyConstraint(["study"], ["studies.id"]),
        sa.PrimaryKeyConstraint("study", "identity"),
    )
    op.create_index("reports_by_cohort", "reports", ["cohort", "identity"])
    op.create_table(
        "device_spending",
        sa.Column("identity", sa.String(length=64), nullable=False),
        sa.Column("epsilon", sa.Double(), nullable=False),
        sa.Column("delta", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("identity"),
    )


def _create_answers() -> None:
    op.create_table(
        "study_states",
        sa.Column("study", sa.String(length=64), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("quality", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(["study"], ["studies.id"]),
        sa.PrimaryKeyConstraint("study"),
    )
    op.create_table(
        "heavy_hitters",
        sa.Column("study", sa.String(length=64), nullable=False),
        sa.Column("item", sa.LargeBinary(), nullable=False),
        sa.Column("estimate", sa.Double(), nullable=False),
        sa.Column("variance", sa.Double(), nullable=False),
        sa.Column("cohort_p_value", sa.Double(), nullable=True),
        sa.Column("probability", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["study"], ["studies.id"]),
        sa.PrimaryKeyConstraint("study", "item"),
    )
    op.create_index("heavy_hitters_by_rank", "heavy_hitters", ["study", "estimate", "item"])


def _create_events() -> None:
    op.create_table(
        "event_counters",
        sa.Column("study", sa.String(length=64), nullable=False),
        sa.Column("last_event", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("study"),
    )
    op.create_table(
        "events",
        sa.Column("study", sa.String(length=64), nullable=False),
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("at", _UTC, nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("study", "id"),
    )


def _credential_columns() -> tuple[sa.Column[Any] | sa.Constraint, ...]:
    return (
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("name", sa.LargeBinary(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("created", _UTC, nullable=False),
        sa.Column("expires", _UTC, nullable=True),
        sa.Column("revoked", _UTC, nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("digest"),
    )


def _create_access() -> None:
    op.create_table(
        "api_keys", sa.Column("scopes", sa.JSON(), nullable=False), *_credential_columns()
    )
    op.create_table(
        "enrolment_tokens",
        sa.Column("max_uses", sa.Integer(), nullable=False),
        sa.Column("used", sa.Integer(), nullable=False),
        *_credential_columns(),
    )
    op.create_table(
        "devices",
        sa.Column("identity", sa.String(length=64), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("token", sa.String(length=16), nullable=False),
        sa.Column("created", _UTC, nullable=False),
        sa.Column("revoked", _UTC, nullable=True),
        sa.ForeignKeyConstraint(["token"], ["enrolment_tokens.id"]),
        sa.PrimaryKeyConstraint("identity"),
        sa.UniqueConstraint("digest"),
    )
    op.create_table(
        "audit_entries",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", _UTC, nullable=False),
        sa.Column("actor", sa.String(length=100), nullable=False),
        sa.Column("action", sa.String(length=32), nullable=False),
        sa.Column("subject", sa.LargeBinary(), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )


def _create_processes() -> None:
    op.create_table(
        "idempotency_keys",
        sa.Column("scope", sa.String(length=128), nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("request_digest", sa.LargeBinary(), nullable=False),
        sa.Column("response", sa.JSON(), nullable=False),
        sa.Column("created", _UTC, nullable=False),
        sa.PrimaryKeyConstraint("scope", "key"),
    )
    op.create_index("idempotency_keys_by_age", "idempotency_keys", ["created"])
    op.create_table(
        "leases",
        sa.Column("job", sa.String(length=96), nullable=False),
        sa.Column("holder", sa.String(length=64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("expires", _UTC, nullable=False),
        sa.PrimaryKeyConstraint("job"),
    )
    op.create_index("leases_by_expiry", "leases", ["expires"])
    op.create_table(
        "processes",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("receiving_since", _UTC, nullable=False),
        sa.Column("last_seen", _UTC, nullable=False),
        sa.Column("heartbeats", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
