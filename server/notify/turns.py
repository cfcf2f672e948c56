"""Turns of tasks that become ready together: a few go on in each iteration of the event loop.

When the phase of a cohort of 4,000 devices ends, 4,000 responses can be sent. If all were sent in
one iteration, every other request would wait for them, about a millisecond for each. With turns it
waits for a few.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Final

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
