"""What a running service consists of; the API gets it from `app.state`."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Annotated, cast

from fastapi import Depends, Request
from opentelemetry.trace import Tracer

from server import migrations
from server.database import Database
from server.frozen import Frozen
from server.metrics import Metrics
from server.orchestrator import Orchestrator, Pace
from server.settings import Settings
from server.store import Store, open_store
from server.streams import Streams
from server.watch import Watch


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


@asynccontextmanager
async def run_service(
    settings: Settings,
    now: Callable[[], datetime],
    rng: Random,
    metrics: Metrics,
    tracer: Tracer,
) -> AsyncIterator[Service]:
    """Bring the schema up to date, start the ticker, and stop both at the end.

    Raises:
        SchemaTooNewError: if a newer program made the database.
    """
    database = Database(settings.database_url, settings.busy_timeout, metrics)
    try:
        await migrations.upgrade(database)
        store = open_store(database, now, rng)
        watch = Watch()
        pace = Pace(poll=settings.poll_seconds, rest=settings.pace_seconds)
        orchestrator = Orchestrator(store, watch, now, rng, pace, metrics, tracer)
        streams = Streams(store.events, watch, metrics, settings.max_event_streams)
        await orchestrator.resume()  # before a device hears that a deadline has passed
        tasks = (
            asyncio.create_task(orchestrator.run()),
            asyncio.create_task(streams.run(settings.poll_seconds)),
        )
        try:
            yield Service(settings, store, Frozen(store), watch, orchestrator, streams, metrics)
        finally:
            watch.release()
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
    finally:
        await database.close()


async def _of_request(request: Request) -> Service:
    return cast("Service", request.app.state.service)


Served = Annotated[Service, Depends(_of_request)]
