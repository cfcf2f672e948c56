"""What a study that counts prefixes says of values: quantiles, ranks, ranges, frequencies.

All of it is made of what was released, so it costs no privacy, however often it is asked.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import numpy as np
from fastapi import APIRouter, Depends, Query

from protocol.distribution import Bounded, Distribution
from protocol.interval import Interval
from protocol.knots import EmptyTreeError, Estimator
from protocol.mechanisms import AnyPlan
from protocol.mechanisms.queries import distribution
from protocol.messages import ProblemType, Told, ToldPage
from protocol.tally import Tally
from server.api.parts import StudyId, problems
from server.api.rights import needs
from server.principals import Right
from server.refusals import Refusal, malformed
from server.service import Served

router = APIRouter(
    prefix="/v1/studies/{study}",
    tags=["answers"],
    responses=problems(404, 409, 422),
    dependencies=[needs(Right.READ)],
)
_MOST = 1000
_Texts = Annotated[
    list[Annotated[str, Query(max_length=4096)]], Query(min_length=1, max_length=_MOST)
]
_Points: TypeAlias = list[float] | list[str]


@dataclass(frozen=True, slots=True)
class Counted:
    """What a study has counted so far, and how it is to be told."""

    plan: AnyPlan
    tally: Tally
    estimator: Estimator
    beta: float

    async def tell(
        self, at: Sequence[float | str], ask: Callable[[Distribution], Bounded]
    ) -> ToldPage:
        """Return what `ask` says at each of `at`.

        Raises:
            Refusal: if nothing was counted yet, or what is asked makes no sense.
        """
        try:
            bounded = await asyncio.to_thread(self._ask, ask)
        except EmptyTreeError as error:
            raise Refusal(ProblemType.WRONG_STATE, str(error)) from None
        except ValueError as error:
            raise malformed(str(error), "query") from None
        parts = bounded.values, bounded.low, bounded.high
        rows = zip(at, *(np.atleast_1d(part).tolist() for part in parts), strict=True)
        told = tuple(Told(at=a, value=value, low=low, high=high) for a, value, low, high in rows)
        return ToldPage(estimator=self.estimator, beta=self.beta, told=told)

    def _ask(self, ask: Callable[[Distribution], Bounded]) -> Bounded:
        found = distribution(self.plan, self.tally, estimator=self.estimator, beta=self.beta)
        return ask(found)

    def points(self, texts: list[str], name: str) -> _Points:
        """Return what a question says as the study's values: numbers of an interval, else items.

        Raises:
            ValueError: if one is not a number where it must be.
        """
        if not isinstance(self.plan.question.domain, Interval):
            return texts
        try:
            return [float(text) for text in texts]
        except ValueError:
            raise ValueError(f"{name} must be numbers, not {', '.join(texts)}") from None


async def _counted(
    study: StudyId,
    service: Served,
    estimator: Annotated[
        Estimator,
        Query(description="Of tries: plain takes what was pruned for 0, ratio keeps the mass."),
    ] = "ratio",
    beta: Annotated[
        float, Query(gt=0, lt=1, description="Odds that an interval misses the truth.")
    ] = 0.05,
) -> Counted:
    view = await service.store.studies.show(study)
    if not view.round:
        raise Refusal(ProblemType.WRONG_STATE, "the study has not been started")
    plan = await service.store.rounds.plan(study, view.round)
    return Counted(plan, await service.store.answers.tally(study), estimator, beta)


Asked = Annotated[Counted, Depends(_counted)]


@router.get("/quantiles")
async def quantiles(
    asked: Asked, q: Annotated[list[float], Query(min_length=1, max_length=_MOST)]
) -> ToldPage:
    """Return the value of each rank `q`, from 0 to 1."""
    return await asked.tell(q, lambda found: found.quantile(q))


@router.get("/ranks")
async def ranks(asked: Asked, x: _Texts) -> ToldPage:
    """Return the share of devices whose value is below each of `x`."""
    return await asked.tell(x, lambda found: found.rank(asked.points(x, "x")))


@router.get("/masses")
async def masses(asked: Asked, low: _Texts, high: _Texts) -> ToldPage:
    """Return the share of devices whose value is from each `low` to below its `high`."""
    if len(low) != len(high):
        raise malformed(f"{len(low)} low ends and {len(high)} high ones make no ranges", "query")
    at = [f"{start}:{end}" for start, end in zip(low, high, strict=True)]
    return await asked.tell(
        at, lambda found: found.mass(asked.points(low, "low"), asked.points(high, "high"))
    )


@router.get("/frequencies")
async def frequencies(asked: Asked, prefix: _Texts) -> ToldPage:
    """Return the share of devices with an item that begins with each `prefix`."""
    return await asked.tell(prefix, lambda found: found.frequency(prefix))


@router.get("/cdf")
async def cdf(asked: Asked, points: Annotated[int, Query(ge=2, le=_MOST)] = 101) -> ToldPage:
    """Return the ranks of values that are as far from one another, from first to last."""
    values: list[float | str] = []

    def ask(found: Distribution) -> Bounded:
        places, bounded = found.cdf(points)
        values.extend(places.tolist())
        return bounded

    return await asked.tell(values, ask)
