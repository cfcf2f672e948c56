"""Migrates a database to this program's schema at every start.

Missing migrations of `versions/` run in the transaction that checks for them, so two servers that
start together migrate once. Each revision has the name of its file, so that a start with the newest
schema does not import Alembic.
"""

from functools import cache
from pathlib import Path

from sqlalchemy import inspect, select, text
from sqlalchemy.engine import Connection
from sqlalchemy.orm import Session

from protocol.mechanisms.registry import MECHANISMS
from server.db.columns import Base
from server.db.database import Database
from server.db.schema import StudyRow

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
    """Bring the schema up to date.

    Raises:
        UnknownSchemaError: if its revision is unknown, its tables have none, or a study needs a
            mechanism that is not installed.
    """
    await database.write(_upgrade)


def _upgrade(session: Session) -> None:
    connection = session.connection()
    if connection.dialect.name == "postgresql":  # SQLite's writers exclude one another
        connection.execute(text("SET LOCAL lock_timeout = 0"))  # another server may take minutes
        connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
    current = revision(connection)
    if current not in (None, *known_revisions()):
        raise UnknownSchemaError(
            f"the database has schema {current}, which this program does not know (it has "
            f"{head_revision()}): use the version of blindtally that made it, or another "
            "database; databases of version 0.2.0 and earlier cannot be upgraded"
        )
    if current == head_revision():
        _check_mechanisms(session)
        return
    from alembic import command  # noqa: PLC0415 - a tenth of a server's start
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _check_mechanisms(session: Session) -> None:
    # Whole: PostgreSQL cannot extract a part if a string in it contains NUL.
    stored = {question["mechanism"] for question in session.scalars(select(StudyRow.question))}
    if missing := sorted(stored - MECHANISMS.keys()):
        raise UnknownSchemaError(
            f"the database has studies of {', '.join(missing)}, a mechanism that is not installed: "
            "install its plug-in again; delete its studies before you remove it"
        )


def revision(connection: Connection) -> str | None:
    """Return the revision of the database, None if it has no tables of blindtally."""
    tables = inspect(connection).get_table_names()
    if "alembic_version" in tables:
        stored: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
        return stored
    return "(unnamed)" if Base.metadata.tables.keys() & tables else None
