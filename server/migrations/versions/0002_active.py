"""Identities, enrolments and blame; the graph follows from what was said.

Cohorts that were running spoke an older protocol, in which their devices cannot go on: they
fail, and their studies go on with the next round.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Change the tables to what `server/schema.py` describes."""
    cohorts = sa.table("cohorts", sa.column("phase", sa.String), sa.column("failure", sa.Text))
    op.execute(
        cohorts.update()
        .where(cohorts.c.phase.not_in(("summed", "failed")))
        .values(phase="failed", failure="the service was upgraded to another protocol")
    )
    with op.batch_alter_table("cohorts") as table:
        for name in ("degree", "threshold", "seed", "digest"):
            table.drop_column(name)
    with op.batch_alter_table("participants") as table:
        table.alter_column("device", new_column_name="identity", existing_type=sa.String(64))
        table.drop_column("commitment")
        table.add_column(sa.Column("enrolment", sa.LargeBinary, nullable=False, server_default=""))
        table.add_column(sa.Column("blamed", sa.Text))
