"""The first schema: studies, rounds, cohorts, participants, messages, estimates."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_UTC = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Create the tables as `server/schema.py` describes them."""
    _create_studies()
    _create_cohorts()
    _create_what_was_said()
    op.create_table(
        "estimates",
        sa.Column("study", sa.String(64), primary_key=True),
        sa.Column("item", sa.LargeBinary, primary_key=True),
        sa.Column("round", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("count", sa.Double, nullable=False),
        sa.Column("variance", sa.Double, nullable=False),
        sa.ForeignKeyConstraint(["study", "round"], ["rounds.study", "rounds.number"]),
    )


def _create_studies() -> None:
    op.create_table(
        "studies",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("name", sa.LargeBinary, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("question", sa.JSON, nullable=False),
        sa.Column("terms", sa.JSON, nullable=False),
        sa.Column("timeouts", sa.JSON, nullable=False),
        sa.Column("rounds", sa.Integer, nullable=False),
        sa.Column("round", sa.Integer, nullable=False),
        sa.Column("created", _UTC, nullable=False),
        sa.Index("studies_by_age", "created", "id"),
    )
    op.create_table(
        "rounds",
        sa.Column("study", sa.String(64), sa.ForeignKey("studies.id"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("plan", sa.JSON, nullable=False),
        sa.Column("distinct", sa.Double),
        sa.Column("participants", sa.Integer),
        sa.Column("opened", _UTC, nullable=False),
        sa.Column("closed", _UTC),
        sa.Index("rounds_by_state", "state"),
    )


def _create_cohorts() -> None:
    op.create_table(
        "cohorts",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("study", sa.String(64), nullable=False),
        sa.Column("round", sa.Integer, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("phase", sa.String(16), nullable=False),
        sa.Column("deadline", _UTC, nullable=False),
        sa.Column("enrolled", sa.Integer, nullable=False),
        sa.Column("degree", sa.Integer, nullable=False),
        sa.Column("threshold", sa.Integer, nullable=False),
        sa.Column("seed", sa.LargeBinary),
        sa.Column("digest", sa.LargeBinary),
        sa.Column("failure", sa.Text),
        sa.Column("history", sa.JSON, nullable=False),
        sa.Column("sum", sa.LargeBinary),
        sa.UniqueConstraint("study", "round", "number"),
        sa.ForeignKeyConstraint(["study", "round"], ["rounds.study", "rounds.number"]),
        sa.Index("cohorts_by_phase", "phase"),
    )


def _create_what_was_said() -> None:
    op.create_table(
        "participants",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("cohort", sa.Integer, sa.ForeignKey("cohorts.id"), nullable=False),
        sa.Column("slot", sa.Integer, nullable=False),
        sa.Column("study", sa.String(64), nullable=False),
        sa.Column("round", sa.Integer, nullable=False),
        sa.Column("device", sa.String(64), nullable=False),
        sa.Column("ticket", sa.LargeBinary, nullable=False),
        sa.Column("mask_key", sa.LargeBinary, nullable=False),
        sa.Column("seal_key", sa.LargeBinary, nullable=False),
        sa.Column("commitment", sa.LargeBinary, nullable=False),
        sa.Column("joined", _UTC, nullable=False),
        sa.UniqueConstraint("cohort", "slot"),
        sa.UniqueConstraint("cohort", "mask_key"),
        sa.UniqueConstraint("cohort", "seal_key"),
        sa.UniqueConstraint("study", "device", "round"),
    )
    op.create_table(
        "messages",
        sa.Column("cohort", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("kind", sa.String(16), primary_key=True),
        sa.Column("slot", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("received", _UTC, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("body", sa.LargeBinary),
        sa.ForeignKeyConstraint(["cohort", "slot"], ["participants.cohort", "participants.slot"]),
    )
