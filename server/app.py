"""The application: routes, middleware and the lifespan of the service."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from functools import cache, partial
from random import Random

from fastapi import FastAPI
from opentelemetry.trace import TracerProvider

from server.api import events, populations, rounds, studies
from server.api import operations as operations_api
from server.api.answers import changes, distributions, heavy_hitters, segments
from server.api.devices import (
    committees,
    documents,
    drawn_committees,
    enrolments,
    joining,
    one_shot_messages,
    open_rounds,
    reports,
    seatings,
    uploads,
)
from server.api.devices.device_route import DeviceRoutes
from server.api.openapi import openapi_document
from server.http.request_layer import RequestLayer
from server.pages import changes as change_pages
from server.pages import help as help_page
from server.pages import join, login, operations, rendering, shared
from server.pages import rounds as round_pages
from server.pages import studies as study_pages
from server.pages.charts.round_history import RoundSizes
from server.pages.forms import preview
from server.pages.forms import routes as form_routes
from server.pages.forms.example import Simulator
from server.pages.page_requests import answer_error, unauthenticated_response
from server.service import run_service
from server.settings import DEFAULT_PACE, Pace, Settings
from server.telemetry import traces
from server.telemetry.metrics import Metrics

_DESCRIPTION = (
    "Finds which items are common among many devices, and how common, without revealing what one "
    "device holds. Every error is problem+json (RFC 9457); programs act on its `type`."
)
_DEVICES = (uploads, documents, joining, open_rounds, one_shot_messages)


def create_app(
    settings: Settings,
    clock: Callable[[], datetime] | None,
    rng: Random,
    provider: TracerProvider | None = None,
    pace: Pace = DEFAULT_PACE,
    simulator: Simulator | None = None,
) -> FastAPI:
    """Return the application; its database is opened when its lifespan starts.

    Tests pass a `clock` and a `pace`; without a clock, the time is the database's. `rng` makes
    public seeds, identifiers and graphs: pass the system's randomness. `provider` receives the
    traces; None is the provider of the process, which discards them by default. A service for
    trials has a `simulator`, whose devices answer the example study.
    """
    metrics = Metrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        tracer = traces.job_tracer(provider)
        async with run_service(settings, pace, clock, rng, metrics, tracer) as service:
            app.state.service, app.state.round_sizes = service, RoundSizes(service.store)
            app.state.selections = heavy_hitters.cached_selections(service)
            yield

    app = FastAPI(
        title="blindtally",
        version="1",
        description=_DESCRIPTION,
        lifespan=lifespan,
        openapi_url=None,  # the document and its page are in `server/pages/help.py`
        telemetry=traces.request_tracing(provider),
        # A redirect goes to the name in the Host header, with the secret of a shared link.
        redirect_slashes=False,
    )
    app.state.metrics, app.state.public_responses = metrics, {}
    app.state.simulator = simulator
    for module in (  # in the order in which a path is matched
        *_DEVICES,
        studies,
        rounds,
        events,
        heavy_hitters,
        distributions,
        changes,
        segments,
        populations,
        reports,
        seatings,
        committees,
        drawn_committees,
        enrolments,
        operations_api,
        rendering,
        login,
        form_routes,
        preview,
        study_pages,
        shared,
        join,
        change_pages,
        round_pages,
        operations,
        help_page,
    ):
        app.include_router(module.router)
    device_routes = DeviceRoutes(route for module in _DEVICES for route in module.router.routes)
    app.middleware_stack = RequestLayer(
        app, settings, metrics, device_routes.find_endpoint, unauthenticated_response, answer_error
    )
    app.openapi = cache(partial(openapi_document, app))  # type: ignore[method-assign]
    return app
