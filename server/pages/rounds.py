"""Page of one round, for the operator: progress and dropouts of each cohort, and its failure."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from fastapi import Request, Response

from protocol.api.messages import CohortView, RoundView
from protocol.api.phases import Phase
from protocol.mechanisms.registry import REPORT_MECHANISMS
from protocol.question_and_plan import Terms
from secagg.keys import KEY_BYTES, SIGNATURE_BYTES
from secagg.messages import Complaints, KeyShares, UnmaskingShares
from server.api.common import RoundNumber, StudyId
from server.pages.estimate_histories import HistoriesDep
from server.pages.page_requests import page_router
from server.pages.phase_progress import PhaseProgress, cohort_progress
from server.pages.rendering import event_context, render
from server.principals import Permission
from server.service import ServiceDep

router = page_router(Permission.READ)
_DROPOUT_OF_PHASE: Final = {
    Phase.SHARING: "joined and did not share in time",
    Phase.CHECKING: "shared and checked no shares in time",
    Phase.MASKING: "checked and sent no table in time, or were left out for unusable shares",
    Phase.CONFIRMING: "did not confirm in time",
    Phase.UNMASKING: "confirmed and revealed no shares in time",
}
_PHASES_AFTER_MASKING: Final = (Phase.CONFIRMING, Phase.UNMASKING)  # the sum has these dropouts


@dataclass(frozen=True, slots=True)
class PhaseDropouts:
    """Number of devices that dropped out in a phase, and what they did not do."""

    phase: Phase
    count: int
    description: str
    is_in_sum: bool


@dataclass(frozen=True, slots=True)
class CohortCard:
    """A cohort as its card shows it; `sent_bytes` are the bytes of one device, by content."""

    view: CohortView
    phases: tuple[PhaseProgress, ...]
    dropouts: tuple[PhaseDropouts, ...]
    in_sum: int | None
    quorum: int
    duration: timedelta
    sent_bytes: tuple[tuple[str, int], ...]


@router.get("/studies/{study}/rounds/{number}")
async def show(
    study: StudyId,
    number: RoundNumber,
    request: Request,
    service: ServiceDep,
    histories: HistoriesDep,
) -> Response:
    """Show one round of a study."""
    live = await event_context(service.store, study)
    study_view = await service.store.studies.show(study)
    round_view = await service.store.rounds.show(study, number)
    now = await service.store.database.read_now()
    size = (await histories.round_sizes(study, [number]))[number]
    return render(
        request,
        "round.html",
        now=now,
        study=study_view,
        round=round_view,
        size=size,
        cards=[_cohort_card(each, round_view, size.nbytes, now) for each in round_view.cohorts],
        is_reporting=round_view.plan.mechanism in REPORT_MECHANISMS,
        **live,
    )


def _cohort_card(cohort: CohortView, of: RoundView, nbytes: int, now: datetime) -> CohortCard:
    terms: Terms = of.plan.terms
    is_reporting = of.plan.mechanism in REPORT_MECHANISMS
    phases = tuple(cohort_progress(cohort, terms, now, is_reporting=is_reporting))
    end = cohort.history[-1].entered if cohort.phase.is_over else now
    return CohortCard(
        cohort,
        phases,
        tuple(_dropouts(phases)),
        _in_sum(cohort, phases),
        terms.assumptions.quorum(cohort.enrolled),
        end - cohort.history[0].entered,
        (("report", nbytes),) if is_reporting else tuple(_sent_bytes(cohort, nbytes)),
    )


def _in_sum(cohort: CohortView, phases: tuple[PhaseProgress, ...]) -> int | None:
    """Return the number of tables in the sum; None before the end of the masking phase."""
    if cohort.phase is Phase.FAILED:
        return 0
    if cohort.phase is Phase.SUMMED and cohort.survivors:
        return len(cohort.survivors)
    for progress in phases:
        if progress.phase in (Phase.MASKING, Phase.REPORTING) and progress.state == "done":
            return progress.received
    return None


def _dropouts(phases: tuple[PhaseProgress, ...]) -> Iterator[PhaseDropouts]:
    for progress in phases:
        phase, count = progress.phase, progress.expected - progress.received
        if progress.state in ("done", "failed") and phase in _DROPOUT_OF_PHASE and count > 0:
            is_in_sum = phase in _PHASES_AFTER_MASKING
            yield PhaseDropouts(phase, count, _DROPOUT_OF_PHASE[phase], is_in_sum)


def _sent_bytes(cohort: CohortView, nbytes: int) -> Iterator[tuple[str, int]]:
    """Yield the largest size of each message of a device, as far as its holders are known."""
    yield "keys and signature", 3 * KEY_BYTES + SIGNATURE_BYTES
    if cohort.holders:
        yield "shares of the mask key and of a seed", KeyShares.nbytes(cohort.holders)
        yield "message without complaints about shares", Complaints.nbytes(0)
    yield "masked table", nbytes + SIGNATURE_BYTES
    if cohort.holders:
        yield "signature under the list of survivors", SIGNATURE_BYTES
        yield "revealed shares of others, about", UnmaskingShares.nbytes(cohort.holders)
