"""Joins the parts into one application; the database has the clock, `serve` chooses chance."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from functools import cache, partial
from random import Random

from fastapi import FastAPI
from opentelemetry.trace import TracerProvider

from server import problems, traces
from server.api import (
    access,
    answers,
    distributions,
    events,
    health,
    participants,
    populations,
    reports,
    rounds,
    studies,
    uploads,
)
from server.api.openapi import describe
from server.doorkeeper import Doorkeeper
from server.limits import BodyLimit, LastWord, SafeHeaders
from server.metrics import Metrics
from server.observing import Observed
from server.pages.advising import Predict, Predictor
from server.pages.guarding import turned_away
from server.pages.history import open_histories
from server.pages.routers import ROUTERS
from server.service import run_service
from server.settings import Settings

_DESCRIPTION = (
    "Which items are common among many devices, and how common, without anybody seeing what "
    "one device holds. Every error is problem+json (RFC 9457); act on its `type`."
)


def create_app(
    settings: Settings,
    clock: Callable[[], datetime] | None,
    rng: Random,
    provider: TracerProvider | None = None,
    predict: Predict | None = None,
) -> FastAPI:
    """Return the service; its database is opened when its lifespan starts.

    Tests have a `clock` of theirs; None is the database's. `rng` makes public seeds,
    identifiers and graphs: pass the system's randomness. `provider` takes the traces; if None,
    that of the process does, which is none unless somebody sets it. `predict` tells the page that
    creates studies what a plan will find.
    """
    metrics = Metrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        tracer = traces.of_work(provider)
        async with (
            run_service(settings, clock, rng, metrics, tracer) as service,
            open_histories(service.store) as histories,
        ):
            app.state.service, app.state.histories = service, histories
            app.state.predictor = Predictor(predict)
            yield

    app = FastAPI(
        title="blindtally",
        version="1",
        description=_DESCRIPTION,
        lifespan=lifespan,
        telemetry=traces.of_requests(provider),
    )
    problems.install(app)
    app.add_middleware(
        BodyLimit,
        most_octets=settings.max_upload_bytes,
        most_json=settings.max_json_bytes,
        silence=settings.silence_seconds,
        seconds=settings.body_seconds,
    )
    app.add_middleware(Doorkeeper, turn_away=turned_away)
    app.add_middleware(LastWord, is_stopping=lambda: app.state.service.watch.is_released)
    app.add_middleware(Observed, metrics=metrics)  # sees what the doorkeeper refuses
    app.add_middleware(SafeHeaders, hsts_seconds=settings.hsts_seconds)
    for part in (  # in this order a path is looked up: what devices ask most comes first
        uploads,
        participants,
        studies,
        rounds,
        events,
        answers,
        distributions,
        populations,
        reports,
        access,
        health,
    ):
        app.include_router(part.router)
    for router in ROUTERS:
        app.include_router(router)
    app.openapi = cache(partial(describe, app))  # type: ignore[method-assign]
    return app
