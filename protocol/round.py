"""The phases of one cohort, and when each is over.

    enrolling -> sharing -> masking -> confirming -> unmasking -> summed
         |           |          |           |            |
         +-----------+----------+-----------+------------+-> failed

Only a sum that is to be safe from an active server has its survivors confirmed; the others
go from masking to unmasking. Where devices send reports that are private by themselves, there is
one phase only:

    reporting -> summed, or failed

A phase is over when everybody it waits for was heard, or when its deadline passes; then it
goes on if a quorum was heard and fails if not. Once a quorum was heard, it is over as soon as
nobody was heard for `patience`: a device that vanished never answers, and every loss would
otherwise cost every round a whole deadline.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from secagg.parameters import Mode


class Phase(StrEnum):
    """One stage of a cohort; the order of definition is the order of time."""

    ENROLLING = "enrolling"
    SHARING = "sharing"
    MASKING = "masking"
    CONFIRMING = "confirming"
    UNMASKING = "unmasking"
    REPORTING = "reporting"
    SUMMED = "summed"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        """Return whether nothing more is awaited."""
        return self in (Phase.SUMMED, Phase.FAILED)


def phases(mode: Mode) -> tuple[Phase, ...]:
    """Return the phases in which a cohort of `mode` hears its participants, first to last."""
    heard = tuple(p for p in Phase if not p.is_over and p is not Phase.REPORTING)
    if mode == "active":
        return heard
    return tuple(phase for phase in heard if phase is not Phase.CONFIRMING)


def after(phase: Phase, mode: Mode) -> Phase:
    """Return the phase that follows `phase`, which is not over."""
    if phase is Phase.REPORTING:
        return Phase.SUMMED
    following = (*phases(mode), Phase.SUMMED)
    return following[following.index(phase) + 1]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A cohort in `phase` that has heard `heard` of `expected`, the last of them at `last`."""

    phase: Phase
    mode: Mode
    expected: int
    quorum: int
    heard: int
    last: datetime
    deadline: datetime
    patience: timedelta

    @property
    def closing(self) -> datetime:
        """Return when the phase is over if nobody else is heard."""
        if self.heard < self.quorum:
            return self.deadline
        return min(self.deadline, self.last + self.patience)


def settle(waiting: Waiting, now: datetime) -> Phase:
    """Return the phase that a cohort belongs in at `now`."""
    phase = waiting.phase
    if phase.is_over:
        return phase
    if waiting.heard >= waiting.expected:
        return after(phase, waiting.mode)
    if now < waiting.closing:
        return phase
    return after(phase, waiting.mode) if waiting.heard >= waiting.quorum else Phase.FAILED
