"""Status lines of a study, on standard error: the devices that a cohort waits for.

The service is polled once a second. A state that stays the same between two polls is printed at
once; one that changes all the time, when a phase begins and every ten seconds, or not at all if
progress bars show it. A service that stays silent ends the fleet.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from time import monotonic
from typing import Final

from blindtally.fleet_run.screen import Screen
from client.analyst.async_analyst import AsyncAnalyst, AsyncStudy
from client.errors import ServiceError, ServiceUnreachableError, UnavailableError
from client.http.address_and_retries import shown_url
from protocol.api.messages import CohortView, RoundView, StudyView
from protocol.api.phases import Phase
from protocol.mechanisms.registry import SUM_MECHANISMS
from protocol.question_and_plan import Terms

POLL_SECONDS: Final = 1.0
MAX_SILENT_POLLS: Final = 10  # before a changing state is printed again
_WAITS_FOR_REGISTRAR = {
    Phase.SEATING: "devices wait until {} for the seats",
    Phase.DRAWING: "volunteers wait until {} for the draw",
}
_OPEN_PHASES: Final = (Phase.ENROLLING, Phase.COLLECTING, Phase.REPORTING)
_SILENCE_STEP_SECONDS: Final = 20  # between two lines about a service that does not answer


class StatusReporter:
    """Prints changes of the state by `print_line`; changing states only if it `shows_progress`."""

    def __init__(self, print_line: Callable[[str], None], *, shows_progress: bool) -> None:
        self._print_line = print_line
        self._shows_progress = shows_progress
        self._head = self._last_text = self._last_printed = ""
        self._silent_polls = 0

    def update(self, head: str, text: str) -> None:
        """Receive the state at a poll; `head` is the part of `text` that rarely changes."""
        is_stable, begins = text == self._last_text, head != self._head
        self._silent_polls += 1
        self._last_text, self._head = text, head
        is_due = is_stable or (
            self._shows_progress and (begins or self._silent_polls >= MAX_SILENT_POLLS)
        )
        if text and text != self._last_printed and is_due:
            self._last_printed, self._silent_polls = text, 0
            self._print_line(text)


async def report_status(
    url: str, key: str | None, study: str, screen: Screen, patience: float, *, has_steps: bool
) -> None:
    """Poll a study once a second and print its state on `screen`, until cancelled.

    `has_steps`: the devices run in this process, so that bars on the screen show each step.

    Raises:
        ServiceUnreachableError: if the service has not answered for `patience` seconds.
    """
    reporter = StatusReporter(screen.print_line, shows_progress=not (screen.has_bars and has_steps))
    answered = monotonic()
    async with AsyncAnalyst(url, key, patience=POLL_SECONDS) as analyst:
        polled: AsyncStudy | None = None
        while True:
            try:
                polled = polled or await analyst.study(study)
                view = await polled.refresh()
                shown = await polled.round(view.round) if view.round else None
                answered = monotonic()
                is_ours = shown is not None and shown.number <= screen.round_number
                reporter.update(*describe_study(url, view, shown, is_ours=is_ours))
            except (ServiceUnreachableError, UnavailableError) as error:
                silence = monotonic() - answered
                if silence >= patience:
                    text = f"{shown_url(url)} has not answered for {silence:.0f} s: {error}"
                    raise ServiceUnreachableError(text) from None
                reporter.update(*_describe_silence(silence, patience))
            except ServiceError as error:  # of a service that was restored, perhaps
                answered = monotonic()
                reporter.update(error.message, error.message)
            await asyncio.sleep(POLL_SECONDS)


def _describe_silence(seconds: float, patience: float) -> tuple[str, str]:
    """Return two texts as `describe_study`; the second one changes every 20 seconds."""
    head = "the service does not answer"
    passed = int(seconds) // _SILENCE_STEP_SECONDS * _SILENCE_STEP_SECONDS
    state = f"the service has not answered for {passed} s" if passed else head
    return head, f"{state}; the fleet tries again, and ends after {patience:.0f} s"


def describe_study(
    url: str, study: StudyView, shown: RoundView | None, *, is_ours: bool = False
) -> tuple[str, str]:
    """Return the state of a study without its numbers and with them; an empty text at its end.

    The end of a round that `is_ours`, in which the fleet takes part, is shown elsewhere.
    """
    if shown is None:
        text = f"the study is not started: start it on its page, {study_url(url, study.id)}"
        return text, text
    if shown.state != "running":
        reasons = dict.fromkeys(cohort.failure for cohort in shown.cohorts if cohort.failure)
        text = f"round {shown.number} has {shown.state}: {'; '.join(reasons)}"
        is_silent = is_ours or shown.state != "failed"
        return f"round {shown.number} is over", "" if is_silent else text
    if all(cohort.phase.is_over for cohort in shown.cohorts):
        is_sum = shown.plan.question.mechanism in SUM_MECHANISMS
        state = "all cohorts are over; their sums are" if is_sum else "the reports are"
        text = f"round {shown.number}: {state} being decoded"
        return text, text
    groups: dict[Phase, list[CohortView]] = defaultdict(list)
    for cohort in shown.cohorts:
        groups[cohort.phase].append(cohort)
    phases = sorted(groups, key=list(Phase).index)
    hides_counts = shown.plan.question.hides_device_counts
    texts = [
        _describe_cohorts(groups[phase], shown.plan.terms, hides_counts=hides_counts)
        for phase in phases
    ]
    return f"round {shown.number} {phases}", f"round {shown.number}: " + "; ".join(texts)


def study_url(url: str, study: str) -> str:
    return f"{url.rstrip('/')}/studies/{study}"


def _describe_cohorts(cohorts: list[CohortView], terms: Terms, *, hides_counts: bool) -> str:
    phase, first = cohorts[0].phase, cohorts[0]
    names = f"cohort {first.number}" if len(cohorts) == 1 else f"{len(cohorts):,} cohorts"
    if phase.is_over:
        return f"{names} {phase}"
    end = f"{max(cohort.deadline for cohort in cohorts):%H:%M:%S} UTC"
    if hides_counts:
        return f"{names} {phase}, until {end} at most"
    if phase in _WAITS_FOR_REGISTRAR:
        waiting, action = first.history[0].received, _WAITS_FOR_REGISTRAR[phase]
        return f"{waiting:,} {action.format(end)} of their registrar"
    received = sum(cohort.history[-1].received for cohort in cohorts)
    if phase not in _OPEN_PHASES:
        senders = f"{received:,} members of the committee"
        if not terms.is_one_shot:
            expected = sum(cohort.history[-2].received for cohort in cohorts)
            senders = f"{received:,} of {expected:,} devices"
        return f"{names} {phase}, messages from {senders}, until {end} at most"
    size = terms.max_devices if phase is Phase.REPORTING else terms.cohort_size * len(cohorts)
    unit, minimum = "reports" if phase is Phase.REPORTING else "devices", terms.minimum
    if phase is Phase.ENROLLING and terms.is_seated:  # one cohort enrols the devices of all
        size, minimum = terms.max_devices, terms.cohorts * terms.minimum
        names = f"{terms.cohorts:,} cohorts"
    text = f"{received:,} of {size:,} {unit} in {names}"
    if received == size:
        return text
    smallest = min(cohort.history[-1].received for cohort in cohorts)
    then = "it goes on"
    if smallest < minimum:
        then = f"it fails with fewer than {minimum:,}"
    return f"{text}; waiting for {size - received:,} more, until {end}, then {then}"
