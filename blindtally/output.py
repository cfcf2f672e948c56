"""What the commands have in common where they end: JSON for scripts, and a plain failure."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

ApiKey = Annotated[
    str | None,
    typer.Option(
        "--key", envvar="BLINDTALLY_API_KEY", help="An API key, unless the service is open."
    ),
]


def failed(why: str, code: int = 2) -> typer.Exit:
    """Return the end, with exit `code`, of a command that cannot do what was asked; say why."""
    typer.echo(f"error: {why}", err=True)
    return typer.Exit(code)


def write_json(path: str, document: dict[str, Any]) -> None:
    """Write `document` to the file at `path`, or to stdout if that is `-`.

    Raises:
        typer.Exit: if the file cannot be written.
    """
    text = json.dumps(document, indent=2) + "\n"
    if path == "-":
        sys.stdout.write(text)
        return
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise failed(f"cannot write {path}: {error.strerror}") from None
