"""Leases, by which server processes share work, and the processes that are there.

Rows of other tables stay as they are: a lease is made when its work is first claimed.
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Add what `server/schema.py` describes."""
    op.create_table(
        "leases",
        sa.Column("work", sa.String(96), primary_key=True),
        sa.Column("holder", sa.String(64), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index("leases_by_end", "leases", ["until"])
    op.create_table(
        "processes",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seen", sa.DateTime(timezone=True), nullable=False),
        sa.Column("beats", sa.BigInteger, nullable=False),
    )
