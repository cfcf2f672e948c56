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
    "demo": "blindtally.demo.command:demo",
    "serve": "blindtally.serve:serve",
    "keys": "blindtally.access:keys",
    "tokens": "blindtally.access:tokens",
    "audit": "blindtally.access:audit",
    "fleet": "blindtally.fleet:fleet",
    "registrar": "blindtally.registrar:registrar",
    "simulate": "blindtally.simulate:simulate",
    "params": "blindtally.params:params",
    "plan": "blindtally.plan:plan",
    "query": "blindtally.query:query",
    "privacy": "blindtally.privacy:privacy",
    "mechanisms": "blindtally.mechanisms:mechanisms",
    "figures": "blindtally.figures.command:app",
    "doctor": "blindtally.doctor.command:doctor",
}


class Commands(TyperGroup):
    """The table above as a group, so that no command waits for another's imports."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 (they are typer's)
        super().__init__(**settings)
        self.commands = dict.fromkeys(
            COMMANDS, cast("Any", None)
        )  # of which it proposes one for a wrong word

    def list_commands(self, ctx: object) -> list[str]:
        """Return the commands' names, in the table's order."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: object, cmd_name: str) -> TyperCommand | TyperGroup | None:
        """Return the command named so, or None."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module, function = COMMANDS[cmd_name].split(":")
        found = getattr(import_module(module), function)
        if isinstance(found, typer.Typer):  # a command of commands
            group = cast("TyperGroup", typer.main.get_command(found))
            for command in (group, *group.commands.values()):
                command.help = _flowing(command.help or "")
            return group
        one = typer.Typer(add_completion=False)
        one.command(cmd_name)(found)
        command = cast("TyperCommand", typer.main.get_command(one))
        command.help = _flowing(command.help or "")
        return command

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
