"""Ids of cohorts are never used again: SQLite gave those of deleted cohorts to new ones.

A message of a device whose study was deleted could otherwise be stored in another study's sum.
"""

from alembic import op

revision = "0007_cohort_ids"
down_revision = "0006_sessions_of_people"


def upgrade() -> None:
    """Copy the table of SQLite; ids of PostgreSQL are from a sequence already."""
    if op.get_bind().dialect.name == "sqlite":
        copied = {"sqlite_autoincrement": True}
        with op.batch_alter_table("cohorts", recreate="always", table_kwargs=copied):
            pass
