"""One round for its operator: how far each cohort is, who was lost where, and why it failed."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from fastapi import APIRouter, Request, Response

from protocol.mechanism import Terms
from protocol.mechanisms import REPORTING
from protocol.messages import CohortView, RoundView
from protocol.round import Phase, phases
from secagg.deals import KeyDeal, Reveal, SeedDeal
from secagg.keys import KEY_BYTES, SIGNATURE_BYTES
from server.api.parts import RoundNumber, StudyId
from server.api.rights import needs
from server.pages.guarding import Page
from server.pages.parts import Recalled, follow
from server.pages.view import view
from server.principals import Right
from server.service import Served

router = APIRouter(route_class=Page, include_in_schema=False)
_WHAT: Final = {
    Phase.ENROLLING: "took a seat and sent keys",
    Phase.SHARING: "shared the key of their mask",
    Phase.MASKING: "sent their masked table",
    Phase.CONFIRMING: "signed who is in the sum",
    Phase.UNMASKING: "gave the shares that open the sum",
    Phase.REPORTING: "sent a report",
}
_LOST: Final = {
    Phase.SHARING: "enrolled and did not share in time",
    Phase.MASKING: "shared and sent no table in time",
    Phase.CONFIRMING: "did not confirm in time",
    Phase.UNMASKING: "confirmed and gave no shares in time",
}
_IN_SUM: Final = (Phase.CONFIRMING, Phase.UNMASKING)  # who is lost here is in the sum already


@dataclass(frozen=True, slots=True)
class Stage:
    """One phase of a cohort: `heard` of `expected`, of whom `needed` must be heard.

    `state` is done, now, failed, ahead, or unreached, as the cohort failed before; `seconds` is
    how long it took, or has left.
    """

    phase: Phase
    what: str
    state: str
    heard: int
    expected: int
    needed: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Loss:
    """How many devices were lost in a phase, and what they did not do."""

    phase: Phase
    count: int
    what: str
    is_in_sum: bool


@dataclass(frozen=True, slots=True)
class Card:
    """A cohort as its card shows it; `sent` are bytes of one device, by what they are."""

    view: CohortView
    stages: tuple[Stage, ...]
    losses: tuple[Loss, ...]
    in_sum: int | None
    quorum: int
    lasted: timedelta
    sent: tuple[tuple[str, int], ...]


@router.get("/studies/{study}/rounds/{number}", dependencies=[needs(Right.READ)])
async def show(
    study: StudyId, number: RoundNumber, request: Request, service: Served, histories: Recalled
) -> Response:
    """Show one round of a study."""
    followed = await follow(service.store, study)
    found = await service.store.studies.show(study)
    shown = await service.store.rounds.show(study, number)
    now = await service.store.overview.now()
    load = (await histories.loads(study, [number]))[number]
    return view(
        request,
        "round.html",
        now=now,
        study=found,
        round=shown,
        load=load,
        cards=[_card(cohort, shown, load.nbytes, now) for cohort in shown.cohorts],
        is_reporting=shown.plan.mechanism in REPORTING,
        **followed,
    )


def _card(cohort: CohortView, of: RoundView, nbytes: int, now: datetime) -> Card:
    terms: Terms = of.plan.terms
    is_reporting = of.plan.mechanism in REPORTING
    stages = tuple(_stages(cohort, terms, now, is_reporting=is_reporting))
    end = cohort.history[-1].entered if cohort.phase.is_over else now
    return Card(
        cohort,
        stages,
        tuple(_losses(stages)),
        _in_sum(cohort, stages),
        terms.assumptions.quorum(cohort.enrolled),
        end - cohort.history[0].entered,
        (("report", nbytes),) if is_reporting else tuple(_sent(cohort, nbytes)),
    )


def _in_sum(cohort: CohortView, stages: tuple[Stage, ...]) -> int | None:
    """Return how many tables are in the sum, None before that is settled."""
    if cohort.phase is Phase.FAILED:
        return 0
    if cohort.phase is Phase.SUMMED and cohort.survivors:
        return len(cohort.survivors)
    settled = (Phase.MASKING, Phase.REPORTING)
    heard = [one.heard for one in stages if one.phase in settled and one.state == "done"]
    return heard[0] if heard else None


def _stages(
    cohort: CohortView, terms: Terms, now: datetime, *, is_reporting: bool
) -> Iterator[Stage]:
    line = (Phase.REPORTING,) if is_reporting else phases(terms.mode)
    records = {record.phase: place for place, record in enumerate(cohort.history)}
    expected = terms.devices if is_reporting else terms.cohort_size
    for phase in line:
        is_first = phase in (Phase.ENROLLING, Phase.REPORTING)
        needed = terms.minimum if is_first else terms.assumptions.quorum(cohort.enrolled)
        place = records.get(phase)
        if place is None:
            state = "unreached" if cohort.phase.is_over else "ahead"
            yield Stage(phase, _WHAT[phase], state, 0, expected, 0, None)
            continue
        record = cohort.history[place]
        if place + 1 < len(cohort.history):
            after = cohort.history[place + 1]
            state = "failed" if after.phase is Phase.FAILED else "done"
            seconds = (after.entered - record.entered).total_seconds()
        else:
            state, seconds = "now", (cohort.deadline - now).total_seconds()
        yield Stage(phase, _WHAT[phase], state, record.heard, expected, needed, seconds)
        expected = record.heard


def _losses(stages: tuple[Stage, ...]) -> Iterator[Loss]:
    for stage in stages:
        lost = stage.expected - stage.heard
        if stage.state in ("done", "failed") and stage.phase in _LOST and lost > 0:
            yield Loss(stage.phase, lost, _LOST[stage.phase], stage.phase in _IN_SUM)


def _sent(cohort: CohortView, nbytes: int) -> Iterator[tuple[str, int]]:
    """Yield what one device sends at most, once it is known among how many holders it shares."""
    yield "keys and signature", 3 * KEY_BYTES + SIGNATURE_BYTES
    yield "masked table", nbytes
    if cohort.holders:
        yield "shares of the mask's key", KeyDeal.nbytes(cohort.holders)
        yield "shares of the mask's seed", SeedDeal.nbytes(cohort.holders) + SIGNATURE_BYTES
        yield "signature under the survivors", SIGNATURE_BYTES
        yield "others' shares, opened, about", Reveal.nbytes(cohort.holders)
