"""`blindtally keys`, `tokens` and `audit`: who is let in, as the database says.

These ask the database itself: whoever may open it may do everything.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from random import SystemRandom
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from sqlalchemy.exc import SQLAlchemyError

from blindtally.output import failed, write_json
from server import migrations
from server.database import Database
from server.principals import SCOPES, Right
from server.schema import ApiKey, EnrolmentToken
from server.store.access import Access

T = TypeVar("T")
DatabaseOption = Annotated[
    str,
    typer.Option(
        "--database", envvar="BLINDTALLY_DATABASE_URL", help="Of the service, as `serve` has it."
    ),
]
Days = Annotated[float | None, typer.Option("--days", min=0, help="Until it is over [for good].")]
Json = Annotated[
    str | None, typer.Option("--json", metavar="PATH", help="Write JSON; - is stdout.")
]
HERE = "sqlite:///blindtally.db"

keys = typer.Typer(name="keys", no_args_is_help=True, help="API keys of operators and analysts.")
tokens = typer.Typer(
    name="tokens", no_args_is_help=True, help="Enrolment tokens, which let devices in."
)


@keys.command("create")
def create_key(
    name: Annotated[str, typer.Argument(help="Whose it is, or what for.")],
    scope: Annotated[
        list[str] | None, typer.Option(help="read, write or operate; may be repeated [all].")
    ] = None,
    days: Days = None,
    database: DatabaseOption = HERE,
) -> None:
    """Make an API key, and print it: it is kept nowhere, and cannot be shown again.

    Example: blindtally keys create dashboard --scope read --days 90
    """
    wanted = {Right(one) if one in SCOPES else _no_scope(one) for one in scope or SCOPES}
    _give("key", _ask(database, lambda book: book.create_key(name, wanted, _lasting(days))))


@keys.command("list")
def list_keys(database: DatabaseOption = HERE, json_path: Json = None) -> None:
    """List all keys, without their secrets.

    Example: blindtally keys list
    """
    rows = [
        {"id": row.id, "name": row.name, "scopes": " ".join(row.scopes), **_times(row)}
        for row in _ask(database, lambda book: book.keys())
    ]
    _show(rows, json_path)


@tokens.command("create")
def create_token(
    name: Annotated[str, typer.Argument(help="Which devices it is for.")],
    uses: Annotated[int, typer.Option(min=1, max=2**31 - 1, help="Identities it lets in.")] = 1000,
    days: Days = None,
    database: DatabaseOption = HERE,
) -> None:
    """Make an enrolment token for a number of devices, and print it.

    A device has an identity for each study, and each takes one use. Give many devices the same
    token: one that has its own could be followed by it from study to study.

    Example: blindtally tokens create phones --uses 100000 --days 30
    """
    _give("token", _ask(database, lambda book: book.create_token(name, uses, _lasting(days))))


@tokens.command("list")
def list_tokens(database: DatabaseOption = HERE, json_path: Json = None) -> None:
    """List all tokens, without their secrets.

    Example: blindtally tokens list
    """
    rows = [
        {"id": row.id, "name": row.name, "used": f"{row.used} of {row.uses}", **_times(row)}
        for row in _ask(database, lambda book: book.tokens())
    ]
    _show(rows, json_path)


@keys.command("revoke")
@tokens.command("revoke")
def revoke(
    name: Annotated[str, typer.Argument(help="The id of a key or token, or a device's identity.")],
    database: DatabaseOption = HERE,
) -> None:
    """Revoke a key, a token with all devices that it let in, or one device; for good.

    A running service takes it for `BLINDTALLY_ACCESS_SECONDS` (5) more.

    Example: blindtally keys revoke 3f2a0c55d1e9
    """
    kind = _ask(database, lambda book: book.revoke(name))
    if kind is None:
        raise failed(f"there is no key, token or device {name}", code=1)
    typer.echo(f"{kind} {name} is revoked")


def audit(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Entries to show.")] = 50,
    database: DatabaseOption = HERE,
    json_path: Json = None,
) -> None:
    """Show who did what, and who was refused; the newest first.

    Example: blindtally audit --limit 20
    """
    found = _ask(database, lambda book: book.trail(limit, None))
    rows = [entry.model_dump(mode="json") for entry in found]
    if json_path is None:
        rows = [
            row | {"at": f"{one.at:%Y-%m-%d %H:%M:%S}"}
            for row, one in zip(rows, found, strict=True)
        ]
    _show(rows, json_path)


def admit(database: str, name: str, uses: int) -> tuple[str, str]:
    """Return a new API key that may do everything, and a token for so many identities.

    Raises:
        typer.Exit: if the database cannot be used.
    """

    async def issue(book: Access) -> tuple[str, str]:
        _, key = await book.create_key(name, SCOPES, None)
        _, token = await book.create_token(name, uses, None)
        return key, token

    return _ask(database, issue)


def _give(kind: str, issued: tuple[str, str]) -> None:
    name, secret = issued
    typer.echo(secret)
    typer.echo(f"{kind} {name}: keep it, nobody can show it again", err=True)


def _no_scope(name: str) -> Right:
    raise failed(f"--scope must be one of {', '.join(SCOPES)}, not {name}")


def _lasting(days: float | None) -> timedelta | None:
    return timedelta(days=days) if days else None


def _times(row: ApiKey | EnrolmentToken) -> dict[str, str]:
    times = {"created": row.created, "expires": row.expires, "revoked": row.revoked}
    return {what: f"{at:%Y-%m-%d %H:%M}" if at else "" for what, at in times.items()}


def _show(rows: list[dict[str, Any]], json_path: str | None) -> None:
    if json_path is not None:
        write_json(json_path, {"rows": rows})
        return
    table = Table()
    for heading in rows[0] if rows else ("nothing yet",):  # what is long is folded, never cut
        longest = max((len(str(row[heading])) for row in rows), default=None)
        table.add_column(heading, overflow="fold", min_width=longest if heading == "id" else None)
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row.values()))
    Console().print(table)


def _ask(url: str, question: Callable[[Access], Awaitable[T]]) -> T:
    """Return the answer of the book in the database at `url`, brought up to date."""

    async def ask() -> T:
        database = Database(url)
        try:
            await migrations.upgrade(database)
            return await question(Access(database, SystemRandom()))
        finally:
            await database.close()

    try:
        return asyncio.run(ask())
    except (ValueError, migrations.SchemaTooNewError, SQLAlchemyError) as error:
        why = getattr(error, "orig", None) or error
        raise failed(f"the database cannot be used: {why}", code=1) from None
