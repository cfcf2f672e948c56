"""Phases of one cohort, and the rule that ends them.

    enrolling [-> seating] -> sharing -> checking -> masking -> confirming -> unmasking -> summed
    reporting -> summed
    convening [-> drawing] -> collecting -> checking -> agreeing -> releasing -> summed

A cohort has one protocol, which is a value with its phases in order. Each phase may also end in
failed. In a round that a registrar seats, one cohort collects the joiners of all cohorts; seating
waits for the registrar, which divides them (`secagg.seating`). If a device complains about its
shares while checking, the dealers of these have an answering phase before masking. A round of
reports, which are private by themselves, has one phase.

The last line is a one-shot sum (`secagg.oneshot`). Members of its committee register their keys
while it convenes, devices send their messages while it collects, and the members alone take part in
the other phases. If the members are volunteers, the registrar draws them while the round is
drawing. If all expected members but a few have answered, the phase ends after `idle` too.

A phase ends when all expected messages have arrived, or at its deadline. Then the cohort
continues if a quorum arrived, and fails otherwise. After a quorum the phase also ends when no
message arrives for `idle`: a device that dropped out never answers, and otherwise each dropout
would cost each round a whole deadline.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Literal

from protocol.question_and_plan import SumKind, Terms


class Phase(StrEnum):
    """A phase of a cohort, defined in the order of time."""

    CONVENING = "convening"
    DRAWING = "drawing"
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


class MemberMessageKind(StrEnum):
    """Kinds of messages of a committee's member, as in paths and database rows."""

    KEY = "key"
    COMPLAINTS = "complaints"
    SET_SIGNATURE = "set-signature"
    SUM = "sum"


# Nobody can drop out.
_REGISTRAR_PHASES = (Phase.SEATING, Phase.DRAWING)
JOINING_PHASES: Final = (Phase.COLLECTING, Phase.ENROLLING, Phase.REPORTING, *_REGISTRAR_PHASES)
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


@dataclass(frozen=True, slots=True)
class Protocol:
    """Protocol of a cohort, by its `name` in database rows, with its phases in order.

    The phases are those without complaints. Protocols of one `kind` differ only in what a registrar
    does.
    """

    name: str
    kind: SumKind | Literal["reports"]
    phases: tuple[Phase, ...]

    def after(self, phase: Phase) -> Phase:
        """Return the phase that follows `phase`, which is not over; of checking the usual one."""
        if phase is Phase.ANSWERING:
            return Phase.MASKING
        following = (*self.phases, Phase.SUMMED)
        return following[following.index(phase) + 1]


_AFTER_JOINING = tuple(phase for phase in MESSAGE_KIND if phase is not Phase.ANSWERING)
_AFTER_CONVENING = (Phase.COLLECTING, Phase.CHECKING, Phase.AGREEING, Phase.RELEASING)
PAIRWISE_SUM: Final = Protocol("pairwise", "pairwise", (Phase.ENROLLING, *_AFTER_JOINING))
SEATED_SUM: Final = Protocol(
    "seated", "pairwise", (Phase.ENROLLING, Phase.SEATING, *_AFTER_JOINING)
)
ONE_SHOT_SUM: Final = Protocol("one-shot", "one-shot", (Phase.CONVENING, *_AFTER_CONVENING))
DRAWN_SUM: Final = Protocol(
    "drawn", "one-shot", (Phase.CONVENING, Phase.DRAWING, *_AFTER_CONVENING)
)
REPORTS: Final = Protocol("reports", "reports", (Phase.REPORTING,))
PROTOCOLS: Final = {
    each.name: each for each in (PAIRWISE_SUM, SEATED_SUM, ONE_SHOT_SUM, DRAWN_SUM, REPORTS)
}
# Phases in which devices act.
DEVICE_PHASES: Final[dict[SumKind, tuple[Phase, ...]]] = {
    "pairwise": PAIRWISE_SUM.phases,
    "one-shot": (Phase.COLLECTING,),
}


def sum_protocol(terms: Terms) -> Protocol:
    """Return the protocol of the sums of a study with `terms`."""
    if terms.is_one_shot:
        return DRAWN_SUM if terms.draws_committee else ONE_SHOT_SUM
    return SEATED_SUM if terms.is_seated else PAIRWISE_SUM


@dataclass(frozen=True, slots=True)
class PhaseStatus:
    """A cohort in `phase` with `received` of `expected` messages, the last at `last_received`."""

    phase: Phase
    expected: int
    quorum: int
    received: int
    last_received: datetime
    deadline: datetime
    idle: timedelta
    protocol: Protocol = PAIRWISE_SUM

    @property
    def next_phase(self) -> Phase:
        """Return the phase that follows the present one."""
        return self.protocol.after(self.phase)

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
