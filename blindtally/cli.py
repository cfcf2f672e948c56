"""The command `blindtally`: its subcommands, each imported when it is called."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module, metadata
from io import TextIOWrapper
from keyword import iskeyword
from traceback import clear_frames
from typing import Annotated, Any, cast

import typer
from pydantic import ValidationError
from typer.core import TyperCommand, TyperGroup

from blindtally.console.errors import exit_with_error
from blindtally.console.output_files import private_files
from blindtally.console.terminal import Terminal, print_line, protect_terminal
from blindtally.garbage_collection import collect_rarely
from blindtally.own_packages import import_own
from protocol.printable import escape_hidden
from protocol.validation_errors import describe_fault

collect_rarely()
import_own(["server"])  # as `blindtally` does for the packages of analysts and devices

# The first sentence of each command's help, which is listed without importing the command.
COMMANDS = {
    "demo": "Find what is common among simulated devices, over a real server on this machine.",
    "try": "Ask your own file: each user in it is a simulated device of a study on this machine.",
    "serve": "Serve studies to analysts and devices, until Ctrl-C.",
    "login": "Save a service and its API key, which other commands then use without options.",
    "logout": "Remove a profile, with its key, from this machine.",
    "keys": "API keys of operators and analysts.",
    "tokens": "Enrolment tokens, which admit devices.",
    "audit": "Show the actions of users and the refused requests, the newest first.",
    "backup": "Save a SQLite database in a new file, while it is served or not.",
    "restore": "Restore a SQLite database from a backup, while no service has it.",
    "clock": "Show the clock of a service, and the time by which it deletes old rows.",
    "fleet": "Let simulated devices take part in a study, round after round, until it is over.",
    "registrar": "The registrar, which signs the identities of real devices and seats rounds.",
    "member": "Serve as a member of committees that open one-shot sums, until Ctrl-C.",
    "simulate": "Simulate a study over a data file and compare its answer with the truth.",
    "params": "Compute the secure parameters of a sum, and its cost to devices and server.",
    "plan": "Recommend a mechanism and its parameters, and predict the results of a study.",
    "studies": "Create, read, compare, stop and delete studies.",
    "watch": "Follow a study until it ends, with a line for each round that begins or finishes.",
    "query": "Show the answer of a study: common items, means, medians, or other shares.",
    "changes": "Show heavy hitters that are rising, falling, new or gone, or rates by round.",
    "privacy": "Show released counts, the privacy loss to each party, and the remaining budget.",
    "mechanisms": "List the mechanisms, each with its purpose, guarantee and cost.",
    "doctor": "Check this machine and the service's settings, and show problems with advice.",
}
# Modules of the commands that are not in their own module of `blindtally.commands`.
_MODULES = {
    "demo": "blindtally.demo.command",
    "try": "blindtally.demo.command",
    "keys": "blindtally.commands.credentials_and_audit",
    "tokens": "blindtally.commands.credentials_and_audit",
    "audit": "blindtally.commands.credentials_and_audit",
    "restore": "blindtally.commands.backup",
    "simulate": "blindtally.simulate.command",
    "logout": "blindtally.commands.login",
}
# The extra that brings what a command needs.
_EXTRAS = {
    "demo": "demo",
    "try": "demo",
    "doctor": "server",
    "serve": "server",
    "member": "server",
    "registrar": "server",
    "keys": "server",
    "tokens": "server",
    "audit": "server",
    "backup": "server",
    "restore": "server",
    "clock": "server",
}
_DEFAULT_EXTRA = "simulate"
# The registry has this name too, and cannot be imported when an error has it.
_PLUG_IN_GROUP = "blindtally.mechanisms"
_FULL_ERRORS = {errno.ENOSPC, errno.EDQUOT}
_OWN_PACKAGES = {"blindtally", "client", "paper", "protocol", "secagg", "server"}


@contextmanager
def _escaping_usage_errors() -> Iterator[None]:
    """Escape hidden characters in errors that typer prints; they repeat arguments."""
    try:
        yield
    except Exception as error:
        # The class is one of typer or of click, depending on their versions.
        if hasattr(error, "format_message") and hasattr(error, "message"):
            error.message = escape_hidden(error.message)
        raise


class CommandGroup(TyperGroup):
    """A group that reports wrong numbers with their range, and Ctrl-C in one word."""

    def make_context(self, *args: Any, **settings: Any) -> Any:  # noqa: ANN401 (typer's)
        with _escaping_usage_errors():
            return super().make_context(*args, **settings)

    def invoke(self, ctx: Any) -> object:  # noqa: ANN401 (typer keeps its class to itself)
        """Run a command; report Ctrl-C, a missing extra, and the range of an option's number."""
        try:
            with _escaping_usage_errors():
                return super().invoke(ctx)
        except typer.BadParameter as error:
            fault = error.__cause__
            if isinstance(fault, ValidationError):
                ends = {"minimum": vars(error.param).get("min")}
                ends["maximum"] = vars(error.param).get("max")
                first = fault.errors()[0]
                words = describe_fault(first, ends | {"items": ends})
                error.message = f"{words}, not {str(first['input'])[:40]!r}"
            raise
        except ModuleNotFoundError as error:
            raise _missing_part(ctx.invoked_subcommand, error) from None
        except ImportError as error:
            if error.name != _PLUG_IN_GROUP:
                raise
            raise exit_with_error(str(error)) from None
        except OSError as error:
            # No command expects this error of `Path.exists`.
            if error.errno != errno.ENAMETOOLONG:
                raise
            raise exit_with_error(f"{error.filename}: {error.strerror}") from None
        except KeyboardInterrupt as stop:
            clear_frames(stop.__traceback__)  # so that progress bars are removed
            Terminal(stderr=True).show_cursor()
            print_line("stopped", err=True)
            raise typer.Exit(130) from None


@contextmanager
def _flushing_stdout() -> Iterator[None]:
    """Flush standard output at the end, so that a full disk is an error of the command."""
    try:
        yield
    finally:
        if sys.stdout is not None:  # it may be closed
            sys.stdout.flush()


class LazyCommandGroup(CommandGroup):
    """Group of the commands above, each imported when it is called, not when it is listed."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 (they are typer's)
        super().__init__(**settings)
        self.help = _reflow_help(self.help or "")
        self.commands = {
            name: TyperCommand(name, help=sentence) for name, sentence in COMMANDS.items()
        }

    def main(self, *args: Any, **settings: Any) -> Any:  # noqa: ANN401 (typer's)
        """Run the command line; report an output that cannot be written in one line."""
        protect_terminal()
        try:
            with private_files(), _flushing_stdout():
                return super().main(*args, **settings)
        except OSError as error:
            if error.errno not in _FULL_ERRORS:
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the rest
            exit_with_error(f"cannot write the output: {error.strerror}")
            sys.exit(1)

    def list_commands(self, ctx: object) -> list[str]:
        del ctx
        return list(COMMANDS)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 (typer's)
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and load_command(args[0]), rest


def _missing_part(command: str, error: ModuleNotFoundError) -> typer.Exit:
    """Report the extra that is missing; raise other errors again."""
    from client.extras_installation import describe_missing  # noqa: PLC0415 (for errors only)

    if (error.name or "").partition(".")[0] in _OWN_PACKAGES:
        raise error
    missing = describe_missing(error, _EXTRAS.get(command, _DEFAULT_EXTRA))
    return exit_with_error(f"{command} needs {missing}", code=1)


def load_command(name: str) -> TyperCommand | TyperGroup:
    module = import_module(_MODULES.get(name, f"blindtally.commands.{name}"))
    target = getattr(module, f"{name}_file" if iskeyword(name) else name)
    if isinstance(target, typer.Typer):  # a group of subcommands
        group = cast("TyperGroup", typer.main.get_command(target))
        for command in (group, *group.commands.values()):
            command.help = _reflow_help(command.help or "")
        return group
    single = typer.Typer(add_completion=False)
    single.command(name, cls=vars(module).get("COMMAND_CLASS", TyperCommand))(target)
    command = cast("TyperCommand", typer.main.get_command(single))
    command.help = _reflow_help(command.help or "")
    return command


def _reflow_help(text: str) -> str:
    """Join the lines of each paragraph, which the terminal wraps; examples keep their lines."""
    first, *rest = (
        part if part.startswith("Example:") else " ".join(part.split())
        for part in text.split("\n\n")
    )
    # typer removes the common indent of all lines after the first of `rest`: an empty one keeps it.
    return "\n\n".join([first, *([f"\n{rest[0]}", *rest[1:]] if rest else [])])


app = typer.Typer(
    name="blindtally",
    cls=LazyCommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # `protect_terminal` prints them
)


def _show_version(requested: bool) -> None:
    if requested:
        print_line(metadata.version("blindtally"))
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Count the common items of many devices, without seeing the items of any one device.

    Each command has --help with an example. Exit codes: 0 success, 1 failure, 2 wrong options or
    data, 130 Ctrl-C (`serve`: 0).

    Example:
      blindtally doctor
      blindtally simulate tracked --data link_user_domains --rounds 5
    """
    del version
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal without Unicode must not fail
            stream.reconfigure(errors="backslashreplace")
