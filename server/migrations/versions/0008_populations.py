"""Populations with a budget of privacy, and what each study tells of a device.

Studies from before were of no population, and what they told was not kept: their ledger says that
it has no bound.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add what `server/schema.py` describes."""
    op.create_table(
        "populations",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("budget", sa.JSON, nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
    )
    with op.batch_alter_table("studies") as studies:
        studies.add_column(sa.Column("population", sa.String(64)))
        studies.add_column(sa.Column("loss", sa.JSON))
        studies.create_index("studies_by_population", ["population"])
