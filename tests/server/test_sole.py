"""SQLite serves one process, and says so to the second."""

import pytest
from typer.testing import CliRunner

from blindtally.cli import app
from server.database import Database
from server.sole import DatabaseInUseError, sole_process
from tests.server.conftest import Serve


async def test_a_second_server_on_a_sqlite_file_is_refused_in_words(
    serve: Serve, sqlite_url: str
) -> None:
    async with serve(sqlite_url) as served:
        await served.create()
        with pytest.raises(DatabaseInUseError, match="SQLite serves one process"):
            async with serve(sqlite_url):
                pass
        result = CliRunner().invoke(app, ["serve", "--port", "0", "--database", sqlite_url])
        assert result.exit_code == 1
        assert "another blindtally serves" in result.stderr
        assert "use PostgreSQL" in result.stderr
        assert "Traceback" not in result.output
        assert (await served.client.get("/readyz")).status_code == 200
    async with serve(sqlite_url) as again:  # what the lock left behind means nothing
        assert (await again.client.get("/readyz")).status_code == 200


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
