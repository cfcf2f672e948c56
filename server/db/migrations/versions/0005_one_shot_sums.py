"""One-shot sums: the messages of devices and members, and the set of messages of each sum."""

import sqlalchemy as sa
from alembic import op

revision = "0005_one_shot_sums"
down_revision = "0004_keys_of_one_study"

_UTC = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Create the tables as `server/db/schema.py` describes them."""
    op.create_table(
        "one_shot_messages",
        sa.Column("cohort", sa.Integer(), nullable=False),
        sa.Column("identity", sa.String(length=64), nullable=False),
        sa.Column("study", sa.String(length=64), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("received_at", _UTC, nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(["cohort"], ["cohorts.id"]),
        sa.PrimaryKeyConstraint("cohort", "identity"),
        sa.UniqueConstraint("study", "identity", "round"),
    )
    op.create_table(
        "member_messages",
        sa.Column("cohort", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("identity", sa.String(length=64), nullable=False),
        sa.Column("received_at", _UTC, nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(["cohort"], ["cohorts.id"]),
        sa.PrimaryKeyConstraint("cohort", "kind", "identity"),
    )
    op.create_table(
        "message_sets",
        sa.Column("cohort", sa.Integer(), nullable=False),
        sa.Column("digests", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["cohort"], ["cohorts.id"]),
        sa.PrimaryKeyConstraint("cohort"),
    )
