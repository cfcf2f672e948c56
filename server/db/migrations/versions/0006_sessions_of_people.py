"""Sessions of people who logged in at an OpenID provider, and have no API key."""

import sqlalchemy as sa
from alembic import op

revision = "0006_sessions_of_people"
down_revision = "0005_one_shot_sums"


def upgrade() -> None:
    """Change the table as `server/db/schema.py` describes it; sessions of keys remain."""
    with op.batch_alter_table("login_sessions") as table:
        table.alter_column("key", existing_type=sa.String(length=16), nullable=True)
        table.add_column(sa.Column("email", sa.LargeBinary(), nullable=True))
        table.add_column(sa.Column("scopes", sa.JSON(), nullable=True))
