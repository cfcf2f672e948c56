"""`blindtally doctor`: problems of this machine and of the service's settings, with advice.

No check changes anything: a database is not created, and a port is bound for an instant only.
"""

from dataclasses import asdict
from typing import Annotated, Final

import typer
from typer import Option

from blindtally.console.output_files import JsonOption, write_json
from blindtally.console.progress import spinner
from blindtally.console.terminal import print_line

_FROM_ENVIRONMENT: Final = "from the environment"  # an invalid value must not stop this command


def doctor(
    database_url: Annotated[
        str | None,
        Option("--database", help="Database of the service.", show_default=_FROM_ENVIRONMENT),
    ] = None,
    host: Annotated[
        str | None, Option(help="Address on which to listen.", show_default=_FROM_ENVIRONMENT)
    ] = None,
    port: Annotated[
        int | None, Option(help="Port on which to listen.", show_default=_FROM_ENVIRONMENT)
    ] = None,
    json_path: JsonOption = None,
) -> None:
    """Check this machine and the service's settings, and show problems with advice.

    Nothing is changed. The exit code is 1 after an error, and 0 after warnings.

    Example:
      blindtally doctor
      blindtally doctor --database postgresql://me@localhost/blindtally --json -
    """
    from blindtally.doctor_checks import STATE_STYLES, run_checks, show_checks

    with spinner("checking"):
        checks = list(run_checks({"database_url": database_url, "host": host, "port": port}))
    states = [check.state for check in checks]
    if json_path != "-":
        show_checks(checks)
        print_line()
        print_line(f"errors: {states.count('error')}, warnings: {states.count('warning')}")
    worst = max(states, key=[*STATE_STYLES].index)
    write_json(json_path, {"state": worst, "checks": [asdict(check) for check in checks]})
    if worst == "error":
        raise typer.Exit(1)
