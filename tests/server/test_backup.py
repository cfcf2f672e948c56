"""A study under way survives that its database is restored."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from random import Random

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from typer.testing import CliRunner

from blindtally.cli import app
from client.device.device import DeviceStep, StudyDevice
from client.device.driver import PARTICIPATION_ERRORS, EndState, RoundEnd
from client.device.encoding import make_contribution
from client.device.journal import MemoryJournal
from client.device.participation import SumParticipation
from client.http.transport import Transport
from protocol.api.messages import RoundView
from protocol.mechanisms.registry import SUM_MECHANISMS
from protocol.randomness import system_words
from secagg.keys import Identity
from server.db.sqlite_backup import BackupError, restore
from server.settings import Pace
from tests.server.conftest import Serve
from tests.server.harness import STEPS, sum_of, together
from tests.support.asgi_transport import StreamingAsgiTransport
from tests.support.policies import trusting_policy

DOCS = Path(__file__).parents[2] / "docs" / "recipes" / "back-up.md"
COMMAND = "blindtally backup "
N = 6


class Line(httpx.AsyncBaseTransport):
    """A line to the service that runs at the moment, if there is one."""

    app: FastAPI | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Pass on a request."""
        if self.app is None:
            raise httpx.ConnectError("no service")
        return await StreamingAsgiTransport(self.app).handle_async_request(request)


class Devices:
    """Devices of one round with the shipped client, which wait after steps until they are let."""

    def __init__(self, view: RoundView) -> None:
        self.line, self.view = Line(), view
        self.taken = Counter[DeviceStep]()
        self.parts: list[SumParticipation] = []
        self._gates = {step: asyncio.Event() for step in (DeviceStep.CHECKED, DeviceStep.MASKED)}

    def let_go_on(self, *steps: DeviceStep) -> None:
        for step in steps:
            self._gates[step].set()

    async def until_all(self, step: DeviceStep) -> None:
        """Wait until the service has acknowledged the message of every device."""
        async with asyncio.timeout(60):
            while self.taken[step] < N:  # noqa: ASYNC110  (there is no notification)
                await asyncio.sleep(0.01)

    async def take_part(self, study: str) -> list[EndState]:
        return await asyncio.gather(*(self._take_part(study, index) for index in range(N)))

    async def _take_part(self, study: str, index: int) -> EndState:
        rng = Random(index)
        given = make_contribution(self.view.plan.question, {"ab": 1, "a": 1}, system_words)
        device = StudyDevice(Identity.generate(rng), given, MemoryJournal())
        async with httpx.AsyncClient(
            transport=self.line, base_url="http://test/v1", timeout=30
        ) as http:
            part = SumParticipation(
                Transport(http),
                self.view,
                device,
                policy=trusting_policy(min_cohort=2, min_threshold=1),
                secrets=rng,
                chance=system_words,
            )
            self.parts.append(part)
            try:
                async for step in part.steps(study):
                    self.taken[step] += 1
                    if step in self._gates:
                        await self._gates[step].wait()
            except PARTICIPATION_ERRORS as error:
                return RoundEnd.of(error).state
            return EndState.FINISHED

    @property
    def total(self) -> bytes:
        """Return the packed sum of all vectors."""
        ring = SUM_MECHANISMS[self.view.plan.mechanism].ring(self.view.plan)
        total = ring.zero()
        for part in self.parts:
            ring.add(total, part.vector)
        return ring.pack(total)


async def back_up(folder: Path) -> Path:
    """Run the documented command in the folder of a database; return the copy."""
    (line,) = [line for line in DOCS.read_text().splitlines() if line.startswith(COMMAND)]
    _, command, name = line.split()
    assert "saved in" in await run(folder, command, name)
    return folder / name


async def run(folder: Path, command: str, file: str, *options: str, code: int = 0) -> str:
    """Run a command on the database in `folder`; return what it printed."""
    words = (command, str(folder / file), "--database", f"sqlite:///{folder}/test.db", *options)
    done = await asyncio.to_thread(CliRunner().invoke, app, words)
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())


@pytest.mark.parametrize("is_lost", [False, True], ids=["in the backup", "after the backup"])
async def test_a_restored_round_needs_each_message_that_was_acknowledged(
    serve: Serve, sqlite_url: str, tmp_path: Path, is_lost: bool
) -> None:
    """Devices repeat no acknowledged message, so the round fails without their vectors."""
    async with serve(sqlite_url) as served:
        study = await served.create(rounds=2)
        devices = Devices(await served.open_round(study))
        devices.line.app = served.app
        ends = asyncio.create_task(devices.take_part(study))
        await devices.until_all(DeviceStep.CHECKED)
        backup = await back_up(tmp_path) if is_lost else None
        devices.let_go_on(DeviceStep.CHECKED)
        await devices.until_all(DeviceStep.MASKED)
        if backup is None:  # devices may know that the next phase has begun
            await served.until_phase(study, "confirming")
            backup = await back_up(tmp_path)
        devices.line.app = None
    async with serve(f"sqlite:///{backup}") as restored:
        devices.line.app = restored.app
        devices.let_go_on(DeviceStep.MASKED)
        if is_lost:
            while not (await restored.pass_phase(study)).is_over:
                pass
        states = set(await ends)
        # The backup may have a job that the first server had begun; nobody renews its lease.
        restored.clock.advance(Pace().lease_seconds + 1)
        view = await restored.until_closed(study)
        if is_lost:
            assert (view.state, states & {EndState.FINISHED}) == ("failed", set())
            assert (await restored.open_round(study, 1)).number == 2
        else:
            assert (view.state, states) == ("decoded", {EndState.FINISHED})
            assert await restored.read_sum(study) == devices.total


async def test_a_restored_round_whose_devices_stay_away_fails_and_the_next_one_opens(
    serve: Serve, sqlite_url: str, tmp_path: Path
) -> None:
    async with serve(sqlite_url) as served:
        study = await served.create(rounds=2)
        await together(await served.join(study, 6), "share", "check", "mask")
        backup = await back_up(tmp_path)
    async with serve(f"sqlite:///{backup}") as restored:
        while not (await restored.pass_phase(study)).is_over:
            pass
        view = await restored.until_closed(study)
        assert (view.state, view.cohorts[0].phase) == ("failed", "failed")
        devices = await restored.join(study, 6, after=1, first=100)
        await together(devices, *STEPS)
        assert (await restored.until_closed(study, 2)).state == "decoded"


async def test_a_backup_is_restored_over_a_damaged_database_that_no_server_has(
    serve: Serve, sqlite_url: str, tmp_path: Path
) -> None:
    database = tmp_path / "test.db"
    async with serve(sqlite_url) as served:
        study = await served.create()
        devices = await served.join(study, 6)
        await together(devices, *STEPS)
        await served.until_closed(study)
        backup = await back_up(tmp_path)
        assert backup.stat().st_mode & 0o777 == 0o600
        assert "studies: 1, rounds: 1" in await run(tmp_path, "backup", "second.db")
        assert "not overwritten" in await run(tmp_path, "backup", backup.name, code=1)
        refusal = await run(tmp_path, "restore", backup.name, "--replace", code=1)
        assert "another blindtally serves" in refusal
    size = database.stat().st_size
    for place, length in ((size // 2, size), (0, size), (None, size // 2), (None, 100)):
        with database.open("r+b") as file:
            if place is not None:
                file.seek(place)
                file.write(os.urandom(100_000))
            file.truncate(length)
        refusal = await run(tmp_path, "restore", backup.name, code=1)
        assert "exists: --replace overwrites it" in refusal
        done = await run(tmp_path, "restore", backup.name, "--replace")
        assert "test.db (studies: 1, rounds: 1," in done
    async with serve(sqlite_url) as restored:
        assert await restored.read_sum(study) == sum_of(devices)


async def test_a_backup_of_other_files_than_those_of_the_server_is_refused(
    serve: Serve, sqlite_url: str, tmp_path: Path
) -> None:
    """The server goes on in deleted files, next to which other programs make new ones."""
    async with serve(sqlite_url) as served:
        await served.create()
        for suffix in ("-wal", "-shm"):
            (tmp_path / f"test.db{suffix}").unlink()
        refusal = await run(tmp_path, "backup", "backup.db", code=1)
        assert "has other files open" in refusal
        assert not (tmp_path / "backup.db").exists()
        (tmp_path / "test.db").unlink()
        assert "there is no database" in await run(tmp_path, "backup", "b.db", code=1)


HOLD = """import sqlite3, sys
held = sqlite3.connect(sys.argv[1]).execute("CREATE TABLE latest (number)")
sys.stdin.read(print(flush=True))"""


def test_files_of_a_running_server_whose_database_was_replaced_are_left_alone(
    sqlite_url: str, tmp_path: Path
) -> None:
    """SQLite would write their changes into the file that has the name now, and delete them."""

    def output(*words: str) -> str:
        return CliRunner().invoke(app, (*words, "--database", sqlite_url)).output

    database, moved, backup, second = (tmp_path / f"{name}.db" for name in ("test", "m", "a", "b"))
    output("keys", "create", "a", "--scope", "read", "--days", "1")
    output("backup", str(backup))
    words = [sys.executable, "-c", HOLD, database]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        database.rename(moved)
        assert "has other files" in output("restore", str(backup))
        shutil.copy(backup, database)
        files = {path: path.read_bytes() for path in tmp_path.iterdir()}
        assert "has other files" in output("restore", str(backup), "--replace")
        assert "has other files" in output("backup", str(second))
        assert "has other files" in output("keys", "list")
        with pytest.raises(BackupError, match="has other files"):
            restore(database, second, replaces=False)
        assert files == {path: path.read_bytes() for path in tmp_path.iterdir()}
        moved.replace(database)
        assert "saved in" in output("backup", str(second))  # while a program has it
    with closing(sqlite3.connect(second)) as copy:
        copy.execute("SELECT number FROM latest")


async def test_a_backup_that_another_program_writes_into_a_served_database_is_noticed(
    serve: Serve, sqlite_url: str, tmp_path: Path
) -> None:
    """Devices would go on with a round that has lost what was acknowledged."""
    async with serve(sqlite_url) as served:
        await run(tmp_path, "backup", "backup.db")
        await served.create()
        files = [sqlite3.connect(tmp_path / name) for name in ("backup.db", "test.db")]
        with closing(files[0]) as copy, closing(files[1]) as database:
            copy.backup(database)
        with pytest.raises(OperationalError, match="content of the database was replaced"):
            await served.store.database.write(lambda session: session.execute(text("SELECT 1")))
        assert "ESTALE" in (await served.client.get("/readyz")).text


async def test_a_served_database_whose_bytes_are_replaced_accepts_nothing_any_more(
    serve: Serve, sqlite_url: str, tmp_path: Path
) -> None:
    """SQLite's connections keep pages of the old content, and would mix them with the new one."""
    async with serve(sqlite_url) as served:
        backup, database = await back_up(tmp_path), served.store.database
        await served.create()
        with closing(sqlite3.connect(tmp_path / "test.db")) as other:
            other.execute("PRAGMA wal_checkpoint(PASSIVE)")
        shutil.copyfile(backup, tmp_path / "test.db")
        for _ in range(3):
            with pytest.raises(
                (OSError, OperationalError), match="was replaced while it was served"
            ):
                await database.write(lambda session: session.execute(text("SELECT 1")))
            assert "ESTALE" in (await served.client.get("/readyz")).text


def test_a_backup_is_a_file() -> None:
    done = CliRunner().invoke(app, ["backup", "-"])
    assert (done.exit_code, "not standard output" in done.output) == (2, True)


@pytest.mark.parametrize("content", [None, b"", b"word,count\n" * 1000])
async def test_another_file_than_a_backup_is_not_restored(
    tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "backup.db"
    if content is not None:
        file.write_bytes(content)
    await run(tmp_path, "restore", "backup.db", code=1)
    assert not (tmp_path / "test.db").exists()
    if content is None:
        with closing(sqlite3.connect(file)) as other:
            other.execute("CREATE TABLE studies (id TEXT)")
        assert "has schema none" in await run(tmp_path, "restore", "backup.db", code=1)


async def test_a_database_is_not_restored_from_itself(
    serve: Serve, sqlite_url: str, tmp_path: Path
) -> None:
    async with serve(sqlite_url):
        pass
    (tmp_path / "link.db").symlink_to(tmp_path / "test.db")
    for name in ("test.db", "link.db"):
        printed = await run(tmp_path, "restore", name, "--replace", code=1)
        assert "is the database itself" in printed
