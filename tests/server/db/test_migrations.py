"""Migrations: from an empty database to this program's schema, once; unknown ones are refused."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import select, text
from sqlalchemy.engine import Connection
from sqlalchemy.orm import Session

from server.db import migrations
from server.db.database import Database
from server.db.schema import RoundRow, StudyRow


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


async def test_earlier_studies_without_an_answer_get_its_cause(database_url: str) -> None:
    database = Database(database_url)
    await database.write(lambda session: migrations.upgrade_to(session, "0007_cohort_ids"))
    values = {column.name: "{}" for column in StudyRow.__table__.columns} | {
        "state": "finished", "rounds": 1, "round": 1, "created": datetime(2026, 1, 1, tzinfo=UTC),
        "end_cause": "last-round", "population": None,
    }  # fmt: skip
    a_round = {
        "number": 1, "plan": "{}", "participants": 0, "distinct": None,
        "opened": values["created"], "closed": None,
    }  # fmt: skip

    def insert(session: Session) -> None:
        for study, state in (("a", "decoded"), ("b", "failed"), ("c", "undecoded")):
            session.execute(StudyRow.__table__.insert().values(values | {"id": study}))
            row = a_round | {"study": study, "state": state}
            session.execute(RoundRow.__table__.insert().values(row))

    await database.write(insert)
    await migrations.upgrade(database)
    causes = await database.read(
        lambda session: session.execute(select(StudyRow.id, StudyRow.end_cause)).all()
    )
    assert sorted(map(tuple, causes)) == [
        ("a", "last-round"), ("b", "no-answer"), ("c", "no-answer"),
    ]  # fmt: skip
    await database.close()


async def test_two_servers_that_start_together_migrate_once(database_url: str) -> None:
    first, second = Database(database_url), Database(database_url)
    await asyncio.gather(migrations.upgrade(first), migrations.upgrade(second))
    await first.close()
    await second.close()


async def test_a_schema_from_a_newer_program_is_refused(database_url: str) -> None:
    database = Database(database_url)
    await migrations.upgrade(database)
    change = text("UPDATE alembic_version SET version_num = '9999'")
    await database.write(lambda session: session.execute(change))
    with pytest.raises(
        migrations.UnknownSchemaError, match=r"schema 9999, which this program does not know"
    ):
        await migrations.upgrade(database)
    await database.close()
