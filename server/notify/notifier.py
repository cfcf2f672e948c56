"""Notifier of long polls and event streams: wakes the waiters of a channel.

A waiter subscribes to a channel *before* it queries the database, so it does not miss a change
between the query and the wait. A change notifies its channel once, and every waiter queries again.
Observers see the names of all notified channels first, for example to forget what has changed.

When the phase of a cohort of 4,000 devices ends, 4,000 responses can be sent. If all were sent in
one iteration of the event loop, every other request would wait for them, about a millisecond for
each. So waiters of one channel take turns, a few in each iteration.

A client that comes back later gets a delay: a leaky bucket counts the clients that were asked to
retry, and leaks at the rate at which the service can answer them. The delay is uniform over the
time that the service needs for all clients in the bucket and in long polls.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from random import Random
from time import monotonic
from typing import Final, TypeVar

# With a response of some 0.5 ms each, an iteration takes some 10 ms.
TASKS_PER_ITERATION: Final = 16


class Turns:
    """Queue of futures, of which each iteration of the event loop completes a few, in order."""

    def __init__(self) -> None:
        self._futures: deque[asyncio.Future[None]] = deque()
        self._is_running = False

    def complete(self, futures: Iterable[asyncio.Future[None]]) -> None:
        """Complete these futures, each in its turn."""
        self._futures.extend(futures)
        if self._futures and not self._is_running:
            self._is_running = True
            asyncio.get_running_loop().call_soon(self._complete_some)

    async def wait(self) -> None:
        """Wait for a turn."""
        turn = asyncio.get_running_loop().create_future()
        self.complete((turn,))
        await turn

    def _complete_some(self) -> None:
        for _ in range(min(TASKS_PER_ITERATION, len(self._futures))):
            future = self._futures.popleft()
            if not future.done():
                future.set_result(None)
        self._is_running = bool(self._futures)
        if self._is_running:
            asyncio.get_running_loop().call_soon(self._complete_some)


T = TypeVar("T")
_TIMER_SECONDS = 0.001  # by which timers may be early, so that no waiter wakes for nothing


class Notifier:
    """Channels of one process, by name.

    `is_complete`: whether changes by all processes arrive. Without a connection to a database that
    others use as well, only those of this process do.
    """

    def __init__(self) -> None:
        self.is_complete = True
        self._waiters: dict[str, set[asyncio.Future[None]]] = {}  # by channel
        self._turns = Turns()
        self._observers: list[Callable[[Collection[str] | None], None]] = []
        self._is_shutting_down = False

    @property
    def is_shutting_down(self) -> bool:
        return self._is_shutting_down

    @property
    def waiter_count(self) -> int:
        """Number of tasks that wait for any channel."""
        return sum(map(len, self._waiters.values()))

    def observe(self, observer: Callable[[Collection[str] | None], None]) -> None:
        """Let `observer` see the names of notified channels, or None if any may have changed."""
        self._observers.append(observer)

    def notify(self, *names: str) -> None:
        for observe in self._observers:
            observe(names)
        self._wake(names)

    def _wake(self, names: Collection[str]) -> None:
        for name in names:
            self._turns.complete(self._waiters.get(name, ()))

    def notify_all(self) -> None:
        """Wake all waiters, for when it is unknown what has changed."""
        for observe in self._observers:
            observe(None)
        self._wake(self._waiters.keys())

    def shut_down(self) -> None:
        """Wake all waiters, now and in the future, because the server is about to stop."""
        self._is_shutting_down = True
        self.notify_all()

    async def wait_for(
        self, name: str, query: Callable[[], Awaitable[T | None]], seconds: float
    ) -> T | None:
        """Return the result of `query` as soon as it is not None, or the last one after `seconds`.

        A timer wakes the waiter as a change does.
        """
        loop, deadline = asyncio.get_running_loop(), monotonic() + seconds
        while True:
            with self._subscribed(name) as waiter:
                result = await query()
                remaining = deadline - monotonic()
                if result is not None or remaining <= 0 or self._is_shutting_down:
                    return result
                timer = loop.call_later(remaining + _TIMER_SECONDS, _wake, waiter)
                try:
                    await waiter
                finally:
                    timer.cancel()

    @contextmanager
    def _subscribed(self, name: str) -> Iterator[asyncio.Future[None]]:
        """Yield a future that the next change of the channel `name` completes."""
        waiter = asyncio.get_running_loop().create_future()
        waiters = self._waiters.setdefault(name, set())
        waiters.add(waiter)
        try:
            yield waiter
        finally:
            waiters.remove(waiter)
            if not waiters:
                del self._waiters[name]


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


MAX_RETRY_AFTER_SECONDS: Final = 30  # clients ignore larger values


class RetryScheduler:
    """Source of Retry-After values, from `rng` and the number of recent retries."""

    def __init__(
        self, rng: Random, clients_per_second: float = 100.0, clock: Callable[[], float] = monotonic
    ) -> None:
        self._rng = rng
        self._rate = clients_per_second
        self._clock = clock
        self._level, self._updated = 0.0, clock()

    def next_delay(self, waiting: int = 0, minimum: int = 1) -> int:
        """Return a delay of at least `minimum` and at most `MAX_RETRY_AFTER_SECONDS` seconds.

        `waiting` is the number of clients in long polls; they return without a Retry-After.
        """
        now = self._clock()
        self._level = max(0.0, self._level - (now - self._updated) * self._rate) + 1
        self._updated = now
        window = min(MAX_RETRY_AFTER_SECONDS - minimum, (self._level + waiting) / self._rate)
        return minimum + int(self._rng.random() * (1 + window)) if window >= 1 else minimum
