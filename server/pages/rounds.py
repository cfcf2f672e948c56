"""Page of one round: the funnel of its phases, dropouts of each cohort, and its failure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, Literal, TypeAlias

from fastapi import Request, Response

from protocol.api.messages import CohortView, RoundView
from protocol.api.phases import REPORTS, Phase, sum_protocol
from protocol.committee_terms import AnyCommitteeTerms, VolunteerTerms
from protocol.device_policy.sizes_and_losses import upload_bytes
from protocol.mechanisms.registry import REPORT_MECHANISMS, AnyPlan
from protocol.question_and_plan import Terms
from secagg.keys import KEY_BYTES, SIGNATURE_BYTES
from secagg.messages import Complaints, KeyShares, UnmaskingShares
from server.api.dependencies import RoundNumber, StudyId
from server.pages.charts.round_history import RoundSizesDep
from server.pages.page_requests import page_router
from server.pages.rendering import event_context, render
from server.principals import Permission
from server.service import ServiceDep

PhaseState: TypeAlias = Literal["done", "now", "failed", "ahead", "unreached"]
_ACTION_OF_PHASE: Final = {
    Phase.ENROLLING: "joined and sent keys",
    Phase.SEATING: "were seated by the registrar",
    Phase.SHARING: "shared their mask key and a seed",
    Phase.CHECKING: "checked the shares that they hold",
    Phase.ANSWERING: "answered complaints about their shares",
    Phase.MASKING: "sent their masked table",
    Phase.CONFIRMING: "signed the list of survivors",
    Phase.UNMASKING: "revealed the shares that open the sum",
    Phase.REPORTING: "sent a report",
}
_ACTION_OF_ONE_SHOT_PHASE: Final = {  # by operators or volunteers
    Phase.CONVENING: "{} registered a key",
    Phase.DRAWING: "committee was drawn by the registrar",
    Phase.COLLECTING: "sent their message of shares",
    Phase.CHECKING: "{} checked their shares",
    Phase.AGREEING: "{} signed the set of messages",
    Phase.RELEASING: "{} sent the sum of their shares",
}
_BEGUN: Final = ("done", "now", "failed")


@dataclass(frozen=True, slots=True)
class PhaseProgress:
    """One phase of a cohort, with the number of its messages.

    A phase is `unreached` if the cohort failed before it. `seconds` is the duration of the phase,
    or the time left.
    """

    phase: Phase
    action: str
    state: PhaseState
    received: int
    expected: int
    quorum: int
    seconds: float | None


def cohort_progress(
    cohort: CohortView, terms: Terms, now: datetime, *, is_reporting: bool
) -> Iterator[PhaseProgress]:
    """Yield the phases of a cohort, from the first."""
    if terms.committee is not None:
        yield from _one_shot_progress(cohort, terms, terms.committee, now)
        return
    positions = {record.phase: index for index, record in enumerate(cohort.history)}
    phases = _phases(terms, is_reporting=is_reporting, is_answered=Phase.ANSWERING in positions)
    is_lobby = terms.is_seated and Phase.SHARING not in positions  # it enrols for all cohorts
    expected = terms.max_devices if is_reporting or is_lobby else terms.cohort_size
    minimum = terms.minimum * (terms.cohorts if is_lobby else 1)
    for phase in phases:
        is_first = phase in (Phase.ENROLLING, Phase.REPORTING)
        quorum = minimum if is_first else terms.assumptions.quorum(cohort.enrolled)
        action, index = _ACTION_OF_PHASE[phase], positions.get(phase)
        state: PhaseState
        if index is None:
            state = "unreached" if cohort.phase.is_over else "ahead"
            yield PhaseProgress(phase, action, state, 0, expected, 0, None)
            continue
        record = cohort.history[index]
        state, seconds = _state_of(cohort, index, now)
        if phase is Phase.ANSWERING:  # of the accused only; the others continue without it
            yield PhaseProgress(phase, action, state, record.received, record.received, 0, seconds)
            continue
        yield PhaseProgress(phase, action, state, record.received, expected, quorum, seconds)
        expected = record.received


def _state_of(cohort: CohortView, index: int, now: datetime) -> tuple[PhaseState, float]:
    """Return the state of the phase at `index` of the history, and its seconds."""
    record = cohort.history[index]
    if index + 1 == len(cohort.history):
        return "now", (cohort.deadline - now).total_seconds()
    following = cohort.history[index + 1]
    state: PhaseState = "failed" if following.phase is Phase.FAILED else "done"
    return state, (following.entered - record.entered).total_seconds()


def _one_shot_progress(
    cohort: CohortView, terms: Terms, committee: AnyCommitteeTerms, now: datetime
) -> Iterator[PhaseProgress]:
    """Yield the phases of a one-shot sum, from the first."""
    parameters, members = committee.parameters, committee.largest
    if isinstance(committee, VolunteerTerms):
        group, named, needed = "volunteers", committee.volunteers, committee.volunteers
    else:
        group, named, needed = "operators", len(committee.members), parameters.needed_sums
    for index, phase in enumerate(sum_protocol(terms).phases):
        action = _ACTION_OF_ONE_SHOT_PHASE[phase].format(group)
        expected, quorum = {
            Phase.CONVENING: (named, needed),
            Phase.DRAWING: (1, 1),
            Phase.COLLECTING: (terms.cohort_size, terms.minimum),
        }.get(phase, (members, parameters.needed_sums))
        if index >= len(cohort.history) or cohort.history[index].phase is not phase:
            state: PhaseState = "unreached" if cohort.phase.is_over else "ahead"
            yield PhaseProgress(phase, action, state, 0, expected, 0, None)
            continue
        received = cohort.history[index].received
        state, seconds = _state_of(cohort, index, now)
        yield PhaseProgress(phase, action, state, received, expected, quorum, seconds)
        if phase not in (Phase.DRAWING, Phase.COLLECTING):
            members = min(received, committee.largest)


def round_progress(view: RoundView, now: datetime) -> tuple[PhaseProgress, ...]:
    """Return the phases of all cohorts of a round together."""
    is_reporting = view.plan.mechanism in REPORT_MECHANISMS
    of_phase: dict[Phase, list[PhaseProgress]] = {}
    for cohort in view.cohorts:
        for each in cohort_progress(cohort, view.plan.terms, now, is_reporting=is_reporting):
            of_phase.setdefault(each.phase, []).append(each)
    return tuple(_sum(of_phase[phase]) for phase in Phase if phase in of_phase)


def _sum(cohorts: Sequence[PhaseProgress]) -> PhaseProgress:
    """Return one phase of several cohorts: sums of messages, and the longest time."""
    begun = [each for each in cohorts if each.state in _BEGUN]
    states = {each.state for each in cohorts}
    order: tuple[PhaseState, ...] = ("now", "ahead", "done", "failed", "unreached")
    state = next(state for state in order if state in states)
    if state == "ahead" and begun:  # some cohorts have passed it, and others have not reached it
        state = "now"
    timed = [each.seconds for each in begun if each.state == state and each.seconds is not None]
    return replace(
        cohorts[0],
        state=state,
        received=sum(each.received for each in begun),
        expected=sum(each.expected for each in begun or cohorts),
        quorum=sum(each.quorum for each in begun),
        seconds=max(timed, default=None),
    )


def _phases(terms: Terms, *, is_reporting: bool, is_answered: bool) -> tuple[Phase, ...]:
    """Return the phases of a cohort, in order; `is_answered`: whether there were complaints."""
    phases = (REPORTS if is_reporting else sum_protocol(terms)).phases
    if is_answered:
        after = phases.index(Phase.CHECKING) + 1
        phases = (*phases[:after], Phase.ANSWERING, *phases[after:])
    return phases


router = page_router(Permission.READ)
MAX_CARDS: Final = 100  # cohorts on the page of a round
_DROPOUT_OF_PHASE: Final = {
    Phase.SHARING: "joined and did not share in time",
    Phase.CHECKING: "shared and checked no shares in time",
    Phase.MASKING: "checked and sent no table in time, or were left out for unusable shares",
    Phase.CONFIRMING: "did not confirm in time",
    Phase.UNMASKING: "confirmed and revealed no shares in time",
}
_INPUT_PHASES: Final = (Phase.MASKING, Phase.REPORTING, Phase.COLLECTING)
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
    study: StudyId, number: RoundNumber, request: Request, service: ServiceDep, sizes: RoundSizesDep
) -> Response:
    """Show one round of a study."""
    live = await event_context(service.store, study)
    study_view = await service.store.studies.show(study)
    round_view = await service.store.rounds.show(study, number)
    now = await service.store.database.read_now()
    size = (await sizes.of_rounds(study, [number]))[number]
    # First those with a fault: a thousand cards take a quarter of a second.
    cohorts = sorted(round_view.cohorts, key=lambda each: (each.failure is None, each.number))
    shown = cohorts[:MAX_CARDS]
    return render(
        request,
        "round.html",
        now=now,
        study=study_view,
        round=round_view,
        size=size,
        cards=[_cohort_card(each, round_view, size.nbytes, now) for each in shown],
        hidden_cards=len(cohorts) - len(shown),
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
        () if terms.is_one_shot else tuple(_dropouts(phases)),
        _in_sum(cohort, phases),
        terms.minimum if terms.is_one_shot else terms.assumptions.quorum(cohort.enrolled),
        end - cohort.history[0].entered,
        (("report", nbytes),) if is_reporting else tuple(_sent_bytes(cohort, of.plan, nbytes)),
    )


def _in_sum(cohort: CohortView, phases: tuple[PhaseProgress, ...]) -> int | None:
    """Return the number of tables in the sum; None before the end of the masking phase."""
    if cohort.phase is Phase.FAILED:
        return 0
    if cohort.phase is Phase.SUMMED and cohort.survivors:
        return len(cohort.survivors)
    for progress in phases:
        if progress.phase in _INPUT_PHASES and progress.state == "done":
            return progress.received
    return None


def _dropouts(phases: tuple[PhaseProgress, ...]) -> Iterator[PhaseDropouts]:
    for progress in phases:
        phase, count = progress.phase, progress.expected - progress.received
        if progress.state in ("done", "failed") and phase in _DROPOUT_OF_PHASE and count > 0:
            is_in_sum = phase in _PHASES_AFTER_MASKING
            yield PhaseDropouts(phase, count, _DROPOUT_OF_PHASE[phase], is_in_sum)


def _sent_bytes(cohort: CohortView, plan: AnyPlan, nbytes: int) -> Iterator[tuple[str, int]]:
    """Yield the largest size of each message of a device, as far as its holders are known."""
    if plan.terms.is_one_shot:
        yield "shares of the table for the committee", upload_bytes(plan)
        return
    yield "keys and signature", 3 * KEY_BYTES + SIGNATURE_BYTES
    if cohort.holders:
        yield "shares of the mask key and of a seed", KeyShares.nbytes(cohort.holders)
        yield "message without complaints about shares", Complaints.nbytes(0)
    yield "masked table", nbytes + SIGNATURE_BYTES
    if cohort.holders:
        yield "signature under the list of survivors", SIGNATURE_BYTES
        yield "revealed shares of others, about", UnmaskingShares.nbytes(cohort.holders)
