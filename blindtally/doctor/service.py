"""What `serve` must have: settings that are right, a database of this program's schema, a port."""

import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import httpx
from pydantic import ValidationError
from sqlalchemy import create_engine, func, select
from sqlalchemy.engine import URL, Connection
from sqlalchemy.exc import SQLAlchemyError

from blindtally.doctor.checks import Check, fault, ok, warning
from blindtally.doctor.machine import disk
from client.extras import install
from protocol.faults import faults_of
from server import migrations
from server.database import parse_url
from server.settings import Settings

_PREFIX: Final = "BLINDTALLY_"
# What others read than the service: the commands, compose and the tests.
_OTHERS: Final = (
    "API_KEY",
    "ENROLMENT_TOKEN",
    "REPLICAS",
    "TAG",
    "CHROMIUM",
    "COMPOSE",
    "EXAMPLES",
)
_SECONDS: Final = 5
_OFF: Final = 5.0  # seconds between two clocks that are worth a word
_NEWER: Final = "pip install --upgrade blindtally, or name another --database"


def settings(flags: Mapping[str, Any]) -> tuple[Settings | None, list[Check]]:
    """Return the settings that `serve` would have, and what is to be said of them."""
    try:
        found = Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        wrong = [
            f"{'_'.join((_PREFIX[:-1], *map(str, where))).upper()}: {what}"
            for where, what in faults_of(error, Settings)
        ]
        return None, [fault("settings", "; ".join(wrong), "correct the variable, or unset it")]
    known = {_PREFIX + name.upper() for name in (*Settings.model_fields, *_OTHERS)}
    given = sorted(name for name in os.environ if name.upper().startswith(_PREFIX))
    strange = [name for name in given if name.upper() not in known]
    if strange:
        mend = "correct the name, or unset it: docs/cli.md has those that there are"
        told = f"nothing reads {', '.join(strange)}"
        return found, [warning("settings", told, mend)]
    return found, [ok("settings", f"{len(given)} in the environment")]


def database(text: str) -> Iterator[Check]:
    """Tell whether the database at the URL `text` can be used, and which schema it has."""
    url = parse_url(text)
    if url.get_backend_name() == "sqlite":
        yield from _sqlite(url)
    else:
        yield from _postgresql(url)


def _sqlite(url: URL) -> Iterator[Check]:
    file = Path(url.database or "").absolute()
    if not file.parent.is_dir():
        yield fault("database", f"there is no folder {file.parent}", "make it, or name another")
        return
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        yield fault("database", f"{file} cannot be written", f"chown or chmod it: I am {_me()}")
        return
    if file.parent != Path.cwd():  # of which `disk` was asked before
        yield disk(file.parent, "the database")
    if not file.exists():
        yield ok("database", f"{file} is not there yet: `blindtally serve` makes it")
        return
    # Not as the service opens it: a file of somebody else's must not be changed by a look at it.
    address = URL.create(
        "sqlite+pysqlite", database=f"file:{file}", query={"mode": "rw", "uri": "true"}
    )
    yield _schema(address, str(file), {})


def _postgresql(url: URL) -> Iterator[Check]:
    try:
        yield _schema(url, url.render_as_string(), {"connect_timeout": _SECONDS})
    except ImportError:
        yield fault("database", "there is no driver", install("postgres"))


def _schema(url: URL, shown: str, connecting: dict[str, Any]) -> Check:
    """Return what the schema of a database that is there is, and how far off its clock."""
    engine = create_engine(url, hide_parameters=True, connect_args=connecting)
    try:
        with engine.connect() as connection:
            found, off = migrations.revision(connection), _off(connection)
    except SQLAlchemyError as error:
        why = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        mend = "start it, or correct --database (BLINDTALLY_DATABASE_URL)"
        return fault("database", f"{shown}: {why}", mend)
    finally:
        engine.dispose()
    if found is None:
        return ok("database", f"{shown} is empty: `blindtally serve` makes its tables")
    if found not in migrations.known():
        return fault("database", f"{shown} has schema {found} of a newer blindtally", _NEWER)
    if abs(off) > _OFF:
        mend = "set both by NTP; the service goes by the database's"
        return warning("database", f"{shown}, whose clock is {off:+.0f} s off this one", mend)
    if found != migrations.head():
        mend = "start `blindtally serve`, which brings it up to date; make a copy before"
        return warning("database", f"{shown} has the older schema {found}", mend)
    return ok("database", f"{shown} has schema {found}, the newest")


def _off(connection: Connection) -> float:
    """Return by how many seconds the database's clock is ahead; a file has none of its own."""
    if connection.dialect.name == "sqlite":
        return 0.0
    there: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
    return (there - datetime.now(UTC)).total_seconds()


def port(host: str, number: int, certificate: Path | None = None) -> Check:
    """Tell whether the port is free, or who answers there: a service, with our certificate."""
    at = f"{host}:{number}"
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.create_server((host, number), family=family).close()
    except OSError as error:
        if _shows(certificate, host, number) if certificate else _answers(host, number):
            return ok("port", f"a running service answers at {at}")
        mend = "stop who has it, or serve with another --port (0 takes a free one) or --host"
        return fault("port", f"{at}: {(error.strerror or str(error)).lower()}", mend)
    return ok("port", f"{at} is free")


def _answers(host: str, number: int) -> bool:
    shown = f"[{host}]" if ":" in host else host
    try:
        heard = httpx.get(f"http://{shown}:{number}/healthz", timeout=_SECONDS)
        return bool(heard.json() == {"status": "ok"})
    except (httpx.HTTPError, ValueError):
        return False


def _shows(certificate: Path, host: str, number: int) -> bool:
    try:
        theirs = ssl.get_server_certificate((host, number), timeout=_SECONDS)
        return theirs.strip() in certificate.read_text(encoding="ascii")
    except (OSError, ValueError):
        return False


def _me() -> str:
    return f"user {os.geteuid()}" if hasattr(os, "geteuid") else "another user"
