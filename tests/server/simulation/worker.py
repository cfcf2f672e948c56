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

from server import database, presence, sole, watch
from server.app import create_app
from server.database import UNAVAILABLE
from server.listener import Listener
from server.settings import Settings
from server.store.processes import FRESH
from tests.server.harness import NOON
from tests.server.simulation.loop import Loop, Process, own_lock

_LOOK = 0.1  # seconds between two looks whether a server has come up
_LOOKS = int(2 * FRESH.total_seconds() / _LOOK)  # one that comes up watches the others first


@contextmanager
def simulated(loop: Loop) -> Iterator[None]:
    """Give what in the server has a clock of its own that of `loop`; let nobody listen.

    A listener has a real socket, and an answer on it comes when it comes. Without it servers
    look every second, which is what they do for as long as they have no such connection.
    """
    with ExitStack() as stack:
        for part in (database, presence, watch):
            stack.enter_context(patch.object(part, "monotonic", loop.time))
        stack.enter_context(patch.object(sole, "FileLock", own_lock))
        stack.enter_context(patch.object(Listener, "run", _hear_nothing))
        yield


async def _hear_nothing(_listener: Listener) -> None:
    """Return, as on SQLite."""


class Unanswered(Exception):  # noqa: N818  (what a network does is no error)
    """No answer came: nobody was there, died meanwhile, or the network lost one of the two."""


class Host:
    """The application in one place, and its clock and chance.

    All that it keeps in memory it makes when its lifespan starts, so one process after another
    may be made of it: making the application itself takes longer than most operations.
    """

    def __init__(self, url: str) -> None:
        self.loop: Loop | None = None
        self.rng = Random()
        quick: dict[str, Any] = {"poll_seconds": 1.0, "pace_seconds": 0}
        self.app = create_app(Settings(database_url=url, open=True, **quick), self._now, self.rng)

    def _now(self) -> datetime:
        assert self.loop is not None
        return NOON + timedelta(seconds=self.loop.time())


@cache
def host(url: str, place: int) -> Host:
    """Return the host of a place."""
    del place
    return Host(url)


class Worker:
    """One process of the real application on `host`, in the time of `loop`."""

    def __init__(self, loop: Loop, host: Host, seed: int) -> None:
        host.loop = loop
        host.rng.seed(seed)
        self.loop, self.app, self.process = loop, host.app, Process(loop.book)
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://test")
        self._asked: set[asyncio.Task[httpx.Response]] = set()
        self._stopping = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._is_up = False

    @property
    def is_up(self) -> bool:
        """Return whether it answers."""
        return self._is_up and not self.process.is_dead

    @property
    def is_awake(self) -> bool:
        """Return whether it answers now."""
        return self.is_up and self.process.frozen <= self.loop.time()

    async def start(self) -> None:
        """Come up, or die of the database's being away, as a supervised program would."""
        self._serving = self.loop.start(self.process, self._serve())
        await self.loop.rest()
        for _ in range(_LOOKS):
            if self._is_up or self._serving.done():
                break
            self.loop.advance(_LOOK)
            await self.loop.rest()
        if self._serving.done() and not self._serving.cancelled():
            error = self._serving.exception()
            assert isinstance(error, UNAVAILABLE), error
        if not self._is_up:
            self.kill()

    async def _serve(self) -> None:
        async with self.app.router.lifespan_context(self.app):
            self._is_up = True
            await self._stopping.wait()

    async def ask(self, method: str, path: str, **what: Any) -> httpx.Response:
        """Return the answer to a request.

        Raises:
            Unanswered: if the process is down, or dies before it answers.
        """
        if not self.is_up:
            raise Unanswered
        task = self.loop.start(self.process, self._client.request(method, path, **what))
        self._asked.add(task)
        try:
            await asyncio.wait({task})
        finally:
            self._asked.discard(task)
        if task in self.process.cut:  # nothing that it says about its end is heard
            raise Unanswered
        return task.result()

    async def stop(self) -> None:
        """End in order: requests first, then the ticker, then the database."""
        self.process.frozen = 0.0
        if self._asked:
            await asyncio.wait(self._asked)
        self._stopping.set()
        await self.loop.rest()
        while self.is_up and not self.is_awake:  # it was frozen amid that: it goes on, and ends
            self.process.frozen = 0.0
            await self.loop.rest()
        assert self._serving is None or self.process.is_dead or self._serving.done()
        self.kill()

    def kill(self) -> None:
        """End as SIGKILL does."""
        self.loop.kill(self.process)
