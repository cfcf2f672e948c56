"""Who computes what a command is asked for: this process, others on this machine, or Dask's.

Work is cut into pieces that do not hang on one another, each with a seed of its own, so that what
comes of them is the same whoever does them, in whatever order, and if one has to be done again
because a worker died. `each` yields the results in the order of the pieces.

What must not be done twice, such as a device's part before a service, is done `once`: with the
worker that dies of it, it is lost.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import contextmanager
from functools import partial
from importlib import import_module, metadata
from typing import Annotated, Any, Final, ParamSpec, TypeVar
from uuid import uuid4

import typer

from blindtally.output import failed
from blindtally.pool import LIVES, Pool, uninterrupted
from blindtally.progress import steps
from client.extras import install
from client.slices import is_of_dead_worker

A = TypeVar("A")
B = TypeVar("B")
P = ParamSpec("P")

LOCAL: Final = "local"
_DIED: Final = (
    "workers died of a piece of this work again and again, mostly for lack of memory: have fewer "
    "--workers at a time, or a machine with more"
)
_CONNECT_SECONDS: Final = 10

Workers = Annotated[
    int, typer.Option(min=1, max=1024, help="Processes on this machine that share the work.")
]
Dask = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Have Dask do the work: a scheduler's address, such as tcp://host:8786, or local for "
        "a cluster of --workers on this machine.",
    ),
]


@contextmanager
def hired(count: int, dask: str | None) -> Iterator[Executor | None]:
    """Yield who does the work, None for this process itself; stop them at the end.

    Raises:
        typer.Exit: if Dask is not installed, its scheduler out of reach or of another version.
    """
    with crowd(count, dask) as (executor, _):
        yield executor


@contextmanager
def crowd(
    count: int, dask: str | None, *, once: bool = False
) -> Iterator[tuple[Executor | None, int]]:
    """Yield who does the work, and how many they are; stop them at the end, as `hired`."""
    if dask is not None:
        with _cluster(count, dask) as (client, threads):
            executor = client.get_executor(pure=False)
            yield _Once(executor) if once else executor, threads
    elif count == 1:
        yield None, 1
    else:
        pool = Pool(count, 1 if once else LIVES)
        try:
            yield pool, count
        finally:  # whoever stops waits for no piece that is under way
            pool.shutdown(wait=False, cancel_futures=True)


def each(
    executor: Executor | None, work: Callable[[A], B], pieces: Sequence[A], what: str
) -> Iterator[B]:
    """Yield what `work` makes of each of `pieces`, in their order, with a bar of so many `what`.

    Raises:
        typer.Exit: if workers died of it again and again, or were lost.
    """
    with steps(what, len(pieces)) as step:
        yield from _results(executor, work, pieces, step)


def shared(
    work: Callable[[A], B], pieces: Sequence[A], what: str, count: int, dask: str | None
) -> list[B]:
    """Return what `work` makes of each of `pieces`, by who is `hired` for them."""
    with hired(count, dask) as executor:
        return list(each(executor, work, pieces, what))


def _results(
    executor: Executor | None,
    work: Callable[[A], B],
    pieces: Iterable[A],
    step: Callable[[int], None],
) -> Iterator[B]:
    if executor is None:
        for piece in pieces:
            result = work(piece)
            step(1)
            yield result
        return
    futures: list[Future[B]] = [executor.submit(work, piece) for piece in pieces]
    for future in futures:
        future.add_done_callback(lambda _done: step(1))
    for future in futures:  # of which those that nobody waits for end with whoever was hired
        yield _result(future)


def flowing(
    executor: Executor, work: Callable[[A], B], pieces: Iterable[A], most: int
) -> Iterator[B]:
    """Yield what `work` makes of each of `pieces`, in their order; `most` are under way at a time.

    So pieces may be large: each is made when there is room for it.

    Raises:
        typer.Exit: if workers died of it again and again, or were lost.
    """
    futures: deque[Future[B]] = deque()
    for piece in pieces:
        futures.append(executor.submit(work, piece))
        if len(futures) >= most:
            yield _result(futures.popleft())
    while futures:
        yield _result(futures.popleft())


def _result(future: "Future[B]") -> B:
    try:
        return future.result()
    except CancelledError:  # by nobody here: Dask's client does so when it gives its scheduler up
        raise failed("the Dask scheduler is lost, and what it was asked to do", code=1) from None
    except Exception as error:
        if is_of_dead_worker(error):
            raise failed(f"{_DIED} ({error})", code=1) from None
        raise


class _Once(Executor):
    """An executor of Dask that does no piece a second time, though its worker died."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def submit(self, work: Callable[P, A], /, *args: P.args, **options: P.kwargs) -> Future[A]:
        """Have a worker do it, the first that hears of it."""
        return self._executor.submit(_first, uuid4().hex, work, *args, **options)


def _first(name: str, work: Callable[P, A], /, *args: P.args, **options: P.kwargs) -> A:
    """Do a piece of work, unless another worker of this cluster has begun it."""
    event = import_module("distributed").Event(f"blindtally-{name}")
    if event.is_set():
        raise BrokenExecutor("who began it is gone")
    event.set()
    return work(*args, **options)


@contextmanager
def _cluster(count: int, address: str) -> Iterator[tuple[Any, int]]:
    try:
        distributed: Any = import_module("distributed")
    except ImportError:
        raise failed(f"--dask takes the extra: {install('dask')}") from None
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # we say it in a line
    connect = partial(distributed.Client, set_as_default=False, timeout=_CONNECT_SECONDS)
    try:
        if address == LOCAL:
            here: dict[str, Any] = {"host": "127.0.0.1"}  # nobody's but ours
            here |= {"dashboard_address": "127.0.0.1:0"}
            here |= {"n_workers": count, "threads_per_worker": 1, "silence_logs": logging.CRITICAL}
            with uninterrupted():
                client = connect(**here)
        else:
            client = connect(address)
    except (OSError, ValueError) as error:
        raise failed(f"no Dask scheduler answers at {address}: {error}", code=1) from None
    with client:
        try:
            client.get_versions(check=True)
        except ValueError as error:
            raise failed(f"Dask at {address} is of another version: {error}", code=1) from None
        yield client, _workers_of(client, address)


def _workers_of(client: Any, address: str) -> int:  # noqa: ANN401 - distributed has no types
    """Return how many threads of workers a cluster has.

    Raises:
        typer.Exit: if it has none, or they have another version of blindtally, or none.
    """
    try:
        client.wait_for_workers(1, timeout=_CONNECT_SECONDS)
        there = set(client.run(_version).values())
    except TimeoutError:
        raise failed(f"Dask at {address} has no workers", code=1) from None
    except Exception as error:  # whatever comes of a name that a worker does not know
        raise failed(f"Dask's workers at {address} cannot work for us: {error}", code=1) from None
    if others := there - {_version()}:
        told = f"have blindtally {', '.join(sorted(others))}, and here is {_version()}"
        raise failed(f"Dask's workers at {address} {told}", code=1)
    return sum(client.nthreads().values())


def _version() -> str:
    return metadata.version("blindtally")
