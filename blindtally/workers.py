"""Workers that share a command's work: this process, other processes, or a Dask cluster.

Work is cut into tasks that do not depend on one another, each with its own seed, so the result does
not depend on the number of workers, their order, or repetitions of tasks whose worker died. Tasks
that must not run twice, such as a device's part in a real round, run `once`; they fail if their
worker dies. A task of less than half a second costs more to send than it saves: the measured time
of a chunk decides how many chunks form a task, and whether tasks are sent at all.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module, metadata
from itertools import pairwise
from typing import Any, Final, ParamSpec, TypeVar
from uuid import uuid4

from blindtally.console.errors import exit_with_error
from blindtally.console.progress import with_progress
from blindtally.process_pool import MAX_ATTEMPTS, RetryingProcessPool, sigint_blocked
from client.extras_installation import install_command
from client.fleet.shards import is_worker_death
from protocol.simulation.rounds import (
    LOCAL_EXECUTOR,
    Accumulator,
    Chunk,
    CohortSum,
    RoundExecutor,
    SecureCohort,
    sum_cohort,
)

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

LOCAL_CLUSTER: Final = "local"
MIN_TASK_SECONDS: Final = 0.5
_MAX_TASKS_PER_WORKER: Final = 4  # in a round; a worker that finishes early takes another
_CONNECT_TIMEOUT_SECONDS: Final = 10
_WORKERS_DIED_MESSAGE: Final = (
    "several workers died of the same task, most likely because memory ran out: use fewer "
    "--workers, or a machine with more memory"
)


@contextmanager
def open_workers(
    count: int, dask: str | None, *, once: bool = False
) -> Iterator[tuple[Executor | None, int]]:
    """Yield the executor of the work, None for this process, and its number of workers.

    Raises:
        typer.Exit: if Dask is not installed, its scheduler does not answer, or a version differs.
    """
    if dask is not None:
        with _connect_dask(count, dask) as (client, threads):
            executor = client.get_executor(pure=False)
            yield _AtMostOnceExecutor(executor) if once else executor, threads
    elif count == 1:
        yield None, 1
    else:
        pool = RetryingProcessPool(count, 1 if once else MAX_ATTEMPTS)
        try:
            yield pool, count
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def map_bounded(
    executor: Executor, work: Callable[[T], R], tasks: Iterable[T], limit: int
) -> Iterator[R]:
    """Yield the result of `work` for each task, in order; `limit` tasks exist at a time.

    Raises:
        typer.Exit: if the workers died of a task, or the cluster is lost.
    """
    futures: deque[Future[R]] = deque()
    for task in tasks:
        futures.append(executor.submit(work, task))
        if len(futures) >= limit:
            yield _result_of(futures.popleft())
    while futures:
        yield _result_of(futures.popleft())


def _result_of(future: "Future[R]") -> R:
    try:
        return future.result()
    except CancelledError:  # by Dask's client, when it gives up its scheduler
        raise exit_with_error("the Dask scheduler is lost, and the work with it", code=1) from None
    except Exception as error:
        if is_worker_death(error):
            raise exit_with_error(f"{_WORKERS_DIED_MESSAGE} ({error})", code=1) from None
        raise


@contextmanager
def open_round_executor(
    count: int, dask: str | None, min_task_seconds: float = MIN_TASK_SECONDS
) -> Iterator[RoundExecutor]:
    """Yield the executor of simulated rounds; no task takes less than `min_task_seconds`.

    Raises:
        typer.Exit: as `open_workers`.
    """
    with open_workers(count, dask) as (executor, workers):
        if executor is None:
            yield LOCAL_EXECUTOR
        else:
            yield ParallelExecutor(executor, workers, min_task_seconds)


class ParallelExecutor:
    """Executor of simulated rounds by `workers` workers."""

    def __init__(
        self,
        executor: Executor,
        workers: int,
        min_task_seconds: float = MIN_TASK_SECONDS,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._executor, self._workers = executor, workers
        self._min_task_seconds, self._clock = min_task_seconds, clock
        self._seconds_per_chunk: float | None = None

    def add(self, accumulator: Accumulator[T], chunks: Sequence[Chunk]) -> None:
        rest = list(chunks)
        if rest and self._seconds_per_chunk is None:
            self._run_locally(accumulator, rest[:1])
            del rest[0]
        count = self._task_count(len(rest))
        if count < 2:
            self._run_locally(accumulator, rest)
            return
        ends = [len(rest) * number // count for number in range(count + 1)]
        tasks = [rest[start:end] for start, end in pairwise(ends)]
        work = partial(_run_timed, accumulator.remote_task)
        results = map_bounded(self._executor, work, tasks, 2 * self._workers)
        for task, (part, seconds) in zip(tasks, results, strict=True):
            accumulator.merge(part)
            self._seconds_per_chunk = seconds / len(task)

    def sum_cohorts(self, cohorts: Iterable[SecureCohort]) -> Iterator[CohortSum | None]:
        """Sum each cohort by a worker; the vectors of `workers` + 1 cohorts are in memory."""
        results = map_bounded(self._executor, sum_cohort, cohorts, self._workers + 1)
        return with_progress(results, "cohorts")

    def _task_count(self, chunks: int) -> int:
        worthwhile = math.floor(chunks * (self._seconds_per_chunk or 0) / self._min_task_seconds)
        count = min(chunks, worthwhile, _MAX_TASKS_PER_WORKER * self._workers)
        # The same number for each worker: with three tasks for two, one worker would wait.
        return count - count % self._workers if count > self._workers else count

    def _run_locally(self, accumulator: Accumulator[T], chunks: Sequence[Chunk]) -> None:
        started = self._clock()
        LOCAL_EXECUTOR.add(accumulator, chunks)
        if chunks:
            self._seconds_per_chunk = (self._clock() - started) / len(chunks)


def _run_timed(run: Callable[[Sequence[Chunk]], T], chunks: Sequence[Chunk]) -> tuple[T, float]:
    started = time.thread_time()
    return run(chunks), time.thread_time() - started


class _AtMostOnceExecutor(Executor):
    """Executor of Dask that does not repeat a task whose worker died."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def submit(self, work: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> Future[T]:
        """Run a task on the first worker that receives it."""
        return self._executor.submit(_run_if_first, uuid4().hex, work, *args, **options)


def _run_if_first(name: str, work: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> T:
    """Run a task, unless another worker of this cluster has begun it."""
    event = import_module("distributed").Event(f"blindtally-{name}")
    if event.is_set():
        raise BrokenExecutor("the worker that began the task is gone")
    event.set()
    return work(*args, **options)


@contextmanager
def _connect_dask(count: int, address: str) -> Iterator[tuple[Any, int]]:
    try:
        distributed: Any = import_module("distributed")
    except ImportError:
        raise exit_with_error(f"--dask needs the extra: {install_command('dask')}") from None
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # errors are shown below
    options: dict[str, Any] = {"address": address}
    if address == LOCAL_CLUSTER:
        options = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}  # for this user only
        options |= {"n_workers": count, "threads_per_worker": 1, "silence_logs": logging.CRITICAL}
    try:
        with sigint_blocked() if address == LOCAL_CLUSTER else nullcontext():
            client = distributed.Client(
                set_as_default=False, timeout=_CONNECT_TIMEOUT_SECONDS, **options
            )
    except (OSError, ValueError) as error:
        raise exit_with_error(f"no Dask scheduler answers at {address}: {error}", code=1) from None
    with client:
        try:
            client.get_versions(check=True)
        except ValueError as error:
            raise exit_with_error(
                f"Dask at {address} has another version: {error}", code=1
            ) from None
        yield client, checked_thread_count(client, address)


def checked_thread_count(client: Any, address: str) -> int:  # noqa: ANN401 - distributed has no types
    """Return the number of threads of all workers of a cluster.

    Raises:
        typer.Exit: if there are no workers, or they have no or another version of blindtally.
    """
    try:
        client.wait_for_workers(1, timeout=_CONNECT_TIMEOUT_SECONDS)
        versions = set(client.run(_package_version).values())
    except TimeoutError:
        raise exit_with_error(f"Dask at {address} has no workers", code=1) from None
    except Exception as error:  # any error of a worker that does not know the function
        raise exit_with_error(
            f"Dask's workers at {address} cannot run blindtally: {error}", code=1
        ) from None
    if others := versions - {_package_version()}:
        difference = f"have blindtally {', '.join(sorted(others))}, and here is"
        raise exit_with_error(
            f"Dask's workers at {address} {difference} {_package_version()}", code=1
        )
    return sum(client.nthreads().values())


def _package_version() -> str:
    return metadata.version("blindtally")
