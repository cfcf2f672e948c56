"""SQLite serves one process, and says so to the second."""

import asyncio
from pathlib import Path

import pytest
import typer

from blindtally.serve import _prepare
from server.database import Database
from server.settings import Settings
from server.sole import DatabaseInUseError, sole_process
from tests.server.conftest import Serve


async def test_a_second_server_on_a_sqlite_file_is_refused_in_words(
    serve: Serve, sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serve(sqlite_url) as served:
        await served.create()
        with pytest.raises(DatabaseInUseError, match="SQLite serves one process"):
            async with serve(sqlite_url):
                pass
        with pytest.raises(typer.Exit) as ended:
            await asyncio.to_thread(_prepare, Settings(database_url=sqlite_url))
        assert ended.value.exit_code == 1
        said = capsys.readouterr().err
        assert "another blindtally serves" in said
        assert "use PostgreSQL" in said
        assert (await served.client.get("/readyz")).status_code == 200
    async with serve(sqlite_url) as again:  # what the lock left behind means nothing
        assert (await again.client.get("/readyz")).status_code == 200


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    folder = tmp_path / "nowhere"
    with pytest.raises(FileNotFoundError), sole_process(Database(f"sqlite:///{folder}/x.db")):
        pass
    assert not folder.exists()


async def test_other_programs_may_use_a_database_that_is_served(
    serve: Serve, sqlite_url: str
) -> None:
    async with serve(sqlite_url):
        other = Database(sqlite_url)
        assert await other.read(lambda session: session.connection().closed) is False
        await other.close()


async def test_many_serve_one_postgresql(postgres_url: str) -> None:
    one, other = Database(postgres_url), Database(postgres_url)
    with sole_process(one), sole_process(other):
        pass
    await one.close()
    await other.close()
