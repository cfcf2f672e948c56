"""`blindtally serve`: the service, on one address and one database, until Ctrl-C.

Chance and time are chosen here: the system's randomness and its clock.
"""

import asyncio
import socket
from contextlib import suppress
from datetime import UTC, datetime
from random import SystemRandom
from typing import TYPE_CHECKING, Annotated, Literal

import structlog
import typer
import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError

from server import logs, migrations, traces
from server.app import create_app
from server.database import Database
from server.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider as Sdk

_KEEP_ALIVE = 75  # seconds: devices come back on the same connection between phases


def serve(
    host: Annotated[
        str | None,
        typer.Option(envvar="BLINDTALLY_HOST", help="The address to listen on [127.0.0.1]."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(envvar="BLINDTALLY_PORT", help="The port [8000]; 0 takes a free one."),
    ] = None,
    database_url: Annotated[
        str | None,
        typer.Option(
            "--database",
            envvar="BLINDTALLY_DATABASE_URL",
            help="sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME "
            "[sqlite:///blindtally.db]. Missing tables are made, old ones brought up to date.",
        ),
    ] = None,
    log: Annotated[
        Literal["text", "json"], typer.Option(help="How to log, to standard error.")
    ] = "text",
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="From where on to log.")
    ] = "info",
) -> None:
    """Serve studies to analysts and devices, until Ctrl-C.

    Prints one line, `blindtally serves URL`, when it is ready. What was acknowledged is in
    the database: kill it at any time and start it again, and running studies go on.

    Every flag has an environment variable, and so have the finer settings:
    BLINDTALLY_BUSY_TIMEOUT, BLINDTALLY_MAX_UPLOAD_BYTES, BLINDTALLY_MAX_JSON_BYTES,
    BLINDTALLY_POLL_SECONDS, BLINDTALLY_PACE_SECONDS, BLINDTALLY_SHUTDOWN_SECONDS,
    BLINDTALLY_MAX_EVENT_STREAMS. Traces go to OTEL_EXPORTER_OTLP_ENDPOINT, if that is set.
    """
    settings = _settings(host=host, port=port, database_url=database_url)
    logs.configure(as_json=log == "json", level=log_level)
    _prepare(settings)
    provider = _traces()
    app = create_app(settings, lambda: datetime.now(UTC), SystemRandom(), provider)
    listener = _listen(settings)
    config = uvicorn.Config(
        app,
        log_level="warning",
        log_config=None,  # its lines go where ours go
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=settings.shutdown_seconds,
    )
    with suppress(KeyboardInterrupt):  # uvicorn has shut down and passes Ctrl-C on
        _Server(config, app).run(sockets=[listener])
    if provider is not None:
        provider.shutdown()  # sends what it still has


def _settings(**flags: str | int | None) -> Settings:
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return Settings(**given)  # type: ignore[arg-type]
    except ValidationError as error:
        for fault in error.errors(include_input=False):
            name = "_".join(str(part) for part in fault["loc"]).upper()
            typer.echo(f"BLINDTALLY_{name}: {fault['msg']}", err=True)
        raise typer.Exit(2) from None


def _traces() -> "Sdk | None":
    """Return where to send traces, if the environment says so; without the extra, say that."""
    if not traces.is_wanted():
        return None
    try:
        return traces.exporting()
    except ImportError:
        why = "pip install 'blindtally[traces]'"
        structlog.get_logger(__name__).warning("no traces: the extra is not installed", install=why)
        return None


def _prepare(settings: Settings) -> None:
    """Bring the database up to date, or say in one line why that cannot be."""

    async def upgrade() -> None:
        database = Database(settings.database_url, settings.busy_timeout)
        try:
            await migrations.upgrade(database)
        finally:
            await database.close()

    try:
        asyncio.run(upgrade())
    except (migrations.SchemaTooNewError, SQLAlchemyError) as error:
        why = getattr(error, "orig", None) or error
        typer.echo(f"the database cannot be used: {why}", err=True)
        raise typer.Exit(1) from None


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=2048)
    except OSError as error:
        typer.echo(f"cannot listen on {settings.host}:{settings.port}: {error}", err=True)
        raise typer.Exit(1) from None


class _Server(uvicorn.Server):
    """Says when it is ready, and lets waiting devices go before it waits for them."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and sockets:
            host, port = sockets[0].getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            typer.echo(f"blindtally serves http://{shown}:{port}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.state.service.watch.release()
        await super().shutdown(sockets)
