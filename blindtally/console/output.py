"""What the commands have in common where they end: files and JSON for scripts, a plain failure.

Exit codes: 0, it is done; 1, it could not be done (the service is out of reach, nothing is
feasible, a check found a fault); 2, what was asked cannot be (an unknown option, a file that cannot
be read or written); 130, stopped by Ctrl-C. A file is there whole or not at all.
"""

import json
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final

import typer
from pydantic import BaseModel, ValidationError

from protocol.mechanisms.registry import AnyPlan, AnyQuestion
from protocol.messages import PopulationRequest, StudyRequest
from protocol.validation import validation_faults

JsonOption = Annotated[
    str | None, typer.Option("--json", metavar="PATH", help="Write JSON; - is stdout.")
]
NO_REASONS: Final[Mapping[str, str]] = MappingProxyType({})
_VALIDATED_MODELS = AnyQuestion, AnyPlan, StudyRequest, PopulationRequest


def exit_with_error(why: str | Exception, code: int = 2) -> typer.Exit:
    """Return the end, with exit `code`, of a command that cannot do what was asked; say why."""
    if isinstance(why, ValidationError):
        why = describe_faults(why)
    typer.echo(f"error: {why}", err=True)
    return typer.Exit(code)


def describe_faults(error: ValidationError) -> str:
    """Return what is wrong, each with the name of the field it is wrong about."""
    found = validation_faults(error, *_VALIDATED_MODELS)
    return "; ".join(": ".join([*map(str, at), what]) for at, what in found)


def setting_faults(error: ValidationError, settings: type[BaseModel]) -> list[str]:
    """Return a line for each invalid setting, with the name of its environment variable."""
    return [
        f"{'_'.join(('blindtally', *map(str, path))).upper()}: {message}"
        for path, message in validation_faults(error, settings)
    ]


def refuse_unused_options(
    context: typer.Context, taken: Collection[str], by: str, whys: Mapping[str, str] = NO_REASONS
) -> None:
    """Refuse options that were given and are none of those `taken`: none is ignored silently.

    Of some it is said why, by their names.

    Raises:
        typer.Exit: if there are any; names them.
    """
    given = {
        option.name: max(option.opts, key=len)
        for option in context.command.params
        if option.name is not None
        and option.name not in taken
        and (source := context.get_parameter_source(option.name)) is not None
        and source.name == "COMMANDLINE"
    }
    if given:
        because = "; ".join(dict.fromkeys(whys[name] for name in given if name in whys))
        told = f": {because}" if because else ""
        raise exit_with_error(f"{by} takes no {', '.join(given.values())}{told}")


def write_json(path: str | None, document: dict[str, Any], *, is_secret: bool = False) -> None:
    """Write `document` to the file at `path`, to stdout if that is `-`, nowhere if it is None.

    Of a file with a secret in it, its owner alone may read it.

    Raises:
        typer.Exit: if the file cannot be written.
    """
    text = json.dumps(document, indent=2) + "\n"
    if path == "-":
        sys.stdout.write(text)
    elif path is not None:
        with atomic_write(Path(path)) as file:
            if is_secret:
                file.touch(0o600)
            file.write_text(text, encoding="utf-8")


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Give a file to write to, which is put in the place of `path` once all is in it.

    Raises:
        typer.Exit: if it cannot be written.
    """
    place = path.resolve()  # a link stays one
    part = place.with_name(f".{place.stem}.{os.getpid()}{place.suffix}")
    if place.exists() and not place.is_file():  # a pipe, which nothing can replace, or a folder
        part = place
    try:
        yield part
        os.replace(part, place)
    except OSError as error:
        raise exit_with_error(f"cannot write {path}: {error.strerror}") from None
    finally:
        if part != place:  # it went wrong or was stopped, or is not there any more
            part.unlink(missing_ok=True)
