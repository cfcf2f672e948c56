"""Brings a database to this program's schema, at every start, whoever starts first.

One migration is one file under `versions/`. An empty database gets all of them, an older one
those it lacks, each in the transaction that checks what is needed, so that two servers that
start together do it once. A database from a newer program is refused: what its columns
mean is not known here.
"""

from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text
from sqlalchemy.engine import Connection
from sqlalchemy.orm import Session

from server.database import Database

_LOCK = 0x626C696E64  # "blind": the advisory lock of PostgreSQL that migrations take


class SchemaTooNewError(Exception):
    """The database was made by a newer program than this one."""


@cache
def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.set_main_option("path_separator", "os")
    return config


def head() -> str:
    """Return the revision of this program's schema."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    assert revision is not None  # there is a first migration
    return revision


def known() -> set[str]:
    """Return every revision that this program knows how to bring up to date, and its own."""
    scripts = ScriptDirectory.from_config(_config()).walk_revisions()
    return {script.revision for script in scripts}


async def upgrade(database: Database) -> None:
    """Bring the schema up to `head()`.

    Raises:
        SchemaTooNewError: if the database has a revision that this program does not know.
    """
    await database.write(_upgrade)


def _upgrade(session: Session) -> None:
    connection = session.connection()
    if connection.dialect.name == "postgresql":  # SQLite's writers exclude one another
        connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
    found = revision(connection)
    if found is not None and found not in known():
        raise SchemaTooNewError(
            f"the database has schema {found}, which this program does not know (it has "
            f"{head()}): a newer blindtally made it; install that one (pip install --upgrade "
            "blindtally), or use another database"
        )
    if found == head():
        return
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def revision(connection: Connection) -> str | None:
    """Return the revision that the database is at, None if it is empty."""
    return MigrationContext.configure(connection).get_current_revision()
