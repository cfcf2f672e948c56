"""Locally private reports: one a device and study, with what each cost."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the table that `server/schema.py` describes."""
    op.create_table(
        "reports",
        sa.Column("study", sa.String(64), sa.ForeignKey("studies.id"), primary_key=True),
        sa.Column("identity", sa.String(64), primary_key=True),
        sa.Column("cohort", sa.Integer, sa.ForeignKey("cohorts.id"), nullable=False),
        sa.Column("epsilon", sa.Double, nullable=False),
        sa.Column("delta", sa.Double, nullable=False),
        sa.Column("received", sa.DateTime(timezone=True), nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    op.create_index("reports_by_cohort", "reports", ["cohort", "identity"])
    op.create_table(
        "accounts",
        sa.Column("identity", sa.String(64), primary_key=True),
        sa.Column("epsilon", sa.Double, nullable=False),
        sa.Column("delta", sa.Double, nullable=False),
    )
