"""A run of the demo: its server, its fleet, and its files."""

import os
import sys
import time
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import typer

from blindtally.console.errors import exit_with_error
from blindtally.console.output_files import write_json
from blindtally.console.service_connection import service_error_exit
from blindtally.console.terminal import Terminal, print_line
from blindtally.demo.server_process import ServerDownError, ServerProcess, StoppedBySignalError
from blindtally.fleet_run.fleet_setup import FleetSetup, usable_processors
from blindtally.fleet_run.results import InexactSumError, StudyResults, summarize_study
from blindtally.fleet_run.run_on_terminal import open_shard_pool
from blindtally.fleet_run.screen import Screen, print_results
from blindtally.fleet_run.study_run import StudyObservers, create_study, run_fleet
from blindtally.fleet_run.study_status import report_status
from client.analyst.analyst import Analyst
from client.errors import ServiceError, ServiceUnreachableError
from client.fleet.fleet import NobodyEnteredError
from client.fleet.shards import LostWorkersError
from client.process_files import OpenFilesError

_MAX_WORKERS: Final = 2  # processes of devices; the server is another one


def run_demo(
    console: Terminal, folder: Path, setup: FleetSetup, settings: dict[str, Any]
) -> StudyResults:
    """Return the results, or report the failure and the files that are kept."""
    service = ServerProcess(folder)
    try:
        console.print(
            f"starting a server: {service.url}/ shows the study when it is ready; all files are "
            f"kept in {folder}/",
            style="dim",
            soft_wrap=True,
        )
        with service.handling_signals(), service, Screen(console, setup.rounds) as screen:
            screen.print_line(f"ready; the key for its page: {service.key}")
            config = replace(setup.fleet_config, api_key=service.key, token=service.token)
            return _run_study(service, screen, replace(setup, fleet_config=config), settings)
    except (KeyboardInterrupt, StoppedBySignalError) as stop:
        print_line(err=True)
        print_line(f"stopped. Kept: {service.database}, {service.log}", err=True)
        raise typer.Exit(stop.code if isinstance(stop, StoppedBySignalError) else 130) from None
    except InexactSumError as error:
        raise exit_with_error(
            f"A SUM IS WRONG: {error}; please report this, with the folder {folder}/", code=1
        ) from None
    except ServerDownError as error:
        end = service_error_exit(error)
        for line in error.__notes__:
            print_line(f"    {line}", err=True)
        raise end from None
    except (
        ServiceError,
        NobodyEnteredError,
        ServiceUnreachableError,
        LostWorkersError,
        OpenFilesError,
    ) as error:
        raise service_error_exit(error) from None


def _run_study(
    service: ServerProcess, screen: Screen, setup: FleetSetup, settings: dict[str, Any]
) -> StudyResults:
    """Return the results of a new study, whose devices run in a process for each processor."""
    began = time.monotonic()
    with (
        open_shard_pool(min(_MAX_WORKERS, usable_processors()), None) as workers,
        Analyst(service.url, service.key) as analyst,
    ):
        study = create_study(analyst, setup)
        observers = StudyObservers(
            screen.show_step,
            screen.show_round,
            service.check,
            partial(
                report_status,
                service.url,
                service.key,
                study.id,
                screen,
                setup.fleet_config.patience,
                has_steps=workers is None,
            ),
        )
        played, rounds = run_fleet(service.url, study, setup, observers, workers)
        rows = study.heavy_hitters()
    seconds = time.monotonic() - began
    return summarize_study(
        study.view, rows, played, rounds=rounds, seconds=seconds, settings=settings
    )


def write_results(
    console: Terminal, folder: Path, results: StudyResults, json_path: str | None
) -> None:
    write_json(str(folder / "results.json"), results.as_json(), is_secret=True)
    write_json(json_path, results.as_json())
    print_results(console, results)
    names = ", ".join(sorted(path.name for path in folder.iterdir()))
    console.print()
    console.print(f"in {folder}/: {names}", soft_wrap=True)
    restart = f"the server has stopped; start it again: {_restart_command(folder)}"
    console.print(restart, soft_wrap=True)
    score = results.score
    console.print(f"F1 {score.f1:.2f} (precision {score.precision:.2f}, recall {score.recall:.2f})")
    console.print(_summary(results))


def _summary(results: StudyResults) -> str:
    """Return two sentences: the number of heavy hitters, and the sums that the server saw."""
    count = len(results.heavy_hitters)
    items = "1 item that is" if count == 1 else f"{count} items that are"
    sums = [each.participants for each in results.rounds if each.exact]
    seen = f"{len(sums)} sums, each of {min(sums)} devices or more" if sums else "no sum"
    if len(sums) == 1:
        seen = f"one sum, of {sums[0]} devices"
    return (
        f"Found {items} held {results.threshold:g} times or more. "
        f"The server saw {seen}; it could not see what any single device holds."
    )


def _restart_command(folder: Path) -> str:
    program = Path(sys.argv[0])
    named = os.path.relpath(program) if program.name == "blindtally" else "blindtally"
    return f"{named} serve --open --database sqlite:///{folder / 'blindtally.db'}"


def create_folder(out: Path | None) -> Path:
    now = datetime.now().astimezone()
    folder = out or Path(f"blindtally-demo-{now:%Y%m%d-%H%M%S}")
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty: name another folder with --out")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
