"""Phases of a cohort, or of all cohorts of a round together, as a funnel of messages."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Literal, TypeAlias

from protocol.api.messages import CohortView, RoundView
from protocol.api.phases import PARTICIPANT_PHASES, Phase
from protocol.mechanisms.registry import REPORT_MECHANISMS
from protocol.question_and_plan import Terms

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
        if index + 1 < len(cohort.history):
            following = cohort.history[index + 1]
            state = "failed" if following.phase is Phase.FAILED else "done"
            seconds = (following.entered - record.entered).total_seconds()
        else:
            state, seconds = "now", (cohort.deadline - now).total_seconds()
        if phase is Phase.ANSWERING:  # of the accused only; the others continue without it
            yield PhaseProgress(phase, action, state, record.received, record.received, 0, seconds)
            continue
        yield PhaseProgress(phase, action, state, record.received, expected, quorum, seconds)
        expected = record.received


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
    if is_reporting:
        return (Phase.REPORTING,)
    optional = {Phase.SEATING: terms.is_seated, Phase.ANSWERING: is_answered}
    usual = PARTICIPANT_PHASES[terms.mode]
    return tuple(phase for phase in Phase if phase in usual or optional.get(phase))
