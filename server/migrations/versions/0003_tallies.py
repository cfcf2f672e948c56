"""Tallies: what a study's rounds say together, in the place of what each said of each item.

Plans say of how many rounds theirs is one. That changes their digests, so the cohorts of a
round that is running fail, and its study goes on with the next.
"""

import sqlalchemy as sa
from alembic import op

from protocol.mechanism import Estimate, add_estimates
from protocol.tally import NOTHING
from server.migrations.running import fail_running_rounds

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Change the tables to what `server/schema.py` describes."""
    tallies = op.create_table(
        "tallies",
        sa.Column("study", sa.String(64), sa.ForeignKey("studies.id"), primary_key=True),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    heavy_hitters = op.create_table(
        "heavy_hitters",
        sa.Column("study", sa.String(64), sa.ForeignKey("studies.id"), primary_key=True),
        sa.Column("item", sa.LargeBinary, primary_key=True),
        sa.Column("estimate", sa.Double, nullable=False),
        sa.Column("variance", sa.Double, nullable=False),
    )
    op.create_index("heavy_hitters_by_rank", "heavy_hitters", ["study", "estimate", "item"])
    _add_up(tallies, heavy_hitters)
    op.drop_table("estimates")
    fail_running_rounds()
    _number_plans()


def _add_up(tallies: sa.Table, heavy_hitters: sa.Table) -> None:
    studies = sa.table("studies", sa.column("id"), sa.column("question", sa.JSON))
    names = ("study", "item", "round", "count", "variance")
    estimates = sa.table("estimates", *map(sa.column, names))
    summed = sa.select(
        estimates.c.item, sa.func.sum(estimates.c.count), sa.func.sum(estimates.c.variance)
    ).group_by(estimates.c.item)
    connection = op.get_bind()
    for study, question in connection.execute(sa.select(studies)).all():
        rows = connection.execute(summed.where(estimates.c.study == study)).all()
        if not rows:
            continue
        found = [Estimate(bytes(i).decode("utf-8", "surrogatepass"), c, v) for i, c, v in rows]
        body = add_estimates(NOTHING, found).pack()
        op.execute(tallies.insert().values(study=study, body=body))
        heavy = [row for row in rows if row[1] >= question["threshold"]]
        for item, count, variance in heavy:
            row = {"study": study, "item": bytes(item), "estimate": count, "variance": variance}
            op.execute(heavy_hitters.insert().values(row))


def _number_plans() -> None:
    studies = sa.table("studies", *map(sa.column, ("id", "rounds")))
    rounds = sa.table("rounds", *map(sa.column, ("study", "number")), sa.column("plan", sa.JSON))
    its = rounds.c.study == studies.c.id
    query = sa.select(rounds.c.study, rounds.c.number, rounds.c.plan, studies.c.rounds).where(its)
    for study, number, plan, count in op.get_bind().execute(query).all():
        change = rounds.update().where(rounds.c.study == study, rounds.c.number == number)
        op.execute(change.values(plan=plan | {"rounds": count}))
