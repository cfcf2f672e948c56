"""Budget that deleted studies have spent, which outlives their other rows."""

import sqlalchemy as sa
from alembic import op

revision = "0002_deleted_studies"
down_revision = "0001_initial"

_UTC = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Create the table as `server/db/schema.py` describes it."""
    op.create_table(
        "deleted_studies",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("population", sa.String(length=64), nullable=False),
        sa.Column("created", _UTC, nullable=False),
        sa.Column("dp_event", sa.JSON(), nullable=False),
        sa.Column("last_sum", _UTC, nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("deleted_studies_by_population", "deleted_studies", ["population"])
