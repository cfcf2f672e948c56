"""`blindtally`: the commands, each imported from its own module when it is called."""

import sys
from importlib import import_module, metadata
from io import TextIOWrapper
from traceback import clear_frames
from typing import Annotated, Any, cast

import typer
from pydantic import ValidationError
from rich.console import Console
from typer.core import TyperCommand, TyperGroup

from protocol.faults import worded

COMMANDS = {
    "demo": (
        "blindtally.demo.command:demo",
        "Find what is common among simulated devices, over a real server on this machine.",
    ),
    "serve": (
        "blindtally.serve:serve",
        "Serve studies to analysts and devices, until Ctrl-C.",
    ),
    "keys": ("blindtally.access:keys", "API keys of operators and analysts."),
    "tokens": ("blindtally.access:tokens", "Enrolment tokens, which let devices in."),
    "audit": (
        "blindtally.access:audit",
        "Show who did what, and who was refused; the newest first.",
    ),
    "fleet": (
        "blindtally.fleet:fleet",
        "Let simulated devices take part in a study, round after round, until it is over.",
    ),
    "registrar": (
        "blindtally.registrar:registrar",
        "Make the key of a registrar, and print its public half for a study's terms.",
    ),
    "simulate": (
        "blindtally.simulate:simulate",
        "Simulate a study over a data file and measure what it finds.",
    ),
    "params": (
        "blindtally.params:params",
        "Compute what a cohort needs to be safe, and what that costs each device and the server.",
    ),
    "plan": (
        "blindtally.plan:plan",
        "Recommend a mechanism and its parameters, and predict what a study will find.",
    ),
    "query": (
        "blindtally.query:query",
        "Ask a study for quantiles, ranks, ranges, frequencies of prefixes, or its whole CDF.",
    ),
    "privacy": (
        "blindtally.privacy:privacy",
        "Tell what was released about devices, what each party learned of it, and what is left.",
    ),
    "mechanisms": (
        "blindtally.mechanisms:mechanisms",
        "List the mechanisms, each with what it is for, what it promises and what it costs.",
    ),
    "figures": (
        "blindtally.figures.command:app",
        "Draw the figures of the paper from data, and what else docs/results.md shows.",
    ),
    "doctor": (
        "blindtally.doctor.command:doctor",
        "Check this machine and the service's settings; say what is wrong, and how to mend it.",
    ),
}


class Commands(TyperGroup):
    """The table above as a group: a command is imported to be called, and not to be listed."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 (they are typer's)
        super().__init__(**settings)
        self.commands = {
            name: TyperCommand(name, help=about) for name, (_, about) in COMMANDS.items()
        }

    def list_commands(self, ctx: object) -> list[str]:
        """Return the commands' names, in the table's order."""
        del ctx
        return list(COMMANDS)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 (typer's)
        """Return the command that is called, imported, with its name and arguments."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, found and load(args[0]), rest

    def invoke(self, ctx: Any) -> object:  # noqa: ANN401 (typer keeps its class to itself)
        """Run a command; say that Ctrl-C stopped it, and of a number the ends of its range."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            fault = error.__cause__
            if isinstance(fault, ValidationError):
                ends = {"minimum": vars(error.param).get("min")}
                ends["maximum"] = vars(error.param).get("max")
                error.message = worded(fault.errors()[0], ends | {"items": ends})
            raise
        except KeyboardInterrupt as stop:
            clear_frames(stop.__traceback__)  # bars that are still up go, and do not come back
            Console(stderr=True).show_cursor()
            typer.echo("stopped", err=True)
            raise typer.Exit(130) from None


def load(name: str) -> TyperCommand | TyperGroup:
    """Import a command of the table."""
    module, function = COMMANDS[name][0].split(":")
    found = getattr(import_module(module), function)
    if isinstance(found, typer.Typer):  # a command of commands
        group = cast("TyperGroup", typer.main.get_command(found))
        for command in (group, *group.commands.values()):
            command.help = _flowing(command.help or "")
        return group
    one = typer.Typer(add_completion=False)
    one.command(name)(found)
    command = cast("TyperCommand", typer.main.get_command(one))
    command.help = _flowing(command.help or "")
    return command


def _flowing(text: str) -> str:
    """Return a help whose paragraphs break where the terminal ends, and examples where they do."""
    parts = text.split("\n\n")
    return "\n\n".join(p if p.startswith("Example:") else " ".join(p.split()) for p in parts)


app = typer.Typer(
    name="blindtally",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(metadata.version("blindtally"))
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    """Learn what is common among many devices, and see what none of them holds.

    Each command has its --help, with an example. Exit codes: 0 done, 1 could not be done, 2 asked
    wrongly, 130 stopped by Ctrl-C.

    Example:
      blindtally doctor
      blindtally simulate tracked --data link_user_domains --rounds 5
    """
    del version
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # an item must not fail for a narrow terminal
            stream.reconfigure(errors="backslashreplace")
