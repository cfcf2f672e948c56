"""A device as one study knows it, and the steps that it takes in a round."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from client.device.encoding import Contribution
from client.device.journal import Journal
from protocol.phases import Phase, participant_phases
from secagg.errors import UnsafeRequestError
from secagg.keys import Identity
from secagg.parameters import Mode


class DeviceStep(StrEnum):
    """A step that a device has completed."""

    JOINED = "joined"
    SHARED = "shared"
    MASKED = "masked"
    CONFIRMED = "confirmed"
    UNMASKED = "unmasked"
    REPORTED = "reported"


STEP_OF_PHASE: Final = {  # the step that a phase waits for
    Phase.ENROLLING: DeviceStep.JOINED,
    Phase.SHARING: DeviceStep.SHARED,
    Phase.MASKING: DeviceStep.MASKED,
    Phase.CONFIRMING: DeviceStep.CONFIRMED,
    Phase.UNMASKING: DeviceStep.UNMASKED,
    Phase.REPORTING: DeviceStep.REPORTED,
}


def steps_in_mode(mode: Mode) -> tuple[DeviceStep, ...]:
    """Return the steps of a device in a round of `mode`, first to last."""
    return tuple(STEP_OF_PHASE[phase] for phase in participant_phases(mode))


@dataclass(frozen=True, slots=True)
class Device:
    """A device as one study knows it.

    Attributes:
        identity: made for this study alone, so that nobody can link the device's studies; the
            device keeps it as long as the study runs.
        contribution: the items that it adds to the study.
        journal: the record of what it has sent; must live at least as long as `identity`.
        enrolment: the registrar's signature under `identity`, if the study has a registrar.
        credential: the secret with which `identity` is registered at a closed service
            (`client.device.enrolment`), empty for an open one.
    """

    identity: Identity
    contribution: Contribution = field(repr=False)
    journal: Journal = field(repr=False)
    enrolment: bytes = b""
    credential: str = field(default="", repr=False)


@contextmanager
def refusing_malformed() -> Iterator[None]:
    """Turn the ValueError of a malformed answer into a refusal of the service.

    Raises:
        UnsafeRequestError: instead of any ValueError.
    """
    try:
        yield
    except ValueError as error:  # pydantic's ValidationError is one
        raise UnsafeRequestError(f"sent a malformed answer: {error}") from error
