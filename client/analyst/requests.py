"""Requests of an analyst as plain data, and what has changed since the previous one."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Final, Generic, TypeVar, get_args

import httpx
from httpx_sse import ServerSentEvent
from pydantic import BaseModel

from client.analyst.result_table import ResultTable
from client.credentials import bearer_headers, cause_without_secrets
from client.errors import NotFoundError, UnreadableAnswerError, check_response, has_many_values
from client.http.address_and_retries import http_options, url_path
from client.http.exchange import CONNECT_SECONDS, RESPONSE_TIMEOUT_SECONDS
from protocol.api.events import Event
from protocol.api.messages import (
    HeavyHitter,
    HeavyHitterPage,
    PopulationPage,
    PopulationRequest,
    PopulationView,
    QueryResult,
    QueryResults,
    RoundPage,
    RoundView,
    SharedLink,
    ShareRequest,
    StudyPage,
    StudyView,
)
from protocol.api.rates import MAX_SERIES_ITEMS, ItemChanges, RoundRate, RoundRates
from protocol.api.segments import SegmentSummaries, SegmentSummary
from protocol.estimation.estimates import ListQuality
from protocol.estimation.number_summary import NumberSummaries, NumberSummary
from protocol.mechanisms.registry import SUM_MECHANISMS
from protocol.privacy.ledger import Budget, Statement
from secagg.errors import UnsafeRequestError
from secagg.ring import Ring, Vector

RECONNECT_SECONDS: Final = 0.2  # before a broken stream of events is opened again
ROUND_COLUMNS: Final = ("number", "state", "participants", "distinct", "opened", "closed")
TOP_COLUMNS: Final = tuple(name for name in HeavyHitter.model_fields if name != "cohort_p_value")
HEAVY_HITTER_COLUMNS: Final = tuple(name for name in TOP_COLUMNS if name != "top_probability")
MAX_CHANGES: Final = 1000  # items with changes in one answer
FINAL_STATES: Final = ("finished", "stopped")
MAX_ANSWER_BYTES: Final = 2**26  # a page of studies whose questions list their options
MAX_ANSWER_VALUES: Final = 2**21  # of JSON
HEAD_SECONDS: Final = CONNECT_SECONDS + RESPONSE_TIMEOUT_SECONDS  # until a body begins
MAX_LIST_ROWS: Final = 2**18  # of all pages
MAX_EVENT_BYTES: Final = 2**20
_MAX_ROUNDS_OF_PAGE: Final = 20

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ApiRequest(Generic[T]):
    """One request; the service executes requests with the same `idempotency_key` once."""

    method: str
    path: str
    parse: Callable[[bytes], T]
    params: Mapping[str, Any] = field(default_factory=dict)
    content: str | None = None
    idempotency_key: str | None = None
    is_json: bool = True

    @property
    def arguments(self) -> dict[str, Any]:
        headers = {}
        if self.content is not None:
            headers["content-type"] = "application/json"
        if self.idempotency_key is not None:
            headers["idempotency-key"] = self.idempotency_key
        return {
            "method": self.method,
            "url": self.path,
            "params": self.params,
            "content": self.content,
            "headers": headers,
        }

    def read(self, response: httpx.Response) -> T:
        """Return the parsed answer; raises ServiceError if it is a refusal or cannot be read."""
        check_response(response)
        place, status = response.url, response.status_code
        if self.is_json and has_many_values(response.content, MAX_ANSWER_VALUES):
            reason = f"more than {MAX_ANSWER_VALUES:,} values"
            raise UnreadableAnswerError.at(place, status, reason)
        try:
            return self.parse(response.content)
        except ValueError as error:  # pydantic's ValidationError is one
            raise UnreadableAnswerError.at(place, status) from cause_without_secrets(error)


@dataclass(frozen=True, slots=True)
class PagedRequest(Generic[T]):
    """A list in pages after row `after`; `parse` returns a page's rows and the next `after`.

    `row_type` is the model of a row, and `threshold` is that of a list of heavy hitters. With a
    `limit`, a page has at most this number of rows. All rows meet the `filters`.
    """

    path: str
    parse: Callable[[bytes], tuple[Sequence[T], str | int | None]]
    columns: tuple[str, ...]
    row_type: type[BaseModel]
    after: str | int | None = None
    threshold: float | None = None
    limit: int | None = None
    filters: Mapping[str, object] = field(default_factory=dict)

    def page(self, after: str | int | None) -> ApiRequest[tuple[Sequence[T], str | int | None]]:
        params = {**self.filters, **_given(after=after, limit=self.limit)}
        return ApiRequest("GET", self.path, self.parse, params)

    def next_page(
        self, rows: Sequence[T], before: str | int | None, after: str | int | None
    ) -> str | int | None:
        """Return the `after` of the next page; raises UnreadableAnswerError if there is no end."""
        if after is not None and (not rows or after == before):
            raise UnreadableAnswerError.at(self.path, reason="pages without an end")
        return after


class RoundChanges:
    """Detects the rounds of a study that have changed since the previous request."""

    def __init__(self) -> None:
        self.last_finished_round = 0  # rounds up to this one do not change any more
        self._last: RoundView | None = None

    def is_new(self, view: RoundView) -> bool:
        """Return whether a round has changed; rounds must come in order, first to last."""
        is_new = view != self._last
        self._last = view
        if view.state != "running":
            self.last_finished_round = view.number
        return is_new


class EventLimit:
    """Limit of one event in the bytes of a stream, whose lines might never end."""

    def __init__(self) -> None:
        self._last, self._nbytes = b"", 0

    def add(self, chunk: bytes) -> None:
        """Count the bytes since the last empty line; raises UnsafeRequestError beyond the limit."""
        text = (self._last + chunk).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        end = text.rfind(b"\n\n")
        self._nbytes = len(text) - end - 2 if end >= 0 else self._nbytes + len(chunk)
        self._last = chunk[-1:]
        if self._nbytes > MAX_EVENT_BYTES:
            raise UnsafeRequestError(f"sent an event of more than {MAX_EVENT_BYTES} bytes")


class EventCursor:
    """Position in the events of a study: a stream continues after event number `after`."""

    def __init__(self, study: str, after: int = 0) -> None:
        self.path = url_path("studies", study, "events")
        self.after = after

    @property
    def headers(self) -> dict[str, str]:
        return {"accept": "text/event-stream", "last-event-id": str(self.after)}

    def parse(self, message: ServerSentEvent) -> Event | None:
        """Return the event in `message`, None if it only has a retry time.

        Raises:
            UnreadableAnswerError: if it is malformed.
        """
        if not message.data:
            return None
        try:
            event = Event.model_validate_json(message.data)
        except ValueError as error:
            raise UnreadableAnswerError.at(self.path) from cause_without_secrets(error)
        self.after = event.id
        return event


def client_options(url: str, key: str | None, *, has_transport: bool = False) -> dict[str, Any]:
    """Return the options of an HTTP client of the service at `url`.

    A client that has its own transport needs no proxy.

    Raises:
        ValueError: if `url` is not an http or https address, `key` cannot be a key, or a variable
            of the environment has no proxy or no certificates.
    """
    options = http_options(url)
    options["headers"] |= bearer_headers(key, "API key")
    changes = {"proxy": None} if has_transport else {}
    return options | {"timeout": RESPONSE_TIMEOUT_SECONDS} | changes


def study(study: str) -> ApiRequest[StudyView]:
    """Return the request of a study's current state."""
    return _get(StudyView, "studies", study)


def only_study(name: str, same: Sequence[StudyView]) -> StudyView:
    """Return the only study of those with the `same` name; raises ValueError for several."""
    if len(same) > 1:
        ids = ", ".join(f"{each.id} ({each.outcome}, {each.created:%Y-%m-%d})" for each in same)
        raise ValueError(f"{len(same)} studies have the name {name!r}: use an id, {ids}")
    return same[0]


def with_nearest_names(
    name: str, studies: Sequence[StudyView], error: NotFoundError
) -> NotFoundError:
    """Return the `error` of a study that does not exist, with the nearest names of `studies`."""
    near = get_close_matches(name, [each.name for each in studies])
    hint = f": the nearest names are {', '.join(map(repr, dict.fromkeys(near)))}" if near else ""
    return NotFoundError(error.problem.model_copy(update={"detail": error.problem.detail + hint}))


def change_study(study: str, action: str) -> ApiRequest[StudyView]:
    """Return the request that starts or stops a study."""
    return ApiRequest("POST", url_path("studies", study, action), StudyView.model_validate_json)


def share_study(study: str, days: float) -> ApiRequest[SharedLink]:
    """Return the request of a link to a study that is valid for `days`."""
    content = ShareRequest(days=days).model_dump_json()
    url = url_path("studies", study, "share")
    return ApiRequest("POST", url, SharedLink.model_validate_json, content=content)


def end_links(study: str) -> ApiRequest[None]:
    """Return the request that ends all links to a study."""
    return ApiRequest("DELETE", url_path("studies", study, "share"), lambda _body: None)


def delete_study(study: str) -> ApiRequest[None]:
    """Return the request that deletes a study."""
    return ApiRequest("DELETE", url_path("studies", study), lambda _body: None)


def round_ranges(**ranges: tuple[int, int] | None) -> dict[str, str]:
    """Return the parameters of those ranges of rounds that are given."""
    return {name: f"{ends[0]}-{ends[1]}" for name, ends in ranges.items() if ends is not None}


def studies(**filters: str | None) -> PagedRequest[StudyView]:
    """Return the request of the studies that meet all `filters`, newest first."""
    columns = ("id", "name", "state", "rounds", "round", "created")
    listing = _listing(url_path("studies"), StudyPage, "studies", columns)
    return replace(listing, filters=_given(**filters))


def rounds(study: str, after: int = 0, *, devices: int = 1) -> PagedRequest[RoundView]:
    """Return the request of a study's rounds after number `after`, first to last.

    A round of at most `devices` devices lists its survivors, so a page has few large rounds.
    """
    url = url_path("studies", study, "rounds")
    listing = _listing(url, RoundPage, "rounds", ROUND_COLUMNS, after)
    most = max(1, MAX_ANSWER_VALUES // 2 // devices)
    return listing if most >= _MAX_ROUNDS_OF_PAGE else replace(listing, limit=most)


def heavy_hitters(study: StudyView) -> PagedRequest[HeavyHitter]:
    """Return the request of a study's heavy hitters, most frequent first."""
    url = url_path("studies", study.id, "heavy-hitters")
    listing = _listing(url, HeavyHitterPage, "heavy_hitters", HEAVY_HITTER_COLUMNS)
    return replace(listing, threshold=study.question.threshold)


def top_items(
    study: StudyView, k: int, threshold: float | None
) -> ApiRequest[ResultTable[HeavyHitter]]:
    """Return the request of the `k` most frequent items that reach a threshold."""
    listed_from = study.question.threshold if threshold is None else threshold

    def parse(body: bytes) -> ResultTable[HeavyHitter]:
        page = HeavyHitterPage.model_validate_json(body)
        return ResultTable(page.heavy_hitters, TOP_COLUMNS, listed_from, HeavyHitter)

    url = url_path("studies", study.id, "heavy-hitters")
    return ApiRequest("GET", url, parse, _given(top=k, threshold=threshold))


def list_quality(study: str, threshold: float | None) -> ApiRequest[ListQuality | None]:
    """Return the request of the smallest page of heavy hitters, for the quality of their list."""

    def parse(body: bytes) -> ListQuality | None:
        return HeavyHitterPage.model_validate_json(body).quality

    url = url_path("studies", study, "heavy-hitters")
    return ApiRequest("GET", url, parse, _given(limit=1, threshold=threshold))


def round_view(study: str, number: int) -> ApiRequest[RoundView]:
    """Return the request of one round's current state."""
    return _get(RoundView, "studies", study, "rounds", number)


def cohort_sum(study: str, view: RoundView, cohort: int) -> ApiRequest[Vector]:
    """Return the request of the sum of a cohort's vectors; raises TypeError without a round."""
    if not isinstance(view, RoundView):
        raise TypeError(f"cohort_sum takes a round, such as study.round(1), not {view!r}")
    ring: Ring = SUM_MECHANISMS[view.plan.question.mechanism].ring(view.plan)
    url = url_path("studies", study, "rounds", view.number, "cohorts", cohort, "sum")
    return ApiRequest("GET", url, ring.unpack, is_json=False)


def series(study: str, items: Sequence[str]) -> ApiRequest[ResultTable[RoundRate]]:
    """Return the request of the rates of `items` by round; raises ValueError if they are many."""
    if len(items) > MAX_SERIES_ITEMS:
        raise ValueError(f"series takes at most {MAX_SERIES_ITEMS} items, not {len(items):,}")

    def parse(body: bytes) -> ResultTable[RoundRate]:
        return _table(RoundRates.model_validate_json(body).rates, RoundRate)

    return ApiRequest("GET", url_path("studies", study, "series"), parse, {"item": items})


def changes(
    study: str, false_discovery_rate: float, ranges: Mapping[str, str]
) -> ApiRequest[ItemChanges]:
    """Return the request of the items whose rates differ between two ranges of rounds."""
    given = {"false_discovery_rate": false_discovery_rate, "limit": MAX_CHANGES} | dict(ranges)
    return _get(ItemChanges, "studies", study, "changes", **given)


def comparison(study: str, other: str, false_discovery_rate: float) -> ApiRequest[ItemChanges]:
    """Return the request of the rates of a study and of the `other` one."""
    given = {"false_discovery_rate": false_discovery_rate, "limit": MAX_CHANGES}
    return _get(ItemChanges, "studies", study, "compare", other, **given)


def query(study: str, kind: str, **params: object) -> ApiRequest[ResultTable[QueryResult]]:
    """Return the request of quantiles, ranks, masses, frequencies or the CDF of a study."""

    def parse(body: bytes) -> ResultTable[QueryResult]:
        return _table(QueryResults.model_validate_json(body).results, QueryResult)

    return ApiRequest("GET", url_path("studies", study, kind), parse, _given(**params))


def numbers(study: str, beta: float) -> ApiRequest[ResultTable[NumberSummary]]:
    """Return the request of the means and variances of a study's numbers."""

    def parse(body: bytes) -> ResultTable[NumberSummary]:
        return _table(NumberSummaries.model_validate_json(body).results, NumberSummary)

    return ApiRequest("GET", url_path("studies", study, "numbers"), parse, {"beta": beta})


def segments(study: str, limit: int) -> ApiRequest[ResultTable[SegmentSummary]]:
    """Return the request of the totals, and of at most `limit` items, of each segment."""

    def parse(body: bytes) -> ResultTable[SegmentSummary]:
        return _table(SegmentSummaries.model_validate_json(body).segments, SegmentSummary)

    return ApiRequest("GET", url_path("studies", study, "segments"), parse, {"limit": limit})


def privacy(collection: str, name: str, delta: float | None) -> ApiRequest[Statement]:
    """Return the request of the privacy loss of a study or a population."""
    return _get(Statement, collection, name, "privacy", delta=delta)


def create_population(name: str, budget: Budget | None) -> ApiRequest[PopulationView]:
    """Return the request that creates a population."""
    content = PopulationRequest(budget=budget).model_dump_json()
    parse = PopulationView.model_validate_json
    return ApiRequest("PUT", url_path("populations", name), parse, content=content)


def populations() -> PagedRequest[PopulationView]:
    """Return the request of all populations, by name."""
    columns = ("name", "budget", "created")
    return _listing(url_path("populations"), PopulationPage, "populations", columns)


def _get(model: type[M], *parts: object, **params: object) -> ApiRequest[M]:
    """Return the request of the `model` at a path, with those `params` that are not None."""
    return ApiRequest("GET", url_path(*parts), model.model_validate_json, _given(**params))


def _table(rows: Sequence[M], row_type: type[M]) -> ResultTable[M]:
    """Return a table with all fields of its rows."""
    return ResultTable(rows, row_type.model_fields, row_type=row_type)


def _given(**params: object) -> dict[str, object]:
    return {name: value for name, value in params.items() if value is not None}


def _listing(
    url: str, model: type[BaseModel], rows: str, columns: tuple[str, ...], after: int = 0
) -> PagedRequest[Any]:
    """Return the request of a list whose pages are `model`, with their rows in the field `rows`."""

    def parse(body: bytes) -> tuple[Sequence[Any], str | int | None]:
        page: Any = model.model_validate_json(body)
        return getattr(page, rows), page.next

    row_type, _ = get_args(model.model_fields[rows].annotation)  # of a tuple of any length
    return PagedRequest(url, parse, columns, row_type, after or None)


@contextmanager
def refusing_unreadable(response: httpx.Response) -> Iterator[None]:
    """Raise UnreadableAnswerError instead of the error of an answer beyond its limits."""
    try:
        yield
    except UnsafeRequestError as error:
        place, status = response.url, response.status_code
        raise UnreadableAnswerError.at(place, status, str(error)) from error
