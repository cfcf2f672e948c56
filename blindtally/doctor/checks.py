"""What a check finds: that a thing is well, that it may hurt, or that it stops something."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

State: TypeAlias = Literal["ok", "warning", "fault"]


@dataclass(frozen=True, slots=True)
class Check:
    """What was found about `name`, and unless it is well, how to `mend` it."""

    name: str
    state: State
    found: str
    mend: str = ""


def ok(name: str, found: str) -> Check:
    """Return that all is well."""
    return Check(name, "ok", found)


def warning(name: str, found: str, mend: str) -> Check:
    """Return that something works, and not as it should."""
    return Check(name, "warning", found, mend)


def fault(name: str, found: str, mend: str) -> Check:
    """Return that something does not work."""
    return Check(name, "fault", found, mend)
