"""Parts of a running server process, and their start and stop."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from random import Random
from typing import Annotated, Any, cast

import structlog
from fastapi import Depends, Request
from opentelemetry.trace import Tracer

from server.db import migrations
from server.db.database import Database
from server.db.repositories.arrivals import Arrival
from server.db.sqlite_lock import sqlite_process_lock
from server.db.store import Store
from server.http.auth import Authenticator
from server.http.openid_provider import OpenIdProvider
from server.notify.event_streams import EventStreams
from server.notify.notifier import Notifier, RetryScheduler
from server.notify.pg_listener import PgListener
from server.notify.webhooks import WebhookSender
from server.rounds.caches import RoundCache, StatusCache
from server.rounds.cohort_cache import CohortCache
from server.rounds.orchestrator import Orchestrator
from server.rounds.retention import RetentionWorker
from server.settings import Pace, Settings
from server.telemetry.metrics import Metrics

_PAUSE_AFTER_FAILURE_SECONDS = 1.0  # of a background task
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Service:
    """Parts of one server process; routes get them by `ServiceDep`."""

    settings: Settings
    store: Store
    round_cache: RoundCache
    cohort_cache: CohortCache
    status_cache: StatusCache
    notifier: Notifier
    orchestrator: Orchestrator
    event_streams: EventStreams
    metrics: Metrics
    authenticator: Authenticator
    retry_scheduler: RetryScheduler
    openid_provider: OpenIdProvider | None = None

    async def receive(self, message: Arrival) -> None:
        """Store a message, and check its cohort if the message may end a phase.

        Raises:
            ProblemError: if it is refused.
        """
        received = await self.store.receive(message)
        self.orchestrator.on_message(message.cohort, message.phase, received)

    def retry_after(self, minimum: int = 1) -> int:
        """Return the seconds after which a refused client may retry."""
        # Followers of event streams wait as well, but they do not retry.
        waiting = max(self.notifier.waiter_count - self.event_streams.count, 0)
        return self.retry_scheduler.next_delay(waiting, minimum)


@asynccontextmanager
async def run_service(
    settings: Settings,
    pace: Pace,
    clock: Callable[[], datetime] | None,
    rng: Random,
    metrics: Metrics,
    tracer: Tracer,
) -> AsyncIterator[Service]:
    """Migrate the database and run the background tasks; stop them at the end.

    `clock` is for tests; without it the time is the database's.

    Raises:
        DatabaseInUseError: if another process serves the same SQLite file.
        UnknownSchemaError: if the database has an unknown schema.
    """
    database = Database(settings.database_url, settings.database_timeout_seconds, clock, metrics)
    with sqlite_process_lock(database):
        try:
            await migrations.upgrade(database)
            await database.hold_files()
            store = Store(database, rng)
            notifier = Notifier()
            notifier.is_complete = database.is_sqlite  # otherwise once the listener is connected
            status_cache = StatusCache(store, notifier)
            database.before_announcement = status_cache.on_change
            database.on_announcement = partial(_announce, notifier, status_cache)
            database.on_rollback = status_cache.after_change
            orchestrator = Orchestrator(store, notifier, rng, pace, metrics, tracer)
            notifier.observe(orchestrator.on_notification)
            cohort_cache = CohortCache(store)
            orchestrator.on_bodies_deleted = cohort_cache.forget
            event_streams = EventStreams(
                store.events, notifier, metrics, pace.credential_cache_seconds
            )
            await orchestrator.resume()  # before a device is refused because of a deadline
            listener = PgListener(database, notifier)
            retention = RetentionWorker(store, orchestrator.lease_runner, settings)
            webhooks = WebhookSender(store, settings.public_url, allows_loopback=settings.open)
            poll_events = partial(event_streams.run, pace.poll_seconds)
            async with background_tasks(
                orchestrator.run,
                listener.run,
                orchestrator.heartbeat.run,
                poll_events,
                retention.run,
                webhooks.run,
                database.measure_size,
            ):
                try:
                    yield Service(
                        settings,
                        store,
                        RoundCache(store),
                        cohort_cache,
                        status_cache,
                        notifier,
                        orchestrator,
                        event_streams,
                        metrics,
                        Authenticator(settings, pace, store.access, store.links),
                        RetryScheduler(rng),
                        _openid_provider(settings),
                    )
                finally:
                    notifier.shut_down()
            await orchestrator.heartbeat.stop()
        finally:
            await database.close()


def _announce(notifier: Notifier, status_cache: StatusCache, channels: Collection[str]) -> None:
    notifier.notify(*channels)
    status_cache.after_change(channels)


def _openid_provider(settings: Settings) -> OpenIdProvider | None:
    """Return the client of the OpenID provider, or None if people log in with keys only."""
    has_provider = settings.oidc_issuer is not None and not settings.open
    return OpenIdProvider(settings) if has_provider else None


@asynccontextmanager
async def background_tasks(
    *functions: Callable[[], Coroutine[Any, Any, None]],
) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(_run_again_after_failures(function)) for function in functions]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run_again_after_failures(function: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a task that never ends; without one of them rounds stand still, and `/readyz` is 200."""
    while True:
        try:
            await function()
        except Exception:
            _log.exception("background task failed")
            await asyncio.sleep(_PAUSE_AFTER_FAILURE_SECONDS)
        else:
            return


async def _get_service(request: Request) -> Service:
    return cast("Service", request.app.state.service)


ServiceDep = Annotated[Service, Depends(_get_service)]
