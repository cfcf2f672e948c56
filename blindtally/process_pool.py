"""Process pool that repeats a task whose process died, and gives the task up after four deaths.

Each worker has its own pipe, and no other process holds the pipe's other end. So the pipe reveals
at once that a worker was killed, even in the middle of an answer, and only its task is affected.
The standard library's pool and loky fail all tasks with the first process that dies.

Workers are spawned: a forked one would inherit locks that threads of this process hold. They ignore
Ctrl-C, which this process handles, and they exit when this process ends in any way.
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

from blindtally.garbage_collection import collect_rarely

P = ParamSpec("P")
T = TypeVar("T")

MAX_ATTEMPTS: Final = 4  # of a task, as with Dask's scheduler
_SPAWN_CONTEXT: Final = get_context("spawn")


class RetryingProcessPool(ThreadPoolExecutor):
    """Executor of `count` processes that attempts each task at most `max_attempts` times."""

    def __init__(self, count: int, max_attempts: int = MAX_ATTEMPTS) -> None:
        super().__init__(count, "pool")
        self._max_attempts = max_attempts
        self._lock = threading.Lock()
        self._thread_state = threading.local()
        self._workers: set[_Worker] | None = set()  # None after shutdown

    def submit(self, task: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> Future[T]:
        """Run a task, whose result must not depend on how often it is run.

        The future fails with the task's own error, or with BrokenExecutor if its processes died.
        """
        return super().submit(self._run, task, args, options)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End all workers: after the submitted tasks, or at once if `wait` is false."""
        super().shutdown(wait, cancel_futures=cancel_futures)
        with self._lock:
            workers, self._workers = self._workers or set(), None
        for worker in workers:
            worker.kill()
        super().shutdown()

    def _run(self, task: Callable[..., T], args: tuple[Any, ...], options: dict[str, Any]) -> T:
        request, worker = dumps((task, args, options)), None
        for _ in range(self._max_attempts):
            worker = self._worker_of_thread()
            try:
                answer = worker.call(request)
            except (EOFError, OSError):
                worker.kill()
                continue
            succeeded, value = loads(answer)  # noqa: S301 (from a child process)
            if not succeeded:
                raise value
            result: T = value
            return result
        assert worker is not None  # there is at least one attempt
        raise BrokenExecutor(f"{self._max_attempts} in a row, the last {worker.exit_reason()}")

    def _worker_of_thread(self) -> "_Worker":
        """Return this thread's worker, or a new one if that is dead."""
        worker: _Worker | None = getattr(self._thread_state, "worker", None)
        with self._lock:
            if self._workers is None:
                raise BrokenExecutor("the pool was stopped")
            if worker is None or not worker.process.is_alive():
                with sigint_blocked():
                    worker = self._thread_state.worker = _Worker()
                self._workers.add(worker)
        return worker


class _Worker:
    """One process and the pipe to it."""

    def __init__(self) -> None:
        self._pipe, child_end = _SPAWN_CONTEXT.Pipe()
        self.process = _SPAWN_CONTEXT.Process(target=_worker_main, args=(child_end,), daemon=True)
        self.process.start()
        child_end.close()  # the worker has the only one, so its death closes the pipe

    def call(self, request: bytes) -> bytes:
        """Return the pickled answer; raise EOFError or OSError if the process died."""
        self._pipe.send_bytes(request)
        return self._pipe.recv_bytes()

    def kill(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.join()

    def exit_reason(self) -> str:
        """Return the signal or exit code of the process."""
        code = self.process.exitcode or 0
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


@contextmanager
def sigint_blocked() -> Iterator[None]:
    """Block Ctrl-C in this thread, and permanently in threads and processes that it starts."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    resource_tracker.ensure_running()  # its start would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _worker_main(pipe: Connection) -> None:
    """Answer requests until the pipe is closed."""
    collect_rarely()
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    try:
        while True:
            pipe.send_bytes(_answer(pipe.recv_bytes()))
    except (EOFError, OSError):
        return


def _answer(request: bytes) -> bytes:
    """Return whether the task succeeded, and its result or error, pickled."""
    try:
        task, args, options = loads(request)  # noqa: S301 (from the parent process)
        return dumps((True, task(*args, **options)))
    except BaseException as error:  # the caller handles every kind
        trace = format_exc()
        error.add_note(f"in a process of the pool:\n{trace}")
        try:
            answer = dumps((False, error))
            loads(answer)  # noqa: S301 (our own; fails for some classes of errors)
        except Exception:  # the text can be pickled always
            return dumps((False, RuntimeError(trace)))
        return answer


def _exit_with_parent() -> None:
    """Exit, in the middle of a task, as soon as the parent process has ended."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
