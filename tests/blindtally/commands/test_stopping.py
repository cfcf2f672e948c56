"""Commands with many processes that are stopped or lose one, as their user sees it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from blindtally.demo.server_process import ServerProcess
from blindtally.workers import LOCAL_CLUSTER

SECURE = (
    "blindtally",
    "simulate",
    "adaptive-iblt",
    "--set=sum=pairwise",
    "--data",
    "words",
    "--devices=30",
)
TWO_WORKERS, DASK_WORKERS = ("--workers", "2"), ("--workers", f"{LOCAL_CLUSTER}:2")
BUSY_SECONDS = 3.0  # of a processor: after imports, which may be compiled, and some work
PATIENCE = 120


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start a module's command in its own process group, as a terminal does."""
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


def is_worker(process: psutil.Process) -> bool:
    return "--multiprocessing-fork" in process.cmdline()


def wait_for_busy_worker(command: subprocess.Popen[str]) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        assert command.poll() is None, command.stderr.read() if command.stderr else ""
        for child in psutil.Process(command.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if is_worker(child) and child.cpu_times().user >= BUSY_SECONDS:
                    return
        time.sleep(0.05)
    raise AssertionError(f"no worker in {PATIENCE} s")


def interrupted(command: subprocess.Popen[str], send: Callable[[int, int], None]) -> str:
    """Stop a command when a worker is busy; return its standard error."""
    wait_for_busy_worker(command)
    started = psutil.Process(command.pid).children(recursive=True)
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
    with started(tmp_path, *SECURE, "--rounds", "5000", *how) as command:
        errors = interrupted(command, send)
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["partial"] is True
    rounds = len(document["thresholds"])
    assert rounds > 0
    assert errors == f"stopped; the result is partial: {rounds} rounds of 5000\n"


def wait_for_first_round(command: subprocess.Popen[str]) -> None:
    """Wait until a fleet has printed the result of its first round."""
    assert command.stdout is not None
    for line in command.stdout:
        if line.startswith("round 1/"):
            return


def kill_workers(command: subprocess.Popen[str]) -> None:
    """Kill workers until the command ends: one that dies between two rounds is replaced."""
    until = time.monotonic() + PATIENCE
    while command.poll() is None and time.monotonic() < until:
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(command.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    if is_worker(child):
                        child.kill()
        time.sleep(0.2)


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_a_fleet_that_ends_before_its_study_keeps_the_finished_rounds(
    tmp_path: Path, end: str
) -> None:
    options = ("--create", "--devices", "12", "--rounds", "9", "--min-cohort", "5", *TWO_WORKERS)
    with (
        ServerProcess(tmp_path, is_open=True) as service,
        started(tmp_path, "blindtally", "fleet", "--url", service.url, *options) as command,
    ):
        wait_for_first_round(command)
        workers = psutil.Process(command.pid).children(recursive=True)
        if end == "stopped":
            os.killpg(command.pid, signal.SIGINT)
        else:
            kill_workers(command)
        _, errors = command.communicate(timeout=PATIENCE)
        _, alive = psutil.wait_procs(workers, timeout=10)
    assert alive == []
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["partial"] is True
    rounds = len(document["rounds"])
    assert 0 < rounds < 9
    assert f"the result is partial: round {rounds} of 9\n" in errors
    why, code = {
        "stopped": ("stopped; the study goes on without these devices", 130),
        "killed": ("a worker died, perhaps because it ran out of memory", 1),
    }[end]
    assert why in errors
    assert command.returncode == code
