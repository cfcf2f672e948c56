"""Who asks, and what they may: operators by API keys, devices by credentials."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Right(StrEnum):
    """What somebody may do."""

    READ = "read"  # see studies, answers, ledgers
    WRITE = "write"  # create, start and stop studies; create populations
    OPERATE = "operate"  # see the audit trail, and metrics
    TAKE_PART = "take-part"  # as a device


SCOPES: Final = (Right.READ, Right.WRITE, Right.OPERATE)  # of an API key


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody whose credential is good: `name` is the key's id or the device's identity."""

    name: str
    rights: frozenset[Right]
    identity: str | None = None

    def __str__(self) -> str:
        if self.identity:
            return f"device {self.name}"
        return self.name if self == ANYBODY else f"key {self.name}"


ANYBODY: Final = Principal("anybody", frozenset(Right))  # of a service that is open
