"""An upload that races the close of its phase: one side wins, whole, in either order.

A connection from outside holds what both must wait for, so that they are done in the order in
which they came.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from protocol.api.messages_outside_sums import Survivors
from server.db.database import Database
from server.db.database_errors import BusyError
from server.db.database_url import parse_url
from server.db.group_commit import GroupCommit
from tests.server.cohort import refused
from tests.server.conftest import Serve
from tests.server.harness import Served, sum_of, together

TIMEOUTS = {"masking": 600, "idle": 120}  # seconds: too long for the orchestrator to close a phase


class Queue:
    """Transactions that write to cohorts, one after the other."""

    def __init__(self, database: Database, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._is_sqlite, self._url = database.is_sqlite, url
        self._came = 0
        write = database.write

        async def count(change: Callable[..., Any]) -> Any:
            self._came += 1  # SQLite's one writer takes them in this order
            return await write(change)

        monkeypatch.setattr(database, "write", count)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Block all writes to cohorts meanwhile."""
        if self._is_sqlite:
            other = sqlite3.connect(parse_url(self._url).database or "", isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            self._came = 0
            yield
            other.execute("ROLLBACK")
            other.close()
            return
        with psycopg.connect(self._url) as connection:
            connection.execute("SELECT 1 FROM cohorts FOR UPDATE")
            yield
            connection.rollback()

    async def until(self, count: int) -> None:
        """Wait until `count` transactions are in the queue."""
        async with asyncio.timeout(60):
            while self._length() < count:  # noqa: ASYNC110  (there is no notification)
                await asyncio.sleep(0.01)

    def _length(self) -> int:
        if self._is_sqlite:
            return self._came
        query = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        with psycopg.connect(self._url) as connection:
            ((waiting,),) = connection.execute(query).fetchall()
        return int(waiting)


@pytest.mark.parametrize("first", ["upload", "close"])
async def test_of_an_upload_that_races_the_close_of_its_phase_one_side_wins_whole(
    serve: Serve, database_url: str, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The published survivors, the vectors in the sum and the acknowledged uploads agree."""
    async with serve(
        database_url, poll_seconds=60, min_poll_seconds=0, database_timeout_seconds=30
    ) as served:
        study = await served.create(timeouts=TIMEOUTS)
        devices = await served.join(study, 6)
        await together(devices, "share", "check")
        await together(devices[:5], "mask")
        late = devices[5]
        body = await late.compute_vector()
        await served.service.orchestrator.poll()  # what the uploads woke ends before the deadline
        await asyncio.sleep(0.1)
        served.clock.advance(121)
        work = {
            "upload": lambda: late.put("masked-input", body),
            "close": served.service.orchestrator.poll,
        }
        order = sorted(work, key=lambda name: name != first)
        queue = Queue(served.store.database, database_url, monkeypatch)
        with queue.held():
            tasks = {}
            for place, name in enumerate(order, start=1):
                tasks[name] = asyncio.create_task(work[name]())
                if (first, name) == ("upload", "close"):
                    await asyncio.sleep(0.2)  # it waits for the upload, and not in the queue
                else:
                    await queue.until(place)
        answer = await tasks["upload"]
        await tasks["close"]
        if first == "upload":
            assert answer.status_code == 204
            included = devices
        else:
            refused(answer, 409, "wrong-phase")
            assert answer.json()["phase"] == "confirming"
            included = devices[:5]
        await check(served, study, included)


async def test_messages_that_wait_for_their_commit_at_the_deadline_are_in_time(
    serve: Serve, sqlite_url: str
) -> None:
    """Without them the quorum is missed; they wait behind a message of another study."""
    async with serve(sqlite_url, poll_seconds=60, min_poll_seconds=0) as served:
        study = await served.create(timeouts={"sharing": 60})
        other = await served.create(timeouts={"sharing": 3600})
        devices, (first, *_) = await served.join(study, 6), await served.join(other, 6)
        await together(devices[:3], "share")
        body = await first.compute("key-shares")
        late = [(device, await device.compute("key-shares")) for device in devices[3:]]
        own = (each.put("key-shares", sent) for each, sent in late)
        assert await served.put_while_blocked(first.put("key-shares", body), own, 61) == {204}
        await together(devices, "check", "mask", "confirm", "reveal")
        assert (await served.until_closed(study)).participants == 6


async def test_no_phase_ends_while_the_database_stores_no_messages(
    serve: Serve, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(sqlite_url, poll_seconds=60, database_timeout_seconds=0.1) as served:
        study = await served.create(timeouts={"sharing": 60})
        await together((await served.join(study, 6))[:4], "share")
        monkeypatch.setattr(GroupCommit, "settled", lambda _: asyncio.Event().wait())
        served.clock.advance(61)
        with pytest.raises(BusyError, match="stores no messages"):
            await served.service.orchestrator.poll()
        assert (await served.show_round(study)).cohorts[0].phase == "sharing"


async def check(served: Served, study: str, included: list[Any]) -> None:
    """Finish the round; check that it publishes the included slots and their sum."""
    slots = tuple(device.seat.slot for device in included)
    response = await included[0].get("survivors")
    assert Survivors.model_validate_json(response.content).survivors == slots
    await together(included, "confirm", "reveal")
    view = await served.until_closed(study)
    assert (view.state, view.participants) == ("decoded", len(included))
    assert view.cohorts[0].survivors == slots
    assert await served.read_sum(study) == sum_of(included)
