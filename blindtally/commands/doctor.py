"""`blindtally doctor`: problems of this machine and of the service's settings, with advice."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from blindtally.commands import doctor_checks
from blindtally.commands.doctor_checks import Check, CheckState
from blindtally.console.output import JsonOption, write_json
from blindtally.console.progress import spinner

_FROM_ENVIRONMENT: Final = "from the environment"  # an invalid value must not stop this command
_STATE_STYLES: Final[dict[CheckState, str]] = {
    "ok": "green",
    "warning": "yellow",
    "error": "bold red",
}


def doctor(
    database_url: Annotated[
        str | None,
        typer.Option("--database", help="Database of the service.", show_default=_FROM_ENVIRONMENT),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(help="Address on which to listen.", show_default=_FROM_ENVIRONMENT),
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port on which to listen.", show_default=_FROM_ENVIRONMENT)
    ] = None,
    json_path: JsonOption = None,
) -> None:
    """Check this machine and the service's settings; show what is wrong, and how to fix it.

    Nothing is changed. The exit code is 1 after an error, and 0 after warnings.

    Example:
      blindtally doctor
      blindtally doctor --database postgresql://me@localhost/blindtally --json -
    """
    with spinner("checking"):
        checks = list(_run_checks({"database_url": database_url, "host": host, "port": port}))
    states = [check.state for check in checks]
    if json_path != "-":
        _show(checks)
        typer.echo(f"\nerrors: {states.count('error')}, warnings: {states.count('warning')}")
    worst = max(states, key=[*_STATE_STYLES].index)
    write_json(json_path, {"state": worst, "checks": [asdict(check) for check in checks]})
    if worst == "error":
        raise typer.Exit(1)


def _run_checks(flags: dict[str, Any]) -> Iterator[Check]:
    yield from doctor_checks.packages()
    yield doctor_checks.clock()
    yield doctor_checks.disk(Path.cwd(), "databases and results")
    settings, check = doctor_checks.settings(flags)
    yield check
    if settings is not None:
        yield from doctor_checks.database(settings.database_url)
        yield doctor_checks.port(settings.host, settings.port, settings.tls_certificate)


def _show(checks: list[Check]) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for check in checks:
        state = Text(check.state, _STATE_STYLES[check.state])
        table.add_row(state, Text(check.name), Text(check.detail))
        if check.advice:
            table.add_row("", "", Text(f"→ {check.advice}"))
    Console(highlight=False).print(table)
