"""Processes that die cost what they were at, which is done again, and nothing else."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest

from blindtally.garbage_collection import YOUNG_OBJECTS
from blindtally.process_pool import MAX_ATTEMPTS, RetryingProcessPool

PATIENCE = 60  # seconds, for what takes one


@contextmanager
def pool(count: int = 2, lives: int = MAX_ATTEMPTS) -> Iterator[RetryingProcessPool]:
    executor = RetryingProcessPool(count, lives)
    try:
        yield executor
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def once(folder: Path, death: Callable[[], Any], number: int) -> tuple[int, int]:
    """Die of the third piece, once."""
    if number == 2 and not (folder / "died").exists():
        (folder / "died").touch()
        death()
    return number, os.getpid()


def answer_by_half() -> None:
    """Die in the midst of the answer, as a process does that is killed while it sends."""

    def half(pipe: Connection, answer: bytes) -> None:
        os.write(pipe.fileno(), len(answer).to_bytes(4, "big") + answer[: len(answer) // 2])
        die()

    Connection.send_bytes = half  # type: ignore[assignment, method-assign]


@pytest.mark.parametrize("death", [die, answer_by_half])
def test_a_process_that_dies_costs_its_piece_and_that_is_done_again(
    tmp_path: Path, death: Callable[[], Any]
) -> None:
    with pool() as executor:
        futures = [executor.submit(once, tmp_path, death, number) for number in range(9)]
        results = [future.result(PATIENCE) for future in futures]
    assert (tmp_path / "died").exists()
    assert [number for number, _ in results] == list(range(9))
    assert len({pid for _, pid in results}) in (2, 3)  # the new process may come too late for any


def note(folder: Path) -> None:
    (folder / str(os.getpid())).touch()
    die()


@pytest.mark.parametrize("lives", [1, MAX_ATTEMPTS])
def test_a_piece_that_all_die_of_is_given_up_and_others_are_not(tmp_path: Path, lives: int) -> None:
    with pool(2, lives) as executor:
        fatal, sound = executor.submit(note, tmp_path), executor.submit(abs, -1)
        with pytest.raises(BrokenExecutor, match=f"{lives} in a row, the last killed by SIGKILL"):
            fatal.result(PATIENCE)
        assert sound.result(PATIENCE) == 1
        assert executor.submit(abs, -2).result(PATIENCE) == 2
    assert len(list(tmp_path.iterdir())) == lives


class OddError(Exception):
    """One that does not come out of a pickle."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


def be_odd() -> None:
    raise OddError("o", "dd")


def test_errors_are_those_of_the_work_with_their_trace() -> None:
    with pool(1) as executor:
        with pytest.raises(ValueError, match="invalid literal") as raised:
            executor.submit(int, "x").result(PATIENCE)
        assert "in a process of the pool" in raised.value.__notes__[0]
        with pytest.raises(RuntimeError, match="OddError: odd"):
            executor.submit(be_odd).result(PATIENCE)
        with pytest.raises(TypeError, match="cannot pickle"):
            executor.submit(threading.Lock).result(PATIENCE)  # a result that cannot come back
        with pytest.raises((AttributeError, TypeError), match=r"pickle|local object"):
            executor.submit(lambda: 1).result(PATIENCE)
        assert executor.submit(os.getpid).result(PATIENCE) != os.getpid()


def test_processes_ignore_ctrl_c() -> None:
    with pool() as executor:
        for future in [executor.submit(interrupt_me) for _ in range(4)]:
            assert future.result(PATIENCE) == "still here"


def interrupt_me() -> str:
    os.kill(os.getpid(), signal.SIGINT)
    return "still here"


def test_who_waits_gets_all_and_who_does_not_waits_for_nothing() -> None:
    patient, hasty = RetryingProcessPool(2), RetryingProcessPool(2)
    futures = [patient.submit(abs, number) for number in range(-4, 0)]
    patient.shutdown()
    assert [future.result(0) for future in futures] == [4, 3, 2, 1]
    pid = hasty.submit(os.getpid).result(PATIENCE)
    hasty.submit(time.sleep, 600)
    began = time.monotonic()
    hasty.shutdown(wait=False, cancel_futures=True)
    assert time.monotonic() < began + PATIENCE
    assert not psutil.pid_exists(pid)
    with pytest.raises(RuntimeError, match="after shutdown"):
        hasty.submit(abs, 1)


def test_processes_end_with_who_started_them_in_the_midst_of_their_work() -> None:
    program = (
        "import os, time\n"
        "from blindtally.process_pool import RetryingProcessPool as Pool\n"
        "pool = Pool(1)\n"
        "print(pool.submit(os.getpid).result(), flush=True)\n"
        "pool.submit(time.sleep, 600)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        process = psutil.Process(int(started.stdout.readline()))
        started.kill()
    process.wait(PATIENCE)


def test_workers_search_for_garbage_rarely() -> None:
    with pool(1) as executor:
        assert executor.submit(gc.get_threshold).result(PATIENCE)[0] == YOUNG_OBJECTS
