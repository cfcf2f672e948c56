"""Scheduler of Retry-After values that spreads returning clients over time.

A leaky bucket counts the clients that were asked to retry, and leaks at the rate at which the
service can answer them. The delay is uniform over the time that the service needs for all clients
in the bucket and in long polls.
"""

from collections.abc import Callable
from random import Random
from time import monotonic
from typing import Final

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
