"""Rounds of a service that wait for a registrar or a member of a committee, and are polled."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from client.errors import (
    ForbiddenError,
    NotAuthorisedError,
    ServiceError,
    ServiceUnreachableError,
)
from secagg.errors import UnsafeRequestError


class PendingRound(Protocol):
    """A round that waits, as the service lists it."""

    @property
    def study(self) -> str: ...
    @property
    def round(self) -> int: ...


R = TypeVar("R", bound=PendingRound)
T = TypeVar("T")
MAX_KEPT_ROUNDS = 10_000  # a service could invent rounds without end


@dataclass
class RoundReports(Generic[R]):
    """Results of rounds, which are reported once: the refused rounds, and the last failures.

    The last rounds are kept; an earlier one that waits again is tried and reported again.
    """

    _refused: dict[tuple[str, int], None] = field(default_factory=dict, init=False)
    _failures: dict[tuple[str, int], str] = field(default_factory=dict, init=False)

    def is_refused(self, pending: R) -> bool:
        return (pending.study, pending.round) in self._refused

    def refuse(self, pending: R, reason: str, report: Callable[[R, str], None]) -> None:
        """Report a round that is not tried again."""
        _keep(self._refused, (pending.study, pending.round), None)
        report(pending, reason)

    def fail(self, pending: R, error: Exception, report: Callable[[R, str], None]) -> None:
        """Report a round that is tried again, unless the reason is that of its last failure."""
        key = pending.study, pending.round
        if self._failures.get(key) != str(error):
            _keep(self._failures, key, str(error))
            report(pending, f"{error} (it is tried again)")

    def succeed(self, pending: R, report: Callable[[R, str], None]) -> None:
        self._failures.pop((pending.study, pending.round), None)
        report(pending, "")


def _keep(rounds: dict[tuple[str, int], T], key: tuple[str, int], value: T) -> None:
    """Store the value of a round, and forget the earliest ones."""
    rounds[key] = value
    while len(rounds) > MAX_KEPT_ROUNDS:
        del rounds[next(iter(rounds))]


async def keep_asking(ask: Callable[[], Awaitable[int | None]], poll_seconds: float) -> None:
    """Call `ask` until cancelled, at once if it returned a number above 0, otherwise after a pause.

    A service that is out of reach, or whose list of rounds cannot be read, is asked again.

    Raises:
        NotAuthorisedError, ForbiddenError: if the API key is not valid, or lacks a scope.
    """
    while True:
        done = None
        try:
            done = await ask()
        except (NotAuthorisedError, ForbiddenError):
            raise
        except (ServiceError, ServiceUnreachableError, UnsafeRequestError):
            pass  # of the list of rounds
        if not done:
            await asyncio.sleep(poll_seconds)
