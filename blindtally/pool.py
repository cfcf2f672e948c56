"""Processes of this machine that do pieces of work, and do again what one of them died of.

    a thread of ours --- a pipe --- its process        as many pairs as there are workers

Each process has a pipe of its own, and nobody else holds its other end. So one that is killed, for
lack of memory or by whoever may, is known by its pipe at once, also in the midst of an answer: it
costs the piece that it was at and no other, and that is done again by a new process. A piece that
four of them died of, one after the other, is given up.

`concurrent.futures` and joblib's loky give up all pieces with the first process that dies, and
cannot tell whose fault it was; pebble's processes share one pipe, and none is heard any more once
one of them is killed amid its answer; Dask, which does as we do, is an extra that takes seconds to
start.

Processes are spawned: a forked one would have this one's threads' locks, and not the threads. They
never hear of Ctrl-C, which is for us to answer, and end when we do, however that is.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection
from pickle import dumps, loads
from traceback import format_exc
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

LIVES: Final = 4  # processes that may die of a piece: as many as Dask's scheduler lets
_SPAWN: Final = get_context("spawn")


class Pool(ThreadPoolExecutor):
    """An executor of `count` processes; a piece is given up with the last of its `lives`."""

    def __init__(self, count: int, lives: int = LIVES) -> None:
        super().__init__(count, "pool")
        self._lives = lives
        self._lock = threading.Lock()
        self._mine = threading.local()
        self._processes: set[_Process] | None = set()  # None once they are stopped

    def submit(self, work: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> Future[T]:
        """Have a process do a piece of work, which must be the same whenever it is done.

        Its future's error is that of the work, or BrokenExecutor if processes died of it.
        """
        return super().submit(self._done, work, args, options)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End all processes: once what was submitted is done, or at once if not to `wait`."""
        super().shutdown(wait, cancel_futures=cancel_futures)
        with self._lock:
            processes, self._processes = self._processes or set(), None
        for process in processes:
            process.kill()
        super().shutdown()

    def _done(self, work: Callable[..., T], args: tuple[Any, ...], options: dict[str, Any]) -> T:
        asked, process = dumps((work, args, options)), None
        for _ in range(self._lives):
            process = self._process()
            try:
                answer = process.ask(asked)
            except (EOFError, OSError):
                process.kill()
            else:
                is_result, found = loads(answer)  # noqa: S301 - from a process of our own
                if not is_result:
                    raise found
                result: T = found
                return result
        assert process is not None  # there is one life at least
        raise BrokenExecutor(f"{self._lives} in a row, the last {process.end()}")

    def _process(self) -> "_Process":
        """Return this thread's process, a new one if it has none that lives."""
        known: _Process | None = getattr(self._mine, "process", None)
        with self._lock:
            if self._processes is None:
                raise BrokenExecutor("the pool was stopped")
            if known is None or not known.is_alive:
                with uninterrupted():
                    known = self._mine.process = _Process()
                self._processes.add(known)
        return known


class _Process:
    """One process, and the pipe to it."""

    def __init__(self) -> None:
        self._pipe, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()  # so that it has the only one, and its end is seen

    @property
    def is_alive(self) -> bool:
        """Return whether it can be asked."""
        return self._process.is_alive()

    def ask(self, asked: bytes) -> bytes:
        """Return the answer to pickled work, or raise EOFError or OSError if it died."""
        self._pipe.send_bytes(asked)
        return self._pipe.recv_bytes()

    def kill(self) -> None:
        """End it."""
        self._process.kill()
        self._process.join()

    def end(self) -> str:
        """Return how it ended."""
        code = self._process.exitcode or 0
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Put Ctrl-C off; threads and processes that are started meanwhile never hear of it."""
    resource_tracker.ensure_running()  # which would let this thread hear of it again, and so them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Connection) -> None:
    """Answer what is asked, in a process, until there is nobody to ask."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        while True:
            pipe.send_bytes(_answer(pipe.recv_bytes()))
    except (EOFError, OSError):  # who asked is gone
        return


def _answer(asked: bytes) -> bytes:
    """Return what comes of a pickled piece, pickled: whether it is a result; that, or an error."""
    try:
        work, args, options = loads(asked)  # noqa: S301 - from the process that started this one
        return dumps((True, work(*args, **options)))
    except BaseException as error:  # all of it is for whoever asked
        return _told(error, format_exc())


def _told(error: BaseException, trace: str) -> bytes:
    error.add_note(f"in a process of the pool:\n{trace}")
    try:
        told = dumps((False, error))
        loads(told)  # noqa: S301 - our own; there are errors that this fails for, and only this
    except Exception:  # its text goes through a pipe, though it does not
        return dumps((False, RuntimeError(trace)))
    return told


def _end_with_parent() -> None:
    """End this process, in the midst of its work, once the one that started it is gone."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
