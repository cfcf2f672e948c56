"""Pages of a study for everybody who has a shared link to it: they can read it, and nothing else.

The authenticator accepts the link's token on these paths only, and accepts nothing else on them.
The token is in the query, which no log line and no entry of the audit trail has.
"""

from typing import Annotated

from fastapi import Depends, Query, Request, Response

from server.api.dependencies import Caller, StudyId, check_study
from server.http.auth import SHARED_PREFIX
from server.pages.answers import ItemQuery
from server.pages.charts.round_history import RoundSizesDep
from server.pages.page_requests import page_router
from server.pages.rendering import render
from server.pages.studies import answer_file, chart_svg, study_context
from server.service import ServiceDep

router = page_router(prefix=SHARED_PREFIX + "{study}")


async def _check_link(
    study: StudyId, caller: Caller, request: Request, service: ServiceDep
) -> None:
    await check_study(caller, request, service, study)


_OF_LINK = [Depends(_check_link)]


@router.get("", dependencies=_OF_LINK)
async def show(
    study: StudyId,
    request: Request,
    service: ServiceDep,
    round_sizes: RoundSizesDep,
    query: Annotated[ItemQuery, Depends()],
    token: Annotated[str, Query()],
) -> Response:
    """Show the study without its owner, without forms, and without links to other pages."""
    context = await study_context(service, round_sizes, study, query)
    return render(request, "study.html", **context, link={"token": token})


@router.get("/charts/{chart}.svg", dependencies=_OF_LINK)
async def chart_file(
    study: StudyId, chart: str, service: ServiceDep, round_sizes: RoundSizesDep
) -> Response:
    """Return a chart of the page as a drawing of its own."""
    return await chart_svg(service, round_sizes, study, chart)


@router.get("/heavy-hitters.{file_format}", dependencies=_OF_LINK)
async def download(study: StudyId, file_format: str, service: ServiceDep) -> Response:
    """Return all heavy hitters as a file, as the page of the study does."""
    return await answer_file(service, study, file_format)
