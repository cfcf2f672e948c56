"""Long polls: wakes whoever waits for a cohort or a study, without polling for each.

A question that may be answered later takes the bell of what it waits for *before* it reads
the database, so a change between reading and waiting is heard. Whoever changes something
rings its bell, once; the bell is then gone and all who held it ask again. The orchestrator
rings for changes that other processes made, as soon as it sees them. No connection to the
database is held while waiting.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import TypeVar

T = TypeVar("T")
_RELEASE = "release"


def cohort_bell(cohort: int) -> str:
    """Return the name of the bell for a cohort's moves."""
    return f"cohort {cohort}"


def study_bell(study: str) -> str:
    """Return the name of the bell for a study's rounds."""
    return f"study {study}"


@dataclass(slots=True)
class _Bell:
    """Rings once, for so many who wait."""

    rung: asyncio.Event
    waiting: int = 0


class Watch:
    """The bells of one process, by name of what they ring for."""

    def __init__(self) -> None:
        self._bells: dict[str, _Bell] = {}
        self._released = False

    @property
    def is_released(self) -> bool:
        """Return whether the server is about to stop."""
        return self._released

    @property
    def waiting(self) -> int:
        """Return how many wait for a bell."""
        return sum(bell.waiting for bell in self._bells.values())

    def ring(self, *names: str) -> None:
        """Wake everybody who waits for one of `names`."""
        for name in names:
            bell = self._bells.pop(name, None)
            if bell is not None:
                bell.rung.set()

    def release(self) -> None:
        """Let everybody go, now and from now on: the server is about to stop."""
        self._released = True
        self.ring_all()

    async def released(self) -> None:
        """Wait until the server is about to stop."""
        while not self._released:
            with self._hold(_RELEASE) as bell:
                await bell.rung.wait()

    def ring_all(self) -> None:
        """Wake everybody who waits: nobody knows what changed."""
        self.ring(*tuple(self._bells))

    async def until(
        self, name: str, ask: Callable[[], Awaitable[T | None]], seconds: float
    ) -> T | None:
        """Return what `ask` answers as soon as it is not None; None after `seconds`."""
        last = monotonic() + seconds
        while True:
            with self._hold(name) as bell:
                answer = await ask()
                left = last - monotonic()
                if answer is not None or left <= 0 or self._released:
                    return answer
                try:
                    async with asyncio.timeout(left):
                        await bell.rung.wait()
                except TimeoutError:
                    return await ask()  # one last look: nobody leaves with a stale answer

    @contextmanager
    def _hold(self, name: str) -> Iterator[_Bell]:
        """Take the bell of `name`; the last who lets it go takes it down."""
        bell = self._bells.setdefault(name, _Bell(asyncio.Event()))
        bell.waiting += 1
        try:
            yield bell
        finally:
            bell.waiting -= 1
            if not bell.waiting and self._bells.get(name) is bell:
                del self._bells[name]
