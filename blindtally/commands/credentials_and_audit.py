"""`blindtally keys`, `tokens` and `audit`: credentials and the audit log, in the database itself.

The commands do not ask a service. A user who can open the database may do everything.
"""

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer import Argument, Option

from blindtally.console.errors import exit_with_error
from blindtally.console.output_files import JsonOption, write_json
from blindtally.console.tables import print_parts, result_table
from blindtally.console.terminal import ask_text, print_line
from protocol.printable import check_name
from server.principals import SCOPES, Permission

if TYPE_CHECKING:
    from sqlalchemy import URL

    from server.db.repositories.access.credentials_and_audit import AccessRepository
    from server.db.schema import ApiKeyRow, EnrolmentTokenRow

T = TypeVar("T")
DatabaseOption = Annotated[
    str,
    Option(
        "--database", envvar="BLINDTALLY_DATABASE_URL", help="Database of the service, as a URL."
    ),
]
DaysOption = Annotated[
    float | None,
    Option("--days", min=0, max=36_500, help="Days until it expires.", show_default="never"),
]
DEFAULT_DATABASE = "sqlite:///blindtally.db"

keys = typer.Typer(
    name="keys",
    no_args_is_help=True,
    add_completion=False,
    help="API keys of operators and analysts.\n\n"
    "Example:\n  blindtally keys create dashboard --scope read",
)
tokens = typer.Typer(
    name="tokens",
    no_args_is_help=True,
    add_completion=False,
    help="Enrolment tokens, which admit devices.\n\n"
    "Example:\n  blindtally tokens create phones --uses 100000",
)


def _checked_name(name: str) -> str:
    try:
        return check_name(name)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


@keys.command("create")
def create_key(
    name: Annotated[
        str, Argument(help="Name of the key's user or purpose.", callback=_checked_name)
    ],
    scope: Annotated[
        list[str] | None,
        Option(
            help="Scope: read, write, operate, seat or committee; repeatable.",
            show_default="asked for on a terminal, else read",
        ),
    ] = None,
    study: Annotated[
        str | None,
        Option(help="Name or id of the only study that the key opens.", show_default="all studies"),
    ] = None,
    days: Annotated[
        float | None,
        Option(
            "--days",
            min=0,
            max=36_500,
            help="Days until it expires, 0 for never.",
            show_default="asked for on a terminal, else 90",
        ),
    ] = None,
    database: DatabaseOption = DEFAULT_DATABASE,
    json_path: JsonOption = None,
) -> None:
    """Make an API key, and print it: it is kept nowhere, and cannot be shown again.

    Example:
      blindtally keys create dashboard --scope read --days 90
      blindtally keys create guest --study 3f2a0c55d1e9b7a4
    """
    scope = scope or _ask_or_take("scopes", "read", "--scope").replace(",", " ").split()
    answer = _ask_or_take("days until it expires", "90", "--days") if days is None else str(days)
    if not re.fullmatch(r"\d{1,5}(\.\d+)?", answer):
        raise exit_with_error(f"days must be a number below 100,000, not {answer!r}")
    if unknown := [text for text in scope if text not in SCOPES]:
        raise exit_with_error(f"--scope must be one of {', '.join(SCOPES)}, not {unknown[0]}")
    scopes = {Permission(text) for text in scope}
    issued = with_access(
        database,
        lambda access: access.create_key(name, scopes, _duration(float(answer)), study),
        must_exist=study is not None,
    )
    _print_secret("key", issued, json_path)


@keys.command("list")
def list_keys(database: DatabaseOption = DEFAULT_DATABASE, json_path: JsonOption = None) -> None:
    """List all keys, without their secrets.

    Example:
      blindtally keys list
    """
    keys = with_access(database, lambda access: access.keys(), must_exist=True)
    has_limited = any(key.study for key in keys)  # a column that is rarely needed
    rows = [
        {"id": key.id, "name": key.name, "scopes": " ".join(key.scopes)}
        | ({"study": key.study or "all"} if has_limited or json_path else {})
        | _format_times(key)
        for key in keys
    ]
    _show_list(rows, json_path)


@tokens.command("create")
def create_token(
    name: Annotated[
        str, Argument(help="Name of the devices that it admits.", callback=_checked_name)
    ],
    uses: Annotated[
        int, Option(min=1, max=2**31 - 1, help="Number of identities that it admits.")
    ] = 1000,
    days: DaysOption = None,
    database: DatabaseOption = DEFAULT_DATABASE,
    json_path: JsonOption = None,
) -> None:
    """Make an enrolment token for a number of devices, and print it.

    A device has an identity for each study, and each takes one use. Give many devices the same
    token: with a token for each device, the service could follow a device from study to study.

    Example:
      blindtally tokens create phones --uses 100000 --days 30
    """
    issued = with_access(database, lambda access: access.create_token(name, uses, _duration(days)))
    _print_secret("token", issued, json_path)


@tokens.command("list")
def list_tokens(database: DatabaseOption = DEFAULT_DATABASE, json_path: JsonOption = None) -> None:
    """List all tokens, without their secrets.

    Example:
      blindtally tokens list
    """
    rows = [
        {"id": row.id, "name": row.name, "used": f"{row.used} of {row.max_uses}"}
        | _format_times(row)
        for row in with_access(database, lambda access: access.tokens(), must_exist=True)
    ]
    _show_list(rows, json_path)


@keys.command("revoke")
@tokens.command("revoke")
def revoke(
    name: Annotated[
        str, Argument(help="Id of a key or token, identity of a device, or a person's e-mail.")
    ],
    database: DatabaseOption = DEFAULT_DATABASE,
    json_path: JsonOption = None,
) -> None:
    """Permanently revoke a key, a token with all devices that it admitted, or one device.

    For an e-mail address, end the sessions of its owner, who logged in at the OpenID provider.

    A running service accepts it for up to five seconds more.

    Example:
      blindtally keys revoke 3f2a0c55d1e9
      blindtally keys revoke anna@example.org
      blindtally tokens revoke 77aa10bd42c0
    """
    kind = with_access(database, lambda access: access.revoke(name), must_exist=True)
    if kind is None:
        raise exit_with_error(f"there is no key, token, device or logged in person {name}", code=1)
    if json_path != "-":
        print_line(f"{kind} {name} is {'logged out' if kind == 'person' else 'revoked'}")
    write_json(json_path, {"kind": kind, "revoked": name})


def audit(
    limit: Annotated[int, Option(min=1, max=1000, help="Number of entries to show.")] = 50,
    database: DatabaseOption = DEFAULT_DATABASE,
    json_path: JsonOption = None,
) -> None:
    """Show the actions of users and the refused requests, the newest first.

    Example:
      blindtally audit --limit 20
    """
    entries = with_access(
        database, lambda access: access.audit_entries(limit, None), must_exist=True
    )
    rows = [entry.model_dump(mode="json") for entry in entries]
    if json_path is None:
        for row, entry in zip(rows, entries, strict=True):
            row["at"] = f"{entry.at:%Y-%m-%d %H:%M:%S}"
    _show_rows(rows, json_path)


def _ask_or_take(name: str, default: str, option: str) -> str:
    """Return what a person answers on a terminal; otherwise the default, which is printed."""
    if sys.stdin is not None and sys.stdin.isatty():
        return ask_text(name, default)
    print_line(f"{name}: {default} ({option} is another)", err=True)
    return default


def create_first_credentials(database: str, name: str, uses: int) -> tuple[str, str]:
    """Return a new API key with all scopes, and a token for `uses` identities.

    Raises:
        typer.Exit: if the database cannot be used.
    """

    async def issue(access: "AccessRepository") -> tuple[str, str]:
        _, key = await access.create_key(name, SCOPES, None)
        _, token = await access.create_token(name, uses, None)
        return key, token

    return with_access(database, issue)


def _print_secret(kind: str, issued: tuple[str, str], json_path: str | None) -> None:
    name, secret = issued
    if json_path is not None:
        write_json(json_path, {"id": name, kind: secret}, is_secret=True)
    else:
        print_line(secret)
    print_line(f"{kind} {name}: keep it, nobody can show it again", err=True)


def _duration(days: float | None) -> timedelta | None:
    return timedelta(days=days) if days else None


def _format_times(row: "ApiKeyRow | EnrolmentTokenRow") -> dict[str, str]:
    times = {"created": row.created, "expires": row.expires, "revoked": row.revoked}
    return {event: f"{at:%Y-%m-%d %H:%M}" if at else "" for event, at in times.items()}


def _show_list(rows: list[dict[str, str]], json_path: str | None) -> None:
    """Show keys or tokens with days instead of times, or write them in full."""
    if json_path is None:
        days, all_scopes = ("created", "expires", "revoked"), " ".join(sorted(SCOPES))
        rows = [{k: v[:10] if k in days else v for k, v in row.items()} for row in rows]
        rows = [{k: "all" if v == all_scopes else v for k, v in row.items()} for row in rows]
    _show_rows(rows, json_path)


def _show_rows(rows: list[dict[str, Any]], json_path: str | None) -> None:
    if json_path is not None:
        write_json(json_path, {"rows": rows})
    elif not rows:
        print_parts("nothing yet")
    else:
        cells = [[str(cell) for cell in row.values()] for row in rows]
        print_parts(result_table([*rows[0]], [], cells))


def with_access(
    url: str, use: Callable[["AccessRepository"], Awaitable[T]], *, must_exist: bool = False
) -> T:
    """Return the result of `use` with the access records in the database at `url`.

    Tables of an older version are upgraded first. A new database is created unless it `must_exist`.
    """
    from sqlalchemy.exc import SQLAlchemyError

    from server.db import migrations
    from server.db.database import Database
    from server.db.database_url import parse_url
    from server.db.repositories.access.credentials_and_audit import AccessRepository
    from server.db.sqlite_lock import check_files_beside
    from server.errors import ProblemError

    async def run() -> T:
        parsed = parse_url(url)
        if must_exist:
            _check_file_exists(parsed)
        if parsed.get_backend_name() == "sqlite":
            check_files_beside(Path(str(parsed.database)))
        database = Database(url)
        try:
            await migrations.upgrade(database)
            return await use(AccessRepository(database, SystemRandom()))
        finally:
            await database.close()

    try:
        return asyncio.run(run())
    except ProblemError as error:
        raise exit_with_error(error.detail, code=1) from None
    except (ValueError, OSError, migrations.UnknownSchemaError, SQLAlchemyError) as error:
        reason = getattr(error, "orig", None) or error
        raise exit_with_error(f"the database cannot be used: {reason}", code=1) from None


def _check_file_exists(url: "URL") -> None:
    """Raise ValueError if `url` names a file of SQLite that does not exist."""
    if url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists():
        raise ValueError(
            f"there is no file {url.database}: run this in the folder of the service, or pass "
            "--database"
        )
