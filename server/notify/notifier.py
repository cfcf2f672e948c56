"""Notifier of long polls and event streams: wakes the waiters of a channel.

A waiter subscribes to a channel *before* it queries the database, so it does not miss a change
between the query and the wait. A change notifies its channel once, and every waiter queries again.
Observers see the names of all notified channels first, for example to forget what has changed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import TypeVar

T = TypeVar("T")
_SHUTDOWN_CHANNEL = "shutdown"


@dataclass(slots=True)
class _Channel:
    """Event that is set once, and the number of tasks that wait for it."""

    event: asyncio.Event
    waiters: int = 0


class Notifier:
    """Channels of one process, by name.

    `is_complete`: whether changes by all processes arrive. Without a connection to a database that
    others use as well, only those of this process do.
    """

    def __init__(self) -> None:
        self.is_complete = True
        self._channels: dict[str, _Channel] = {}
        self._observers: list[Callable[[Collection[str] | None], None]] = []
        self._is_shutting_down = False

    @property
    def is_shutting_down(self) -> bool:
        return self._is_shutting_down

    @property
    def waiter_count(self) -> int:
        """Number of tasks that wait for any channel."""
        return sum(channel.waiters for channel in self._channels.values())

    def observe(self, observer: Callable[[Collection[str] | None], None]) -> None:
        """Let `observer` see the names of notified channels, or None if any may have changed."""
        self._observers.append(observer)

    def notify(self, *names: str) -> None:
        for observe in self._observers:
            observe(names)
        self._wake(names)

    def _wake(self, names: Collection[str]) -> None:
        for name in names:
            channel = self._channels.pop(name, None)
            if channel is not None:
                channel.event.set()

    def notify_all(self) -> None:
        """Wake all waiters, for when it is unknown what has changed."""
        for observe in self._observers:
            observe(None)
        self._wake(tuple(self._channels))

    def shut_down(self) -> None:
        """Wake all waiters, now and in the future, because the server is about to stop."""
        self._is_shutting_down = True
        self.notify_all()

    async def wait_for_shutdown(self) -> None:
        """Wait until the server is about to stop."""
        while not self._is_shutting_down:
            with self._subscribe(_SHUTDOWN_CHANNEL) as channel:
                await channel.event.wait()

    async def wait_for(
        self, name: str, query: Callable[[], Awaitable[T | None]], seconds: float
    ) -> T | None:
        """Return the result of `query` as soon as it is not None, or None after `seconds`."""
        deadline = monotonic() + seconds
        while True:
            with self._subscribe(name) as channel:
                result = await query()
                remaining = deadline - monotonic()
                if result is not None or remaining <= 0 or self._is_shutting_down:
                    return result
                try:
                    async with asyncio.timeout(remaining):
                        await channel.event.wait()
                except TimeoutError:
                    return await query()  # once more, so that the result is not stale

    @contextmanager
    def _subscribe(self, name: str) -> Iterator[_Channel]:
        """Yield the channel `name`; the last waiter that leaves removes it."""
        channel = self._channels.setdefault(name, _Channel(asyncio.Event()))
        channel.waiters += 1
        try:
            yield channel
        finally:
            channel.waiters -= 1
            if not channel.waiters and self._channels.get(name) is channel:
                del self._channels[name]
