"""Event loop in a background thread, for programs that have none, or cannot wait in theirs."""

from __future__ import annotations

import asyncio
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from concurrent.futures import Future

T = TypeVar("T")


class BackgroundLoop:
    """An event loop in a thread of this `name`, which begins at the first `submit`.

    The thread ends with the program, or by `close`, after which `submit` begins another one.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = Lock()
        self._running: tuple[asyncio.AbstractEventLoop, Thread] | None = None

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run `work` in the background, and return its future result; cancelling it stops it."""
        with self._lock:
            # In a child after a fork, the thread of the parent is dead.
            if self._running is None or not self._running[1].is_alive():
                loop = asyncio.new_event_loop()
                self._running = loop, Thread(target=loop.run_forever, name=self._name, daemon=True)
                self._running[1].start()
            return asyncio.run_coroutine_threadsafe(work, self._running[0])

    def close(self) -> None:
        """Cancel all work, wait for its end, and end the thread."""
        with self._lock:
            running, self._running = self._running, None
        if running is not None:
            loop, thread = running
            asyncio.run_coroutine_threadsafe(_cancel_others(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


def result_of(part: Future[T]) -> T:
    """Return the result of work in the background; an interrupt, such as Ctrl-C, stops it."""
    try:
        return part.result()
    finally:
        part.cancel()


async def _cancel_others() -> None:
    """Cancel all other tasks of the loop, and wait for their ends."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_default_executor()
