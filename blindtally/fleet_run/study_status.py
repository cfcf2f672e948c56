"""What a study waits for, in words: a line whenever that has changed, on standard error.

A fleet shows how far its own devices are; whom a cohort waits for besides, only the service knows.
So it is asked once a second, and what it says becomes a line:

    round 1: 17 of 20 devices in cohort 1; waiting for 3 more, till 10:52:10 UTC, then it goes on

What moves is said when a phase begins, and every ten seconds; what stands still is said at once.
Where bars show what moves, only what stands still is said.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime
from typing import Final

import httpx

from client.analyst.async_study import AsyncAnalyst, AsyncStudy
from client.errors import UnavailableError
from protocol.messages import CohortView, RoundView, StudyView
from protocol.phases import Phase
from protocol.study import Terms

POLL_SECONDS: Final = 1.0
MAX_SILENT_POLLS: Final = 10  # after which what moves is said again
_OPEN_PHASES: Final = (Phase.ENROLLING, Phase.REPORTING)
_UNAVAILABLE_MESSAGE: Final = "the service does not answer; trying again"


class StatusReporter:
    """Says what changes, by `say`; if it `shows_moves`, what moves as well."""

    def __init__(self, say: Callable[[str], None], *, shows_moves: bool) -> None:
        self._print_line = say
        self._shows_moves = shows_moves
        self._head = self._last_text = self._last_printed = ""
        self._silent_polls = 0

    def update(self, head: str, text: str) -> None:
        """Hear of a look: `head` is what changes seldom of the whole `text`."""
        stands = text == self._last_text
        begins = head != self._head
        self._silent_polls += 1
        self._last_text, self._head = text, head
        is_due = stands or (
            self._shows_moves and (begins or self._silent_polls >= MAX_SILENT_POLLS)
        )
        if text and text != self._last_printed and is_due:
            self._last_printed, self._silent_polls = text, 0
            self._print_line(text)


async def report_status(url: str, key: str | None, study: str, news: StatusReporter) -> None:
    """Look at a study once a second, until cancelled."""
    async with AsyncAnalyst(url, key, patience=POLL_SECONDS) as analyst:
        asked: AsyncStudy | None = None
        while True:
            try:
                asked = asked or await analyst.study(study)
                view = await asked.refresh()
                shown = await asked.round(view.round) if view.round else None
                news.update(*describe_study(url, view, shown))
            except (httpx.TransportError, UnavailableError):
                news.update(_UNAVAILABLE_MESSAGE, _UNAVAILABLE_MESSAGE)
            await asyncio.sleep(POLL_SECONDS)


def describe_study(url: str, study: StudyView, shown: RoundView | None) -> tuple[str, str]:
    """Return where a study is, without its numbers and with them; nothing where it is over."""
    if shown is None:
        text = f"the study is not started: start it on its page, {study_url(url, study.id)}"
        return text, text
    if shown.state != "running":
        return f"round {shown.number} is over", ""
    if all(cohort.phase.is_over for cohort in shown.cohorts):
        text = f"round {shown.number}: all cohorts are over; what they say is being read"
        return text, text
    groups: dict[Phase, list[CohortView]] = defaultdict(list)
    for cohort in shown.cohorts:
        groups[cohort.phase].append(cohort)
    phases = sorted(groups, key=list(Phase).index)
    hidden = shown.plan.question.hides_device_counts
    said = [
        _describe_cohorts(groups[phase], shown.plan.terms, is_untold=hidden) for phase in phases
    ]
    return f"round {shown.number} {phases}", f"round {shown.number}: " + "; ".join(said)


def study_url(url: str, study: str) -> str:
    """Return where a browser finds a study."""
    return f"{url.rstrip('/')}/studies/{study}"


def _describe_cohorts(cohorts: list[CohortView], terms: Terms, *, is_untold: bool) -> str:
    """Return where cohorts of one phase are."""
    phase, first = cohorts[0].phase, cohorts[0]
    where = f"cohort {first.number + 1}" if len(cohorts) == 1 else f"{len(cohorts):,} cohorts"
    if phase.is_over:
        return f"{where} {phase}"
    ends = max(cohort.deadline for cohort in cohorts)
    if is_untold:
        return f"{where} {phase}, till {_format_time(ends)} at most"
    heard = sum(cohort.history[-1].received for cohort in cohorts)
    if phase not in _OPEN_PHASES:
        expected = sum(cohort.history[-2].received for cohort in cohorts)
        return f"{where} {phase}, {heard:,} of {expected:,} devices heard"
    size = terms.max_devices if phase is Phase.REPORTING else terms.cohort_size * len(cohorts)
    what = "reports" if phase is Phase.REPORTING else "devices"
    text = f"{heard:,} of {size:,} {what} in {where}"
    if heard == size:
        return text
    least = min(cohort.history[-1].received for cohort in cohorts)
    then = "it goes on" if least >= terms.minimum else f"it fails with fewer than {terms.minimum:,}"
    return f"{text}; waiting for {size - heard:,} more, till {_format_time(ends)}, then {then}"


def _format_time(instant: datetime) -> str:
    return f"{instant:%H:%M:%S} UTC"
