"""A device as one study knows it, its participation in a round, and the steps of that."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from random import Random
from time import time
from typing import ClassVar, Final

from client.device.encoding import Contribution
from client.device.journal import Journal
from client.http.transport import Transport
from protocol.api.messages import RoundView, SlotAssignment
from protocol.api.phases import DEVICE_PHASES, Phase
from protocol.device_policy.policy import Policy
from protocol.question_and_plan import SumKind
from protocol.randomness import RandomWords
from secagg.keys import Identity
from secagg.ring import Vector

DEFAULT_COLLECTION: Final = "default"


class DeviceStep(StrEnum):
    """A step that a device has completed."""

    JOINED = "joined"
    SHARED = "shared"
    CHECKED = "checked"
    MASKED = "masked"
    CONFIRMED = "confirmed"
    UNMASKED = "unmasked"
    REPORTED = "reported"
    SENT = "sent"


STEP_OF_PHASE: Final = {  # the step that a phase waits for
    Phase.ENROLLING: DeviceStep.JOINED,
    Phase.SHARING: DeviceStep.SHARED,
    Phase.CHECKING: DeviceStep.CHECKED,
    Phase.MASKING: DeviceStep.MASKED,
    Phase.CONFIRMING: DeviceStep.CONFIRMED,
    Phase.UNMASKING: DeviceStep.UNMASKED,
    Phase.REPORTING: DeviceStep.REPORTED,
    Phase.COLLECTING: DeviceStep.SENT,
}


def steps_in_sum(kind: SumKind) -> tuple[DeviceStep, ...]:
    return tuple(STEP_OF_PHASE[phase] for phase in DEVICE_PHASES[kind])


@dataclass(frozen=True, slots=True)
class StudyDevice:
    """A device as one study knows it.

    Attributes:
        identity: made for this study alone, so that nobody can link the device's studies; the
            device keeps it as long as the study runs.
        contribution: the items that it adds to the study.
        journal: the record of what it has sent; must live at least as long as `identity`.
        enrolment: the registrar's signature under `identity`, if the study has a registrar.
        credential: the secret with which `identity` is registered at a closed service
            (`client.device.driver`), empty for an open one.
        collection: the name of the collection that its items come from.
    """

    identity: Identity
    contribution: Contribution = field(repr=False)
    journal: Journal = field(repr=False)
    enrolment: bytes = b""
    credential: str = field(default="", repr=False)
    collection: str = DEFAULT_COLLECTION


@dataclass
class RoundParticipation(ABC):
    """The participation of `device` in the round of `view`, by a vector in a sum or by a report.

    `secrets` generates keys, seeds and tickets; `chance` samples the items and draws the noise.
    Outside simulations both must be the system's randomness. `clock` returns seconds since 1970.
    `assignment` and `vector` (as it was encoded, without masks) are None until they are known, and
    for a report.
    """

    transport: Transport
    view: RoundView
    device: StudyDevice
    _: KW_ONLY
    policy: Policy
    secrets: Random
    chance: RandomWords
    clock: Callable[[], float] = time
    has_one_step: ClassVar[bool] = False  # no step comes before its only message
    assignment: SlotAssignment | None = field(default=None, init=False)
    vector: Vector | None = field(default=None, init=False)

    @abstractmethod
    def steps(self, study: str) -> AsyncGenerator[DeviceStep]:
        """Take part in a round of `study`; yield after each step."""
