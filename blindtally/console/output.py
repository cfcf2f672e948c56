"""Output files, JSON for scripts, and exits with an error.

Exit codes: 0, success; 1, failure (the service is out of reach, nothing is feasible, a check found
a fault); 2, a wrong request (an unknown option, a file that cannot be read or written); 130,
stopped by Ctrl-C. A file is written whole or not at all.
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


def exit_with_error(error: str | Exception, code: int = 2) -> typer.Exit:
    """Print the error, and return the exit of the command with this code."""
    text = describe_faults(error) if isinstance(error, ValidationError) else error
    typer.echo(f"error: {text}", err=True)
    return typer.Exit(code)


def describe_faults(error: ValidationError) -> str:
    """Return all faults, each with the name of its field."""
    faults = validation_faults(error, *_VALIDATED_MODELS)
    return "; ".join(": ".join([*map(str, path), fault]) for path, fault in faults)


def setting_faults(error: ValidationError, settings: type[BaseModel]) -> list[str]:
    """Return a line for each invalid setting, with the name of its environment variable."""
    return [
        f"{'_'.join(('blindtally', *map(str, path))).upper()}: {message}"
        for path, message in validation_faults(error, settings)
    ]


def refuse_unused_options(
    context: typer.Context, used: Collection[str], by: str, reasons: Mapping[str, str] = NO_REASONS
) -> None:
    """Refuse options of the command line that are not `used`, so that none is silently ignored.

    Raises:
        typer.Exit: if there are such options; the error has their `reasons`.
    """
    given = {
        option.name: max(option.opts, key=len)
        for option in context.command.params
        if option.name is not None
        and option.name not in used
        and (source := context.get_parameter_source(option.name)) is not None
        and source.name == "COMMANDLINE"
    }
    if given:
        because = "; ".join(dict.fromkeys(reasons[name] for name in given if name in reasons))
        names = ", ".join(given.values())
        raise exit_with_error(f"{by} takes no {names}" + (f": {because}" if because else ""))


def write_json(path: str | None, document: dict[str, Any], *, is_secret: bool = False) -> None:
    """Write `document` to the file at `path`, to stdout if that is `-`, nowhere if it is None.

    Only the owner may read a file that `is_secret`.

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
    """Yield a temporary file to write, which replaces `path` at the end.

    Raises:
        typer.Exit: if the file cannot be written.
    """
    target = path.resolve()  # so that a link is kept
    part = target.with_name(f".{target.stem}.{os.getpid()}{target.suffix}")
    if target.exists() and not target.is_file():  # a pipe, which cannot be replaced, or a folder
        part = target
    try:
        yield part
        os.replace(part, target)
    except OSError as error:
        raise exit_with_error(f"cannot write {path}: {error.strerror}") from None
    finally:
        if part != target:  # after an error or a stop; otherwise it does not exist any more
            part.unlink(missing_ok=True)
