"""All tables, as `server/db/schema.py` declares them.

A second migration has to write out the tables of this one, which would otherwise be the newest.
`tests/server/db/test_migrations.py` fails when the tables change and this revision does not.
"""

from alembic import op

from server.db.schema import StudyRow

revision = "0001_phrases"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    StudyRow.metadata.create_all(op.get_bind(), checkfirst=False)
