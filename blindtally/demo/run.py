"""A run of the demo or of a trial: its study, its files, and the page that stays."""

import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from blindtally.console.errors import exit_with_error
from blindtally.console.output_files import write_json
from blindtally.console.service_connection import service_error_exit
from blindtally.console.terminal import Terminal, print_line
from blindtally.demo.server_process import ServerDownError, ServerProcess
from blindtally.fleet_run.answer_sentence import answer_sentences
from blindtally.fleet_run.fleet_setup import FleetSetup, usable_processors
from blindtally.fleet_run.results import InexactSumError, StudyResults, summarize_study
from blindtally.fleet_run.run_on_terminal import open_shard_pool
from blindtally.fleet_run.screen import Screen, print_results
from blindtally.fleet_run.study_run import StudyObservers, create_study, run_fleet
from blindtally.fleet_run.study_status import study_url
from client.analyst.analyst import Analyst
from client.errors import ServiceError, ServiceUnreachableError
from client.fleet.fleet import NobodyEnteredError
from client.fleet.shards import LostWorkersError
from client.process_files import OpenFilesError

_MAX_WORKERS: Final = 2  # processes of devices; the server is another one
_CHECK_SECONDS: Final = 0.2  # between two checks that the server of a page runs


@dataclass(frozen=True, slots=True)
class DemoRun:
    """A study on the launched `service`, whose files are in `folder`; its page may stay."""

    console: Terminal
    service: ServerProcess
    folder: Path
    settings: dict[str, Any]
    json_path: str | None
    stays: bool
    is_kept: bool  # the folder, after the run

    def play(self, make_setup: Callable[[], FleetSetup]) -> None:
        """Run the study, and print and write its results; keep its page until Ctrl-C if it stays.

        Raises:
            typer.Exit: if no such study can exist, or the run fails or is stopped.
        """
        try:
            setup = make_setup()
        except (ValueError, OSError) as error:
            self.service.kill()
            shutil.rmtree(self.folder)  # it was empty before
            raise exit_with_error(error) from None
        try:
            self.service.wait_until_ready()
            with Analyst(self.service.url) as analyst:
                results = self._run_study(analyst, setup)
            write_json(str(self.folder / "results.json"), results.as_json(), is_secret=True)
            write_json(self.json_path, results.as_json())
            print_results(self.console, results)
            if self.stays:
                self._keep_page(study_url(self.service.url, results.study))
            else:
                self.service.stop()
                self._print_files()
        except InexactSumError as error:
            raise exit_with_error(
                f"A SUM IS WRONG: {error}; please report this, with a run that has --out", code=1
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

    def _run_study(self, analyst: Analyst, setup: FleetSetup) -> StudyResults:
        """Return the results of a new study; its devices run in a process for each processor."""
        began = time.monotonic()
        study = create_study(analyst, setup)
        url = self.service.url
        self.console.print(f"Question: {setup.name}")
        self.console.print(f"The study's page: {study_url(url, study.id)}", soft_wrap=True)
        if self.service.join is not None:
            from blindtally.demo.join import print_invitation  # noqa: PLC0415 - it needs segno

            print_invitation(self.console, self.service.join.url(study.id))
        with (
            Screen(self.console, setup.rounds) as screen,
            open_shard_pool(min(_MAX_WORKERS, usable_processors()), None) as workers,
        ):
            observers = StudyObservers(screen.show_step, screen.show_round, self.service.check)
            played, rounds = run_fleet(url, study, setup, observers, workers)
        if setup.seats:
            people = sum(each.others_in_sum for each in played)
            self.console.print(
                f"Devices of people in the sum: {people}. True counts are those of the simulated "
                "devices; nobody else knows what people sent, so a sum with theirs is not compared."
            )
        rows = study.heavy_hitters()
        return summarize_study(
            study.refresh(),
            rows,
            played,
            rounds=rounds,
            seconds=time.monotonic() - began,
            settings=self.settings | {"reading": setup.reading.as_json()},
            answer=answer_sentences(study, rows, rounds),
        )

    def _keep_page(self, url: str) -> None:
        """Keep the server until Ctrl-C, which is the usual end.

        Raises:
            StoppedBySignalError: after another signal.
            ServerDownError: if the server ends.
        """
        self.console.print(f"The page stays until you press Ctrl-C: {url}", soft_wrap=True)
        try:
            while True:
                self.service.check()
                time.sleep(_CHECK_SECONDS)
        except KeyboardInterrupt:
            kept = (
                f"all files are in {self.folder}/"
                if self.is_kept
                else "nothing was kept, and --out FOLDER would keep all files"
            )
            self.console.print()
            self.console.print(f"The server has stopped; {kept}.", soft_wrap=True)

    def _print_files(self) -> None:
        database = shlex.quote(self.service.database_url)
        port = self.service.port
        restart = f"{_own_command()} serve --open --port {port} --database {database}"
        self.console.print(f"All files are in {self.folder}/.", soft_wrap=True)
        self.console.print(f"To open the page again: {restart}", soft_wrap=True)


def _own_command() -> str:
    """Return what starts this program again, typed in the same folder."""
    program = sys.argv[0]
    if Path(program).stem != "blindtally":
        return f"{shlex.quote(sys.executable)} -m blindtally"
    # `uvx` and `uv run` put their environment on the path of this process, not of the shell.
    if program == shutil.which("blindtally") and "UV" not in os.environ:
        return "blindtally"
    return shlex.quote(os.path.relpath(program))
