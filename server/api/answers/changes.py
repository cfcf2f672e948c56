"""Rates of heavy hitters over time: by round, changes between rounds, and two studies compared.

Only published items have rates, so these answers cost no privacy. A study that hides how many
devices joined has none, since rates would reveal it.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, Query, Request
from fastapi import Path as InPath

from protocol.api.messages import ProblemType, StudyView
from protocol.api.rates import (
    MAX_SERIES_ITEMS,
    RATE_DEVICES,
    ItemChange,
    ItemChanges,
    Observation,
    RoundRate,
    RoundRates,
)
from protocol.api.unlisted import CountedRounds, devices_of_count, highest_bar
from protocol.estimation.rate_changes import (
    RateChanges,
    RateHistory,
    RateSample,
    compare_rates,
    listed_bound,
    rate_variances,
)
from protocol.mechanisms.registry import MECHANISMS
from protocol.numerics.array_types import Floats
from server.api.answers.question_differences import question_differences
from server.api.dependencies import Caller, StudyId, check_study, problem_responses, require
from server.errors import ProblemError, malformed, not_found
from server.principals import Permission
from server.service import Service, ServiceDep

router = APIRouter(
    prefix="/v1/studies/{study}", tags=["answers"], dependencies=[require(Permission.READ)]
)
_PROBLEMS = problem_responses(404, 409, 422)
_Items = Annotated[
    list[Annotated[str, Query(max_length=4096)]],
    Query(min_length=1, max_length=MAX_SERIES_ITEMS, description="Heavy hitter of the study."),
]
_Rounds = Annotated[
    str | None,
    Query(pattern=r"^\d{1,9}-\d{1,9}$", description="First and last round, such as 1-5."),
]
FalseDiscoveryRate = Annotated[
    float,
    Query(gt=0, lt=1, description="Largest mean share of false changes among the reported ones."),
]
_Limit = Annotated[int, Query(ge=1, le=1000, description="Largest number of items to return.")]
_OtherStudy = Annotated[str, InPath(pattern="^[0-9A-Za-z]{1,64}$")]


@router.get("/series", responses=_PROBLEMS)
async def series(study: StudyId, item: _Items, service: ServiceDep) -> RoundRates:
    """Return the rate of each `item` by round, in tokens per 1,000 devices."""
    view = await service.store.studies.show(study)
    published = {row.item for row in await service.store.answers.heavy_hitters(study)}
    for each in item:
        if each not in published:
            raise not_found(f"heavy hitter as {each!r}")
    items = list(dict.fromkeys(item))
    history = await rate_history(service, view, items)
    return RoundRates(rates=tuple(rate for row in round_rates(items, history) for rate in row))


@router.get("/changes", responses=_PROBLEMS)
async def changes(
    study: StudyId,
    service: ServiceDep,
    before: _Rounds = None,
    after: _Rounds = None,
    false_discovery_rate: FalseDiscoveryRate = 0.05,
    limit: _Limit = 100,
) -> ItemChanges:
    """Return the heavy hitters whose rates changed, by p-value.

    By default the first half of the rounds is compared with the last half.
    """
    view = await service.store.studies.show(study)
    ranges = None
    if before is not None or after is not None:
        if before is None or after is None:
            raise malformed("give both `before` and `after`", "query")
        ranges = _parse_range(before), _parse_range(after)
    items = [row.item for row in await service.store.answers.heavy_hitters(study)]
    history = await rate_history(service, view, items)
    return await asyncio.to_thread(
        item_changes, items, history, ranges, false_discovery_rate, limit
    )


async def _check_other(
    other: _OtherStudy, request: Request, service: ServiceDep, caller: Caller
) -> None:
    await check_study(caller, request, service, other)


@router.get("/compare/{other}", dependencies=[Depends(_check_other)], responses=_PROBLEMS)
async def compare(
    study: StudyId,
    other: _OtherStudy,
    service: ServiceDep,
    false_discovery_rate: FalseDiscoveryRate = 0.05,
    limit: _Limit = 100,
) -> ItemChanges:
    """Return the rates of the heavy hitters of either study, and how those of `other` differ.

    The study itself is the one before. An item that one answer does not list has an upper bound
    there, and is left out where none is known. So are items that the other study's domain cannot
    hold, and keys without a string. If the studies ask
    different questions, `differences` states in what.
    """
    return await compared_studies(service, study, other, false_discovery_rate, limit)


def item_changes(
    items: Sequence[str],
    history: RateHistory,
    ranges: tuple[tuple[int, int], tuple[int, int]] | None,
    false_discovery_rate: float,
    limit: int,
) -> ItemChanges:
    """Return those `items` whose rates changed between two ranges of rounds, or the halves."""
    try:
        early, late = ranges or history.halves()
    except ValueError as error:
        raise ProblemError(ProblemType.WRONG_STATE, str(error)) from None
    if max(early[0], late[0]) <= min(early[1], late[1]):
        raise malformed(f"rounds {early[0]}-{early[1]} and {late[0]}-{late[1]} overlap", "query")
    try:
        before, after = history.sample(*early), history.sample(*late)
    except ValueError as error:
        raise malformed(str(error), "query") from None
    result = compare_rates(before, after, false_discovery_rate)
    rows = [row for row in _rows(items, before, after, result) if row.change is not None]
    return _document(rows, (early, late), result, false_discovery_rate, limit)


async def rate_history(service: Service, study: StudyView, items: Sequence[str]) -> RateHistory:
    """Return the observations of `items` by round; ProblemError if the study has none."""
    history = await _stored_history(service, study, items)
    if history is None:
        detail = "no round has a sum yet, or the mechanism keeps totals only, not those of rounds"
        raise ProblemError(ProblemType.WRONG_STATE, detail)
    return history


async def _stored_history(
    service: Service, study: StudyView, items: Sequence[str]
) -> RateHistory | None:
    if study.question.hides_device_counts:
        detail = "rates are hidden, because they would reveal how many devices joined"
        raise ProblemError(ProblemType.WRONG_STATE, detail)
    if not study.round:
        return None
    plan = await service.store.rounds.plan(study.id, study.round)
    state = await service.store.answers.shown_state(study.id)
    history: RateHistory | None = await asyncio.to_thread(
        MECHANISMS[plan.mechanism].rate_history, plan, state, items
    )
    return history


def round_rates(items: Sequence[str], history: RateHistory) -> list[list[RoundRate]]:
    """Return the rates of each of `items` by block of rounds."""
    blocks = list(zip(history.first_rounds.tolist(), history.last_rounds.tolist(), strict=True))
    devices = history.devices.astype(int).tolist()
    columns = [_numbers(RATE_DEVICES * column) for column in history.by_block().rates()]
    is_counted = history.is_counted
    rows = []
    for place, item in enumerate(items):
        row = []
        for block, (first, last) in enumerate(blocks):
            rate, low, high = (column[place][block] for column in columns)
            how: Observation = "counted" if is_counted[place, block] else "sampled"
            row.append(
                RoundRate(
                    item=item,
                    first_round=first,
                    last_round=last,
                    devices=devices[block],
                    how="not read" if rate is None else how,
                    rate=rate,
                    low=low,
                    high=high,
                )
            )
        rows.append(row)
    return rows


@dataclass(frozen=True, slots=True)
class _Answer:
    """Published totals of a study by item, with variances of rates of all of its `devices`.

    An item that is not listed has at most `unlisted` tokens, with `unlisted_variance`; infinity
    if even one that all devices hold would not be listed.
    """

    study: StudyView
    devices: int
    totals: dict[str, tuple[float, float]]
    unlisted: float
    unlisted_variance: float

    def strings(self) -> list[str]:
        """Return the items that are listed by themselves, not by their keys."""
        return [item for item in self.totals if not self.study.question.domain.is_key(item)]

    def is_known(self, item: str) -> bool:
        """Return whether the domain has `item` itself, and the answer a total or a bound of it."""
        is_own_form = self.study.question.canonical(item) == item
        return is_own_form and (self._total(item) is not None or math.isfinite(self.unlisted))

    def _total(self, item: str) -> tuple[float, float] | None:
        return self.totals.get(item) or self.totals.get(self.study.question.domain.name(item))

    def sample(self, items: Sequence[str]) -> RateSample:
        known = [self._total(item) for item in items]
        rows = [total or (self.unlisted, self.unlisted_variance) for total in known]
        totals, variances = np.array(rows, np.float64).reshape(-1, 2).T
        is_bound = np.array([total is None for total in known], np.bool_)
        return RateSample.of_totals(totals, variances, self.devices, is_bound)


async def _answer(service: Service, study: str) -> _Answer:
    """Return the answer of `study` as far as it can be compared."""
    view = await service.store.studies.show(study)
    rows = await service.store.answers.heavy_hitters(study)
    history = await _stored_history(service, view, [row.item for row in rows])
    rounds = await service.store.progress.round_summaries(study, view.rounds)
    counted = CountedRounds.of(rounds)
    devices = devices_of_count(view.question, counted)
    if not devices or not counted.decoded:
        lack = "could be read" if counted.summed else "has a sum yet"
        raise ProblemError(ProblemType.WRONG_STATE, f"no round of {study} {lack}")
    plan = await service.store.rounds.plan(study, view.round)
    dispersions = np.ones(len(rows)) if history is None else history.dispersions()
    counts = np.array([row.estimate for row in rows], np.float64)
    errors = np.array([row.standard_error for row in rows], np.float64)
    variances = rate_variances(counts, errors**2, dispersions)
    estimates = zip(counts.tolist(), variances.tolist(), strict=True)
    totals = dict(zip((row.item for row in rows), estimates, strict=True))
    # An item that is not listed was perhaps sampled in all rounds.
    sampled = [(each.participants or 0, each.sampling_threshold) for each in rounds]
    sampling = sum(count * (t - 1) for count, t in sampled) / sum(count for count, _ in sampled)
    ratios = [variance / total for total, variance in totals.values() if total > 0]
    highest = highest_bar(plan, counted)
    bar = math.inf if highest.is_lower_bound else highest.count
    if not math.isfinite(bar):
        return _Answer(view, devices, totals, bar, bar)
    variance = max([sampling, *ratios]) * bar
    unlisted = listed_bound(bar, variance, view.question.confidence)
    return _Answer(view, devices, totals, unlisted, variance)


async def compared_studies(
    service: Service, study: str, other: str, false_discovery_rate: float, limit: int
) -> ItemChanges:
    """Return the rates of the heavy hitters of two studies, `study` before and `other` after."""
    if study == other:
        raise malformed("a study cannot be compared with itself", "path.other")
    first, second = await _answer(service, study), await _answer(service, other)
    listed = dict.fromkeys([*first.strings(), *second.strings()])
    items = [item for item in listed if first.is_known(item) and second.is_known(item)]
    before, after = first.sample(items), second.sample(items)
    result = await asyncio.to_thread(compare_rates, before, after, false_discovery_rate)
    ranges = (1, first.study.round), (1, second.study.round)
    rows = _rows(items, before, after, result)
    document = _document(rows, ranges, result, false_discovery_rate, limit)
    differences = question_differences(first.study.question, second.study.question)
    return document.model_copy(update={"differences": tuple(differences)})


def _rows(
    items: Sequence[str], before: RateSample, after: RateSample, result: RateChanges
) -> list[ItemChange]:
    names = [f"{name}_{when}" for when in ("before", "after") for name in ("rate", "low", "high")]
    names += ["factor", "factor_low", "factor_high"]
    rates = [RATE_DEVICES * column for sample in (before, after) for column in sample.rates()]
    columns = [_numbers(column) for column in (*rates, result.factors, result.low, result.high)]
    return [
        ItemChange(item=item, change=kind, p_value=p_value, **dict(zip(names, row, strict=True)))
        for item, kind, p_value, row in zip(
            items, result.kinds, result.p_values.tolist(), zip(*columns, strict=True), strict=True
        )
    ]


def _document(
    rows: Sequence[ItemChange],
    ranges: tuple[tuple[int, int], tuple[int, int]],
    result: RateChanges,
    false_discovery_rate: float,
    limit: int,
) -> ItemChanges:
    ordered = sorted(rows, key=lambda row: (row.p_value, row.item))
    return ItemChanges(
        changes=tuple(ordered[:limit]),
        before=ranges[0],
        after=ranges[1],
        tested=result.tested,
        changed=sum(kind is not None for kind in result.kinds),
        false_discovery_rate=false_discovery_rate,
        interval_level=result.level,
    )


def _numbers(column: Floats) -> list[Any]:
    """Return `column` as lists with None for nan and infinity, which JSON does not have."""
    objects = column.astype(object)
    objects[~np.isfinite(column)] = None
    numbers: list[Any] = objects.tolist()
    return numbers


def _parse_range(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    if not 1 <= int(first) <= int(last):
        raise malformed(f"{text} is not a range of rounds such as 1-5", "query")
    return int(first), int(last)
