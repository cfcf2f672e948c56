"""When those who were sent away are to come back: not all at once, and not sooner than they can.

Whoever is told to come again fills a bucket that leaks `a_second`; what is in it, and whoever
waits in a long poll, is spread over the time that serving all of them takes. So a few come back
at once, thousands over half a minute, each at a moment of its own.
"""

from collections.abc import Callable
from random import Random
from time import monotonic
from typing import Final

MOST: Final = 30  # seconds; clients believe no more


class Pacing:
    """Chooses the seconds of Retry-After, from `rng` and from how many were told of late."""

    def __init__(
        self, rng: Random, a_second: float = 100.0, clock: Callable[[], float] = monotonic
    ) -> None:
        self._rng = rng
        self._rate = a_second
        self._clock = clock
        self._level, self._seen = 0.0, clock()

    def seconds(self, waiting: int = 0, least: int = 1) -> int:
        """Return after how many seconds one more may come: from `least`, up to `MOST`.

        `waiting` are those who wait already and will come without having been told when.
        """
        now = self._clock()
        self._level = max(0.0, self._level - (now - self._seen) * self._rate) + 1
        self._seen = now
        window = min(MOST - least, (self._level + waiting) / self._rate)
        return least + int(self._rng.random() * (1 + window)) if window >= 1 else least
