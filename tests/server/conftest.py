"""A real server in memory over ASGI, on real databases of both kinds."""

import ipaddress
import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import psycopg
import pytest
import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from server.http import request_layer, request_limits
from server.settings import Pace, Settings
from tests.server import application
from tests.server.cohort import Cohort, create_full_cohort
from tests.server.harness import Clock, Served, serving
from tests.server.simulation.databases import postgres

# As the service logs them: formatting hundreds of tracebacks with local variables takes minutes.
_PLAIN_RENDERER = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
structlog.configure(processors=[*structlog.get_config()["processors"][:-1], _PLAIN_RENDERER])


@pytest.fixture(autouse=True)
def _refuses_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not delay refusals: limits count the requests of a minute."""
    monkeypatch.setattr(request_layer, "TOO_MANY_DELAY_SECONDS", 0.0)
    monkeypatch.setattr(request_layer, "_MAX_TOO_MANY_RATE", 1e6)
    monkeypatch.setattr(request_layer, "_TOO_MANY_BATCH_SECONDS", 1e-3)


@pytest.fixture(autouse=True)
def _test_starts_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no minute begin during a test: its limits would start to count again."""
    start = monotonic()
    monkeypatch.setattr(request_limits, "monotonic", lambda: monotonic() - start)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/test.db"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    with postgres() as url:
        yield url


_numbers = itertools.count()


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    name = f"test_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield postgres_server.replace("/postgres?", f"/{name}?")
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def owner(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    """Yield a connection that may take rights away from the role `blindtally` of `role_url`."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = 'blindtally'").fetchone():
            connection.execute("CREATE ROLE blindtally LOGIN")
        connection.execute("GRANT ALL ON SCHEMA public TO blindtally")
        yield connection


@pytest.fixture
def role_url(owner: object, postgres_url: str) -> str:  # noqa: ARG001
    """Return the URL of an empty database of PostgreSQL, for a role without all rights."""
    return postgres_url.replace("postgres:@", "blindtally:@")


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of an empty database, of each kind in turn."""
    return str(request.getfixturevalue(f"{request.param[:8].removesuffix('ql')}_url"))


Serve = Callable[[str], AbstractAsyncContextManager[Served]]


@pytest.fixture
def serve(clock: Clock) -> Serve:
    """Return a function that runs a service on a database, with a new application each time.

    Each draws other numbers, or one that is started again would name devices as the one before.
    """
    seeds = itertools.count(2**16 * os.getpid())

    @asynccontextmanager
    async def run(url: str, **changes: Any) -> AsyncIterator[Served]:
        names = {field.name for field in fields(Pace)} & changes.keys()
        pace = replace(application.TEST_PACE, **{name: changes.pop(name) for name in names})
        chosen = Settings(**({"database_url": url, "open": True} | changes))
        app = application.create(chosen, clock, Random(next(seeds)), pace)
        async with serving(app, clock) as served:
            yield served

    return run


@pytest.fixture
async def served(serve: Serve, sqlite_url: str) -> AsyncIterator[Served]:
    """Yield a service on SQLite."""
    async with serve(sqlite_url) as running:
        yield running


@pytest.fixture
async def each_served(serve: Serve, database_url: str) -> AsyncIterator[Served]:
    """Yield a service on each kind of database, in turn."""
    async with serve(database_url) as running:
        yield running


@pytest.fixture
async def closed(serve: Serve, sqlite_url: str) -> AsyncIterator[Served]:
    """Yield a service on SQLite that requires credentials."""
    async with serve(sqlite_url, open=False) as running:
        yield running


@pytest.fixture
async def each_closed(serve: Serve, database_url: str) -> AsyncIterator[Served]:
    """Yield a service that requires credentials, on each kind of database in turn."""
    async with serve(database_url, open=False) as running:
        yield running


@pytest.fixture
async def cohort(served: Served) -> Cohort:
    """Return a study on SQLite whose one cohort is full."""
    return await create_full_cohort(served)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Return the files of a certificate for 127.0.0.1 that signs itself, and of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "blindtally test")])
    now = datetime.now(UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    chain, secret = tmp_path / "chain.pem", tmp_path / "key.pem"
    chain.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return chain, secret
