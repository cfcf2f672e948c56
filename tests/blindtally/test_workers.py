"""Whoever does the work, and whatever happens to it: what comes of it is the same, or a reason."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from blindtally import workers
from blindtally.cli import app
from blindtally.workers import LOCAL, crowd, each, flowing, hired
from client.extras import install

SHORT = ("--rounds", "3", "--tokens", "300", "--words", "400", "--runs", "2", "--json", "-")


def square(number: int) -> tuple[int, int]:
    return number * number, os.getpid()


def die_once(place: tuple[Path, int]) -> int:
    """Kill the worker that does this first, as a machine that goes does."""
    folder, number = place
    if number == 3 and not (folder / "died").exists():
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def refuse(number: int) -> int:
    raise ValueError(f"{number} is wrong")


@contextmanager
def hire(kind: str) -> Iterator[Executor | None]:
    count, dask = {"nobody": (1, None), "processes": (2, None), "dask": (2, LOCAL)}[kind]
    with hired(count, dask) as executor:
        yield executor


@pytest.mark.parametrize("kind", ["nobody", "processes", "dask"])
def test_results_come_in_order_and_faults_are_those_of_the_work(kind: str) -> None:
    with hire(kind) as executor:
        found = list(each(executor, square, range(9), "squares"))
        assert [number for number, _ in found] == [number**2 for number in range(9)]
        assert (os.getpid() in {pid for _, pid in found}) == (kind == "nobody")
        with pytest.raises(ValueError, match="7 is wrong"):
            list(each(executor, refuse, [7], "refusals"))
        with closing(each(executor, square, range(9), "squares")) as some:
            assert next(iter(some))[0] == 0  # whoever stops asking gets no more, and waits for none


@pytest.mark.parametrize("kind", ["processes", "dask"])
def test_a_worker_that_is_killed_costs_time_and_no_result(tmp_path: Path, kind: str) -> None:
    with hire(kind) as executor:
        pieces = [(tmp_path, number) for number in range(6)]
        assert list(each(executor, die_once, pieces, "pieces")) == list(range(6))
    assert (tmp_path / "died").exists()


def die(_number: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_work_that_workers_die_of_again_and_again_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with hire("processes") as executor, pytest.raises(typer.Exit):
        list(each(executor, die, [3], "pieces"))
    said = capsys.readouterr().err
    assert "workers died of a piece of this work again and again" in said
    assert "lack of memory: have fewer --workers" in said
    assert "killed by SIGKILL" in said


def begin(folder: Path) -> None:
    """Note that this was begun, and take the worker along."""
    (folder / str(os.getpid())).touch()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("dask", [None, LOCAL])
def test_what_is_to_be_done_once_is_not_done_again(tmp_path: Path, dask: str | None) -> None:
    with crowd(2, dask, once=True) as (executor, workers):
        assert executor is not None
        assert workers == 2
        assert executor.submit(abs, -1).result(60) == 1
        with pytest.raises(BrokenExecutor):
            executor.submit(begin, tmp_path).result(60)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_scheduler_that_does_not_answer_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(workers, "_CONNECT_SECONDS", 0.2)
    with pytest.raises(typer.Exit), hired(1, "tcp://127.0.0.1:9"):
        pass
    assert "no Dask scheduler answers at tcp://127.0.0.1:9" in capsys.readouterr().err
    with pytest.raises(typer.Exit), hired(1, "nowhere"):
        pass
    assert "nowhere" in capsys.readouterr().err


def test_without_dask_it_is_said_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(typer.Exit), hired(1, LOCAL):
        pass
    assert install("dask") in capsys.readouterr().err


def test_a_figure_is_the_same_whoever_computes_it(tmp_path: Path) -> None:
    data = tmp_path / "words.csv"
    data.write_text("word,count\n" + "".join(f"w{n:02},{900 // n}\n" for n in range(10, 99)))
    told = []
    for how in ((), ("--workers", "2", "--dask", LOCAL)):
        asked = ["figures", "fig1", "--data", str(data), *SHORT, *how]
        result = CliRunner().invoke(app, asked)
        assert result.exit_code == 0, result.output
        told.append(result.stdout)
    assert told[0] == told[1]


class Cluster:
    """A client of Dask whose workers `run` so."""

    def __init__(self, run: Callable[[], dict[str, str]] | None) -> None:
        self._run = run

    def wait_for_workers(self, wanted: int, timeout: float) -> None:
        """Wait for some, in vain if there are none."""
        if self._run is None:
            raise TimeoutError(f"{wanted} in {timeout} s")

    def run(self, _work: object) -> dict[str, str]:
        """Return what they return."""
        assert self._run is not None
        return self._run()

    def nthreads(self) -> dict[str, int]:
        """Return the threads of each."""
        return {"one": 2, "other": 3}


def without() -> dict[str, str]:
    raise ModuleNotFoundError("No module named 'blindtally'")


@pytest.mark.parametrize(
    ("run", "fault"),
    [
        (None, "Dask at tcp://there has no workers"),
        (lambda: {"one": "0.0.9"}, "workers at tcp://there have blindtally 0.0.9, and here is"),
        (without, "cannot work for us: No module named 'blindtally'"),
    ],
)
def test_workers_that_cannot_work_are_told(
    run: Any, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as told:
        workers._workers_of(Cluster(run), "tcp://there")
    assert told.value.exit_code == 1
    said = capsys.readouterr().err
    assert fault in said
    assert said.count("\n") == 1


def test_workers_are_counted_by_their_threads() -> None:
    same = Cluster(lambda: {"one": workers._version(), "other": workers._version()})
    assert workers._workers_of(same, "tcp://there") == 5


def test_a_scheduler_that_is_lost_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    class Lost(Executor):
        def submit(self, *_asked: Any, **_options: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.cancel()  # as Dask's client does with what it waits for
            return future

    for ask in (flowing(Lost(), square, [1], 2), each(Lost(), square, [1], "squares")):
        with pytest.raises(typer.Exit):
            list(ask)
        assert "the Dask scheduler is lost" in capsys.readouterr().err
