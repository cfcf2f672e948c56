"""Phases of one cohort, and the rule that ends them.

    enrolling [-> seating] -> sharing -> checking -> masking -> confirming -> unmasking -> summed
    reporting -> summed
    convening [-> seating] -> collecting -> checking -> agreeing -> releasing -> summed

Each phase may also end in failed. In a round that a registrar seats, one cohort collects the
joiners of all cohorts; seating waits for the registrar, which divides them (`secagg.seating`). If a
device complains about its shares while checking, the dealers of these have an answering phase
before masking. Only a sum that must be safe from an active server has a confirming phase. A round
of reports, which are private by themselves, has one phase.

The last line is a one-shot sum (`secagg.oneshot`). Members of its committee register their keys
while it convenes, devices send their messages while it collects, and the members alone take part in
the other phases. If the members are volunteers, the registrar draws them while the round is
seating. If all expected members but a few have answered, the phase ends after `idle` too.

A phase ends when all expected messages have arrived, or at its deadline. Then the cohort
continues if a quorum arrived, and fails otherwise. After a quorum the phase also ends when no
message arrives for `idle`: a device that dropped out never answers, and otherwise each dropout
would cost each round a whole deadline.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from protocol.question_and_plan import SumVariant
from secagg.parameters import Mode


class Phase(StrEnum):
    """A phase of a cohort, defined in the order of time."""

    CONVENING = "convening"
    COLLECTING = "collecting"
    ENROLLING = "enrolling"
    SEATING = "seating"
    SHARING = "sharing"
    CHECKING = "checking"
    ANSWERING = "answering"
    MASKING = "masking"
    CONFIRMING = "confirming"
    UNMASKING = "unmasking"
    AGREEING = "agreeing"
    RELEASING = "releasing"
    REPORTING = "reporting"
    SUMMED = "summed"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        return self in (Phase.SUMMED, Phase.FAILED)


class MessageKind(StrEnum):
    """Kinds of messages of a device, as in paths, database rows and journals."""

    KEY_SHARES = "key-shares"
    COMPLAINTS = "complaints"
    ANSWERS = "answers"
    MASKED_INPUT = "masked-input"
    INPUT_SIGNATURE = "input-signature"  # of the masked input: the server stores it separately
    CONFIRMATION = "confirmation"
    UNMASKING_SHARES = "unmasking-shares"
    REPORT = "report"
    INVITATION = "invitation"  # never sent: the result of the coin that decides to join a round


class MemberMessageKind(StrEnum):
    """Kinds of messages of a committee's member, as in paths and database rows."""

    KEY = "key"
    COMPLAINTS = "complaints"
    SET_SIGNATURE = "set-signature"
    SUM = "sum"


# Nobody can drop out.
JOINING_PHASES: Final = (Phase.COLLECTING, Phase.ENROLLING, Phase.SEATING, Phase.REPORTING)
MESSAGE_KIND: Final = {  # the message of each phase; enrolling has the participants
    Phase.SHARING: MessageKind.KEY_SHARES,
    Phase.CHECKING: MessageKind.COMPLAINTS,
    Phase.ANSWERING: MessageKind.ANSWERS,
    Phase.MASKING: MessageKind.MASKED_INPUT,
    Phase.CONFIRMING: MessageKind.CONFIRMATION,
    Phase.UNMASKING: MessageKind.UNMASKING_SHARES,
}
MEMBER_MESSAGE_KIND: Final = {  # the message of each phase of a one-shot sum in which members act
    Phase.CONVENING: MemberMessageKind.KEY,
    Phase.CHECKING: MemberMessageKind.COMPLAINTS,
    Phase.AGREEING: MemberMessageKind.SET_SIGNATURE,
    Phase.RELEASING: MemberMessageKind.SUM,
}
ONE_SHOT_PHASES: Final = (  # in order
    Phase.CONVENING,
    Phase.COLLECTING,
    Phase.CHECKING,
    Phase.AGREEING,
    Phase.RELEASING,
)

_ACTIVE_PHASES = (
    Phase.ENROLLING,
    Phase.SHARING,
    Phase.CHECKING,
    Phase.MASKING,
    Phase.CONFIRMING,
    Phase.UNMASKING,
)
# In order, by mode of the cohort, of one without complaints that no registrar seats.
PARTICIPANT_PHASES: Final[Mapping[Mode, tuple[Phase, ...]]] = {
    "active": _ACTIVE_PHASES,
    "semi-honest": tuple(phase for phase in _ACTIVE_PHASES if phase is not Phase.CONFIRMING),
}


# Phases in which devices act.
DEVICE_PHASES: Final[dict[SumVariant, tuple[Phase, ...]]] = {
    "active": PARTICIPANT_PHASES["active"],
    "semi-honest": PARTICIPANT_PHASES["semi-honest"],
    "one-shot": (Phase.COLLECTING,),
}
# All phases with messages.
SUM_PHASES: Final[dict[SumVariant, tuple[Phase, ...]]] = {
    **DEVICE_PHASES,
    "one-shot": ONE_SHOT_PHASES,
}


def one_shot_phases(*, is_drawn: bool) -> tuple[Phase, ...]:
    """Return the phases of a one-shot sum in order, whose committee a registrar may draw."""
    seating = (Phase.SEATING,) if is_drawn else ()
    return (Phase.CONVENING, *seating, *ONE_SHOT_PHASES[1:])


def next_phase(
    phase: Phase, mode: Mode, *, is_seated: bool = False, is_one_shot: bool = False
) -> Phase:
    """Return the phase that follows `phase`, which is not over; of checking without complaints."""
    if is_one_shot:
        following = (*one_shot_phases(is_drawn=is_seated), Phase.SUMMED)
        return following[following.index(phase) + 1]
    if phase is Phase.REPORTING:
        return Phase.SUMMED
    if phase is Phase.ENROLLING and is_seated:
        return Phase.SEATING
    if phase is Phase.SEATING:
        return Phase.SHARING
    if phase is Phase.ANSWERING:
        return Phase.MASKING
    following = (*PARTICIPANT_PHASES[mode], Phase.SUMMED)
    return following[following.index(phase) + 1]


@dataclass(frozen=True, slots=True)
class PhaseStatus:
    """A cohort in `phase` with `received` of `expected` messages, the last at `last_received`."""

    phase: Phase
    mode: Mode
    expected: int
    quorum: int
    received: int
    last_received: datetime
    deadline: datetime
    idle: timedelta
    is_seated: bool = False  # by a registrar, after enrolling or convening
    is_one_shot: bool = False

    @property
    def next_phase(self) -> Phase:
        """Return the phase that follows the present one."""
        return next_phase(
            self.phase, self.mode, is_seated=self.is_seated, is_one_shot=self.is_one_shot
        )

    @property
    def closes_at(self) -> datetime:
        """Return the time at which the phase ends if no other message arrives."""
        if self.received < self.quorum:
            return self.deadline
        return min(self.deadline, self.last_received + self.idle)


def settle(status: PhaseStatus, now: datetime) -> Phase:
    """Return the phase that a cohort should be in at `now`."""
    phase = status.phase
    if phase.is_over:
        return phase
    if status.received >= status.expected:
        return status.next_phase
    if now < status.closes_at:
        return phase
    return status.next_phase if status.received >= status.quorum else Phase.FAILED
