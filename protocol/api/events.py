"""Events of a study, in the order in which they happen; docs/api.md lists the fields of each kind.

An event reveals no more than the view of a round: numbers of messages, but never their contents,
and nothing that the study suppresses (rare counts, sums, the number of cells). If the number of
devices in a round is secret, events also leave out `received`, `expected`, `participants` and
`cause`.
"""

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from protocol.api.phases import Phase
from protocol.public_model import PublicModel


class EndCause(StrEnum):
    """Causes of the end of a study; the values are stable, so that programs can depend on them."""

    GOAL = "goal"  # the expected precision and recall of its list reached its goal
    COMPLETE = "complete"  # its mechanism has nothing left to ask
    LAST_ROUND = "last-round"  # all of its rounds are over
    NO_ANSWER = "no-answer"  # the same, and no round has a sum that could be decoded
    STOPPED = "stopped"  # by its analyst
    INTERNAL = "internal"  # a fault of the service: no further round could be planned


def end_sentence(cause: EndCause, number: int, rounds: int, *, has_goal: bool) -> str:
    """Return the reason of the end of a study of at most `rounds` rounds in round `number`."""
    where = f"in round {number:,} of at most {rounds:,}"
    if cause is EndCause.GOAL:
        return (
            f"The expected precision and recall of the list reached the goal {where}. "
            "They are expectations: the true values can be lower, above all if the list is short."
        )
    if cause is EndCause.COMPLETE:
        return f"The answer was complete {where}."
    if cause is EndCause.STOPPED:
        return f"The study was stopped {where}."
    if cause is EndCause.INTERNAL:
        return f"A fault of the service ended the study {where}."
    addition = ", and the list has not reached the goal" if has_goal else ""
    if cause is EndCause.NO_ANSWER:
        addition = ", without an answer"
    all_rounds = "Both" if rounds == 2 else f"All {rounds:,}"
    over = "The one round is over" if rounds == 1 else f"{all_rounds} rounds are over"
    return f"{over}{addition}."


class EventKind(StrEnum):
    """Kinds of events; the values are stable, so that programs can depend on them."""

    STUDY_CREATED = "study-created"
    STUDY_STARTED = "study-started"
    ROUND_OPENED = "round-opened"
    COHORT_PHASE_CHANGED = "cohort-phase-changed"
    COHORT_FAILED = "cohort-failed"
    COHORT_EXCLUDED = "cohort-excluded"
    ROUND_CLOSED = "round-closed"
    STUDY_ENDED = "study-ended"


class FailureCause(StrEnum):
    """Causes of a failed cohort, for programs; `Event.reason` explains them to people."""

    TOO_FEW = "too-few"  # fewer messages than a quorum arrived in time
    INFEASIBLE = "infeasible"  # no parameters are safe for a cohort of this size
    UNRECOVERABLE = "unrecoverable"  # a secret could not be recovered from the shares
    POISONED = "poisoned"  # no honest vectors add up to this
    NOT_SEATED = "not-seated"  # the registrar did not divide the joiners into cohorts in time
    STOPPED = "stopped"  # with its study
    INTERNAL = "internal"  # a fault of the service


class Event(PublicModel):
    """One event `at` a time in `study`; `id` grows by one from event to event.

    `previous_phase` ended after `seconds` with `received` of `expected` messages, the number that
    the phase before it received. The cohort is now in `phase`. `state` is that of a round or study
    that is over, `sampling_threshold` the t of threshold sampling, and `heavy_hitters` the number
    of heavy hitters after the round. `end_cause` and `round` are those of a study that has ended.
    """

    id: int = Field(ge=1)
    study: str
    kind: EventKind
    at: datetime
    round: int | None = None
    cohort: int | None = None
    previous_phase: Phase | None = None
    phase: Phase | None = None
    received: int | None = None
    expected: int | None = None
    seconds: float | None = None
    cause: FailureCause | None = None
    reason: str | None = None
    state: str | None = None
    participants: int | None = None
    sampling_threshold: float | None = None
    heavy_hitters: int | None = None
    end_cause: EndCause | None = None
