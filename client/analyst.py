"""The analyst's side: ask a question, watch the rounds, read the answer.

    with Analyst("http://127.0.0.1:8000", key) as analyst:
        study = analyst.create("domains", question, devices=1000)
        for round in study.watch():
            print(round.number, round.state)
        for row in study.heavy_hitters():
            print(row.item, row.estimate, row.standard_error)

What may be asked, what it answers and when it raises is told where it is written down once, in
`client.calls`; the methods here are these calls, sent and waited for. Every one is one request or a
walk over pages, blocks until it is answered, and is repeated if the service is out of reach for a
moment. `client.async_analyst` is the same for programs with an event loop.
"""

import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar

import httpx

from client import calls
from client.asking import OVER, PATIENCE, Asking, Changes, Events
from client.calls import Call, Listing
from client.methods import like
from client.tables import Table
from protocol.events import Event
from protocol.messages import PopulationView, RoundView, StudyView

P = ParamSpec("P")
T = TypeVar("T")


def _of_study(
    call: Callable[Concatenate[str, P], Call[T]],
) -> Callable[Concatenate["Study", P], T]:
    def ask(self: "Study", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._asking.ask(call(self.id, *args, **kwargs))

    return like(call, ask, known=1)


def _table_of_study(
    listing: Callable[Concatenate[str, P], Listing[T]],
) -> Callable[Concatenate["Study", P], Table[T]]:
    def ask(self: "Study", /, *args: P.args, **kwargs: P.kwargs) -> Table[T]:
        return self._asking.table(listing(self.id, *args, **kwargs))

    return like(listing, ask, known=1)


def _changing(call: Callable[[str], Call[StudyView]]) -> Callable[["Study"], StudyView]:
    def ask(self: "Study") -> StudyView:
        self.view = self._asking.ask(call(self.id))
        return self.view

    return like(call, ask, known=1)


class Study:
    """A study of the service; `view` is how it stood when it was last heard of."""

    def __init__(self, asking: Asking, view: StudyView) -> None:
        self.id = view.id
        self.view = view
        self._asking = asking

    def __repr__(self) -> str:
        """Return its name and how it stood."""
        return f"<Study {self.id} {self.view.name!r}, {self.state}>"

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

    def watch(self, every: float = 0.5) -> Iterator[RoundView]:
        """Yield each round whenever it has changed, until the study is over.

        `every` is how many seconds lie between two looks.
        """
        changes = Changes()
        while True:
            is_over = self.refresh().state in OVER  # asked first: no round comes after
            for view in self._asking.walk(calls.rounds(self.id, changes.settled)):
                if changes.is_new(view):
                    yield view
            if is_over:
                return
            time.sleep(every)

    def wait(self, progress: Callable[[RoundView], None] | None = None) -> StudyView:
        """Return the study once it is over; `progress` hears of every change until then."""
        for view in self.watch():
            if progress:
                progress(view)
        return self.view

    def events(self, after: int = 0) -> Iterator[Event]:
        """Yield what happens, as it happens, from the event after number `after` until it ends.

        Raises:
            NotFoundError: if there is no such study.
            httpx.TransportError: if the service is out of reach for as long as our patience.
        """
        return self._asking.listen(Events(self.id, after))


def _opening(call: Callable[P, Call[StudyView]]) -> Callable[Concatenate["Analyst", P], Study]:
    def ask(self: "Analyst", /, *args: P.args, **kwargs: P.kwargs) -> Study:
        return Study(self._asking, self._asking.ask(call(*args, **kwargs)))

    return like(call, ask, returns=Study)


def _of_service(call: Callable[P, Call[T]]) -> Callable[Concatenate["Analyst", P], T]:
    def ask(self: "Analyst", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._asking.ask(call(*args, **kwargs))

    return like(call, ask)


class Analyst:
    """An analyst before the service at `url`.

    `key` is an API key, unless the service is open; `patience` in seconds bounds retries.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        patience: float = PATIENCE,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._asking = Asking(url, key, patience, transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._asking.close()

    create = _opening(calls.create)
    study = _opening(calls.study)

    def studies(self) -> Iterator[Study]:
        """Yield all studies, newest first."""
        return (Study(self._asking, view) for view in self._asking.walk(calls.studies()))

    create_population = _of_service(calls.create_population)
    population_privacy = _of_service(calls.population_privacy)

    def populations(self) -> Table[PopulationView]:
        """Return all populations, by name."""
        return self._asking.table(calls.populations())
