"""Cache of values that are read once for all concurrent and later calls.

Many callers that waited for one read take turns afterwards (`server/notify/turns.py`).
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Generic, TypeVar

from cachetools import Cache, LRUCache, TTLCache

from server.notify.turns import Turns

K = TypeVar("K")
V = TypeVar("V")
_EXPIRY_MARGIN_SECONDS = 0.1


class AsyncCache(Generic[K, V]):
    """Cache of values that never change; concurrent and later calls share one read.

    It keeps the most recently used values whose total weight is at most `size`, and always the
    last one; each for `seconds`, if given.
    """

    def __init__(
        self,
        read: Callable[[K], Awaitable[V]],
        size: int,
        weigh: Callable[[V], int] = lambda _: 1,
        seconds: float | None = None,
    ) -> None:
        self._read = read
        getsizeof = partial(_limited_weight, weigh, size)
        self._values: Cache[K, V] = (
            LRUCache(size, getsizeof)
            if seconds is None
            else TTLCache(size, seconds, getsizeof=getsizeof)
        )
        self._reads: dict[K, asyncio.Future[V]] = {}
        self._turns = Turns()

    def __contains__(self, key: K) -> bool:
        """Return whether the value of `key` is cached or being read."""
        return key in self._values or key in self._reads

    async def __call__(self, key: K) -> V:
        """Return the value of `key`; an error of `read` is raised and not cached."""
        try:
            return self._values[key]
        except KeyError:  # not checked before: a value may expire in between
            pass
        if key not in self._reads:
            self._reads[key] = asyncio.ensure_future(self._read(key))
            self._reads[key].add_done_callback(partial(self._on_read, key))
        value = await asyncio.shield(self._reads[key])  # cancelling a caller cancels no other
        await self._turns.wait()
        return value

    def remember(self, key: K, value: V) -> None:
        """Cache the value of `key` without a read."""
        self._values[key] = value

    def forget(self, key: K) -> None:
        """Read the value of `key` again when it is next used; no caller gets an earlier read."""
        self._values.pop(key, None)
        self._reads.pop(key, None)

    def forget_all(self) -> None:
        """Read all values again."""
        self._values.clear()
        self._reads.clear()

    def _on_read(self, key: K, read: asyncio.Future[V]) -> None:
        is_forgotten = self._reads.get(key) is not read
        if not is_forgotten:
            del self._reads[key]
        if not read.cancelled() and read.exception() is None and not is_forgotten:
            self._values[key] = read.result()
            if isinstance(self._values, TTLCache):  # which by itself keeps it until the next one
                loop, seconds = asyncio.get_running_loop(), self._values.ttl
                loop.call_later(seconds + _EXPIRY_MARGIN_SECONDS, self._values.expire)


def _limited_weight(weigh: Callable[[V], int], limit: int, value: V) -> int:
    return min(weigh(value), limit)
