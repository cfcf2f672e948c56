"""Migrations: from an empty database to this program's schema, once; unknown ones are refused."""

import asyncio
from hashlib import sha256
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text
from sqlalchemy.engine import Connection

from server.db import migrations
from server.db.database import Database
from server.db.schema import StudyRow


def differences(connection: Connection) -> list[object]:
    context = MigrationContext.configure(connection, opts={"compare_type": True})
    return list(compare_metadata(context, StudyRow.metadata))


def test_revisions_have_the_names_of_their_files_and_follow_one_another() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.set_main_option("path_separator", "os")
    newest_first = ScriptDirectory.from_config(config).walk_revisions()
    assert tuple(script.revision for script in newest_first)[::-1] == migrations.known_revisions()


async def test_the_migrations_make_the_schema_of_the_models(database_url: str) -> None:
    database = Database(database_url)
    await migrations.upgrade(database)
    await migrations.upgrade(database)
    assert await database.read(lambda session: differences(session.connection())) == []
    revision = await database.read(lambda session: migrations.revision(session.connection()))
    assert revision == migrations.head_revision()
    await database.close()


def test_the_tables_are_those_for_which_the_revision_was_made() -> None:
    """Otherwise queries on an older database of the same revision would find no such column.

    A change of the tables gives the migration another name, or comes with a further one.
    """
    tables = StudyRow.metadata.sorted_tables
    parts = [
        (table.name, column.name, repr(column.type), column.nullable, column.primary_key)
        for table in tables
        for column in table.columns
    ]
    parts += [(table.name, str(index.name)) for table in tables for index in table.indexes]
    digest = sha256(repr(sorted(parts)).encode()).hexdigest()[:12]
    assert {migrations.head_revision(): digest} == {"0001_phrases": "45a4b0ed970c"}


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        ("CREATE TABLE studies (id TEXT)", "(unnamed)"),
        ("CREATE TABLE alembic_version AS SELECT '0001_initial' AS version_num", "0001_initial"),
        ("CREATE TABLE alembic_version AS SELECT '9999' AS version_num", "9999"),
    ],
)
async def test_the_database_of_another_version_is_refused_with_the_way_out(
    database_url: str, made: str, shown: str
) -> None:
    database = Database(database_url)
    await database.write(lambda session: session.execute(text(made)))
    with pytest.raises(migrations.UnknownSchemaError) as refusal:
        await migrations.upgrade(database)
    assert f"has schema {shown}, which" in str(refusal.value)
    assert "use the version of blindtally that made it, or another" in str(refusal.value)
    await database.close()


async def test_two_servers_that_start_together_migrate_once(database_url: str) -> None:
    first, second = Database(database_url), Database(database_url)
    await asyncio.gather(migrations.upgrade(first), migrations.upgrade(second))
    await first.close()
    await second.close()
