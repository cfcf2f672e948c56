"""Queue for the computation of plans, which may take seconds of one processor core.

The best design of a central release is a search over privacy losses, so an analyst could occupy all
threads of the service with a few requests.
"""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from protocol.api.messages import ProblemType
from server.errors import ProblemError

P = ParamSpec("P")
T = TypeVar("T")
_MAX_JOBS = 16  # a queue of a minute or so at worst


class PlanningQueue:
    """Runs one planning job at a time, outside the event loop."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._jobs = 0

    async def run(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of `job`, which waits for the jobs before it.

        Raises:
            ProblemError: if too many jobs are waiting.
        """
        if self._jobs >= _MAX_JOBS:
            raise ProblemError(ProblemType.TOO_MANY, "too many studies are being planned: wait")
        self._jobs += 1
        try:
            async with self._lock:
                return await asyncio.to_thread(job, *args, **kwargs)
        finally:
            self._jobs -= 1
