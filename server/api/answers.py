"""Answers of a study: heavy hitters, distributions of values, and sums of numbers.

Every answer is computed from published results. It costs no privacy, however often it is read.
"""

import asyncio
import csv
import io
import json
import math
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from fastapi import APIRouter, Depends, Query, Request, Response

from protocol.api.messages import (
    HeavyHitter,
    HeavyHitterPage,
    ProblemType,
    QueryResult,
    QueryResults,
)
from protocol.arrays import Floats
from protocol.domains.numeric import NumericInterval
from protocol.empirical_bayes import probabilities_of_reaching, probabilities_of_top
from protocol.mechanisms.central.queries import distribution
from protocol.mechanisms.number_summary import (
    NoNumbersError,
    NumberSummaries,
    summarise_numbers,
)
from protocol.mechanisms.registry import AnyPlan, AnyQuestion
from protocol.quantiles.cdf import EmptyTreeError, Estimator
from protocol.quantiles.distribution import BoundedEstimate, Distribution
from protocol.study import StudyState
from server.api.common import StudyId, paginate, problem_responses
from server.api.dependencies import require
from server.errors import ProblemError, malformed
from server.http.etag import ETagRoute, etag_responses
from server.principals import Permission
from server.service import Service, ServiceDep

router = APIRouter(
    prefix="/v1/studies/{study}", tags=["answers"], dependencies=[require(Permission.READ)]
)
_FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r")  # spreadsheets run cells that start so
_JSON_OR_CSV: dict[str, Any] = {
    "model": HeavyHitterPage,
    "content": {"text/csv": {"schema": {"type": "string"}}},
}
_MAX_POINTS = 1000
_QUERY_PROBLEMS = problem_responses(404, 409, 422)
_TextValues = Annotated[
    list[Annotated[str, Query(max_length=4096)]], Query(min_length=1, max_length=_MAX_POINTS)
]
Beta = Annotated[
    float, Query(gt=0, lt=1, description="Probability that an interval misses the true value.")
]
_DomainValues: TypeAlias = list[float] | list[str]


async def heavy_hitters(
    study: StudyId,
    request: Request,
    service: ServiceDep,
    *,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    after: Annotated[str | None, Query(max_length=40_000)] = None,
    output_format: Annotated[Literal["json", "csv"] | None, Query(alias="format")] = None,
    threshold: Annotated[float | None, Query(gt=0, allow_inf_nan=False)] = None,
    top: Annotated[int | None, Query(ge=1, le=1000)] = None,
) -> HeavyHitterPage | Response:
    """Return the items that reach the study's threshold, summed over rounds.

    With `threshold`, only those that reach this higher one. With `top`, only the most frequent
    ones, with the probability that each is among them. Neither is paged. With `Accept: text/csv`
    or `format=csv`, the response is one CSV table of all items. A cell that a spreadsheet would run
    as a formula starts with an apostrophe.
    """
    accepts_csv = "text/csv" in request.headers.get("accept", "")
    if output_format == "csv" or (output_format is None and accepts_csv):
        items = await service.store.answers.heavy_hitters(study)
        return Response(csv_table(items), media_type="text/csv; charset=utf-8")
    cursor = None if after is None else _parse_cursor(after)
    if threshold is not None or top is not None:
        question = (await service.store.studies.show(study)).question
        items = await service.store.answers.heavy_hitters(study)
        items = items if threshold is None else _above(items, threshold, question)
        selected = items[:limit] if top is None else _top(items, top)
        return await heavy_hitter_page(service, study, selected)
    rows = await service.store.answers.heavy_hitters(study, limit + 1, cursor)
    page, last = paginate(rows, limit)
    return await heavy_hitter_page(service, study, page, _cursor(last) if last else None)


router.add_api_route(
    "/heavy-hitters",
    heavy_hitters,
    response_model=HeavyHitterPage,
    responses=etag_responses({200: _JSON_OR_CSV, **problem_responses(404, 422)}),
    route_class_override=ETagRoute,
)


async def heavy_hitter_page(
    service: Service, study: str, items: Sequence[HeavyHitter], following: str | None = None
) -> HeavyHitterPage:
    """Return a page of `items`, with the rounds on which their estimates rest."""
    summed, decoded = await service.store.progress.summed_and_decoded_rounds(study)
    return HeavyHitterPage(
        heavy_hitters=tuple(items),
        summed_rounds=summed,
        decoded_rounds=decoded,
        next=following,
        quality=await service.store.answers.list_quality(study),
    )


def _above(
    items: Sequence[HeavyHitter], threshold: float, question: AnyQuestion
) -> tuple[HeavyHitter, ...]:
    """Return the `items` that reach a `threshold` above the study's, with their probabilities."""
    if threshold < question.threshold:
        limit = f"devices agreed to a threshold of {question.threshold:g}; ask for this or more"
        raise malformed(limit, location="query.threshold")
    counts, variances = _counts(items)
    probabilities = probabilities_of_reaching(counts, variances, math.ceil(threshold) - 0.5)
    rows = zip(items, probabilities.tolist(), strict=True)
    return tuple(
        row.model_copy(update={"probability": min(probability, row.probability)})
        for row, probability in rows
        if probability >= question.confidence
    )


def _top(items: Sequence[HeavyHitter], k: int) -> list[HeavyHitter]:
    """Return the `k` most frequent `items`, with the probability of each to be among them."""
    probabilities = probabilities_of_top(*_counts(items), k).tolist()
    rows = zip(items[:k], probabilities[:k], strict=True)
    return [row.model_copy(update={"top_probability": probability}) for row, probability in rows]


def _counts(items: Sequence[HeavyHitter]) -> tuple[Floats, Floats]:
    counts = np.array([row.estimate for row in items], np.float64)
    return counts, np.array([row.standard_error for row in items], np.float64) ** 2


def _cursor(last: HeavyHitter) -> str:
    return urlsafe_b64encode(json.dumps([last.estimate, last.item]).encode()).decode()


def _parse_cursor(cursor: str) -> HeavyHitter:
    try:
        estimate, item = json.loads(urlsafe_b64decode(cursor.encode("ascii")))
        return HeavyHitter(item=item, estimate=estimate, standard_error=0, low=0, high=0)
    except (ValueError, TypeError, RecursionError):
        raise malformed("not the `next` of a page", location="query.after") from None


def csv_table(rows: Iterable[HeavyHitter]) -> str:
    """Return `rows` as CSV in which no cell is a formula."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(
        ("item", "estimate", "standard_error", "low", "high", "cohort_p_value", "probability")
    )
    for row in rows:
        cell = "'" + row.item if row.item.startswith(_FORMULA_PREFIXES) else row.item
        numbers = row.estimate, row.standard_error, row.low, row.high
        writer.writerow((cell, *numbers, row.cohort_p_value, row.probability))
    return out.getvalue()


def query_results(
    points: Sequence[float | str], bounded: BoundedEstimate
) -> tuple[QueryResult, ...]:
    """Return the estimate at each of `points`, with the ends of its interval."""
    columns = bounded.values, bounded.low, bounded.high
    rows = zip(points, *(np.atleast_1d(column).tolist() for column in columns), strict=True)
    return tuple(
        QueryResult(at=at, value=value, low=low, high=high) for at, value, low, high in rows
    )


@dataclass(frozen=True, slots=True)
class DistributionQuery:
    """The counts of a study so far, and the parameters of a query on their distribution."""

    plan: AnyPlan
    study_state: StudyState
    estimator: Estimator
    beta: float

    async def answer(
        self, points: Sequence[float | str], query: Callable[[Distribution], BoundedEstimate]
    ) -> QueryResults:
        """Return the estimates of `query` at `points`; raises ProblemError if there are none."""

        def evaluate() -> BoundedEstimate:
            values = distribution(
                self.plan, self.study_state, estimator=self.estimator, beta=self.beta
            )
            return query(values)

        try:
            bounded = await asyncio.to_thread(evaluate)
        except EmptyTreeError as error:
            raise ProblemError(ProblemType.WRONG_STATE, str(error)) from None
        except ValueError as error:
            raise malformed(str(error), "query") from None
        results = query_results(points, bounded)
        return QueryResults(estimator=self.estimator, beta=self.beta, results=results)

    def domain_values(self, texts: list[str], name: str) -> _DomainValues:
        """Return `texts` as values of the domain; raises ValueError if they must be numbers."""
        if not isinstance(self.plan.question.domain, NumericInterval):
            return texts
        try:
            return [float(text) for text in texts]
        except ValueError:
            raise ValueError(f"{name} must be numbers, not {', '.join(texts)}") from None


async def _distribution_query(
    study: StudyId,
    service: ServiceDep,
    estimator: Annotated[
        Estimator,
        Query(description="In tries: plain counts pruned values as 0, ratio keeps their mass."),
    ] = "ratio",
    beta: Beta = 0.05,
) -> DistributionQuery:
    return DistributionQuery(*await _counts_so_far(study, service), estimator, beta)


async def _counts_so_far(study: str, service: Service) -> tuple[AnyPlan, StudyState]:
    view = await service.store.studies.show(study)
    if not view.round:
        raise ProblemError(ProblemType.WRONG_STATE, "the study has not been started")
    plan = await service.store.rounds.plan(study, view.round)
    return plan, await service.store.answers.study_state(study)


DistributionQueryDep = Annotated[DistributionQuery, Depends(_distribution_query)]


@router.get("/quantiles", responses=_QUERY_PROBLEMS)
async def quantiles(
    query: DistributionQueryDep,
    q: Annotated[list[float], Query(min_length=1, max_length=_MAX_POINTS)],
) -> QueryResults:
    """Return the value of each rank `q`, from 0 to 1."""
    return await query.answer(q, lambda values: values.quantile(q))


@router.get("/ranks", responses=_QUERY_PROBLEMS)
async def ranks(query: DistributionQueryDep, x: _TextValues) -> QueryResults:
    """Return the share of devices whose value is below each of `x`."""
    return await query.answer(x, lambda values: values.rank(query.domain_values(x, "x")))


@router.get("/masses", responses=_QUERY_PROBLEMS)
async def masses(query: DistributionQueryDep, low: _TextValues, high: _TextValues) -> QueryResults:
    """Return the share of devices whose value is at least `low` and below `high`, per range."""
    if len(low) != len(high):
        raise malformed(f"{len(low)} low ends and {len(high)} high ends make no ranges", "query")
    return await query.answer(
        [f"{start}:{end}" for start, end in zip(low, high, strict=True)],
        lambda values: values.mass(
            query.domain_values(low, "low"), query.domain_values(high, "high")
        ),
    )


@router.get("/frequencies", responses=_QUERY_PROBLEMS)
async def frequencies(query: DistributionQueryDep, prefix: _TextValues) -> QueryResults:
    """Return the share of devices with an item that begins with each `prefix`."""
    return await query.answer(prefix, lambda values: values.frequency(prefix))


@router.get("/cdf", responses=_QUERY_PROBLEMS)
async def cdf(
    query: DistributionQueryDep, points: Annotated[int, Query(ge=2, le=_MAX_POINTS)] = 101
) -> QueryResults:
    """Return the ranks of equally spaced values, from the first to the last of the domain."""
    x: list[float | str] = []

    def evaluate(values: Distribution) -> BoundedEstimate:
        positions, bounded = values.cdf(points)
        x.extend(positions.tolist())
        return bounded

    return await query.answer(x, evaluate)


@router.get("/numbers", responses=_QUERY_PROBLEMS)
async def numbers(study: StudyId, service: ServiceDep, beta: Beta = 0.05) -> NumberSummaries:
    """Return the mean and the variance of the devices' numbers, of all and per segment."""
    plan, state = await _counts_so_far(study, service)
    try:
        return summarise_numbers(plan, state, beta)
    except NoNumbersError as error:
        raise ProblemError(ProblemType.WRONG_STATE, str(error)) from None
    except ValueError as error:
        raise malformed(str(error), "query") from None
