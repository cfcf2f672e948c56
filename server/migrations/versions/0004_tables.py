"""Tables of two lanes and other sub-tables: old plans are brought to cells that there can be.

What devices send for the same plan is another vector now, so the cohorts of a round that is
running fail, and its study goes on with the next. What is over keeps its sums and answers. So
that every row can be read, a plan's cells are a multiple of 3 from 216 on and of 4 below, and
4% fewer, since the cells of keys of more than 72 bytes are up to 4% wider.
"""

import sqlalchemy as sa
from alembic import op

from server.migrations.running import fail_running_rounds

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Change the rows to what today's mechanisms read."""
    fail_running_rounds()
    rounds = sa.table("rounds", *map(sa.column, ("study", "number")), sa.column("plan", sa.JSON))
    for study, number, plan in op.get_bind().execute(sa.select(rounds)).all():
        if "cells" not in plan:
            continue  # a plan without a table
        change = rounds.update().where(rounds.c.study == study, rounds.c.number == number)
        cells = plan["cells"] * 24 // 25
        cells -= cells % (3 if cells >= 216 else 4)
        op.execute(change.values(plan=plan | {"cells": max(4, cells)}))
