"""Commands of many processes that are stopped, or lose one: as whoever types them sees it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from blindtally.demo.service import ServerProcess
from blindtally.parallel import LOCAL_CLUSTER

SECURE = (
    "blindtally",
    "simulate",
    "adaptive-iblt",
    "--data",
    "words",
    "--clients",
    "30",
    "--secagg",
)
FIGURE = ("paper", "fig1", "--data", "words", "--tokens", "3000", "--words", "900")
TWO, DASK = ("--workers", "2"), ("--workers", "2", "--dask", LOCAL_CLUSTER)
AT_WORK = 3.0  # seconds of a processor: a process has imported what it needs, and done some
PATIENCE = 120


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start a module's command in a group of processes of its own, as a terminal does."""
    command = [sys.executable, "-m", *arguments, "--json", "out.json"]
    with subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def worker_of(command: subprocess.Popen[str], seconds: float) -> psutil.Process:
    """Return a process that works for a command, once one took so much of a processor."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        assert command.poll() is None, command.stderr.read() if command.stderr else ""
        for one in psutil.Process(command.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # that was killed before
                if "--multiprocessing-fork" in one.cmdline() and one.cpu_times().user >= seconds:
                    return one
        time.sleep(0.05)
    raise AssertionError(f"no worker in {PATIENCE} s")


def interrupted(
    command: subprocess.Popen[str], send: Callable[[int, int], None], seconds: float = AT_WORK
) -> str:
    """Stop a command when a worker of its is at work; return what it said of it."""
    worker_of(command, seconds)
    started = psutil.Process(command.pid).children(recursive=True)
    send(command.pid, signal.SIGINT)
    _, said = command.communicate(timeout=PATIENCE)
    assert command.returncode == 130, said
    _, alive = psutil.wait_procs(started, timeout=10)
    assert alive == []
    assert "Traceback" not in said
    return str(said)


@pytest.mark.parametrize("how", [TWO, DASK], ids=["processes", "dask"])
def test_ctrl_c_in_a_terminal_stops_all_and_keeps_what_is_over(
    tmp_path: Path, how: tuple[str, ...]
) -> None:
    with started(tmp_path, *SECURE, "--rounds", "5000", *how) as command:
        said = interrupted(command, os.killpg)
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["partial"] is True
    rounds = len(found["thresholds"])
    assert rounds > 0
    assert said == f"stopped; the result is partial: {rounds} rounds of 5000\n"


def test_an_interrupt_of_who_asks_alone_stops_all(tmp_path: Path) -> None:
    with started(tmp_path, *FIGURE, "--runs", "1000", *TWO) as command:
        assert interrupted(command, os.kill) == "stopped\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "asked", [(*SECURE, "--rounds", "4"), (*FIGURE, "--runs", "8", "--rounds", "5")]
)
def test_processes_that_are_killed_cost_time_and_no_result(
    tmp_path: Path, asked: tuple[str, ...]
) -> None:
    told: list[Any] = []
    for how, deaths in (((), 0), (TWO, 2)):
        with started(tmp_path, *asked, *how) as command:
            for _ in range(deaths):
                worker_of(command, 0.5).kill()
            _, said = command.communicate(timeout=PATIENCE)
            assert command.returncode == 0, said
        told.append(json.loads((tmp_path / "out.json").read_text()))
    assert told[0] == told[1]


def rounds_of(command: subprocess.Popen[str]) -> None:
    """Wait until a second round of a fleet is told of."""
    assert command.stderr is not None
    for line in command.stderr:
        if line.startswith("round 2"):
            return


def kill_amid_a_round(command: subprocess.Popen[str]) -> None:
    """Kill workers until the command ends of it: one that dies between two rounds is replaced."""
    until = time.monotonic() + PATIENCE
    while command.poll() is None and time.monotonic() < until:
        with suppress(psutil.NoSuchProcess):
            for one in psutil.Process(command.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    if "--multiprocessing-fork" in one.cmdline():
                        one.kill()
        time.sleep(0.2)


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_a_fleet_that_ends_before_its_study_keeps_the_rounds_that_are_over(
    tmp_path: Path, end: str
) -> None:
    options = ("--create", "--devices", "12", "--rounds", "9", "--min-cohort", "5", *TWO)
    with (
        ServerProcess(tmp_path, is_open=True) as service,
        started(tmp_path, "blindtally", "fleet", "--url", service.url, *options) as command,
    ):
        rounds_of(command)
        workers = psutil.Process(command.pid).children(recursive=True)
        if end == "stopped":
            os.killpg(command.pid, signal.SIGINT)
        else:
            kill_amid_a_round(command)
        _, said = command.communicate(timeout=PATIENCE)
        _, alive = psutil.wait_procs(workers, timeout=10)
    assert alive == []
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["partial"] is True
    rounds = len(found["rounds"])
    assert 0 < rounds < 9
    assert f"the result is partial: {rounds} rounds of 9\n" in said
    why, code = {
        "stopped": ("stopped; the study goes on without these devices", 130),
        "killed": ("a worker died, perhaps because it ran out of memory, and its devices with it", 1),
    }[end]
    assert why in said
    assert command.returncode == code
