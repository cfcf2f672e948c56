"""A study under way survives that its database is restored, and that its schema is upgraded."""

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from server.db import migrations
from server.db.database import Database
from tests.server.conftest import Serve
from tests.server.harness import STEPS, sum_of, together

DOCS = Path(__file__).parents[2] / "docs" / "operations.md"


def back_up(folder: Path) -> Path:
    """Run the documented command in the folder of a database; return the copy."""
    (line,) = [line for line in DOCS.read_text().splitlines() if "VACUUM INTO" in line]
    program = line.removeprefix('python -c "').removesuffix('"').replace('\\"', '"')
    program = program.replace("blindtally.db", "test.db")
    subprocess.run([sys.executable, "-c", program], cwd=folder, check=True)
    return folder / "backup.db"


@pytest.mark.parametrize(("taken_after", "phase"), [("share", "checking"), ("mask", "confirming")])
async def test_devices_finish_a_round_at_a_service_that_was_restored(
    serve: Serve, sqlite_url: str, tmp_path: Path, taken_after: str, phase: str
) -> None:
    """A round goes on from the backup, with what devices send again and what they send next."""
    lost = STEPS[: STEPS.index(taken_after) + 1]
    async with serve(sqlite_url) as served:
        study = await served.create(rounds=2)
        await together(await served.join(study, 6), *STEPS)
        first = await served.until_closed(study)
        devices = await served.join(study, 6, after=1)
        await together(devices, *lost)
        await served.until_phase(study, phase, 2)
        backup = back_up(tmp_path)
        # What is acknowledged after the backup is lost with the disk.
        following = STEPS[len(lost)]
        await together(devices, following)
    async with serve(f"sqlite:///{backup}") as restored:
        assert (await restored.show_round(study)).state == first.state == "decoded"
        for device in devices:
            device.client = restored.client
        for device in devices:  # as the device's client does, whose message was acknowledged
            for kind, body in device.bodies.items():
                assert (await device.put(kind, body)).status_code == 204
        await together(devices, *STEPS[len(lost) + 1 :])
        view = await restored.until_closed(study, 2)
        assert (view.state, view.participants) == ("decoded", 6)
        assert await restored.read_sum(study, 2) == sum_of(devices)


async def test_a_restored_round_whose_devices_stay_away_fails_and_the_next_one_opens(
    serve: Serve, sqlite_url: str, tmp_path: Path
) -> None:
    async with serve(sqlite_url) as served:
        study = await served.create(rounds=2)
        await together(await served.join(study, 6), "share", "check", "mask")
        backup = back_up(tmp_path)
    async with serve(f"sqlite:///{backup}") as restored:
        while not (await restored.pass_phase(study)).is_over:
            pass
        view = await restored.until_closed(study)
        assert (view.state, view.cohorts[0].phase) == ("failed", "failed")
        devices = await restored.join(study, 6, after=1, first=100)
        await together(devices, *STEPS)
        assert (await restored.until_closed(study, 2)).state == "decoded"


async def test_a_round_in_sqlite_goes_on_after_an_upgrade(
    serve: Serve, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite copies the tables that a migration changes, with all rows that refer to them."""
    database = Database(sqlite_url)
    await database.write(
        lambda session: migrations.upgrade_to(session, "0006_sessions_of_people"),
        checks_foreign_keys=False,
    )
    await database.close()

    async def keep_schema(_database: Database) -> None: ...

    with monkeypatch.context() as patched:
        patched.setattr(migrations, "upgrade", keep_schema)
        async with serve(sqlite_url) as old:
            study = await old.create()
            devices = await old.join(study, 6)
            await together(devices, *STEPS[:3])
    async with serve(sqlite_url) as new:
        for device in devices:
            device.client = new.client
        await together(devices, *STEPS[3:])
        assert (await new.until_closed(study)).state == "decoded"
        assert await new.read_sum(study) == sum_of(devices)
        orphan = text("UPDATE messages SET cohort = cohort + 1")
        with pytest.raises(IntegrityError, match="FOREIGN KEY"):
            await new.store.database.write(lambda session: session.execute(orphan))


async def test_a_round_goes_on_while_a_second_server_migrates_the_schema(
    serve: Serve, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first server stands for the version before: its schema lacks the last migration."""
    database = Database(postgres_url)
    await database.write(lambda session: migrations.upgrade_to(session, "head-1"))
    before = await database.read(lambda session: migrations.revision(session.connection()))
    assert before in migrations.known_revisions()[:-1]

    async def keep_schema(_database: Database) -> None: ...

    with monkeypatch.context() as patched:
        patched.setattr(migrations, "upgrade", keep_schema)
        first = serve(postgres_url)
        old = await first.__aenter__()
    try:
        study = await old.create(rounds=2)
        devices = await old.join(study, 6)
        await together(devices, "share", "check")
        async with serve(postgres_url) as new:
            after = await database.read(lambda session: migrations.revision(session.connection()))
            assert after == migrations.head_revision()
            for device in devices[::2]:
                device.client = new.client
            await together(devices, "mask", "confirm", "reveal")
            assert (await new.until_closed(study)).state == "decoded"
            assert await old.read_sum(study) == sum_of(devices)
            await together(await old.join(study, 6, after=1, first=100), *STEPS)
            assert (await new.until_closed(study, 2)).state == "decoded"
    finally:
        await first.__aexit__(None, None, None)
        await database.close()
