"""API keys that are limited to one study."""

import sqlalchemy as sa
from alembic import op

revision = "0004_keys_of_one_study"
down_revision = "0003_login_sessions"


def upgrade() -> None:
    """Add the column as `server/db/schema.py` describes it; earlier keys have no limit."""
    op.add_column("api_keys", sa.Column("study", sa.String(length=64), nullable=True))
