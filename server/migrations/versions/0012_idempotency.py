"""Keys by which a creation may be repeated, each with what was asked and what was answered."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Add the table that `server/schema.py` describes."""
    op.create_table(
        "idempotency_keys",
        sa.Column("scope", sa.String(128), primary_key=True),
        sa.Column("key", sa.String(200), primary_key=True),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("answer", sa.JSON, nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index("idempotency_keys_by_age", "idempotency_keys", ["created"])
