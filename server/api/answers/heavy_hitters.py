"""Heavy hitters of a study: by pages, as a table, above a threshold, and the most frequent.

A question may list its options: those that the answer does not list have words for their counts.
"""

import asyncio
import csv
import io
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias, cast

import numpy as np
from fastapi import APIRouter, Query, Request, Response

from protocol.api.messages import HeavyHitter, HeavyHitterPage, StudyView, csv_text
from protocol.api.unlisted import CountedRounds, option_counts
from protocol.estimation.empirical_bayes import (
    decision_threshold,
    probabilities_of_reaching,
    probabilities_of_top,
)
from protocol.estimation.estimates import ListQuality
from protocol.mechanisms.registry import AnyQuestion, mechanism_of
from protocol.numerics.array_types import Floats
from server.api.dependencies import StudyId, paginate, problem_responses, require
from server.db.repositories.studies.progress import RoundSummary
from server.db.store import Store
from server.errors import malformed
from server.http.response_headers import ETagRoute, etag_responses, prefers
from server.principals import Permission
from server.rounds.caches import AsyncCache
from server.service import Service, ServiceDep

router = APIRouter(
    prefix="/v1/studies/{study}", tags=["answers"], dependencies=[require(Permission.READ)]
)
_MAX_CACHED_SELECTIONS = 64
_JSON_OR_CSV: dict[str, Any] = {
    "model": HeavyHitterPage,
    "content": {"text/csv": {"schema": {"type": "string"}}},
}


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

    With `threshold`, only those that reach this higher one. `quality` is then that of this list,
    where all items that are missed at the study's threshold count as missed. With `top`, only the
    most frequent ones, with the probability that each is among them. Neither is paged. With
    `Accept: text/csv` or `format=csv`, the response is one CSV table of all items. If the question
    has options, the others follow without numbers, with words in the column `unlisted`. A cell that
    a spreadsheet would run as a formula starts with an apostrophe.
    """
    prefers_csv = prefers(request.scope, "text/csv", to="application/json")
    if output_format == "csv" or (output_format is None and prefers_csv):
        items = await service.store.answers.heavy_hitters(study)
        listed = (item.item for item in items)
        unlisted = await unlisted_option_counts(service.store, study, listed)
        table = await asyncio.to_thread(csv_table, items, unlisted)
        return Response(table, media_type="text/csv; charset=utf-8")
    cursor = None if after is None else item_of_cursor(after)
    if threshold is not None or top is not None:
        await service.store.studies.show(study)  # it may be deleted
        summed, decoded = await service.store.progress.summed_and_decoded_rounds(study)
        selection = Selection(study, summed, decoded, threshold, top, limit)
        return await cast("Selections", request.app.state.selections)(selection)
    rows = await service.store.answers.heavy_hitters(study, limit + 1, cursor)
    page, last = paginate(rows, limit)
    return await heavy_hitter_page(service, study, page, cursor_of_item(last) if last else None)


router.add_api_route(
    "/heavy-hitters",
    heavy_hitters,
    response_model=HeavyHitterPage,
    responses=etag_responses({200: _JSON_OR_CSV, **problem_responses(404, 422)}),
    route_class_override=ETagRoute,
)


@dataclass(frozen=True, slots=True)
class Selection:
    """The items that a request selects from an answer, which rests on these numbers of rounds."""

    study: str
    summed: int
    decoded: int
    threshold: float | None
    top: int | None
    limit: int


Selections: TypeAlias = AsyncCache[Selection, HeavyHitterPage]


def cached_selections(service: Service) -> Selections:
    """Return the pages of selected items: each is computed once for all who ask for it."""
    return AsyncCache(partial(_read_selection, service), _MAX_CACHED_SELECTIONS)


async def _read_selection(service: Service, asked: Selection) -> HeavyHitterPage:
    question = (await service.store.studies.show(asked.study)).question
    items = tuple(await service.store.answers.heavy_hitters(asked.study))
    above, threshold = items, asked.threshold
    if threshold is not None:
        above = await asyncio.to_thread(_above, items, threshold, question)
    page = await heavy_hitter_page(service, asked.study, above[: asked.limit])
    selected, quality = page.heavy_hitters, page.quality
    if threshold is not None and quality is not None:
        quality = await asyncio.to_thread(_quality_above, quality, items, above, threshold)
    if asked.top is not None:
        missed = quality.expected_missed if quality is not None else 0.0
        selected = await asyncio.to_thread(top_items, above, asked.top, missed)
    return page.model_copy(update={"quality": quality, "heavy_hitters": selected})


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
    probabilities = probabilities_of_reaching(counts, variances, decision_threshold(threshold))
    rows = zip(items, probabilities.tolist(), strict=True)
    return tuple(
        row.model_copy(update={"probability": min(probability, row.probability)})
        for row, probability in rows
        if probability >= question.confidence
    )


def _quality_above(
    quality: ListQuality,
    items: Sequence[HeavyHitter],
    above: Sequence[HeavyHitter],
    threshold: float,
) -> ListQuality:
    """Return the quality of the list `above` a threshold, from that of all `items`."""
    correct = sum(row.probability or 0.0 for row in above)
    reaching = probabilities_of_reaching(*_counts(items), decision_threshold(threshold)).sum()
    missed = quality.expected_missed + max(0.0, float(reaching) - correct)
    update = {
        "expected_precision": correct / len(above) if above else None,
        "expected_recall": correct / (correct + missed) if above else None,
        "expected_missed": missed,
    }
    return quality.model_copy(update=update)


def top_items(items: Sequence[HeavyHitter], k: int, missed: float) -> tuple[HeavyHitter, ...]:
    """Return the `k` most frequent `items`, each with its probability against `missed` others."""
    probabilities = probabilities_of_top(*_counts(items), k, missed).tolist()
    rows = zip(items[:k], probabilities[:k], strict=True)
    return tuple(
        row.model_copy(update={"top_probability": probability}) for row, probability in rows
    )


def _counts(items: Sequence[HeavyHitter]) -> tuple[Floats, Floats]:
    counts = np.array([row.estimate for row in items], np.float64)
    return counts, np.array([row.standard_error for row in items], np.float64) ** 2


def cursor_of_item(last: HeavyHitter) -> str:
    return urlsafe_b64encode(json.dumps([last.estimate, last.item]).encode()).decode()


def item_of_cursor(cursor: str) -> HeavyHitter:
    try:
        estimate, item = json.loads(urlsafe_b64decode(cursor.encode("ascii")))
        return HeavyHitter(item=item, estimate=estimate, standard_error=0, low=0, high=0)
    except (ValueError, TypeError, RecursionError):
        raise malformed("not the `next` of a page", location="query.after") from None


def csv_table(rows: Iterable[HeavyHitter], unlisted: Mapping[str, str]) -> str:
    """Return `rows`, and options that are not listed, as CSV in which no cell is a formula.

    Texts are quoted: where numbers have decimal commas, spreadsheets separate cells by semicolons.
    """
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_NONNUMERIC)
    columns = (name for name in HeavyHitter.model_fields if name != "item")
    numbers = tuple(name for name in columns if name != "top_probability")
    words = ("unlisted",) if unlisted else ()
    writer.writerow(("item", *numbers, *words))
    for row in rows:
        cells = (getattr(row, name) for name in numbers)
        writer.writerow((csv_text(row.item), *cells, *(None for _ in words)))
    for option, count in unlisted.items():
        writer.writerow((csv_text(option), *(None for _ in numbers), count))
    return out.getvalue()


async def unlisted_option_counts(store: Store, study: str, listed: Iterable[str]) -> dict[str, str]:
    """Return the options that are not `listed`, each with words; empty before a sum was read."""
    view = await store.studies.show(study)
    if not view.round or not mechanism_of(view.question).options(view.question):
        return {}
    plan = await store.rounds.plan(study, view.round)
    return option_counts(plan, await counted_rounds(store, view), listed)


async def counted_rounds(
    store: Store, study: StudyView, last: Sequence[RoundSummary] = ()
) -> CountedRounds:
    """Return the figures of all rounds, of which the `last` ones may have been read already."""
    if len(last) < study.round:
        last = await store.progress.round_summaries(study.id, study.round)
    return CountedRounds.of(last)
