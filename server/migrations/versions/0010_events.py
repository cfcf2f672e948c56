"""Events: what each study tells of itself, numbered one by one.

Nothing is told of what was before: the first event of an older study is the next that happens.
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Add what `server/schema.py` describes, with a feed for each study that is there."""
    feeds = op.create_table(
        "feeds",
        sa.Column("study", sa.String(64), primary_key=True),
        sa.Column("last", sa.Integer, nullable=False),
    )
    op.create_table(
        "events",
        sa.Column("study", sa.String(64), primary_key=True),
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("facts", sa.JSON, nullable=False),
    )
    studies = sa.table("studies", sa.column("id"))
    op.execute(
        feeds.insert().from_select(["study", "last"], sa.select(studies.c.id, sa.literal(0)))
    )
