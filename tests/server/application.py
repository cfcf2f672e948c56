"""Applications for tests, without the work that every application would do again.

An application compiles its routes at its first request, describes them at its first refusal, and
brings an empty database through every migration: a fifth of a second of processor time. Here the
routes, their document and a migrated SQLite file are made once per process, and SQLAlchemy compiles
each statement for SQLite once instead of once per engine. The code that serves a request is the
same.
"""

import asyncio
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from random import Random, SystemRandom
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any, Final

import httpx
import structlog
import uvicorn
from fastapi import FastAPI
from sqlalchemy import create_engine
from sqlalchemy.engine import URL, Engine

from blindtally.commands.credentials_and_audit import create_first_credentials
from server.app import create_app
from server.db import database as database_module
from server.db import migrations
from server.db.database import Database
from server.db.database_url import parse_url
from server.settings import Pace, Settings

# A look that nothing asked for costs as much as a request; tests ask for the looks they wait for.
TEST_PACE: Final = Pace(min_poll_seconds=0.005)


def create(
    settings: Settings, clock: Callable[[], datetime] | None, rng: Random, pace: Pace = TEST_PACE
) -> FastAPI:
    """Return the service as `create_app` does, on a database that has its schema."""
    database = parse_url(settings.database_url).database
    if settings.database_url.startswith("sqlite:") and not Path(str(database)).exists():
        Path(str(database)).write_bytes(_migrated())
    app = create_app(settings, clock, rng, pace=pace)
    app.router.routes[:] = _first().router.routes
    app.openapi = _first().openapi  # type: ignore[method-assign]
    return app


@dataclass(frozen=True)
class ServiceOnPort:
    """A service in a thread of this process, with a key of an analyst and a token of devices."""

    url: str
    database_url: str
    key: str
    token: str


@contextmanager
def on_a_port(folder: Path, *, is_open: bool = True) -> Iterator[ServiceOnPort]:
    """Serve at a free port, without the seconds that a process of `blindtally serve` imports.

    Its log is not written, from now on: standard output is that of the command under test, and
    another such service may live longer than this one.
    """
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    settings = Settings(database_url=f"sqlite:///{folder / 'blindtally.db'}", open=is_open)
    app = create(settings, None, SystemRandom())
    key, token = create_first_credentials(settings.database_url, "demo", 10**6)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
        thread = Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            httpx.get(f"{url}/readyz", timeout=30).raise_for_status()  # once it listens
            yield ServiceOnPort(url, settings.database_url, key, token)
        finally:
            loop = server.servers[0].get_loop()  # the futures of waiting requests are its own
            loop.call_soon_threadsafe(app.state.service.notifier.shut_down)
            server.should_exit = True
            thread.join()


@cache
def _first() -> FastAPI:
    """Return the application whose routes serve all others; it opens no database."""
    return create_app(Settings(database_url="sqlite:///unused.db"), None, Random(0))


@cache
def _migrated() -> bytes:
    """Return a SQLite file with this program's schema and no row."""

    async def migrate(url: str) -> None:
        database = Database(url)
        await migrations.upgrade(database)
        await database.close()

    with TemporaryDirectory() as folder, ThreadPoolExecutor(1) as thread:  # a loop may run here
        thread.submit(asyncio.run, migrate(f"sqlite:///{folder}/migrated.db")).result()
        return Path(folder, "migrated.db").read_bytes()


@cache
def _first_engine() -> Engine:
    """Return an engine of SQLite whose dialect knows its version; it opens no file."""
    engine = create_engine("sqlite+pysqlite://")
    engine.connect().close()
    engine.dispose()
    return engine


def _create_engine(url: URL, **options: Any) -> Engine:
    """Return an engine as SQLAlchemy does, with the compiled statements of all others."""
    engine = create_engine(url, **options)
    if engine.dialect.name == "sqlite":
        engine.dialect = engine.pool._dialect = _first_engine().dialect
        engine._compiled_cache = _first_engine()._compiled_cache
    return engine


database_module.create_engine = _create_engine  # type: ignore[attr-defined]
