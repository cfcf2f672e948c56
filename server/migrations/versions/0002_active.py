"""Identities, enrolments and blame; the graph follows from what was said.

Rounds that were running spoke an older protocol, in which their devices cannot go on: their
cohorts fail, and their studies go on with the next round. What is over keeps its sums and
answers. So that every row can be read: tables have three sub-tables now, so a plan's cells are
a multiple of 3; and a device's name tells nothing of its identity, so its SHA-256, nobody's
public key, stands for it.

Columns are altered in place: SQLite refuses to make a table anew that others refer to.
"""

from hashlib import sha256

import sqlalchemy as sa
from alembic import op

from server.migrations.running import fail_running_rounds

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Change the tables to what `server/schema.py` describes."""
    fail_running_rounds()
    _divide_tables()
    for name in ("degree", "threshold", "seed", "digest"):
        op.drop_column("cohorts", name)
    op.alter_column(
        "participants", "device", new_column_name="identity", existing_type=sa.String(64)
    )
    _replace_names()
    op.drop_column("participants", "commitment")
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    for name, nbytes in (("signature", 64), ("enrolment", 0)):
        zeros = "00" * nbytes
        default = sa.text(f"x'{zeros}'" if is_sqlite else rf"'\x{zeros}'")
        column = sa.Column(name, sa.LargeBinary, nullable=False, server_default=default)
        op.add_column("participants", column)
    op.add_column("participants", sa.Column("blamed", sa.Text))


def _divide_tables() -> None:
    rounds = sa.table("rounds", *map(sa.column, ("study", "number")), sa.column("plan", sa.JSON))
    for study, number, plan in op.get_bind().execute(sa.select(rounds)).all():
        change = rounds.update().where(rounds.c.study == study, rounds.c.number == number)
        op.execute(change.values(plan=plan | {"cells": plan["cells"] // 3 * 3}))


def _replace_names() -> None:
    participants = sa.table("participants", *map(sa.column, ("id", "identity")))
    query = sa.select(participants.c.id, participants.c.identity)
    for participant, name in op.get_bind().execute(query).all():
        change = participants.update().where(participants.c.id == participant)
        op.execute(change.values(identity=sha256(name.encode()).hexdigest()))
