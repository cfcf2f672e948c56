"""Checks of this machine, and of the settings and the database of a service."""

import errno
import os
import shutil
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from pydantic import ValidationError
from rich.table import Table
from rich.text import Text
from sqlalchemy import create_engine, func, select
from sqlalchemy.engine import URL, Connection
from sqlalchemy.exc import SQLAlchemyError

from blindtally.console.environment import PREFIX, unknown_variables
from blindtally.console.errors import setting_faults
from blindtally.console.terminal import Terminal
from client.extras_installation import install_command, slower_reader
from server.db import migrations
from server.db.database_url import hide_url_in_errors, parse_url, shown_url
from server.settings import Settings

CheckState: TypeAlias = Literal["ok", "warning", "error"]

_TIMEOUT_SECONDS: Final = 5
_MAX_CLOCK_OFFSET_SECONDS: Final = 5.0
_LOW_DISK_BYTES, _CRITICAL_DISK_BYTES = 2 * 10**9, 2 * 10**8
_DISK_ADVICE: Final = "free some space: a round of 1,000 devices may take 1 GB"
_UPGRADE_ADVICE: Final = "use the version of blindtally that made it, or another --database"
STATE_STYLES: Final[dict[CheckState, str]] = {
    "ok": "green",
    "warning": "yellow",
    "error": "bold red",
}


@dataclass(frozen=True, slots=True)
class Check:
    """Result of the check `name`, with `advice` unless the state is ok."""

    name: str
    state: CheckState
    detail: str
    advice: str = ""


def run_checks(flags: dict[str, Any]) -> Iterator[Check]:
    yield check_clock()
    yield check_disk(Path.cwd(), "databases and results")
    yield check_decoder()
    settings, check = check_settings(flags)
    yield check
    if settings is not None:
        yield from check_database(settings.database_url)
        yield check_port(settings.host, settings.port)


def show_checks(checks: list[Check]) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for check in checks:
        state = Text(check.state, STATE_STYLES[check.state])
        table.add_row(state, Text(check.name), Text(check.detail))
        if check.advice:
            table.add_row("", "", Text(f"→ {check.advice}"))
    Terminal().print(table)


def check_clock(now: datetime | None = None) -> Check:
    now = now or datetime.now(UTC)
    installed = datetime.fromtimestamp(Path(__file__).stat().st_mtime, UTC)
    detail = f"{now:%Y-%m-%d %H:%M:%S} UTC"
    if now < installed:
        detail += f", before this program was installed ({installed:%Y-%m-%d %H:%M})"
        advice = "set the clock: timedatectl set-ntp true, or chronyd"
        return Check("clock", "error", detail, advice)
    return Check("clock", "ok", detail)


def check_disk(folder: Path, purpose: str) -> Check:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        advice = f"name another folder for {purpose}"
        return Check("disk", "error", f"{folder}: {error.strerror}", advice)
    detail = f"{free / 1e9:,.1f} GB free in {folder}, for {purpose}"
    if free < _CRITICAL_DISK_BYTES:
        return Check("disk", "error", detail, _DISK_ADVICE)
    if free < _LOW_DISK_BYTES:
        return Check("disk", "warning", detail, _DISK_ADVICE)
    return Check("disk", "ok", detail)


def check_decoder() -> Check:
    """Check that the modules which read sums are compiled."""
    advice = slower_reader("server")
    if advice:
        return Check("decoder", "warning", "not compiled", advice)
    return Check("decoder", "ok", "compiled")


def check_settings(flags: Mapping[str, Any]) -> tuple[Settings | None, Check]:
    """Return the settings that `serve` would have, and the result of their check."""
    try:
        values = Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        detail = "; ".join(setting_faults(error, Settings))
        return None, Check("settings", "error", detail, "correct the variable, or unset it")
    unknown = unknown_variables(os.environ)
    if unknown:
        advice = "correct the name, or unset it: docs/cli.md lists the variables"
        named = ", ".join(
            f"{name} (did you mean {near}?)" if near else name for name, near in unknown.items()
        )
        return values, Check("settings", "warning", f"unknown: {named}", advice)
    names = [name for name in os.environ if name.upper().startswith(PREFIX)]
    return values, Check("settings", "ok", f"{len(names)} in the environment")


def check_database(text: str) -> Iterator[Check]:
    """Check that the database at the URL `text` can be used, and its schema and clock."""
    url = parse_url(text)
    if url.get_backend_name() == "sqlite":
        yield from _check_sqlite(url)
        return
    try:
        yield _check_schema(url, shown_url(url), {"connect_timeout": _TIMEOUT_SECONDS})
    except ImportError:
        yield Check("database", "error", "the driver is missing", install_command("postgres"))


def _check_sqlite(url: URL) -> Iterator[Check]:
    file = Path(url.database or "").absolute()
    if not file.parent.is_dir():
        detail = f"there is no folder {file.parent}"
        yield Check("database", "error", detail, "make the folder, or name another one")
        return
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        user = f"user {os.geteuid()}" if hasattr(os, "geteuid") else "another user"
        advice = f"chown or chmod it: this is {user}"
        yield Check("database", "error", f"{file} cannot be written", advice)
        return
    if file.parent != Path.cwd():  # whose disk is checked anyway
        yield check_disk(file.parent, "the database")
    if not file.exists():
        yield Check("database", "ok", f"{file} does not exist yet: `blindtally serve` makes it")
        return
    # The service would change a file that is not its own database.
    address = URL.create(
        "sqlite+pysqlite", database=f"file:{file}", query={"mode": "rw", "uri": "true"}
    )
    yield _check_schema(address, str(file), {})


def _check_schema(url: URL, shown: str, connect_args: dict[str, Any]) -> Check:
    engine = create_engine(url, hide_parameters=True, connect_args=connect_args)
    hide_url_in_errors(engine)
    try:
        with engine.connect() as connection:
            revision, offset = migrations.revision(connection), _clock_offset(connection)
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        advice = "start it, or correct --database (BLINDTALLY_DATABASE_URL)"
        return Check("database", "error", f"{shown}: {reason}", advice)
    finally:
        engine.dispose()
    if revision is None:
        return Check("database", "ok", f"{shown} is empty: `blindtally serve` makes its tables")
    if revision not in migrations.known_revisions():
        detail = f"{shown} has schema {revision} of another version of blindtally"
        return Check("database", "error", detail, _UPGRADE_ADVICE)
    if abs(offset) > _MAX_CLOCK_OFFSET_SECONDS:
        detail = f"the clock of {shown} is {offset:+.0f} s from this one"
        advice = "set both by NTP; the service uses the database's"
        return Check("database", "warning", detail, advice)
    if revision != migrations.head_revision():
        advice = "make a copy, then start `blindtally serve`, which upgrades the schema"
        return Check("database", "warning", f"{shown} has the older schema {revision}", advice)
    return Check("database", "ok", f"{shown} has schema {revision}, the newest")


def _clock_offset(connection: Connection) -> float:
    """Return the seconds by which the database's clock is ahead; SQLite uses this machine's."""
    if connection.dialect.name == "sqlite":
        return 0.0
    database_time: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
    return (database_time - datetime.now(UTC)).total_seconds()


def check_port(host: str, number: int) -> Check:
    """Check that the port is free; a port in use may be that of the running service."""
    address = f"{host}:{number}"
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.create_server((host, number), family=family).close()
    except OSError as error:
        detail = f"{address}: {(error.strerror or str(error)).lower()}"
        if error.errno == errno.EADDRINUSE:
            advice = "unless the service runs here, name another --port (0: any) or --host"
            return Check("port", "warning", detail, advice)
        return Check("port", "error", detail, "name another --port (0: any) or --host")
    return Check("port", "ok", f"{address} is free")
