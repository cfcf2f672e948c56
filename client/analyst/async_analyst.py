"""Handles of the service and of a study, for an analyst's program.

    async with AsyncAnalyst("http://127.0.0.1:8000", key) as analyst:
        study = await analyst.create("domains", question, devices=1000)
        async for round in study.watch():
            print(round.number, round.state)
        for row in await study.heavy_hitters():
            print(row.item, row.estimate, row.standard_error)

Each method is one request, or one request per page. It is repeated if the service is out of reach
for a moment. Cancelling a call closes its connection and changes nothing else: the study goes on.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from client.lazy_modules import LazyModule

if TYPE_CHECKING:  # the models of all mechanisms take half a second to import
    from collections.abc import AsyncIterator, Callable, Sequence
    from typing import Self

    import httpx

    from client import errors
    from client.analyst import async_sender, requests, size_planner, study_creation
    from client.analyst.async_sender import AsyncSender
    from client.analyst.requests import ApiRequest, PagedRequest
    from client.analyst.result_table import ResultTable
    from protocol.api.events import Event
    from protocol.api.messages import (
        HeavyHitter,
        PopulationView,
        QueryResult,
        RoundView,
        SharedLink,
        StudyView,
        Timeouts,
    )
    from protocol.api.rates import ItemChanges, RoundRate
    from protocol.api.segments import SegmentSummary
    from protocol.committee_terms import AnyCommitteeTerms
    from protocol.estimation.estimates import ListQuality
    from protocol.estimation.number_summary import NumberSummary
    from protocol.mechanisms.quality_goal import QualityGoal
    from protocol.mechanisms.registry import AnyQuestion
    from protocol.privacy.ledger import Budget, Statement
    from protocol.quantiles.cdf import Estimator
    from protocol.question_and_plan import Terms
    from secagg.ring import Vector
else:
    async_sender = LazyModule("client.analyst.async_sender")
    requests = LazyModule("client.analyst.requests")
    study_creation = LazyModule("client.analyst.study_creation")
    size_planner = LazyModule("client.analyst.size_planner")
    errors = LazyModule("client.errors")

DEFAULT_PATIENCE_SECONDS: Final = 30.0  # for which a failed request is repeated


class AsyncStudy:
    """A study of the service; `view` is its last received state.

    `size_reason` is a sentence on the `message_bytes` that `create` chose, empty if it
    chose none. `webhook_secret` is the one of a study that `create` has made with a webhook.
    """

    def __init__(self, sender: AsyncSender, view: StudyView, size_reason: str = "") -> None:
        self.id = view.id
        self.view = view
        self.size_reason = size_reason
        self.webhook_secret: str | None = getattr(view, "webhook_secret", None)
        self._sender = sender

    def __repr__(self) -> str:
        return f"<AsyncStudy {self.id} {self.view.name!r}, {self.view.outcome}>"

    @property
    def state(self) -> str:
        """Return the last received state; sends no request."""
        return self.view.state

    async def refresh(self) -> StudyView:
        """Return the current state of the study; raises NotFoundError if it does not exist."""
        return await self._update(requests.study(self.id))

    async def start(self) -> StudyView:
        """Start the study; a running study does not change."""
        return await self._update(requests.change_study(self.id, "start"))

    async def stop(self) -> StudyView:
        """Stop the study permanently: it opens no further round."""
        return await self._update(requests.change_study(self.id, "stop"))

    async def delete(self) -> None:
        """Delete the study with its answer, and with all that the service has of its devices.

        Raises:
            NotFoundError: if it does not exist, perhaps because it was deleted before.
            WrongStateError: if it is running: stop it first.
        """
        await self._sender.send(requests.delete_study(self.id))

    async def share(self, days: float = 30.0) -> SharedLink:
        """Return a new link at which everybody can read this study, without a key, for `days`.

        Raises:
            ValueError: if `days` is not above 0 and at most 3650.
        """
        return await self._sender.send(requests.share_study(self.id, days))

    async def end_links(self) -> None:
        """End all links to this study."""
        await self._sender.send(requests.end_links(self.id))

    async def _update(self, request: ApiRequest[StudyView]) -> StudyView:
        self.view = await self._sender.send(request)
        return self.view

    async def rounds(self, after: int = 0) -> ResultTable[RoundView]:
        """Return the rounds after number `after`, first to last."""
        return await self._sender.table(self._rounds(after))

    def _rounds(self, after: int) -> PagedRequest[RoundView]:
        return requests.rounds(self.id, after, devices=self.view.terms.max_devices)

    async def round(self, number: int) -> RoundView:
        """Return the current state of one round; raises NotFoundError before it exists."""
        return await self._sender.send(requests.round_view(self.id, number))

    async def cohort_sum(self, view: RoundView, cohort: int = 0) -> Vector:
        """Return the sum of the vectors of one cohort of the round in `view`.

        Raises:
            WrongPhaseError: if the sum does not exist yet.
            CohortFailedError: if the sum will never exist.
        """
        return await self._sender.send(requests.cohort_sum(self.id, view, cohort))

    async def heavy_hitters(self) -> ResultTable[HeavyHitter]:
        """Return the items found so far, most frequent first."""
        return await self._sender.table(requests.heavy_hitters(self.view))

    async def top(self, k: int, *, threshold: float | None = None) -> ResultTable[HeavyHitter]:
        """Return the `k` most frequent items, with the probability that each is among them.

        With `threshold`, only items that reach it; it is at least the study's.
        """
        return await self._sender.send(requests.top_items(self.view, k, threshold))

    async def list_quality(self, *, threshold: float | None = None) -> ListQuality | None:
        """Return the expected precision of the heavy hitters, and what the list does not show.

        With `threshold`, that of the list of items that reach it. None if the mechanism does not
        estimate it, or before the first sum.
        """
        return await self._sender.send(requests.list_quality(self.id, threshold))

    async def series(self, items: Sequence[str]) -> ResultTable[RoundRate]:
        """Return the rate of each heavy hitter in `items` by round, per 1,000 devices.

        Raises:
            NotFoundError: if an item is not a heavy hitter.
            WrongStateError: if the mechanism keeps totals only, or no round has a sum yet.
        """
        return await self._sender.send(requests.series(self.id, items))

    async def changes(
        self,
        before: tuple[int, int] | None = None,
        after: tuple[int, int] | None = None,
        *,
        false_discovery_rate: float = 0.05,
    ) -> ItemChanges:
        """Return the heavy hitters that are rising, falling, new or gone, by p-value.

        The first and last rounds `before` and `after` are compared, by default the halves of the
        study so far. On average at most a share `false_discovery_rate` of the changes is false.

        Raises:
            WrongStateError: if the mechanism keeps totals only, or fewer than two rounds have sums.
        """
        ranges = requests.round_ranges(before=before, after=after)
        return await self._sender.send(requests.changes(self.id, false_discovery_rate, ranges))

    async def compare(
        self, other: AsyncStudy | str, *, false_discovery_rate: float = 0.05
    ) -> ItemChanges:
        """Return the rates of the heavy hitters of this study, and of the `other` one as the later.

        A `change` is None where they do not differ at the false-discovery rate. If the studies ask
        different questions, `differences` states in what: rates may differ for this alone.
        """
        study = other if isinstance(other, str) else other.id
        return await self._sender.send(requests.comparison(self.id, study, false_discovery_rate))

    async def quantiles(
        self, q: Sequence[float], *, estimator: Estimator = "ratio", beta: float = 0.05
    ) -> ResultTable[QueryResult]:
        """Return the number at each rank in `q`, from 0 to 1.

        The `estimator` matters for tries: "plain" counts pruned prefixes as 0, "ratio" keeps their
        mass. An interval misses the truth with probability `beta`.

        Raises:
            WrongStateError: if nothing has been counted yet.
            BadRequestError: if the study has no distribution of numbers, or an argument is out of
                range. The message names what to ask instead.
        """
        return await self._query("quantiles", estimator, beta, q=q)

    async def ranks(
        self, x: Sequence[float], *, estimator: Estimator = "ratio", beta: float = 0.05
    ) -> ResultTable[QueryResult]:
        """Return the fraction of devices below each value in `x`; see `quantiles`."""
        return await self._query("ranks", estimator, beta, x=x)

    async def masses(
        self,
        ranges: Sequence[tuple[float, float]],
        *,
        estimator: Estimator = "ratio",
        beta: float = 0.05,
    ) -> ResultTable[QueryResult]:
        """Return the fraction of devices within each (low, high) of `ranges`; see `quantiles`."""
        low, high = [low for low, _ in ranges], [high for _, high in ranges]
        return await self._query("masses", estimator, beta, low=low, high=high)

    async def frequencies(
        self, prefixes: Sequence[str], *, estimator: Estimator = "ratio", beta: float = 0.05
    ) -> ResultTable[QueryResult]:
        """Return the fraction of strings that begin with each of `prefixes`; see `quantiles`.

        Raises:
            BadRequestError: if the study counts no prefixes, or no item can begin with one of them.
        """
        return await self._query("frequencies", estimator, beta, prefix=prefixes)

    async def cdf(
        self, points: int = 101, *, estimator: Estimator = "ratio", beta: float = 0.05
    ) -> ResultTable[QueryResult]:
        """Return the ranks of `points` values, from the first to the last; see `quantiles`."""
        return await self._query("cdf", estimator, beta, points=points)

    async def numbers(self, *, beta: float = 0.05) -> ResultTable[NumberSummary]:
        """Return the mean and the variance of the devices' numbers, of all and per segment.

        The first row has all devices. An interval misses the population's value with probability
        `beta`.

        Raises:
            WrongStateError: if no segment has enough devices yet.
            BadRequestError: if the study sums no numbers.
        """
        return await self._sender.send(requests.numbers(self.id, beta))

    async def segments(self, limit: int = 10) -> ResultTable[SegmentSummary]:
        """Return the total, the share and at most `limit` items of each segment.

        Raises:
            BadRequestError: if the domain of the study has no segments.
        """
        return await self._sender.send(requests.segments(self.id, limit))

    async def _query(
        self, kind: str, estimator: Estimator, beta: float, **params: object
    ) -> ResultTable[QueryResult]:
        request = requests.query(self.id, kind, estimator=estimator, beta=beta, **params)
        return await self._sender.send(request)

    async def privacy(self, delta: float | None = None) -> Statement:
        """Return the privacy loss of a device to each party, at `delta` or the study's value."""
        return await self._sender.send(requests.privacy("studies", self.id, delta))

    async def watch(self, every: float = 0.5) -> AsyncIterator[RoundView]:
        """Yield each round when it has changed, until the study ends.

        `every` is the number of seconds between two requests.
        """
        changes = requests.RoundChanges()
        while True:
            view = await self.refresh()  # first: a study that has ended opens no further round
            listing = self._rounds(changes.last_finished_round)
            async for round_view in self._sender.rows(listing):
                if changes.is_new(round_view):
                    yield round_view
            if view.state in requests.FINAL_STATES:
                return
            await asyncio.sleep(every)

    async def wait(self, progress: Callable[[RoundView], None] | None = None) -> StudyView:
        """Return the study when it has ended; `progress` receives each changed round.

        Its `end_cause` and `end_reason` are those of the end.
        """
        async for view in self.watch():
            if progress:
                progress(view)
        return self.view

    def events(self, after: int = 0) -> AsyncIterator[Event]:
        """Yield the events after number `after` as they happen, until the study ends.

        Raises:
            NotFoundError: if the study does not exist.
            ServiceUnreachableError: if the service is out of reach for too long.
        """
        return self._sender.events(requests.EventCursor(self.id, after))


class AsyncAnalyst:
    """The service at `url` in an event loop.

    `key` is an API key, None if the service is open. A request that fails for the moment is
    repeated for `patience` seconds. If nothing listens at `url` when the first request is sent, the
    call fails at once, unless the analyst `waits_for_start` of the service.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        patience: float = DEFAULT_PATIENCE_SECONDS,
        transport: httpx.AsyncBaseTransport | None = None,
        waits_for_start: bool = False,
    ) -> None:
        self._sender = async_sender.AsyncSender(
            url, key, patience, transport, has_answered=waits_for_start
        )

    def __repr__(self) -> str:
        return f"<AsyncAnalyst at {self._sender.shown_url}{', closed' * self._sender.is_closed}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; later calls, also of its studies, raise AnalystClosedError."""
        await self._sender.close()

    async def create(  # noqa: PLR0913 - one argument per field of a study
        self,
        name: str,
        question: AnyQuestion,
        terms: Terms | None = None,
        *,
        devices: int | None = None,
        cohorts: int | None = None,
        registrar: str | None = None,
        committee: Sequence[str] | AnyCommitteeTerms | None = None,
        rounds: int | None = None,
        timeouts: Timeouts | None = None,
        start: bool = True,
        population: str | None = None,
        tags: Sequence[str] = (),
        webhook: str | None = None,
        stop_at: QualityGoal | None = None,
        key: str | None = None,
    ) -> AsyncStudy:
        """Create a study, and start it unless `start` is False.

        It has at most `rounds` rounds, by default five, or for `triehh` the number that its longest
        strings need.

        Either `terms` has all sizes, or `devices` is the largest number of devices in a round; they
        form `cohorts` cohorts, by default of at most 1,000 devices each, and `registrar` is the
        public key of the registrar that enrols them; it must run `blindtally registrar serve` if
        there are several cohorts. Devices with default settings refuse a sum without a registrar.
        With the public keys of operators as `committee`, each device sends one message, and all
        devices form one cohort; the operators must run `blindtally member`. With `VolunteerTerms`,
        the registrar draws the committee from devices. The study ends early if the expected
        precision and recall of its list reach `stop_at`. The list of studies can be filtered by the
        `tags`, of lower-case letters, digits and hyphens. When the study has ended, the service
        sends a message to the https URL `webhook`, which `Study.webhook_secret` signs.

        Calls with the same `key` within a day, also from other processes, create one study. Without
        a `key`, only the repetitions of this call do. If its `message_bytes` are "auto", a
        simulation chooses them, in some seconds or a minute; `Study.size_reason` states the
        choice.

        Raises:
            ValueError: if an argument cannot be right, the number of devices is missing, a field of
                `terms` is given twice, or no size of a message suffices.
            ModuleNotFoundError: if a size must be chosen without the extra `simulate`.
            BadRequestError: if the question cannot be answered under these terms; lists every
                fault.
            BudgetSpentError: if its `population` has too little privacy budget left, or exact sums
                of another study.
            IdempotencyKeyReusedError: if `key` was used for another study.
            ServiceUnreachableError: if no answer came. The study may exist: call again with the
                same `key`, or look for it in `studies`.
        """
        rounds = study_creation.default_rounds(question) if rounds is None else rounds
        terms = study_creation.study_terms(terms, devices, cohorts, registrar, committee)
        question, reason = await asyncio.to_thread(
            size_planner.choose_size, question, terms, rounds
        )
        request = study_creation.create_study(
            key,
            name=name,
            question=question,
            terms=terms,
            rounds=rounds,
            timeouts=timeouts,
            start=start,
            population=population,
            tags=tags,
            webhook=webhook,
            stop_at=stop_at,
        )
        view = await self._sender.send(request)
        return AsyncStudy(self._sender, view, reason)

    async def study(self, study: str) -> AsyncStudy:
        """Return the study with the id `study`, or else the only one with this name.

        Raises:
            NotFoundError: if there is none; names the nearest of the newest ones.
            ValueError: if several have this name; lists their ids.
        """
        try:
            view = await self._sender.send(requests.study(study))
        except errors.NotFoundError as error:
            same = [each.view async for each in self.studies(name=study) if each.view.name == study]
            if not same:
                newest, _ = await self._sender.send(requests.studies().page(None))
                raise requests.with_nearest_names(study, newest, error) from None
            view = requests.only_study(study, same)
        return AsyncStudy(self._sender, view)

    async def studies(self, **filters: str | None) -> AsyncIterator[AsyncStudy]:
        """Yield the studies that meet all filters, newest first; raises BadRequestError.

        Filters are the exact `name`, `tag`, `state` and `owner`, which is the name of the API key
        that created a study, and `search`, a part of the name, the question or a tag.
        """
        async for view in self._sender.rows(requests.studies(**filters)):
            yield AsyncStudy(self._sender, view)

    async def create_population(self, name: str, budget: Budget | None = None) -> PopulationView:
        """Create a population, or raise ConflictError if it exists with another `budget`.

        Without a budget, its studies may ask for exact sums, but of one study at a time.
        """
        return await self._sender.send(requests.create_population(name, budget))

    async def population_privacy(self, name: str, delta: float | None = None) -> Statement:
        """Return the privacy loss of all studies of a population, and its remaining budget."""
        return await self._sender.send(requests.privacy("populations", name, delta))

    async def populations(self) -> ResultTable[PopulationView]:
        """Return all populations, by name."""
        return await self._sender.table(requests.populations())
