"""Poller of the rounds that wait for a registrar, or for a member of a committee."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, Protocol, TypeAlias, TypeVar

import httpx

from client.errors import ForbiddenError, NotAuthorisedError, ServiceError, ServiceUnreachableError
from client.http.transport import Transport
from secagg.errors import UnsafeRequestError

_LOG: Final = logging.getLogger(__name__)
MAX_KEPT_ROUNDS = 10_000  # a service could invent rounds without end


class PendingRound(Protocol):
    """A round that waits, as the service lists it."""

    @property
    def study(self) -> str: ...
    @property
    def round(self) -> int: ...


R = TypeVar("R", bound=PendingRound)
T = TypeVar("T")
# Receives a round, and "" after a step in it, or why the party took none.
RoundReporter: TypeAlias = Callable[[R, str], None]


@dataclass
class RoundReports(Generic[R]):
    """Results of rounds, which are reported once: the refused rounds, and the last failures.

    The last rounds are kept; an earlier one that waits again is tried and reported again.
    """

    _refused: dict[tuple[str, int], None] = field(default_factory=dict, init=False)
    _failures: dict[tuple[str, int], str] = field(default_factory=dict, init=False)

    def is_refused(self, pending: R) -> bool:
        return (pending.study, pending.round) in self._refused

    def refuse(self, pending: R, reason: str, report: RoundReporter[R]) -> None:
        """Report a round that is not tried again."""
        _keep(self._refused, (pending.study, pending.round), None)
        report(pending, reason)

    def fail(self, pending: R, error: Exception, report: RoundReporter[R]) -> None:
        """Report a round that is tried again, unless the reason is that of its last failure."""
        key = pending.study, pending.round
        reason = _reason_of(error)
        if self._failures.get(key) != reason:
            _keep(self._failures, key, reason)
            report(pending, f"{reason} (it is tried again)")

    def succeed(self, pending: R, report: RoundReporter[R]) -> None:
        self._failures.pop((pending.study, pending.round), None)
        report(pending, "")


def _reason_of(error: Exception) -> str:
    # The advice of a service's errors is for analysts.
    return error.message if isinstance(error, ServiceError) else str(error)


def _keep(rounds: dict[tuple[str, int], T], key: tuple[str, int], value: T) -> None:
    """Store the value of a round, and forget the earliest ones."""
    rounds[key] = value
    while len(rounds) > MAX_KEPT_ROUNDS:
        del rounds[next(iter(rounds))]


@dataclass
class RoundPoller(ABC, Generic[R]):
    """Party that takes a step in each round of a service that waits for it.

    A step that raises one of `refusals` ends the party's part in the round. One of `repeated`, such
    as of a full disk, is reported, and the step tried again. One of `skipped` is not reported, and
    one of `fatal_errors` ends the party.
    """

    refusals: ClassVar[tuple[type[Exception], ...]]
    repeated: ClassVar[tuple[type[Exception], ...]] = (
        ServiceError,
        ServiceUnreachableError,
        UnsafeRequestError,
    )
    skipped: ClassVar[tuple[type[Exception], ...]] = ()
    fatal_errors: ClassVar[tuple[type[Exception], ...]] = (NotAuthorisedError, ForbiddenError)
    poll_seconds: ClassVar[float]  # between two requests after which there was nothing to do
    poll_wait: ClassVar[float] = 0.0  # seconds for which the service may wait for a round
    _reports: RoundReports[R] = field(default_factory=RoundReports, init=False, repr=False)

    @abstractmethod
    async def waiting(self, transport: Transport, api_key: str | None, wait: float) -> Sequence[R]:
        """Return the rounds in which this party takes part, and that wait for it."""

    @abstractmethod
    async def step(self, transport: Transport, api_key: str | None, pending: R) -> bool:
        """Take the step that a round waits for; False if the round went on meanwhile."""

    async def prepare(self, transport: Transport, api_key: str | None) -> None:
        """Take the steps that are due before the rounds are read."""

    def has_refused(self, pending: R) -> bool:
        """Return whether the party takes no further part in a round."""
        return self._reports.is_refused(pending)

    async def serve(
        self,
        transport: Transport,
        api_key: str | None = None,
        report: RoundReporter[R] = lambda _round, _refusal: None,
        poll_seconds: float | None = None,
    ) -> None:
        """Take part in all rounds that name this party, until cancelled.

        `report` receives what `act` reports. A service that is out of reach, or whose list of
        rounds cannot be read, is asked again; a warning is logged when the reason changes.

        Raises:
            NotAuthorisedError, ForbiddenError: if the API key is not valid, or lacks a scope.
        """
        pause = self.poll_seconds if poll_seconds is None else poll_seconds
        reason = ""  # why the last try failed
        while True:
            steps = 0
            try:
                await self.prepare(transport, api_key)
                steps = await self.act(transport, api_key, report, self.poll_wait)
                if reason:
                    _LOG.warning("the rounds can be read again")
                reason = ""
            except self.fatal_errors:
                raise
            except self.repeated as error:
                # The list of rounds could not be read, or the disk not be written.
                if reason != (reason := _reason_of(error)):
                    _LOG.warning("cannot read the rounds: %s (it is tried again)", reason)
            if not steps:
                await asyncio.sleep(pause)

    async def act(
        self,
        transport: Transport,
        api_key: str | None = None,
        report: RoundReporter[R] = lambda _round, _refusal: None,
        wait: float = 0.0,
    ) -> int:
        """Take a step in each round that waits now; report each with "", or why none was taken.

        Returns the number of steps. If no round waits, the service may wait for one for `wait`
        seconds. A refused round is reported once and not tried again. A round whose answers are
        errors is tried again by the next call, and reported when the reason changes. Neither keeps
        the other rounds from being served.

        Raises:
            ServiceError, ServiceUnreachableError, UnsafeRequestError: if the list cannot be read.
            NotAuthorisedError, ForbiddenError: if the API key is not valid, or lacks a scope.
        """
        steps = 0
        for pending in await self.waiting(transport, api_key, wait):
            if self.has_refused(pending):
                continue
            try:
                if not await self.step(transport, api_key, pending):
                    continue
            except self.fatal_errors:
                raise
            except self.refusals as refusal:
                self._reports.refuse(pending, str(refusal), report)
            except self.skipped:
                continue
            except self.repeated as error:
                self._reports.fail(pending, error, report)
            except Exception as fault:  # of any kind: it ends this round, and nothing else
                _LOG.error("the part in a round ended by a fault", exc_info=fault)
                self._reports.refuse(pending, f"{type(fault).__name__}: {fault}", report)
            else:
                steps += 1
                self._reports.succeed(pending, report)
        return steps


@asynccontextmanager
async def polling(
    connect: Callable[[], httpx.AsyncClient], parties: Iterable[tuple[RoundPoller[Any], str | None]]
) -> AsyncIterator[None]:
    """Serve as parties in the background, each with its API key, for programs that are them.

    Raises:
        ServiceError: if the service refuses a first request, for example without the scope.
    """
    async with AsyncExitStack() as stack:
        tasks = []
        for party, api_key in parties:
            transport = Transport(await stack.enter_async_context(connect()))
            await party.act(transport, api_key)
            serving = party.serve(transport, api_key, poll_seconds=party.poll_seconds / 5)
            tasks.append(asyncio.create_task(serving))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
