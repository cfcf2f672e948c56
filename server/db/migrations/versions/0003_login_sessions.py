"""Sessions of browsers, whose cookies were the API keys themselves."""

import sqlalchemy as sa
from alembic import op

revision = "0003_login_sessions"
down_revision = "0002_deleted_studies"

_UTC = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Create the table as `server/db/schema.py` describes it."""
    op.create_table(
        "login_sessions",
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("key", sa.String(length=16), nullable=False),
        sa.Column("created", _UTC, nullable=False),
        sa.Column("last_used", _UTC, nullable=False),
        sa.ForeignKeyConstraint(["key"], ["api_keys.id"]),
        sa.PrimaryKeyConstraint("digest"),
    )
