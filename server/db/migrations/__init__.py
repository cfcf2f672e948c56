"""Migrates a database to this program's schema at every start.

Missing migrations of `versions/` run in the transaction that checks for them, so two servers that
start together migrate once. Each revision has the name of its file, so that a start with the newest
schema does not import Alembic.
"""

from functools import cache
from pathlib import Path

from sqlalchemy import inspect, text
from sqlalchemy.engine import Connection
from sqlalchemy.orm import Session

from server.db.database import Database

_LOCK = 0x626C696E64  # "blind": PostgreSQL's advisory lock of the migrations


class UnknownSchemaError(Exception):
    """The database has a schema that this program does not know."""


@cache
def known_revisions() -> tuple[str, ...]:
    """Return every revision from which this program can migrate and then its own, in order."""
    files = (Path(__file__).parent / "versions").glob("[0-9]*.py")
    return tuple(sorted(file.stem for file in files))


def head_revision() -> str:
    return known_revisions()[-1]


async def upgrade(database: Database) -> None:
    """Bring the schema up to date; raises UnknownSchemaError if its revision is unknown."""
    await database.write(upgrade_to, checks_foreign_keys=False)


def upgrade_to(session: Session, target: str = "head") -> None:
    """Bring the schema to the revision `target`, unless it is at the newest."""
    connection = session.connection()
    if connection.dialect.name == "postgresql":  # SQLite's writers exclude one another
        connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
    current = revision(connection)
    if current is not None and current not in known_revisions():
        raise UnknownSchemaError(
            f"the database has schema {current}, which this program does not know (it has "
            f"{head_revision()}): install the version of blindtally that made it, or use another "
            "database; databases made before 0.2.0 cannot be upgraded"
        )
    if current == head_revision():
        return
    from alembic import command  # noqa: PLC0415 - a tenth of a server's start
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, target)


def revision(connection: Connection) -> str | None:
    """Return the revision of the database, None if it is empty."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    stored: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return stored
