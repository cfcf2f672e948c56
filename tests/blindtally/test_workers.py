"""Tests of workers: results do not depend on them, and every failure has its reason."""

import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from pathlib import Path
from typing import Any

import pytest
import typer

from blindtally import workers
from blindtally.workers import LOCAL_CLUSTER, map_bounded, open_workers
from client.extras_installation import install_command
from paper.options import RunOptions


def square(number: int) -> tuple[int, int]:
    return number * number, os.getpid()


def refuse(number: int) -> int:
    raise ValueError(f"{number} is wrong")


WORKERS: dict[str, tuple[int, str | None]] = {"processes": (2, None), "dask": (2, LOCAL_CLUSTER)}


@pytest.mark.parametrize(("count", "dask"), [(1, None), WORKERS["processes"]])
def test_results_do_not_depend_on_the_workers(count: int, dask: str | None) -> None:
    results = RunOptions(1, 1, count, dask).map(square, range(9), "squares")
    assert [number for number, _ in results] == [number**2 for number in range(9)]
    assert (os.getpid() in {pid for _, pid in results}) == (count == 1)
    with pytest.raises(ValueError, match="7 is wrong"):
        RunOptions(1, 1, count, dask).map(refuse, [7], "refusals")


def die(_number: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_task_that_kills_every_worker_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        RunOptions(1, 1, 2, None).map(die, [3], "tasks")
    message = capsys.readouterr().err
    assert "several workers died of the same task" in message
    assert "memory ran out: use fewer --workers" in message
    assert "killed by SIGKILL" in message


def begin(folder: Path) -> None:
    """Record that the task began, and kill the worker."""
    (folder / str(os.getpid())).touch()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("dask", [None, LOCAL_CLUSTER])
def test_a_task_that_runs_once_is_not_repeated(tmp_path: Path, dask: str | None) -> None:
    with open_workers(2, dask, once=True) as (executor, workers):
        assert executor is not None
        assert workers == 2
        assert executor.submit(abs, -1).result(60) == 1
        with pytest.raises(BrokenExecutor):
            executor.submit(begin, tmp_path).result(60)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_scheduler_that_does_not_answer_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(workers, "_CONNECT_TIMEOUT_SECONDS", 0.2)
    with pytest.raises(typer.Exit), open_workers(1, "tcp://127.0.0.1:9"):
        pass
    assert "no Dask scheduler answers at tcp://127.0.0.1:9" in capsys.readouterr().err
    with pytest.raises(typer.Exit), open_workers(1, "nowhere"):
        pass
    assert "nowhere" in capsys.readouterr().err


def test_without_dask_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(typer.Exit), open_workers(1, LOCAL_CLUSTER):
        pass
    assert install_command("dask") in capsys.readouterr().err


class Cluster:
    """Stand-in for Dask's client, whose workers return what `run` does."""

    def __init__(self, run: Callable[[], dict[str, str]] | None) -> None:
        self._run = run

    def wait_for_workers(self, wanted: int, timeout: float) -> None:
        """Raise an error if there are no workers."""
        if self._run is None:
            raise TimeoutError(f"{wanted} in {timeout} s")

    def run(self, _work: object) -> dict[str, str]:
        """Return the versions of the workers."""
        assert self._run is not None
        return self._run()

    def nthreads(self) -> dict[str, int]:
        """Return the threads of each worker."""
        return {"one": 2, "other": 3}


def without() -> dict[str, str]:
    raise ModuleNotFoundError("No module named 'blindtally'")


@pytest.mark.parametrize(
    ("run", "fault"),
    [
        (None, "Dask at tcp://there has no workers"),
        (lambda: {"one": "0.0.9"}, "workers at tcp://there have blindtally 0.0.9, and here is"),
        (without, "cannot run blindtally: No module named 'blindtally'"),
    ],
)
def test_workers_that_cannot_run_blindtally_are_reported(
    run: Any, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as stopped:
        workers.checked_thread_count(Cluster(run), "tcp://there")
    assert stopped.value.exit_code == 1
    message = capsys.readouterr().err
    assert fault in message
    assert message.count("\n") == 1


def test_a_lost_scheduler_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    class Cancelling(Executor):
        def submit(self, *_asked: Any, **_options: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.cancel()  # as Dask's client does when it loses its scheduler
            return future

    with pytest.raises(typer.Exit):
        list(map_bounded(Cancelling(), square, [1], 2))
    assert "the Dask scheduler is lost" in capsys.readouterr().err
