"""Heavy hitters, by pages or as one table for a spreadsheet."""

import csv
import io
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response

from protocol.messages import HeavyHitter, HeavyHitterPage
from server.api.parts import StudyId, first_of, problems
from server.api.rights import needs
from server.api.tagged import Tagged, tagged
from server.principals import Right
from server.refusals import malformed
from server.service import Served

router = APIRouter(
    prefix="/v1/studies/{study}",
    tags=["answers"],
    route_class=Tagged,
    dependencies=[needs(Right.READ)],
)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what spreadsheets take for code
_BOTH: dict[str, Any] = {
    "model": HeavyHitterPage,
    "content": {"text/csv": {"schema": {"type": "string"}}},
}


@router.get(
    "/heavy-hitters",
    response_model=HeavyHitterPage,
    responses=tagged({200: _BOTH, **problems(404, 422)}),
)
async def heavy_hitters(
    study: StudyId,
    request: Request,
    service: Served,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    after: Annotated[str | None, Query(max_length=40_000)] = None,
    form: Annotated[Literal["json", "csv"] | None, Query(alias="format")] = None,
) -> HeavyHitterPage | Response:
    """Return the items whose estimates, summed over rounds, reach the study's threshold.

    As CSV, by `Accept: text/csv` or `format=csv`, all of them at once; cells that a
    spreadsheet would take for a formula get an apostrophe in front.
    """
    wants_csv = "text/csv" in request.headers.get("accept", "")
    if form == "csv" or (form is None and wants_csv):
        every = await service.store.answers.heavy_hitters(study)
        return Response(csv_table(every), media_type="text/csv; charset=utf-8")
    cursor = None if after is None else _parse(after)
    found = await service.store.answers.heavy_hitters(study, limit + 1, cursor)
    shown, last = first_of(found, limit)
    return HeavyHitterPage(heavy_hitters=shown, next=last and _cursor(last))


def _cursor(last: HeavyHitter) -> str:
    return urlsafe_b64encode(json.dumps([last.estimate, last.item]).encode()).decode()


def _parse(cursor: str) -> HeavyHitter:
    try:
        estimate, item = json.loads(urlsafe_b64decode(cursor.encode("ascii")))
        return HeavyHitter(item=item, estimate=estimate, standard_error=0, low=0, high=0)
    except (ValueError, TypeError, RecursionError):
        raise malformed("not the `next` of a page", at="query.after") from None


def csv_table(rows: Iterable[HeavyHitter]) -> str:
    """Return `rows` for a spreadsheet, which takes none of them for a formula."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(("item", "estimate", "standard_error", "low", "high"))
    for row in rows:
        writer.writerow((_cell(row.item), row.estimate, row.standard_error, row.low, row.high))
    return out.getvalue()


def _cell(text: str) -> str:
    return "'" + text if text.startswith(_FORMULA) else text
