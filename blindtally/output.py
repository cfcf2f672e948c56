"""What the commands have in common where they end: JSON for scripts, and a plain failure."""

import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from protocol.faults import faults_of
from protocol.mechanisms import AnyPlan, AnyQuestion
from protocol.messages import PopulationRequest, StudyRequest

ApiKey = Annotated[
    str | None,
    typer.Option(
        "--key", envvar="BLINDTALLY_API_KEY", help="An API key, unless the service is open."
    ),
]


_FORMS = AnyQuestion, AnyPlan, StudyRequest, PopulationRequest


def failed(why: str | Exception, code: int = 2) -> typer.Exit:
    """Return the end, with exit `code`, of a command that cannot do what was asked; say why."""
    if isinstance(why, ValidationError):
        why = faults(why)
    typer.echo(f"error: {why}", err=True)
    return typer.Exit(code)


def faults(error: ValidationError) -> str:
    """Return what is wrong, each with the name of the field it is wrong about."""
    found = faults_of(error, *_FORMS)
    return "; ".join(": ".join([*map(str, at), what]) for at, what in found)


def refuse_others(context: typer.Context, taken: Collection[str], by: str) -> None:
    """Refuse options that were given and are none of those `taken`: none is ignored silently.

    Raises:
        typer.Exit: if there are any; names them.
    """
    given = [
        max(option.opts, key=len)
        for option in context.command.params
        if option.name is not None
        and option.name not in taken
        and (source := context.get_parameter_source(option.name)) is not None
        and source.name == "COMMANDLINE"
    ]
    if given:
        raise failed(f"{by} takes no {', '.join(given)}")


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
