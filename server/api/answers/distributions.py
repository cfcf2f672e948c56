"""Distributions of values: quantiles, ranks, ranges and prefixes, and means of numbers."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Depends, Query

from protocol.api.messages import ProblemType, QueryResult, QueryResults
from protocol.estimation.number_summary import NoNumbersError, NumberSummaries
from protocol.mechanisms.registry import AnyPlan, mechanism_of
from protocol.quantiles.cdf import EmptyTreeError, Estimator
from protocol.quantiles.distribution import BoundedEstimate, Distribution
from protocol.study_state import StudyState
from server.api.dependencies import StudyId, problem_responses, require
from server.errors import ProblemError, malformed
from server.principals import Permission
from server.service import Service, ServiceDep

router = APIRouter(
    prefix="/v1/studies/{study}", tags=["answers"], dependencies=[require(Permission.READ)]
)
_MAX_POINTS = 1000
_QUERY_PROBLEMS = problem_responses(404, 409, 422)
_TextValues = Annotated[
    list[Annotated[str, Query(max_length=4096)]], Query(min_length=1, max_length=_MAX_POINTS)
]
Beta = Annotated[
    float, Query(gt=0, lt=1, description="Probability that an interval misses the true value.")
]


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

    async def answer_ranks(
        self, points: Sequence[float | str], query: Callable[[Distribution], BoundedEstimate]
    ) -> QueryResults:
        """Return the estimates of `query` on ranks; raises ProblemError if there are none."""
        if (reason := mechanism_of(self.plan).why_no_ranks(self.plan.question)) is not None:
            raise malformed(reason, "query")
        return await self.answer(points, query)

    async def answer(
        self, points: Sequence[float | str], query: Callable[[Distribution], BoundedEstimate]
    ) -> QueryResults:
        """Return the estimates of `query` at `points`; raises ProblemError if there are none."""

        def evaluate() -> BoundedEstimate:
            values = mechanism_of(self.plan).distribution(
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


def _numbers(texts: list[str], name: str) -> list[float]:
    """Return the numbers in `texts`; ValueError if one is none."""
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
    return plan, await service.store.answers.shown_state(study)


DistributionQueryDep = Annotated[DistributionQuery, Depends(_distribution_query)]


@router.get("/quantiles", responses=_QUERY_PROBLEMS)
async def quantiles(
    query: DistributionQueryDep,
    q: Annotated[list[float], Query(min_length=1, max_length=_MAX_POINTS)],
) -> QueryResults:
    """Return the value of each rank `q`, from 0 to 1."""
    return await query.answer_ranks(q, lambda values: values.quantile(q))


@router.get("/ranks", responses=_QUERY_PROBLEMS)
async def ranks(query: DistributionQueryDep, x: _TextValues) -> QueryResults:
    """Return the share of devices whose value is below each of `x`."""
    return await query.answer_ranks(x, lambda values: values.rank(_numbers(x, "x")))


@router.get("/masses", responses=_QUERY_PROBLEMS)
async def masses(query: DistributionQueryDep, low: _TextValues, high: _TextValues) -> QueryResults:
    """Return the share of devices whose value is at least `low` and below `high`, per range."""
    if len(low) != len(high):
        raise malformed(f"{len(low)} low ends and {len(high)} high ends make no ranges", "query")
    return await query.answer_ranks(
        [f"{start}:{end}" for start, end in zip(low, high, strict=True)],
        lambda values: values.mass(_numbers(low, "low"), _numbers(high, "high")),
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
    x: list[float] = []

    def evaluate(values: Distribution) -> BoundedEstimate:
        positions, bounded = values.cdf(points)
        x.extend(positions.tolist())
        return bounded

    return await query.answer_ranks(x, evaluate)


@router.get("/numbers", responses=_QUERY_PROBLEMS)
async def numbers(study: StudyId, service: ServiceDep, beta: Beta = 0.05) -> NumberSummaries:
    """Return the mean and the variance of the devices' numbers, of all and per segment."""
    plan, state = await _counts_so_far(study, service)
    try:
        return mechanism_of(plan).number_summaries(plan, state, beta)
    except NoNumbersError as error:
        raise ProblemError(ProblemType.WRONG_STATE, str(error)) from None
    except ValueError as error:
        raise malformed(str(error), "query") from None
