"""Everything an analyst may ask of the service: what is sent, and how the answer is read.

A `Call` is one request as plain data; who sends it, whether it waits in a thread or in an event
loop, is another matter (`client.asking`). So each question is written once, and `Analyst` and
`AsyncAnalyst` are two lists of them. What is too long for one answer comes in pages, each with the
call of the next.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from secrets import token_urlsafe
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote

import httpx

from client.problems import accept
from client.tables import ROUND, HeavyHitter, Table, Told
from protocol.knots import Estimator
from protocol.mechanism import Terms
from protocol.mechanisms import SUMMING, AnyQuestion
from protocol.messages import (
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
    ToldPage,
)
from protocol.privacy.ledger import Budget, Statement
from secagg.ring import Ring, Vector

COHORT: Final = 1000  # devices at most, where an analyst says only how many there are
ROUNDS: Final = 5
_JSON: Final = {"content-type": "application/json"}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request, and how to `parse` the body of its answer; `key` makes it happen once."""

    method: str
    path: str
    parse: Callable[[bytes], T]
    params: Mapping[str, Any] = field(default_factory=dict)
    content: str | None = None
    key: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers that it takes."""
        headers = {} if self.content is None else dict(_JSON)
        return headers if self.key is None else headers | {"idempotency-key": self.key}

    def read(self, response: httpx.Response) -> T:
        """Return what the service answered.

        Raises:
            ServiceError: if it refused.
        """
        return self.parse(accept(response).content)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some rows of a list, and the call of the page after it, None after the last."""

    rows: tuple[T, ...]
    next: "Call[Page[T]] | None"


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """A list that comes in pages, and the columns of a table of it."""

    first: Call[Page[T]]
    columns: tuple[str, ...]


def create(  # noqa: PLR0913 - a study has as many sides
    name: str,
    question: AnyQuestion,
    terms: Terms | None = None,
    *,
    devices: int | None = None,
    cohorts: int | None = None,
    rounds: int = ROUNDS,
    timeouts: Timeouts | None = None,
    start: bool = True,
    population: str | None = None,
    key: str | None = None,
) -> Call[StudyView]:
    """Create a study of `rounds` rounds, and start it unless told not to.

    Say how many `devices` a round takes at most, in how many `cohorts` if not of a thousand each,
    or else all the `terms`. The same `key` within a day is the same study, however often it is
    asked for, also from another process; without one, the repetitions of this call are.

    Raises:
        ValueError: if it is not said how many devices there are, or said twice.
        RejectedError: if it cannot be answered under these terms; says what can.
        BudgetSpentError: if its `population` has not enough privacy budget left for it.
        KeyReusedError: if another study was asked for by this `key`.
        httpx.TransportError: if there was no answer. The study may have been created: ask
            again by the same `key`, or look for it in `studies`.
    """
    asked = StudyRequest(
        name=name,
        question=question,
        terms=_terms(terms, devices, cohorts),
        rounds=rounds,
        timeouts=timeouts or Timeouts(),
        start=start,
        population=population,
    )
    content, once = asked.model_dump_json(), key or token_urlsafe(24)
    return Call("POST", "/studies", StudyView.model_validate_json, content=content, key=once)


def _terms(terms: Terms | None, devices: int | None, cohorts: int | None) -> Terms:
    if terms is not None:
        if devices is not None or cohorts is not None:
            raise ValueError("terms say how many devices and cohorts there are: leave those out")
        return terms
    if devices is None:
        raise ValueError("say how many devices a round takes at most (devices=), or all the terms")
    parts = math.ceil(devices / COHORT) if cohorts is None else cohorts
    size = math.ceil(devices / max(1, parts))  # that there is no such number, terms will say
    return Terms(cohort_size=size, minimum=max(3, size // 2), cohorts=parts)


def study(study: str) -> Call[StudyView]:
    """Return a study that is there already.

    Raises:
        NotFoundError: if there is no such study.
    """
    return Call("GET", _of(study), StudyView.model_validate_json)


def start(study: str) -> Call[StudyView]:
    """Start a study; one that runs already is left alone."""
    return Call("POST", _of(study, "start"), StudyView.model_validate_json)


def stop(study: str) -> Call[StudyView]:
    """Stop a study for good: no further round is opened."""
    return Call("POST", _of(study, "stop"), StudyView.model_validate_json)


def studies() -> Listing[StudyView]:
    """Yield all studies, newest first."""

    def read(body: bytes) -> tuple[Sequence[StudyView], str | None]:
        page = StudyPage.model_validate_json(body)
        return page.studies, page.next

    return Listing(_paged("/studies", read), ("id", "name", "state", "rounds", "round", "created"))


def rounds(study: str, after: int = 0) -> Listing[RoundView]:
    """Return a study's rounds, first to last; `after` skips those up to it."""

    def read(body: bytes) -> tuple[Sequence[RoundView], int | None]:
        page = RoundPage.model_validate_json(body)
        return page.rounds, page.next

    return Listing(_paged(_of(study, "rounds"), read, after or None), ROUND)


def round(study: str, number: int) -> Call[RoundView]:  # noqa: A001 - as the method is called
    """Return one round as it stands.

    Raises:
        NotFoundError: if there is no such round yet.
    """
    return Call("GET", _of(study, "rounds", number), RoundView.model_validate_json)


def heavy_hitters(study: str) -> Listing[HeavyHitter]:
    """Return the items found so far, the most frequent first."""

    def read(body: bytes) -> tuple[Sequence[HeavyHitter], str | None]:
        page = HeavyHitterPage.model_validate_json(body)
        return [HeavyHitter(**dict(one)) for one in page.heavy_hitters], page.next

    columns = tuple(one.name for one in fields(HeavyHitter))
    return Listing(_paged(_of(study, "heavy-hitters"), read), columns)


def quantiles(
    study: str, q: Sequence[float], *, estimator: Estimator = "ratio", beta: float = 0.05
) -> Call[Table[Told]]:
    """Return the value of each rank `q`, from 0 to 1.

    `estimator` matters to tries: plain takes what was pruned for 0, ratio keeps the mass; `beta`
    is the odds that an interval misses the truth.

    Raises:
        WrongStateError: if nothing was counted yet.
        RejectedError: if the study counts no prefixes, or is asked what makes no sense.
    """
    return _told(study, "quantiles", estimator, beta, q=q)


def ranks(
    study: str,
    x: Sequence[float | str],
    *,
    estimator: Estimator = "ratio",
    beta: float = 0.05,
) -> Call[Table[Told]]:
    """Return the share of devices whose value is below each of `x`; as `quantiles` otherwise."""
    return _told(study, "ranks", estimator, beta, x=x)


def masses(
    study: str,
    ranges: Sequence[tuple[float | str, float | str]],
    *,
    estimator: Estimator = "ratio",
    beta: float = 0.05,
) -> Call[Table[Told]]:
    """Return the shares within each low and high of `ranges`; as `quantiles` otherwise."""
    low, high = [low for low, _ in ranges], [high for _, high in ranges]
    return _told(study, "masses", estimator, beta, low=low, high=high)


def frequencies(
    study: str,
    prefixes: Sequence[str],
    *,
    estimator: Estimator = "ratio",
    beta: float = 0.05,
) -> Call[Table[Told]]:
    """Return the shares that begin with each of `prefixes`; as `quantiles` otherwise."""
    return _told(study, "frequencies", estimator, beta, prefix=prefixes)


def cdf(
    study: str, points: int = 101, *, estimator: Estimator = "ratio", beta: float = 0.05
) -> Call[Table[Told]]:
    """Return the ranks of so many values, from first to last; as `quantiles` otherwise."""
    return _told(study, "cdf", estimator, beta, points=points)


def cohort_sum(study: str, view: RoundView, cohort: int = 0) -> Call[Vector]:
    """Return the sum of the vectors of one cohort of the round that `view` shows.

    Raises:
        WrongPhaseError: if it is not summed yet.
        CohortFailedError: if it never will be.
    """
    ring: Ring = SUMMING[view.plan.question.mechanism].ring(view.plan)
    return Call("GET", _of(study, "rounds", view.number, "cohorts", cohort, "sum"), ring.unpack)


def privacy(study: str, delta: float | None = None) -> Call[Statement]:
    """Return what a study tells of a device, and whom, at `delta` or the study's own."""
    return _statement(_of(study, "privacy"), delta)


def population_privacy(name: str, delta: float | None = None) -> Call[Statement]:
    """Return what all studies of a population tell, and what is left of its budget."""
    return _statement(f"{_population(name)}/privacy", delta)


def create_population(name: str, budget: Budget) -> Call[PopulationView]:
    """Create a population whose studies share `budget`; one that is there is left alone.

    Raises:
        ConflictError: if there is one of this name with another budget.
    """
    content = PopulationRequest(budget=budget).model_dump_json()
    return Call("PUT", _population(name), PopulationView.model_validate_json, content=content)


def populations() -> Listing[PopulationView]:
    """Return all populations, by name."""

    def read(body: bytes) -> tuple[Sequence[PopulationView], str | None]:
        page = PopulationPage.model_validate_json(body)
        return page.populations, page.next

    return Listing(_paged("/populations", read), ("name", "budget", "created"))


def _of(study: str, *parts: object) -> str:
    return "/".join(["/studies", quote(study, safe=""), *map(str, parts)])


def _population(name: str) -> str:
    return f"/populations/{quote(name, safe='')}"


def _paged(
    path: str,
    read: Callable[[bytes], tuple[Sequence[T], str | int | None]],
    after: str | int | None = None,
) -> Call[Page[T]]:
    def parse(body: bytes) -> Page[T]:
        rows, following = read(body)
        return Page(tuple(rows), None if following is None else _paged(path, read, following))

    return Call("GET", path, parse, {} if after is None else {"after": after})


def _told(
    study: str, what: str, estimator: Estimator, beta: float, **at: object
) -> Call[Table[Told]]:
    params = at | {"estimator": estimator, "beta": beta}
    return Call("GET", _of(study, what), _told_table, params)


def _told_table(body: bytes) -> Table[Told]:
    page = ToldPage.model_validate_json(body)
    rows = (Told(**dict(one)) for one in page.told)
    return Table(rows, [one.name for one in fields(Told)])


def _statement(path: str, delta: float | None) -> Call[Statement]:
    params = {} if delta is None else {"delta": delta}
    return Call("GET", path, Statement.model_validate_json, params)
