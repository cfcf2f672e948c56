"""The command `blindtally demo`: options, files, and the order of events."""

import os
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from random import SystemRandom
from typing import Annotated, Any

import stamina.instrumentation
import typer
from rich.console import Console
from typer import Option

from blindtally.console.errors import exit_with_error
from blindtally.console.options import (
    ContributionOption,
    DropoutOption,
    FleetDataOption,
    FleetRoundsOption,
    ModeOption,
    SeedOption,
)
from blindtally.console.output_files import JsonOption, write_json
from blindtally.console.service_connection import service_error_exit
from blindtally.demo.picture import draw
from blindtally.demo.server_process import ServerDownError, ServerProcess, StoppedBySignalError
from blindtally.fleet_run.results import InexactSumError, StudyResults
from blindtally.fleet_run.screen import Screen, print_results
from blindtally.fleet_run.setup import (
    DEFAULT_CONTRIBUTION,
    DEFAULT_DEVICES,
    DEFAULT_DROPOUT,
    DEFAULT_ROUNDS,
    build_setup,
)
from blindtally.fleet_run.study_run import FleetSetup, StudyObservers, run_demo_study
from client.errors import ServiceError, ServiceUnreachableError
from client.extras_installation import install_command
from client.fleet.fleet import NobodyEnteredError
from secagg.keys import Identity


def demo(
    devices: Annotated[int, Option(min=3, help="Number of devices in a round.")] = DEFAULT_DEVICES,
    rounds: FleetRoundsOption = DEFAULT_ROUNDS,
    dropout: DropoutOption = DEFAULT_DROPOUT,
    data: FleetDataOption = None,
    seed: SeedOption = 4,
    threshold: Annotated[
        float | None,
        Option(
            min=1, help="Total count from which an item is a heavy hitter.", show_default="by size"
        ),
    ] = None,
    contribution: ContributionOption = DEFAULT_CONTRIBUTION,
    words: Annotated[
        int | None,
        Option(
            min=1,
            help="Maximum number of 16-bit words that a device sends in a round.",
            show_default="by size",
        ),
    ] = None,
    mode: ModeOption = "active",
    json_path: JsonOption = None,
    out: Annotated[
        Path | None, Option(help="Folder for the results.", show_default="by the clock")
    ] = None,
) -> None:
    """Find what is common among simulated devices, over a real server on this machine.

    Starts a server, creates a study over REST and lets a fleet of devices, each with its own
    items and enrolled by a registrar, take part over HTTP. Some devices drop out. Every sum is
    compared with the vectors in it.

    Example:
      blindtally demo
      blindtally demo --devices 60 --rounds 3 --out trial --json trial.json
    """
    options = locals().items()
    settings = {key: str(value) if isinstance(value, Path) else value for key, value in options}
    console = Console(stderr=json_path == "-")
    try:
        setup = build_setup(
            data,
            devices=devices,
            rounds=rounds,
            dropout=dropout,
            seed=seed,
            threshold=threshold,
            contribution=contribution,
            words=words,
            mode=mode,
            registrar=Identity.generate(SystemRandom()),
        )
        folder = _create_folder(out)
    except (ValueError, OSError) as error:
        raise exit_with_error(error) from None
    stamina.instrumentation.set_on_retry_hooks([])  # hundreds of devices would log the same
    results = _run_demo(console, folder, setup, settings)
    _write_results(console, folder, results, json_path)


def _run_demo(
    console: Console, folder: Path, setup: FleetSetup, settings: dict[str, Any]
) -> StudyResults:
    """Return the results, or report the failure and the files that are kept."""
    service = ServerProcess(folder)
    try:
        console.print(f"[dim]starting a server; all files are kept in[/] {folder}/")
        with service.handling_signals(), service, Screen(console, setup.rounds) as screen:
            observers = StudyObservers(screen.show_step, screen.show_round, service.check)
            config = replace(setup.fleet_config, api_key=service.key, token=service.token)
            return run_demo_study(
                service.url, replace(setup, fleet_config=config), observers, settings
            )
    except (KeyboardInterrupt, StoppedBySignalError) as stop:
        typer.echo(f"\nstopped. Kept: {service.database}, {service.log}", err=True)
        raise typer.Exit(stop.code if isinstance(stop, StoppedBySignalError) else 130) from None
    except InexactSumError as error:
        raise exit_with_error(
            f"A SUM IS WRONG: {error}; please report this, with the folder {folder}/", code=1
        ) from None
    except (ServerDownError, ServiceError, NobodyEnteredError, ServiceUnreachableError) as error:
        raise service_error_exit(error) from None


def _write_results(
    console: Console, folder: Path, results: StudyResults, json_path: str | None
) -> None:
    write_json(str(folder / "results.json"), results.as_json())
    write_json(json_path, results.as_json())
    print_results(console, results)
    try:
        draw(results, folder)
    except ImportError:
        console.print(
            f"no picture: matplotlib is missing ({install_command('demo')})", markup=False
        )
    names = ", ".join(sorted(path.name for path in folder.iterdir()))
    console.print(f"\nin {folder}/: {names}", soft_wrap=True)
    console.print(f"serve it again: {_restart_command(folder)}", soft_wrap=True, highlight=False)
    score = results.score
    console.print(
        f"F1 {score.f1:.2f} (precision {score.precision:.2f}, recall {score.recall:.2f})",
        highlight=False,
    )


def _restart_command(folder: Path) -> str:
    program = Path(sys.argv[0])
    named = os.path.relpath(program) if program.name == "blindtally" else "blindtally"
    return f"{named} serve --open --database sqlite:///{folder / 'blindtally.db'}"


def _create_folder(out: Path | None) -> Path:
    now = datetime.now().astimezone()
    folder = out or Path(f"blindtally-demo-{now:%Y%m%d-%H%M%S}")
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty: name another folder with --out")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
