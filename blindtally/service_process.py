"""The service process: settings, database, listener and server, in the order of their checks.

Randomness is the system's, and the clock is the database's.
"""

import asyncio
import errno
import gc
import os
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from random import SystemRandom
from threading import Thread
from types import FrameType
from typing import TYPE_CHECKING, Literal

import httpx
import structlog
import typer
import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from blindtally.console.environment import unknown_variables
from blindtally.console.errors import exit_with_error, setting_faults
from blindtally.console.output_files import warn_of_readers
from blindtally.console.terminal import print_line
from blindtally.join_listener import JoinListener
from client.extras_installation import install_command, slower_reader
from client.http_environment import proxy_of, tls_context
from client.process_files import PARENT_VARIABLE, raise_open_file_limit
from server.app import create_app
from server.db import migrations
from server.db.database import Database
from server.db.database_url import parse_url
from server.db.repositories.access.credentials_and_audit import AccessRepository
from server.db.sqlite_lock import DatabaseInUseError, sqlite_process_lock
from server.pages.forms.example import Simulator
from server.settings import SHUTDOWN_SECONDS, Settings, is_loopback
from server.telemetry import logs, traces

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider as Sdk

_KEEP_ALIVE_SECONDS = 75  # devices use the same connection in the next phase


def run_service(
    flags: Mapping[str, str | int | Path | None], *, as_json: bool, log_level: str
) -> None:
    """Serve with the settings of `flags` and the environment, until Ctrl-C; log at `log_level`.

    Raises:
        typer.Exit: if a setting is invalid, or the service cannot start.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the same as Ctrl-C
    if PARENT_VARIABLE in os.environ:
        Thread(target=_end_with_parent, daemon=True).start()
    with suppress(KeyboardInterrupt):  # uvicorn passes it on once it has shut down
        _serve(flags, as_json=as_json, log_level=log_level)


def _end_with_parent() -> None:
    """Shut down once the other end of standard input, which only the parent has, is closed."""
    # A thread inside `sys.stdin` would end the interpreter's shutdown with a fatal error.
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _serve(flags: Mapping[str, str | int | Path | None], *, as_json: bool, log_level: str) -> None:
    logs.configure(as_json=as_json, level=log_level)
    settings = _load_settings(flags)
    for name, nearest in unknown_variables(os.environ).items():
        hint = {"did_you_mean": nearest} if nearest else {}
        structlog.get_logger(__name__).warning("unknown environment variable", name=name, **hint)
    has_keys = upgrade_database(settings)
    url = parse_url(settings.database_url)
    if url.get_backend_name() == "sqlite":
        warn_of_readers(Path(url.database or ""))
    _check_access(settings, has_keys=has_keys)
    _check_address(settings)
    _check_provider(settings)
    provider = _trace_provider()
    app = create_app(settings, None, SystemRandom(), provider, simulator=_simulator(settings))
    raise_open_file_limit()
    if notice := slower_reader("server"):
        _print_note(notice, "warning")
    config = _uvicorn_config(app, settings)
    listener = _listen(settings)
    server = _AnnouncingServer(config, app)
    try:
        server.run(sockets=[listener])
    finally:
        if provider is not None:
            provider.shutdown()  # sends the last traces
    if not server.started:  # the reason is in the log
        raise typer.Exit(1)


def _simulator(settings: Settings) -> Simulator | None:
    """Return devices for the example of an open service without TLS; None for other services."""
    if not settings.open or settings.tls_certificate is not None:
        return None
    from blindtally.fleet_run.example_devices import ExampleDevices  # noqa: PLC0415 - for trials

    return ExampleDevices()


def _uvicorn_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        log_level="error",  # it warns of each request that is not HTTP, which any client may send
        log_config=None,  # its lines go to the log of the service
        access_log=False,
        server_header=False,
        proxy_headers=settings.forwarded_allow_ips != "",
        forwarded_allow_ips=settings.forwarded_allow_ips,
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    try:
        config.load()
    except OSError as error:  # including those of ssl
        raise _refusal(f"the certificate or its key cannot be used: {error}", code=1) from None
    return config


def _load_settings(flags: Mapping[str, str | int | Path | None]) -> Settings:
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return Settings(**given)  # type: ignore[arg-type]
    except ValidationError as error:
        exits = [_refusal(fault) for fault in setting_faults(error, Settings, given)]
        raise exits[0] from None


def _print_note(text: str, level: Literal["info", "warning", "error"]) -> None:
    """Print a line for people to standard error, or as an event of a JSON log."""
    if logs.are_json():
        getattr(structlog.get_logger(__name__), level)(text)
    else:
        with suppress(OSError):  # a full disk, as for lines of the log
            print_line(text, err=True)


def _refusal(text: str, code: int = 2) -> typer.Exit:
    """Print the reason why the service does not start, and return the exit with this code."""
    if not logs.are_json():
        return exit_with_error(text, code)
    _print_note(text, "error")
    return typer.Exit(code)


def _trace_provider() -> "Sdk | None":
    """Return the provider of configured traces, or None; warn if the extra is missing."""
    if not traces.is_configured():
        return None
    try:
        return traces.make_provider()
    except ImportError:
        log, install = structlog.get_logger(__name__), install_command("traces")
        log.warning("no traces: the extra is not installed", install=install)
        return None


def _check_access(settings: Settings, *, has_keys: bool) -> None:
    """Refuse to serve other machines without credentials; warn if all is open or no key exists."""
    if settings.open:
        if not is_loopback(settings.host):
            raise _refusal(
                "--open serves all clients that can connect, so it is not possible on "
                f"{settings.host}, only on 127.0.0.1, ::1 or localhost; make keys with "
                "`blindtally keys create` instead"
            )
        _print_note(
            "open: all clients that reach this address may create and read studies, and one "
            "program can take all slots of a round unless its study has a registrar",
            "warning",
        )
    elif not has_keys:
        _print_note(
            "no key exists yet: make one with `blindtally keys create NAME`, "
            "or serve with --open for a trial on this machine",
            "warning",
        )


def _check_address(settings: Settings) -> None:
    """Refuse to serve other machines directly: nothing here limits the connections of a client."""
    if is_loopback(settings.host) or settings.behind_proxy or settings.accept_unlimited_connections:
        return
    raise _refusal(
        f"one client that reaches {settings.host} could take all connections of this process. Put "
        "a proxy in front that limits them, such as HAProxy with deploy/haproxy.cfg, and add "
        "--behind-proxy; or add --accept-unlimited-connections"
    )


def _check_provider(settings: Settings) -> None:
    """Refuse an OpenID provider if its extra is missing, or the environment's HTTP settings fail.

    The provider's requests use the proxy and the trusted certificates that the environment names.
    """
    if settings.oidc_issuer is None or settings.open:
        return
    if find_spec("joserfc") is None:
        raise _refusal(f"BLINDTALLY_OIDC_ISSUER requires an extra: {install_command('oidc')}")
    try:
        proxy_of(httpx.URL(settings.oidc_issuer))
        context = tls_context()
    except ValueError as error:
        raise _refusal(f"{error} (BLINDTALLY_OIDC_ISSUER uses it)") from None
    try:
        httpx.AsyncClient(verify=context)
    except (ValueError, httpx.InvalidURL):  # whose text may have a password
        raise _refusal("NO_PROXY or a variable of a proxy has no address that can exist") from None


async def _store_first_credentials(access: AccessRepository, settings: Settings) -> None:
    secrets = (
        settings.initial_api_key,
        settings.initial_enrolment_token,
        settings.initial_member_key,
    )
    texts = [secret.get_secret_value() if secret else None for secret in secrets]
    try:
        await access.add_initial(*texts)
    except IntegrityError:  # another replica stored the same at this moment
        await access.add_initial(*texts)


def upgrade_database(settings: Settings) -> bool:
    """Upgrade the tables and return whether the database has a key; exit if it cannot be used."""

    async def upgrade() -> bool:
        database = Database(settings.database_url, settings.database_timeout_seconds)
        with sqlite_process_lock(database):
            try:
                await migrations.upgrade(database)
                access = AccessRepository(database, SystemRandom())
                await _store_first_credentials(access, settings)
                return bool(await access.keys())
            finally:
                await database.close()

    try:
        return asyncio.run(upgrade())
    except (migrations.UnknownSchemaError, DatabaseInUseError, SQLAlchemyError, OSError) as error:
        reason = getattr(error, "orig", None) or error
        raise _refusal(f"the database cannot be used: {reason}", code=1) from None


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=2048)
    except OSError as error:
        address = f"{settings.host}:{settings.port}"
        reason = os.strerror(error.errno) if error.errno else error
        advice = "; choose another --port" if error.errno == errno.EADDRINUSE else ""
        raise _refusal(f"cannot listen on {address}: {reason}{advice}", code=1) from None


class _AnnouncingServer(uvicorn.Server):
    """Server that announces that it is ready, and answers waiting devices before it shuts down."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Shut down. A second signal changes nothing: it takes SHUTDOWN_SECONDS at most."""
        if not self.should_exit:
            super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and sockets:
            host, port = sockets[0].getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            scheme = "https" if self.config.is_ssl else "http"
            if join := JoinListener.of_environment():
                await join.listen(self, self._app)
            gc.freeze()  # modules and routes stay: looking for garbage in them takes 0.1 s
            text = f"blindtally serves {scheme}://{shown}:{port}"
            if logs.are_json():
                _print_note(text, "info")
            else:
                with suppress(OSError):
                    print_line(text)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        _print_note("stopping; the rounds go on after the next start", "info")
        self._app.state.service.notifier.shut_down()
        await super().shutdown(sockets)
