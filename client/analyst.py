"""The analyst's side: ask a question, watch the rounds, read the answer.

    with Analyst("http://127.0.0.1:8000") as analyst:
        study = analyst.create("domains", question, terms, rounds=5)
        for view in analyst.watch(study.id):
            print(view.number, view.state)
        for row in analyst.heavy_hitters(study.id):
            print(row.item, row.estimate, row.standard_error)

Every call is one request or a walk over pages, blocks until it is answered, and is repeated
if the service is out of reach for a moment. `watch` yields a round whenever it has changed,
`events` what happens as it happens.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from secrets import token_urlsafe
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

import httpx
import stamina
from httpx_sse import EventSource, connect_sse

from client.problems import WrongStateError, accept, worth_repeating
from protocol.events import Event, EventKind
from protocol.mechanism import Terms
from protocol.mechanisms import SUMMING, AnyQuestion
from protocol.messages import (
    RETRY_SECONDS,
    HeavyHitter,
    HeavyHitterPage,
    PopulationPage,
    PopulationRequest,
    PopulationView,
    RoundPage,
    RoundView,
    StudyPage,
    StudyRequest,
    StudyView,
    Timeouts,
    Told,
    ToldPage,
)
from protocol.privacy.ledger import Budget, Statement
from secagg.ring import Ring, Vector

OVER: Final = ("finished", "stopped")
_PAUSE: Final = 0.2  # seconds, before a stream that broke off is opened again
_JSON: Final = {"content-type": "application/json"}


class Analyst:
    """Requests of an analyst to the service at `url`.

    `key` is an API key, unless the service is open; `patience` in seconds bounds retries.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        patience: float = 30.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._http = httpx.Client(
            base_url=url.rstrip("/") + "/v1",
            timeout=30.0,
            transport=transport,
            headers={"authorization": f"Bearer {key}"} if key else None,
        )
        self._patience = patience

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
        self._http.close()

    def create(
        self,
        name: str,
        question: AnyQuestion,
        terms: Terms,
        *,
        rounds: int,
        timeouts: Timeouts | None = None,
        start: bool = True,
        population: str | None = None,
        key: str | None = None,
    ) -> StudyView:
        """Create a study of `rounds` rounds, and start it unless told not to.

        The same `key` within a day is the same study, however often it is asked for, also from
        another process; without one, the repetitions of this call are.

        Raises:
            RejectedError: if it cannot be answered under these terms; says what can.
            BudgetSpentError: if its `population` has not enough privacy budget left for it.
            KeyReusedError: if another study was asked for by this `key`.
            httpx.TransportError: if there was no answer. The study may have been created: ask
                again by the same `key`, or look for it in `studies`.
        """
        asked = StudyRequest(
            name=name,
            question=question,
            terms=terms,
            rounds=rounds,
            timeouts=timeouts or Timeouts(),
            start=start,
            population=population,
        )
        content = asked.model_dump_json()
        answer = self._send("POST", "/studies", content=content, key=key or token_urlsafe(24))
        return StudyView.model_validate_json(answer.content)

    def start(self, study: str) -> StudyView:
        """Start a study; one that runs already is left alone."""
        return self._study("POST", f"/studies/{study}/start")

    def stop(self, study: str) -> StudyView:
        """Stop a study for good: no further round is opened."""
        return self._study("POST", f"/studies/{study}/stop")

    def study(self, study: str) -> StudyView:
        """Return a study as it stands."""
        return self._study("GET", f"/studies/{study}")

    def studies(self) -> Iterator[StudyView]:
        """Yield all studies, newest first."""
        after: str | None = None
        while True:
            page = StudyPage.model_validate_json(self._page("/studies", after))
            yield from page.studies
            if (after := page.next) is None:
                return

    def rounds(self, study: str, after: int | None = None) -> Iterator[RoundView]:
        """Yield a study's rounds, first to last; `after` skips those up to it."""
        while True:
            page = RoundPage.model_validate_json(self._page(f"/studies/{study}/rounds", after))
            yield from page.rounds
            if (after := page.next) is None:
                return

    def round(self, study: str, number: int) -> RoundView:
        """Return one round as it stands."""
        answer = self._send("GET", f"/studies/{study}/rounds/{number}")
        return RoundView.model_validate_json(answer.content)

    def watch(self, study: str, every: float = 0.5) -> Iterator[RoundView]:
        """Yield each round whenever it has changed, until the study is over.

        `every` is how many seconds lie between two looks.
        """
        settled, last = 0, None
        while True:
            is_over = self.study(study).state in OVER  # asked first: no round comes after
            for view in self.rounds(study, settled or None):
                if view != last:
                    yield view
                last = view
                if view.state != "running":
                    settled = view.number
            if is_over:
                return
            time.sleep(every)

    def wait(self, study: str, progress: Callable[[RoundView], None] | None = None) -> StudyView:
        """Return the study once it is over; `progress` hears of every change until then."""
        for view in self.watch(study):
            if progress:
                progress(view)
        return self.study(study)

    def events(self, study: str, after: int = 0) -> Iterator[Event]:
        """Yield what happens in a study, from the event after number `after` until it ends.

        A stream that breaks off is resumed where it did.

        Raises:
            NotFoundError: if there is no such study.
            httpx.TransportError: if the service is out of reach for as long as our patience.
        """
        while True:
            with ExitStack() as stack:
                try:
                    source = self._listen(stack, study, after)
                except WrongStateError:  # it is over, and has told everything
                    return
                with suppress(httpx.TransportError):  # it broke off: what is retried is opening it
                    for said in source.iter_sse():
                        if not said.data:  # how soon to come back, and no event
                            continue
                        told = Event.model_validate_json(said.data)
                        after = told.id
                        yield told
                        if told.kind is EventKind.STUDY_ENDED:
                            return
            time.sleep(_PAUSE)

    def _listen(self, stack: ExitStack, study: str, after: int) -> EventSource:
        """Return the stream of the events after number `after`; it ends with `stack`."""
        path, headers = f"/studies/{quote(study, safe='')}/events", {"Last-Event-ID": str(after)}
        for attempt in stamina.retry_context(
            worth_repeating, attempts=None, timeout=self._patience, wait_max=RETRY_SECONDS
        ):
            with attempt:
                opened = connect_sse(self._http, "GET", path, headers=headers)
                source = stack.enter_context(opened)
                if not source.response.is_success:
                    source.response.read()
                accept(source.response)
                return source
        raise AssertionError("the last attempt returns or raises")

    def heavy_hitters(self, study: str) -> list[HeavyHitter]:
        """Return the items found so far, the most frequent first."""
        rows: list[HeavyHitter] = []
        after: str | None = None
        while True:
            content = self._page(f"/studies/{study}/heavy-hitters", after)
            page = HeavyHitterPage.model_validate_json(content)
            rows.extend(page.heavy_hitters)
            if (after := page.next) is None:
                return rows

    def quantiles(self, study: str, q: Sequence[float], **how: object) -> tuple[Told, ...]:
        """Return the value of each rank `q`, from 0 to 1.

        `how` may name an `estimator`, ratio or plain, and `beta`, the odds that an interval misses
        the truth.

        Raises:
            WrongStateError: if nothing was counted yet.
            RejectedError: if the study counts no prefixes, or is asked what makes no sense.
        """
        return self._told(study, "quantiles", {"q": q, **how})

    def ranks(self, study: str, x: Sequence[float | str], **how: object) -> tuple[Told, ...]:
        """Return the share of devices whose value is below each of `x`; raises as `quantiles`."""
        return self._told(study, "ranks", {"x": x, **how})

    def masses(
        self, study: str, ranges: Sequence[tuple[float | str, float | str]], **how: object
    ) -> tuple[Told, ...]:
        """Return the shares within each low and high of `ranges`; raises as `quantiles`."""
        ends = {"low": [low for low, _ in ranges], "high": [high for _, high in ranges]}
        return self._told(study, "masses", {**ends, **how})

    def frequencies(self, study: str, prefixes: Sequence[str], **how: object) -> tuple[Told, ...]:
        """Return the shares that begin with each of `prefixes`; raises as `quantiles`."""
        return self._told(study, "frequencies", {"prefix": prefixes, **how})

    def cdf(self, study: str, points: int = 101, **how: object) -> tuple[Told, ...]:
        """Return the ranks of so many values, from first to last; raises as `quantiles`."""
        return self._told(study, "cdf", {"points": points, **how})

    def _told(self, study: str, what: str, params: dict[str, object]) -> tuple[Told, ...]:
        path = f"/studies/{quote(study, safe='')}/{what}"
        answer = self._send("GET", path, params=params)
        return ToldPage.model_validate_json(answer.content).told

    def create_population(self, name: str, budget: Budget) -> PopulationView:
        """Create a population whose studies share `budget`; one that is there is left alone.

        Raises:
            ConflictError: if there is one of this name with another budget.
        """
        asked = PopulationRequest(budget=budget).model_dump_json()
        answer = self._send("PUT", f"/populations/{quote(name, safe='')}", content=asked)
        return PopulationView.model_validate_json(answer.content)

    def populations(self) -> tuple[PopulationView, ...]:
        """Return all populations, by name."""
        found: list[PopulationView] = []
        after: str | None = None
        while True:
            page = PopulationPage.model_validate_json(self._page("/populations", after))
            found.extend(page.populations)
            if (after := page.next) is None:
                return tuple(found)

    def privacy(self, study: str, delta: float | None = None) -> Statement:
        """Return what a study tells of a device, and whom, at `delta` or the study's own."""
        return self._statement(f"/studies/{quote(study, safe='')}/privacy", delta)

    def population_privacy(self, name: str, delta: float | None = None) -> Statement:
        """Return what all studies of a population tell, and what is left of its budget."""
        return self._statement(f"/populations/{quote(name, safe='')}/privacy", delta)

    def _statement(self, path: str, delta: float | None) -> Statement:
        params = {} if delta is None else {"delta": delta}
        return Statement.model_validate_json(self._send("GET", path, params=params).content)

    def cohort_sum(self, study: str, view: RoundView, cohort: int = 0) -> Vector:
        """Return the sum of the vectors of one cohort of the round that `view` shows.

        Raises:
            WrongPhaseError: if it is not summed yet.
            CohortFailedError: if it never will be.
        """
        path = f"/studies/{study}/rounds/{view.number}/cohorts/{cohort}/sum"
        ring: Ring = SUMMING[view.plan.question.mechanism].ring(view.plan)
        return ring.unpack(self._send("GET", path).content)

    def _study(self, method: str, path: str) -> StudyView:
        return StudyView.model_validate_json(self._send(method, path).content)

    def _page(self, path: str, after: str | int | None) -> bytes:
        params = {} if after is None else {"after": after}
        return self._send("GET", path, params=params).content

    def _send(
        self,
        method: str,
        path: str,
        *,
        content: str | None = None,
        params: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> httpx.Response:
        headers = _JSON if content is not None else {}
        if key is not None:
            headers = headers | {"idempotency-key": key}
        for attempt in stamina.retry_context(
            worth_repeating, attempts=None, timeout=self._patience, wait_max=RETRY_SECONDS
        ):
            with attempt:
                answer = self._http.request(
                    method, path, content=content, params=params, headers=headers
                )
                return accept(answer)
        raise AssertionError("the last attempt returns or raises")
