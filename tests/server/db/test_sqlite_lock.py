"""The lock of a SQLite file, and what a server does whose files are gone."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from blindtally.service_process import upgrade_database
from server.db.database import Database
from server.db.sqlite_lock import DatabaseInUseError, hold_lock, is_locked, sqlite_process_lock
from server.settings import Settings
from tests.server.cohort import refused
from tests.server.conftest import Serve
from tests.server.harness import STEPS, study_request, sum_of, together


async def test_a_second_server_on_a_sqlite_file_is_refused_in_words(
    serve: Serve, sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serve(sqlite_url) as served:
        await served.create()
        with pytest.raises(DatabaseInUseError, match="SQLite serves one process"):
            async with serve(sqlite_url):
                pass
        with pytest.raises(typer.Exit) as ended:
            await asyncio.to_thread(upgrade_database, Settings(database_url=sqlite_url))
        assert ended.value.exit_code == 1
        error_output = capsys.readouterr().err
        assert "another blindtally serves" in error_output
        assert "use PostgreSQL" in error_output
        assert (await served.client.get("/readyz")).status_code == 200
    async with serve(sqlite_url) as again:
        assert (await again.client.get("/readyz")).status_code == 200


def hard_link(file: Path) -> Path:
    (file.parent / "elsewhere").mkdir()
    os.link(file, file.parent / "elsewhere" / "b.db")
    return file.parent / "elsewhere" / "b.db"


def soft_link(file: Path) -> Path:
    (file.parent / "b.db").symlink_to(file)
    return file.parent / "b.db"


def other_path(file: Path) -> Path:
    return Path(os.path.relpath(file))


def without_files_beside(file: Path) -> Path:
    for nearby in file.parent.iterdir():
        if nearby != file:
            nearby.unlink()
    return file


TRY = """
import sys
from pathlib import Path
from server.db.sqlite_lock import DatabaseInUseError, hold_lock
try:
    hold_lock(Path(sys.argv[1]))
except DatabaseInUseError as error:
    print(error)
else:
    print("taken")
"""


@pytest.mark.parametrize("name", [hard_link, soft_link, other_path, without_files_beside])
def test_no_other_name_of_a_database_gets_a_second_server(
    name: Callable[[Path], Path], tmp_path: Path
) -> None:
    file = tmp_path / "a.db"
    with hold_lock(file):
        other = name(file)
        with pytest.raises(DatabaseInUseError, match="another blindtally serves"):
            hold_lock(other)
        tried = subprocess.run(
            [sys.executable, "-c", TRY, other], capture_output=True, text=True, check=True
        )
        assert "another blindtally serves" in tried.stdout
        assert is_locked(other)


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    program = TRY + "import time; print(flush=True); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", program, tmp_path / "a.db"], stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"taken\n"
        assert is_locked(tmp_path / "a.db")
        holder.kill()
        holder.wait()
    hold_lock(tmp_path / "a.db").close()


def test_a_database_with_two_names_is_not_served_under_either(tmp_path: Path) -> None:
    """After a crash the server of one name would not find the latest changes, next to the other."""
    (tmp_path / "a.db").touch()
    os.link(tmp_path / "a.db", tmp_path / "b.db")
    for name in ("a.db", "b.db"):
        with pytest.raises(DatabaseInUseError, match="several names"):
            hold_lock(tmp_path / name)
    (tmp_path / "b.db").unlink()
    hold_lock(tmp_path / "a.db").close()


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    folder = tmp_path / "nowhere"
    with (
        pytest.raises(FileNotFoundError),
        sqlite_process_lock(Database(f"sqlite:///{folder}/x.db")),
    ):
        pass
    assert not folder.exists()


def test_only_a_file_can_be_a_database(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path(os.devnull)):
        with pytest.raises(OSError, match="a folder, a pipe or a device: name a file"):
            hold_lock(path)


async def test_other_programs_may_use_a_served_database(serve: Serve, sqlite_url: str) -> None:
    async with serve(sqlite_url):
        second = Database(sqlite_url)
        assert await second.read(lambda session: session.connection().closed) is False
        await second.close()


def replace_by_a_copy(file: Path) -> None:
    shutil.copy(file, file.with_name("copy"))
    file.with_name("copy").replace(file)


@pytest.mark.parametrize(
    ("suffix", "lose"),
    [("", Path.unlink), ("-wal", Path.unlink), ("-shm", Path.unlink), ("", replace_by_a_copy)],
)
async def test_nothing_is_acknowledged_once_a_file_of_the_database_is_gone(
    serve: Serve, sqlite_url: str, tmp_path: Path, suffix: str, lose: Callable[[Path], None]
) -> None:
    async with serve(sqlite_url) as served:
        study = await served.create()
        devices = await served.join(study, 6)
        await together(devices, "share", "check")
        (tmp_path / "kept").mkdir()
        lost = tmp_path / f"test.db{suffix}"
        os.link(lost, tmp_path / "kept" / lost.name)
        lose(lost)
        with pytest.raises(DatabaseInUseError):  # to look at `-shm` would end the server's locks
            hold_lock(tmp_path / "test.db")
        response = await served.client.post("/v1/studies", json=study_request())
        refused(response, 503, "unavailable")
        assert "ESTALE" in refused(await served.client.get("/readyz"), 503, "unavailable")
        assert (await served.client.get("/healthz")).status_code == 200
        (tmp_path / "kept" / lost.name).replace(lost)  # the same file: nothing is lost
        for _ in range(400):
            if (await served.client.get("/readyz")).status_code == 200:
                break
            await asyncio.sleep(0.05)
        await together(devices, *STEPS[2:])
        await served.until_closed(study)
        assert await served.read_sum(study) == sum_of(devices)
