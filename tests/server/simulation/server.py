"""One server process of a simulation: started, asked, stopped, killed."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from functools import cache
from random import Random
from typing import Any
from unittest.mock import patch

import httpx

from server.app import create_app
from server.db import database, sqlite_lock
from server.db.database_errors import UNAVAILABLE_ERRORS
from server.db.repositories.leases import ALIVE_WITHIN
from server.notify import notifier
from server.notify.pg_listener import PgListener
from server.rounds import heartbeat
from server.settings import Pace, Settings
from tests.server.harness import NOON
from tests.server.simulation.loop import Loop, Process, own_lock

_CHECK_SECONDS = 0.1  # seconds between two checks whether a server has started
_CHECKS = int(
    2 * ALIVE_WITHIN.total_seconds() / _CHECK_SECONDS
)  # one that comes up watches the others first


@contextmanager
def simulated(loop: Loop) -> Iterator[None]:
    """Replace the clocks inside the server by that of `loop`, and its listeners by nothing.

    A listener has a real socket, and an answer on it comes when it comes. Without it servers
    look every second, which is what they do for as long as they have no such connection.
    """
    with ExitStack() as stack:
        for part in (database, heartbeat, notifier):
            stack.enter_context(patch.object(part, "monotonic", loop.time))
        stack.enter_context(patch.object(sqlite_lock, "hold_lock", own_lock))
        stack.enter_context(patch.object(PgListener, "run", _no_listener))
        yield


async def _no_listener(_listener: PgListener) -> None:
    """Return, as on SQLite."""


class NoResponseError(Exception):
    """No answer came: nobody was there, died meanwhile, or the network lost one of the two."""


class Application:
    """The application in one place, and its clock and chance.

    All that it keeps in memory it makes when its lifespan starts, so one process after another
    may be made of it: making the application itself takes longer than most operations.
    """

    def __init__(self, url: str) -> None:
        self.loop: Loop | None = None
        self.rng = Random()
        settings, pace = Settings(database_url=url, open=True), Pace(min_poll_seconds=0)
        self.app = create_app(settings, self._now, self.rng, pace=pace)

    def _now(self) -> datetime:
        assert self.loop is not None
        return NOON + timedelta(seconds=self.loop.time())


@cache
def application(url: str, place: int) -> Application:
    """Return the application of a place."""
    del place
    return Application(url)


class SimulatedServer:
    """One process of the real application on `application`, in the time of `loop`."""

    def __init__(self, loop: Loop, application: Application, seed: int) -> None:
        application.loop = loop
        application.rng.seed(seed)
        self.loop, self.app, self.process = loop, application.app, Process(loop.commit_log)
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://test")
        self._asked: set[asyncio.Task[httpx.Response]] = set()
        self._stopping = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._is_up = False

    @property
    def is_up(self) -> bool:
        return self._is_up and not self.process.is_dead

    @property
    def is_awake(self) -> bool:
        return self.is_up and self.process.frozen <= self.loop.time()

    async def start(self) -> None:
        """Come up, or die of the database's being away, as a supervised program would."""
        self._serving = self.loop.start(self.process, self._serve())
        await self.loop.rest()
        for _ in range(_CHECKS):
            if self._is_up or self._serving.done():
                break
            self.loop.advance(_CHECK_SECONDS)
            await self.loop.rest()
        if self._serving.done() and not self._serving.cancelled():
            error = self._serving.exception()
            assert isinstance(error, UNAVAILABLE_ERRORS), error
        if not self._is_up:
            self.kill()

    async def _serve(self) -> None:
        async with self.app.router.lifespan_context(self.app):
            self._is_up = True
            await self._stopping.wait()

    async def ask(self, method: str, path: str, **what: Any) -> httpx.Response:
        """Return the answer; raises NoResponseError if the process is down or dies before it."""
        if not self.is_up:
            raise NoResponseError
        task = self.loop.start(self.process, self._client.request(method, path, **what))
        self._asked.add(task)
        try:
            await asyncio.wait({task})
        finally:
            self._asked.discard(task)
        if task in self.process.cut:  # its end is ignored
            raise NoResponseError
        answer: httpx.Response = task.result()
        return answer

    async def stop(self) -> None:
        """End in order: requests first, then the ticker, then the database."""
        self.process.frozen = 0.0
        if self._asked:
            await asyncio.wait(self._asked)
        self._stopping.set()
        await self.loop.rest()
        while self.is_up and not self.is_awake:  # it was frozen meanwhile: let it continue and end
            self.process.frozen = 0.0
            await self.loop.rest()
        for _ in range(_CHECKS):  # what was asked while it was frozen is done later
            if self._serving is None or self.process.is_dead or self._serving.done():
                break
            self.loop.advance(_CHECK_SECONDS)
            await self.loop.rest()
        assert self._serving is None or self.process.is_dead or self._serving.done()
        self.kill()

    def kill(self) -> None:
        """End as SIGKILL does."""
        self.loop.kill(self.process)
