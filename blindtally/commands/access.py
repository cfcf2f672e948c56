"""`blindtally keys`, `tokens` and `audit`: who is let in, as the database says.

These ask the database itself: whoever may open it may do everything.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from random import SystemRandom
from typing import Annotated, Any, TypeVar

import typer
from sqlalchemy.exc import SQLAlchemyError

from blindtally.console.output import JsonOption, exit_with_error, write_json
from blindtally.console.tables import print_parts, result_table
from server.db import migrations
from server.db.database import Database
from server.db.repositories.access import AccessRepository
from server.db.schema import ApiKeyRow, EnrolmentTokenRow
from server.principals import SCOPES, Permission

T = TypeVar("T")
DatabaseOption = Annotated[
    str,
    typer.Option(
        "--database", envvar="BLINDTALLY_DATABASE_URL", help="Of the service, as `serve` has it."
    ),
]
DaysOption = Annotated[
    float | None,
    typer.Option("--days", min=0, help="Until it is over.", show_default="it never is"),
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


@keys.command("create")
def create_key(
    name: Annotated[str, typer.Argument(help="Whose it is, or what for.")],
    scope: Annotated[
        list[str] | None,
        typer.Option(help="read, write or operate; may be repeated.", show_default="all"),
    ] = None,
    days: DaysOption = None,
    database: DatabaseOption = DEFAULT_DATABASE,
    json_path: JsonOption = None,
) -> None:
    """Make an API key, and print it: it is kept nowhere, and cannot be shown again.

    Example:
      blindtally keys create dashboard --scope read --days 90
    """
    wanted = {Permission(one) if one in SCOPES else _unknown_scope(one) for one in scope or SCOPES}
    issued = _with_access(database, lambda book: book.create_key(name, wanted, _duration(days)))
    _print_secret("key", issued, json_path)


@keys.command("list")
def list_keys(database: DatabaseOption = DEFAULT_DATABASE, json_path: JsonOption = None) -> None:
    """List all keys, without their secrets.

    Example:
      blindtally keys list
    """
    rows = [
        {"id": row.id, "name": row.name, "scopes": " ".join(row.scopes), **_format_times(row)}
        for row in _with_access(database, lambda book: book.keys())
    ]
    _show_list(rows, json_path)


@tokens.command("create")
def create_token(
    name: Annotated[str, typer.Argument(help="Which devices it is for.")],
    uses: Annotated[int, typer.Option(min=1, max=2**31 - 1, help="Identities it lets in.")] = 1000,
    days: DaysOption = None,
    database: DatabaseOption = DEFAULT_DATABASE,
    json_path: JsonOption = None,
) -> None:
    """Make an enrolment token for a number of devices, and print it.

    A device has an identity for each study, and each takes one use. Give many devices the same
    token: one that has its own could be followed by it from study to study.

    Example:
      blindtally tokens create phones --uses 100000 --days 30
    """
    issued = _with_access(database, lambda book: book.create_token(name, uses, _duration(days)))
    _print_secret("token", issued, json_path)


@tokens.command("list")
def list_tokens(database: DatabaseOption = DEFAULT_DATABASE, json_path: JsonOption = None) -> None:
    """List all tokens, without their secrets.

    Example:
      blindtally tokens list
    """
    rows = [
        {
            "id": row.id,
            "name": row.name,
            "used": f"{row.used} of {row.max_uses}",
            **_format_times(row),
        }
        for row in _with_access(database, lambda book: book.tokens())
    ]
    _show_list(rows, json_path)


@keys.command("revoke")
@tokens.command("revoke")
def revoke(
    name: Annotated[str, typer.Argument(help="The id of a key or token, or a device's identity.")],
    database: DatabaseOption = DEFAULT_DATABASE,
    json_path: JsonOption = None,
) -> None:
    """Revoke a key, a token with all devices that it let in, or one device; for good.

    A running service takes it for `BLINDTALLY_CREDENTIAL_CACHE_SECONDS` (5) more.

    Example:
      blindtally keys revoke 3f2a0c55d1e9
      blindtally tokens revoke 77aa10bd42c0
    """
    kind = _with_access(database, lambda book: book.revoke(name))
    if kind is None:
        raise exit_with_error(f"there is no key, token or device {name}", code=1)
    if json_path != "-":
        typer.echo(f"{kind} {name} is revoked")
    write_json(json_path, {"kind": kind, "revoked": name})


def audit(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Entries to show.")] = 50,
    database: DatabaseOption = DEFAULT_DATABASE,
    json_path: JsonOption = None,
) -> None:
    """Show who did what, and who was refused; the newest first.

    Example:
      blindtally audit --limit 20
    """
    found = _with_access(database, lambda book: book.audit_entries(limit, None))
    rows = [entry.model_dump(mode="json") for entry in found]
    if json_path is None:
        rows = [
            row | {"at": f"{one.at:%Y-%m-%d %H:%M:%S}"}
            for row, one in zip(rows, found, strict=True)
        ]
    _show_rows(rows, json_path)


def create_first_credentials(database: str, name: str, uses: int) -> tuple[str, str]:
    """Return a new API key that may do everything, and a token for so many identities.

    Raises:
        typer.Exit: if the database cannot be used.
    """

    async def issue(book: AccessRepository) -> tuple[str, str]:
        _, key = await book.create_key(name, SCOPES, None)
        _, token = await book.create_token(name, uses, None)
        return key, token

    return _with_access(database, issue)


def _print_secret(kind: str, issued: tuple[str, str], json_path: str | None) -> None:
    name, secret = issued
    if json_path is not None:
        write_json(json_path, {"id": name, kind: secret}, is_secret=True)
    else:
        typer.echo(secret)
    typer.echo(f"{kind} {name}: keep it, nobody can show it again", err=True)


def _unknown_scope(name: str) -> Permission:
    raise exit_with_error(f"--scope must be one of {', '.join(SCOPES)}, not {name}")


def _duration(days: float | None) -> timedelta | None:
    return timedelta(days=days) if days else None


def _format_times(row: ApiKeyRow | EnrolmentTokenRow) -> dict[str, str]:
    times = {"created": row.created, "expires": row.expires, "revoked": row.revoked}
    return {what: f"{at:%Y-%m-%d %H:%M}" if at else "" for what, at in times.items()}


def _show_list(rows: list[dict[str, str]], json_path: str | None) -> None:
    """Show keys or tokens, each with the days of what it went through, or write them in full."""
    if json_path is None:
        days = "created", "expires", "revoked"
        rows = [{k: v[:10] if k in days else v for k, v in row.items()} for row in rows]
        every = " ".join(sorted(SCOPES))
        rows = [{k: "all" if v == every else v for k, v in row.items()} for row in rows]
    _show_rows(rows, json_path)


def _show_rows(rows: list[dict[str, Any]], json_path: str | None) -> None:
    if json_path is not None:
        write_json(json_path, {"rows": rows})
    elif not rows:
        print_parts("nothing yet")
    else:
        print_parts(
            result_table([*rows[0]], [], [[str(cell) for cell in row.values()] for row in rows])
        )


def _with_access(url: str, question: Callable[[AccessRepository], Awaitable[T]]) -> T:
    """Return the answer of the book in the database at `url`, brought up to date."""

    async def ask() -> T:
        database = Database(url)
        try:
            await migrations.upgrade(database)
            return await question(AccessRepository(database, SystemRandom()))
        finally:
            await database.close()

    try:
        return asyncio.run(ask())
    except (ValueError, migrations.UnknownSchemaError, SQLAlchemyError) as error:
        why = getattr(error, "orig", None) or error
        raise exit_with_error(f"the database cannot be used: {why}", code=1) from None
