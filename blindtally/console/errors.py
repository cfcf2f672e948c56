"""Errors of commands: one line on stderr, and an exit code (docs/cli.md)."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import typer
from pydantic import BaseModel, ValidationError

from blindtally.console.terminal import print_line
from protocol.validation_errors import validation_faults

NO_REASONS: Final[Mapping[str, str]] = MappingProxyType({})


def exit_with_error(error: str | Exception, code: int = 2) -> typer.Exit:
    """Print the error, and return the exit of the command with this code."""
    text: str | Exception = error
    if isinstance(error, ValidationError):
        from client.analyst.study_creation import describe_faults

        text = describe_faults(error)
    print_line(f"error: {text}", err=True)
    return typer.Exit(code)


def parse_public_keys(keys: Iterable[str], option: str) -> Iterator[bytes]:
    """Yield the public keys that are the values of `option`.

    Raises:
        typer.Exit: if one is not a key.
    """
    for key in keys:
        if not re.fullmatch("[0-9a-fA-F]{64}", key):
            raise exit_with_error(f"{option} takes the 64 hexadecimal digits of a public key")
        yield bytes.fromhex(key)


def setting_faults(
    error: ValidationError, settings: type[BaseModel], flags: Collection[str] = ()
) -> list[str]:
    """Return a line for each invalid setting, with the name of its environment variable.

    The settings in `flags` have the names of their options too.
    """
    return [
        f"{_setting_name('_'.join(map(str, path)), flags)}: {message}"
        for path, message in validation_faults(error, settings)
    ]


def _setting_name(name: str, flags: Collection[str]) -> str:
    variable = f"blindtally_{name}".upper()
    option = name.removesuffix("_url").replace("_", "-")
    return f"--{option} ({variable})" if name in flags else variable


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
