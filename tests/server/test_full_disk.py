"""A round waits while the disk of its database is full, in each phase, and its sum is exact."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import event

from server.db.database import Database
from tests.server.harness import STEPS, Served, together, until_summed


@contextmanager
def full_disk(database: Database) -> Iterator[None]:
    """Refuse new rows, as SQLite does on a full disk; rows that exist can still change."""

    def refuse(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        if statement.startswith("INSERT"):
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_FULL, "SQLITE_FULL"
            raise error

    event.listen(database.engine, "before_cursor_execute", refuse)
    try:
        yield
    finally:
        event.remove(database.engine, "before_cursor_execute", refuse)


@pytest.mark.parametrize("step", STEPS)
async def test_devices_wait_while_the_disk_is_full(served: Served, step: str) -> None:
    """Half of the messages of a phase are stored before, which is a quorum after the patience."""
    study = await served.create()
    devices = await served.join(study, 6)
    done = STEPS.index(step)
    await together(devices, *STEPS[:done])
    await together(devices[:4], step)
    phase = (await served.show_round(study)).cohorts[0].phase
    with full_disk(served.store.database):
        waiting = [asyncio.create_task(together([each], step)) for each in devices[4:]]
        for _ in range(1000):
            if served.store.database.outage.is_open:
                break
            await asyncio.sleep(0.01)
        for _ in range(20):
            served.clock.advance(60)
            await served.tick()
        assert (await served.show_round(study)).cohorts[0].phase is phase
    await asyncio.gather(*waiting)
    await together(devices, *STEPS[done + 1 :])
    await until_summed(served, study, devices)
