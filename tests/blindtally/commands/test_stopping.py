"""Commands with many processes that are stopped or lose one, as their user sees it."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from blindtally.cli import app
from blindtally.workers import LOCAL_CLUSTER
from client.fleet.config_and_results import DeviceResult
from client.fleet.fleet import Fleet
from client.fleet.shards import LostWorkersError
from protocol.api.messages import RoundView

SECURE = ("simulate", "adaptive-iblt", "--set=sum=pairwise", "--data=words", "--devices=30")
TWO_WORKERS, DASK_WORKERS = ("--workers", "2"), ("--workers", f"{LOCAL_CLUSTER}:1")
SMALL_FLEET = ("--create", "--devices", "12", "--rounds", "9", "--min-cohort", "5")
PATIENCE = 120


@contextmanager
def started(folder: Path, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command in its own process group, as a terminal does."""
    command = [sys.executable, "-m", "blindtally", *arguments, "--json", "out.json"]
    with subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | environment,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def is_worker(process: psutil.Process) -> bool:
    return "--multiprocessing-fork" in process.cmdline()


def interrupted(command: subprocess.Popen[str], send: Callable[[int, int], None]) -> str:
    """Stop a command once its bar shows a round; return its standard error."""
    assert command.stderr is not None
    seen = ""
    while not re.search(r"[1-9]\d*/5000", seen):
        read = os.read(command.stderr.fileno(), 4096).decode(errors="replace")
        assert read, seen
        seen += read
    started = psutil.Process(command.pid).children(recursive=True)
    assert any(map(is_worker, started))
    send(command.pid, signal.SIGINT)
    _, errors = command.communicate(timeout=PATIENCE)
    assert command.returncode == 130, errors
    _, alive = psutil.wait_procs(started, timeout=10)
    assert alive == []
    assert "Traceback" not in errors
    return str(errors)


@pytest.mark.parametrize(
    ("how", "send"),
    [(TWO_WORKERS, os.kill), (DASK_WORKERS, os.killpg)],
    ids=["processes, the main one only", "dask, as a terminal"],
)
def test_an_interrupt_stops_all_and_keeps_finished_rounds(
    tmp_path: Path, how: tuple[str, ...], send: Callable[[int, int], None]
) -> None:
    with started(tmp_path, *SECURE, "--rounds", "5000", *how, FORCE_COLOR="1") as command:
        errors = interrupted(command, send)
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["partial"] is True
    rounds = len(document["thresholds"])
    assert rounds > 0
    assert errors.endswith(f"stopped; the result is partial: {rounds} rounds of 5000\n")


def wait_for_first_round(command: subprocess.Popen[str]) -> None:
    """Wait until a fleet has printed the result of its first round."""
    assert command.stdout is not None
    for line in command.stdout:
        if line.startswith("round 1/"):
            return


def test_a_fleet_that_is_stopped_keeps_the_finished_rounds(url: str, tmp_path: Path) -> None:
    options = ("--url", url, *SMALL_FLEET, *TWO_WORKERS)
    with started(tmp_path, "fleet", *options) as command:
        wait_for_first_round(command)
        workers = psutil.Process(command.pid).children(recursive=True)
        os.killpg(command.pid, signal.SIGINT)
        _, errors = command.communicate(timeout=PATIENCE)
        _, alive = psutil.wait_procs(workers, timeout=10)
    assert alive == []
    rounds = partial_rounds(tmp_path / "out.json")
    assert f"the result is partial: round {rounds} of 9\n" in errors
    assert "stopped; the study goes on without these devices" in errors
    assert command.returncode == 130


def test_a_fleet_whose_workers_died_keeps_the_finished_rounds(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_round = Fleet.run_round

    async def dying(self: Fleet, view: RoundView) -> tuple[DeviceResult, ...]:
        if view.number == 2:
            raise LostWorkersError("the workers have ended")
        return await run_round(self, view)

    monkeypatch.setattr(Fleet, "run_round", dying)
    out = tmp_path / "out.json"
    result = CliRunner().invoke(app, ["fleet", "--url", url, *SMALL_FLEET, "--json", str(out)])
    assert (result.exit_code, partial_rounds(out)) == (1, 1)
    assert "the result is partial: round 1 of 9\n" in result.stderr
    assert "the workers have ended" in result.stderr


def partial_rounds(file: Path) -> int:
    document = json.loads(file.read_text())
    assert document["partial"] is True
    assert 0 < len(document["rounds"]) < 9
    return len(document["rounds"])
