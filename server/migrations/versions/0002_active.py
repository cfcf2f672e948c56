"""Identities, enrolments and blame; the graph follows from what was said.

Cohorts that were running spoke an older protocol, in which their devices cannot go on: they
fail, and their studies go on with the next round. Sums and answers stay. A device's name
tells nothing of its identity; rows of those who took part keep the name's SHA-256 instead, which
is nobody's public key, so that every row can be read.

Columns are altered in place: SQLite refuses to make a table anew that others refer to.
"""

from datetime import UTC, datetime
from hashlib import sha256

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Change the tables to what `server/schema.py` describes."""
    _fail_running_cohorts()
    for name in ("degree", "threshold", "seed", "digest"):
        op.drop_column("cohorts", name)
    op.alter_column(
        "participants", "device", new_column_name="identity", existing_type=sa.String(64)
    )
    _replace_names()
    op.drop_column("participants", "commitment")
    empty = sa.text("x''" if op.get_bind().dialect.name == "sqlite" else "''")
    enrolment = sa.Column("enrolment", sa.LargeBinary, nullable=False, server_default=empty)
    op.add_column("participants", enrolment)
    op.add_column("participants", sa.Column("blamed", sa.Text))


def _fail_running_cohorts() -> None:
    cohorts = sa.table(
        "cohorts",
        sa.column("id", sa.Integer),
        sa.column("phase", sa.String),
        sa.column("failure", sa.Text),
        sa.column("history", sa.JSON),
    )
    running = cohorts.c.phase.not_in(("summed", "failed"))
    failed = {"phase": "failed", "entered": datetime.now(UTC).isoformat(), "heard": 0}
    query = sa.select(cohorts.c.id, cohorts.c.history).where(running)
    for cohort, history in op.get_bind().execute(query).all():
        change = cohorts.update().where(cohorts.c.id == cohort)
        reason = "the service was upgraded to another protocol"
        op.execute(change.values(phase="failed", failure=reason, history=[*history, failed]))


def _replace_names() -> None:
    participants = sa.table(
        "participants", sa.column("id", sa.String), sa.column("identity", sa.String)
    )
    query = sa.select(participants.c.id, participants.c.identity)
    for participant, name in op.get_bind().execute(query).all():
        change = participants.update().where(participants.c.id == participant)
        op.execute(change.values(identity=sha256(name.encode()).hexdigest()))
