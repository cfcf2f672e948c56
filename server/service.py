"""What a running service consists of; the API gets it from `app.state`."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from random import Random
from typing import Annotated, Any, cast

import structlog
from fastapi import Depends, Request
from opentelemetry.trace import Tracer

from server import migrations
from server.database import Database
from server.doorkeeper import Keeper
from server.frozen import Frozen
from server.listener import Listener
from server.metrics import Metrics
from server.orchestrator import Orchestrator, Pace
from server.pacing import Pacing
from server.settings import Settings
from server.sole import sole_process
from server.store import Store, open_store
from server.streams import Streams
from server.watch import Watch

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Service:
    """The parts of one server process."""

    settings: Settings
    store: Store
    frozen: Frozen
    watch: Watch
    orchestrator: Orchestrator
    streams: Streams
    metrics: Metrics
    keeper: Keeper
    pacing: Pacing

    def retry_after(self, least: int = 1) -> int:
        """Return in how many seconds one who is sent away is to come back."""
        waiting = max(self.watch.waiting - self.streams.count, 0)  # who listens does not come back
        return self.pacing.seconds(waiting, least)


@asynccontextmanager
async def run_service(
    settings: Settings,
    clock: Callable[[], datetime] | None,
    rng: Random,
    metrics: Metrics,
    tracer: Tracer,
) -> AsyncIterator[Service]:
    """Bring the schema up to date, start what runs beside requests, and stop it at the end.

    `clock` is for tests; without it, the database's own decides.

    Raises:
        DatabaseInUseError: if another process serves the same SQLite file.
        SchemaTooNewError: if a newer program made the database.
    """
    database = Database(settings.database_url, settings.busy_timeout, clock, metrics)
    try:
        with sole_process(database):
            await migrations.upgrade(database)
            store = open_store(database, rng)
            watch = Watch()
            pace = Pace(settings.poll_seconds, settings.pace_seconds, settings.lease_seconds)
            orchestrator = Orchestrator(store, watch, rng, pace, metrics, tracer)
            most, known = settings.max_event_streams, settings.access_seconds
            streams = Streams(store.events, watch, metrics, most, known)
            await orchestrator.resume()  # before a device hears that a deadline has passed
            listener = Listener(database, watch, orchestrator.wake)
            look = partial(streams.run, settings.poll_seconds)
            async with _beside(orchestrator.run, listener.run, orchestrator.presence.run, look):
                try:
                    yield Service(
                        settings,
                        store,
                        Frozen(store),
                        watch,
                        orchestrator,
                        streams,
                        metrics,
                        Keeper(settings, store.access),
                        Pacing(rng),
                    )
                finally:
                    watch.release()
            await orchestrator.presence.leave()
    finally:
        await database.close()


@asynccontextmanager
async def _beside(*work: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Run `work` beside what is inside, and cancel it at the end."""
    tasks = [asyncio.create_task(_logged(one)) for one in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _logged(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    try:
        await work()
    except Exception:  # nobody awaits it until the end
        _log.exception("a part of the service ended")


async def _of_request(request: Request) -> Service:
    return cast("Service", request.app.state.service)


Served = Annotated[Service, Depends(_of_request)]
