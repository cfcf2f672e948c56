"""Totals, shares and most frequent items of each segment of a study."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query

from protocol.api.messages import StudyView
from protocol.api.segments import (
    SegmentSummaries,
    SegmentSummary,
    segment_totals,
    summarise_segments,
)
from protocol.domains.base import segments_of
from server.api.dependencies import StudyId, problem_responses, require
from server.errors import malformed
from server.principals import Permission
from server.service import Service, ServiceDep

router = APIRouter(
    prefix="/v1/studies/{study}", tags=["answers"], dependencies=[require(Permission.READ)]
)


@router.get("/segments", responses=problem_responses(404, 422))
async def segments(
    study: StudyId,
    service: ServiceDep,
    limit: Annotated[
        int, Query(ge=0, le=1000, description="Largest number of items of each segment.")
    ] = 10,
) -> SegmentSummaries:
    """Return the total, the share and the most frequent items of each segment."""
    view = await service.store.studies.show(study)
    rows = await segment_summaries(service, view, limit)
    if not rows:
        raise malformed("the domain of the study has no segments", "path.study")
    summed, decoded = await service.store.progress.summed_and_decoded_rounds(study)
    return SegmentSummaries(segments=rows, summed_rounds=summed, decoded_rounds=decoded)


async def segment_summaries(
    service: Service, study: StudyView, limit: int
) -> tuple[SegmentSummary, ...]:
    """Return the summary of each segment of `study`; empty if its domain has none."""
    domain = study.question.domain
    if not segments_of(domain):
        return ()
    state = await service.store.answers.shown_state(study.id)
    items = await service.store.answers.heavy_hitters(study.id)
    totals = await asyncio.to_thread(segment_totals, study.question, state)
    return await asyncio.to_thread(summarise_segments, domain, totals, items, limit)
