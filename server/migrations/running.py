"""What a change of the protocol means for rounds that speak the older one: they fail."""

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op


def fail_running_rounds() -> None:
    """Fail the cohorts of rounds without an answer: none could be read from their sums."""
    rounds = sa.table("rounds", *map(sa.column, ("study", "number", "state")))
    cohorts = sa.table(
        "cohorts",
        *map(sa.column, ("id", "study", "round", "phase", "failure")),
        sa.column("history", sa.JSON),
    )
    its = (rounds.c.study == cohorts.c.study) & (rounds.c.number == cohorts.c.round)
    running = its & (rounds.c.state == "running") & (cohorts.c.phase != "failed")
    failed = {"phase": "failed", "entered": datetime.now(UTC).isoformat(), "heard": 0}
    reason = "the service was upgraded to another protocol"
    query = sa.select(cohorts.c.id, cohorts.c.history).where(running)
    for cohort, history in op.get_bind().execute(query).all():
        change = cohorts.update().where(cohorts.c.id == cohort)
        op.execute(change.values(phase="failed", failure=reason, history=[*history, failed]))
