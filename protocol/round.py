"""The phases of one cohort's secure sum, and when each is over.

    enrolling -> sharing -> masking -> unmasking -> summed
         |           |          |          |
         +-----------+----------+----------+-> failed

A phase is over when everybody it waits for was heard, or when its deadline passes; then it
goes on if a quorum was heard and fails if not. Once a quorum is heard the others get
`patience` more seconds and not the whole deadline, because a device that vanished never
answers, and every loss would otherwise cost every round its full deadline.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum


class Phase(StrEnum):
    """One stage of a cohort's sum; the order of definition is the order of time."""

    ENROLLING = "enrolling"
    SHARING = "sharing"
    MASKING = "masking"
    UNMASKING = "unmasking"
    SUMMED = "summed"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        """Return whether nothing more is awaited."""
        return self in (Phase.SUMMED, Phase.FAILED)


AFTER = {
    Phase.ENROLLING: Phase.SHARING,
    Phase.SHARING: Phase.MASKING,
    Phase.MASKING: Phase.UNMASKING,
    Phase.UNMASKING: Phase.SUMMED,
}


@dataclass(frozen=True, slots=True)
class Waiting:
    """A cohort that waits: for `expected` participants, at least `quorum`, until `deadline`."""

    phase: Phase
    expected: int
    quorum: int
    deadline: datetime
    patience: timedelta


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to happen to a waiting cohort: the phase it belongs in, and until when."""

    phase: Phase
    deadline: datetime


def settle(waiting: Waiting, heard: int, now: datetime) -> Verdict:
    """Return where a cohort stands that has `heard` so many participants by `now`."""
    phase, deadline = waiting.phase, waiting.deadline
    if phase.is_over:
        return Verdict(phase, deadline)
    if heard >= waiting.expected:
        return Verdict(AFTER[phase], deadline)
    if heard >= waiting.quorum:
        deadline = min(deadline, now + waiting.patience)
    if now < deadline:
        return Verdict(phase, deadline)
    return Verdict(AFTER[phase] if heard >= waiting.quorum else Phase.FAILED, deadline)
