"""Keys of operators, tokens and credentials of devices, and a trail of who did what.

A database from before has no keys: make one with `blindtally keys create`, or serve it with
`--open` as before.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Add what `server/schema.py` describes."""
    instant = sa.DateTime(timezone=True)
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("name", sa.LargeBinary, nullable=False),
        sa.Column("scopes", sa.JSON, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False, unique=True),
        sa.Column("created", instant, nullable=False),
        sa.Column("expires", instant),
        sa.Column("revoked", instant),
    )
    op.create_table(
        "enrolment_tokens",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("name", sa.LargeBinary, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False, unique=True),
        sa.Column("uses", sa.Integer, nullable=False),
        sa.Column("used", sa.Integer, nullable=False),
        sa.Column("created", instant, nullable=False),
        sa.Column("expires", instant),
        sa.Column("revoked", instant),
    )
    op.create_table(
        "devices",
        sa.Column("identity", sa.String(64), primary_key=True),
        sa.Column("digest", sa.LargeBinary, nullable=False, unique=True),
        sa.Column("token", sa.String(16), sa.ForeignKey("enrolment_tokens.id"), nullable=False),
        sa.Column("created", instant, nullable=False),
        sa.Column("revoked", instant),
    )
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("at", instant, nullable=False),
        sa.Column("actor", sa.String(100), nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("subject", sa.LargeBinary, nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
    )
