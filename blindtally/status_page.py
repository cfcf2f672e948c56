"""Status of a process that is not the service: its health, and its metrics for Prometheus.

    GET /healthz  200, or 503 with the fault
    GET /metrics  its metrics

They need no credential and show nothing about devices.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

import uvicorn
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

Running: TypeAlias = Coroutine[Any, Any, None]
MAX_CONNECTIONS = 64  # one more gets a 503
# A registrar's proof may take half of it. h11 is the parser of uvicorn that has such a limit.
MAX_HEADER_BYTES = 2**14


def status_routes(registry: CollectorRegistry, fault: Callable[[], str]) -> list[Route]:
    """Return the pages with the metrics of `registry`, and the `fault`, empty without one."""

    def show_health(_request: Request) -> Response:  # in a thread
        text = fault()
        return PlainTextResponse(f"{text or 'ok'}\n", 503 if text else 200)

    async def show_metrics(_request: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return [Route("/healthz", show_health), Route("/metrics", show_metrics)]


async def page_server(app: Starlette, host: str, port: int, **options: Any) -> None:  # noqa: ANN401
    """Serve `app`, with `options` of uvicorn, until cancelled."""
    options |= {"http": "h11", "h11_max_incomplete_event_size": MAX_HEADER_BYTES}
    options |= {"log_level": "warning", "log_config": None, "access_log": False}
    config = uvicorn.Config(app, host, port, limit_concurrency=MAX_CONNECTIONS, **options)
    config.timeout_graceful_shutdown = 1
    server = uvicorn.Server(config)
    try:
        await server.serve()
    except asyncio.CancelledError:
        if server.started:
            await server.shutdown()
        raise


async def run_together(*parts: Running | None) -> None:
    """Run all `parts` until one of them ends or fails, or until cancelled; stop the others."""
    tasks = [asyncio.create_task(part) for part in parts if part is not None]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
