"""Tallies: what a study's rounds say together, in the place of what each said of each item."""

import sqlalchemy as sa
from alembic import op

from protocol.mechanism import Estimate, add_estimates
from protocol.tally import NOTHING

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
