"""The lock of a SQLite file: a second server process gets an error."""

import asyncio
from pathlib import Path

import pytest
import typer

from blindtally.service_process import _upgrade_database
from server.db.database import Database
from server.db.sqlite_lock import DatabaseInUseError, sqlite_process_lock
from server.settings import Settings
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
            await asyncio.to_thread(_upgrade_database, Settings(database_url=sqlite_url))
        assert ended.value.exit_code == 1
        error_output = capsys.readouterr().err
        assert "another blindtally serves" in error_output
        assert "use PostgreSQL" in error_output
        assert (await served.client.get("/readyz")).status_code == 200
    async with serve(sqlite_url) as again:  # what the lock left behind means nothing
        assert (await again.client.get("/readyz")).status_code == 200


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    folder = tmp_path / "nowhere"
    with (
        pytest.raises(FileNotFoundError),
        sqlite_process_lock(Database(f"sqlite:///{folder}/x.db")),
    ):
        pass
    assert not folder.exists()


async def test_other_programs_may_use_a_served_database(serve: Serve, sqlite_url: str) -> None:
    async with serve(sqlite_url):
        second = Database(sqlite_url)
        assert await second.read(lambda session: session.connection().closed) is False
        await second.close()
