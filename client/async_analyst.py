"""The analyst's side in an event loop: what `client.analyst` is, with `await` and `async for`.

    async with AsyncAnalyst("http://127.0.0.1:8000", key) as analyst:
        study = await analyst.create("domains", question, devices=1000)
        async for round in study.watch():
            print(round.number, round.state)
        for row in await study.heavy_hitters():
            print(row.item, row.estimate, row.standard_error)

Whoever cancels a call takes its connection back, and nothing else: the study goes on.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar

import httpx

from client import calls
from client.asking import OVER, PATIENCE, AsyncAsking, Changes, Events
from client.calls import Call, Listing
from client.methods import like
from client.tables import Table
from protocol.events import Event
from protocol.messages import PopulationView, RoundView, StudyView

P = ParamSpec("P")
T = TypeVar("T")


def _of_study(
    call: Callable[Concatenate[str, P], Call[T]],
) -> Callable[Concatenate["AsyncStudy", P], Awaitable[T]]:
    async def ask(self: "AsyncStudy", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._asking.ask(call(self.id, *args, **kwargs))

    return like(call, ask, known=1)


def _table_of_study(
    listing: Callable[Concatenate[str, P], Listing[T]],
) -> Callable[Concatenate["AsyncStudy", P], Awaitable[Table[T]]]:
    async def ask(self: "AsyncStudy", /, *args: P.args, **kwargs: P.kwargs) -> Table[T]:
        return await self._asking.table(listing(self.id, *args, **kwargs))

    return like(listing, ask, known=1)


def _changing(
    call: Callable[[str], Call[StudyView]],
) -> Callable[["AsyncStudy"], Awaitable[StudyView]]:
    async def ask(self: "AsyncStudy") -> StudyView:
        self.view = await self._asking.ask(call(self.id))
        return self.view

    return like(call, ask, known=1)


class AsyncStudy:
    """What `client.analyst.Study` is; what asks the service is awaited."""

    def __init__(self, asking: AsyncAsking, view: StudyView) -> None:
        self.id = view.id
        self.view = view
        self._asking = asking

    def __repr__(self) -> str:
        """As `Study`."""
        return f"<AsyncStudy {self.id} {self.view.name!r}, {self.state}>"

    @property
    def state(self) -> str:
        """Return the state that it was last heard to be in; asks nobody."""
        return self.view.state

    refresh = _changing(calls.study)
    start = _changing(calls.start)
    stop = _changing(calls.stop)

    rounds = _table_of_study(calls.rounds)
    round = _of_study(calls.round)
    cohort_sum = _of_study(calls.cohort_sum)

    heavy_hitters = _table_of_study(calls.heavy_hitters)
    quantiles = _of_study(calls.quantiles)
    ranks = _of_study(calls.ranks)
    masses = _of_study(calls.masses)
    frequencies = _of_study(calls.frequencies)
    cdf = _of_study(calls.cdf)
    privacy = _of_study(calls.privacy)

    async def watch(self, every: float = 0.5) -> AsyncIterator[RoundView]:
        """As `Study.watch`."""
        changes = Changes()
        while True:
            is_over = (await self.refresh()).state in OVER
            async for view in self._asking.walk(calls.rounds(self.id, changes.settled)):
                if changes.is_new(view):
                    yield view
            if is_over:
                return
            await asyncio.sleep(every)

    async def wait(self, progress: Callable[[RoundView], None] | None = None) -> StudyView:
        """As `Study.wait`."""
        async for view in self.watch():
            if progress:
                progress(view)
        return self.view

    def events(self, after: int = 0) -> AsyncIterator[Event]:
        """As `Study.events`."""
        return self._asking.listen(Events(self.id, after))


def _opening(
    call: Callable[P, Call[StudyView]],
) -> Callable[Concatenate["AsyncAnalyst", P], Awaitable[AsyncStudy]]:
    async def ask(self: "AsyncAnalyst", /, *args: P.args, **kwargs: P.kwargs) -> AsyncStudy:
        view = await self._asking.ask(call(*args, **kwargs))
        return AsyncStudy(self._asking, view)

    return like(call, ask, returns=AsyncStudy)


def _of_service(
    call: Callable[P, Call[T]],
) -> Callable[Concatenate["AsyncAnalyst", P], Awaitable[T]]:
    async def ask(self: "AsyncAnalyst", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._asking.ask(call(*args, **kwargs))

    return like(call, ask)


class AsyncAnalyst:
    """What `client.analyst.Analyst` is; what asks the service is awaited."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        patience: float = PATIENCE,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._asking = AsyncAsking(url, key, patience, transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._asking.close()

    create = _opening(calls.create)
    study = _opening(calls.study)

    async def studies(self) -> AsyncIterator[AsyncStudy]:
        """As `Analyst.studies`."""
        async for view in self._asking.walk(calls.studies()):
            yield AsyncStudy(self._asking, view)

    create_population = _of_service(calls.create_population)
    population_privacy = _of_service(calls.population_privacy)

    async def populations(self) -> Table[PopulationView]:
        """As `Analyst.populations`."""
        return await self._asking.table(calls.populations())
