"""The command `blindtally doctor`: its options, and the order of its checks."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from blindtally.doctor import machine, service
from blindtally.doctor.checks import Check, State
from blindtally.output import Json, write_json
from blindtally.progress import waiting

_AS_SET: Final = "as the environment says"  # which must not stop this command if it is wrong
_STYLES: Final[dict[State, str]] = {"ok": "green", "warning": "yellow", "fault": "bold red"}


def doctor(
    database_url: Annotated[
        str | None,
        typer.Option("--database", help="Of the service, as `serve` has it.", show_default=_AS_SET),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Where it is to listen.", show_default=_AS_SET)
    ] = None,
    port: Annotated[int | None, typer.Option(help="At which port.", show_default=_AS_SET)] = None,
    json_path: Json = None,
) -> None:
    """Check this machine and the service's settings; say what is wrong, and how to mend it.

    Nothing is changed. Exit code 1 tells that something is at fault; a warning is no fault.

    Example:
      blindtally doctor
      blindtally doctor --database postgresql://me@localhost/blindtally --json -
    """
    with waiting("looking around"):
        found = list(_checks({"database_url": database_url, "host": host, "port": port}))
    faults = [one for one in found if one.state == "fault"]
    warnings = [one for one in found if one.state == "warning"]
    if json_path != "-":
        _show(found)
        typer.echo(f"\nfaults: {len(faults)}, warnings: {len(warnings)}")
    worst: State = "fault" if faults else "warning" if warnings else "ok"
    write_json(json_path, {"state": worst, "checks": [asdict(one) for one in found]})
    if faults:
        raise typer.Exit(1)


def _checks(flags: dict[str, Any]) -> Iterator[Check]:
    yield machine.python()
    yield machine.system()
    yield from machine.packages()
    yield machine.aes()
    yield machine.kernels()
    yield machine.secure_sum()
    yield machine.open_files()
    yield machine.clock()
    yield machine.disk(Path.cwd(), "databases and results")
    settings, told = service.settings(flags)
    yield from told
    if settings is not None:
        yield from service.database(settings.database_url)
        yield service.port(settings.host, settings.port, settings.tls_certificate)


def _show(found: list[Check]) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for one in found:
        mark = Text(one.state, _STYLES[one.state])
        table.add_row(mark, Text(one.name), Text(one.found))
        if one.mend:
            table.add_row("", "", Text(f"→ {one.mend}"))
    Console(highlight=False).print(table)
