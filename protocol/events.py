"""What a study tells of itself while it happens, in the order in which it happened.

    study-created, study-started
      round-opened                        round, threshold
        cohort-moved                      round, cohort, before, phase, heard, expected, seconds
        cohort-failed                     the same, and cause and reason
        cohort-left-out                   round, cohort: its sum could not be read
      round-closed                        round, state, participants, threshold, found
    study-ended                           state: finished or stopped

An event says nothing that a round does not show: how many were heard, and never what they said.
What a study suppresses (rare counts, sums, how many cells there are) is in none; and where nobody
may learn how many devices joined a round, neither `heard`, `expected`, `participants` nor `cause`.
"""

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from protocol.public import Public
from protocol.round import Phase


class EventKind(StrEnum):
    """What happened, in words that programs may rely on."""

    STUDY_CREATED = "study-created"
    STUDY_STARTED = "study-started"
    ROUND_OPENED = "round-opened"
    COHORT_MOVED = "cohort-moved"
    COHORT_FAILED = "cohort-failed"
    COHORT_LEFT_OUT = "cohort-left-out"
    ROUND_CLOSED = "round-closed"
    STUDY_ENDED = "study-ended"


class Cause(StrEnum):
    """Why a cohort failed, in few words; its `reason` says more, to people."""

    TOO_FEW = "too-few"  # not enough were heard in time
    INFEASIBLE = "infeasible"  # no parameters are safe for so few
    UNRECOVERABLE = "unrecoverable"  # a secret could not be had from the shares
    POISONED = "poisoned"  # no honest vectors add up to this
    STOPPED = "stopped"  # with its study
    INTERNAL = "internal"  # a fault of ours


class Event(Public):
    """Something that happened `at` a time in `study`; `id` grows by one from event to event.

    `before` is the phase that ended after `seconds`, with `heard` of `expected` participants
    (of those who were heard in the phase before it), and `phase` what the cohort moved to.
    `state` is that of a round or study that is over, `threshold` the t of threshold sampling,
    `found` how many items are heavy after the round.
    """

    id: int = Field(ge=1)
    study: str
    kind: EventKind
    at: datetime
    round: int | None = None
    cohort: int | None = None
    before: Phase | None = None
    phase: Phase | None = None
    heard: int | None = None
    expected: int | None = None
    seconds: float | None = None
    cause: Cause | None = None
    reason: str | None = None
    state: str | None = None
    participants: int | None = None
    threshold: float | None = None
    found: int | None = None
