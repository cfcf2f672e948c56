"""One device's part in one round: from the plan that it is shown to how its part ended.

Whoever drives devices, a program for one (`client.taking_part`) or a fleet of them, drives them by
this: what is shared is everything that the service and the others can see.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Final, TypeAlias
from urllib.parse import quote

import httpx

from client.participation import Device, Participation, Step, reading
from client.policy import Policy, PolicyError
from client.problems import (
    CohortFailedError,
    LeftOutError,
    NoRoundError,
    ServiceError,
    WrongPhaseError,
)
from client.reporting import Reporting
from client.transport import POLL_SECONDS, Transport
from protocol.chance import Chance
from protocol.mechanisms import REPORTING
from protocol.messages import RoundView
from secagg.errors import ProtocolError

_COME_BACK_SECONDS: Final = 1.0  # where the service does not say when


class End(StrEnum):
    """How a device's part in a round ended."""

    FINISHED = "finished"
    STAYED_AWAY = "stayed away"  # by its coin: it took no part, so it is no loss
    VANISHED = "vanished"  # because whoever drives it let it
    NO_ROUND = "no round"  # none took devices for as long as it waited
    OVER = "over"  # no round of the study will take devices any more
    LATE = "late"  # the round was full, or the cohort went on without it
    COHORT_FAILED = "cohort failed"
    REFUSED = "refused"  # it left: the service asked for too much
    REJECTED = "rejected"  # the service would not have it
    CUT_OFF = "cut off"  # no connection for too long


Heard: TypeAlias = Callable[[Step | End], None]  # a device's step, or how its part ended short


@dataclass(frozen=True, slots=True)
class Ending:
    """How a part ended, after which step (None if before the first), and why if not well.

    `refused` is what the device's policy had against it, if that is why.
    """

    end: End
    last: Step | None = None
    error: str = ""
    refused: PolicyError | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, problem: Exception, last: Step | None = None) -> "Ending":
        """Return how a part ends by `problem`, one of `PROBLEMS`."""
        refused = problem if isinstance(problem, PolicyError) else None
        return cls(_end(problem), last, f"{type(problem).__name__}: {problem}", refused)


PROBLEMS: Final = (ServiceError, ProtocolError, httpx.TransportError)


async def open_round(
    transport: Transport,
    study: str,
    after: int = 0,
    *,
    ticket: str | None = None,
    patience: float | None = None,
) -> RoundView:
    """Return the round after number `after` that takes devices, once there is one.

    Raises:
        NoRoundError: if there was none for `patience` seconds; without it we wait for ever.
        WrongStateError: if the study is over.
        RefusedError: if what the service shows cannot be read.
        ServiceError: if it refuses to show it.
        httpx.TransportError: if it is out of reach for too long.
    """
    clock = asyncio.get_running_loop().time
    late = None if patience is None else clock() + patience
    path, params = f"/studies/{quote(study, safe='')}/rounds/open", {"after": after}
    while True:
        left = POLL_SECONDS if late is None else max(0.0, late - clock())
        try:
            wait = min(POLL_SECONDS, left)
            answer = await transport.send("GET", path, params=params, wait=wait, ticket=ticket)
        except NoRoundError as problem:
            pause = problem.retry_after or _COME_BACK_SECONDS
            if late is not None and clock() + pause > late:
                raise
            await asyncio.sleep(pause)
        else:
            with reading():
                return RoundView.model_validate_json(answer.content)


def part_of(
    transport: Transport,
    view: RoundView,
    device: Device,
    *,
    policy: Policy,
    secrets: Random,
    chance: Chance,
) -> Participation | Reporting:
    """Return the part that `device` takes in the round that `view` shows: in a sum, or a report."""
    if view.plan.mechanism in REPORTING:
        return Reporting(transport, view, device, policy=policy, chance=chance)
    return Participation(transport, view, device, policy=policy, secrets=secrets, chance=chance)


async def play(
    part: Participation | Reporting,
    study: str,
    heard: Heard = lambda _step: None,
    until: Step | None = None,
    pauses: Sequence[float] = (),
) -> Ending:
    """Take a part in a round of `study` to its end; after step `until` the device vanishes.

    It waits for so many seconds after each step, before it goes on.

    Raises:
        JournalError: if what is to be given cannot be recorded.
    """
    if until is not None and isinstance(part, Reporting):  # it has one step to take
        heard(End.VANISHED)
        return Ending(End.VANISHED)
    last: Step | None = None
    steps, waits = part.steps(study), iter(pauses)
    try:
        async for last in steps:
            heard(last)
            if last is until:
                ending = Ending(End.VANISHED, last)
                break
            await asyncio.sleep(next(waits, 0.0))
        else:
            ending = Ending(End.FINISHED if last is not None else End.STAYED_AWAY, last)
    except PROBLEMS as problem:
        ending = Ending.of(problem, last)
    finally:
        await steps.aclose()
    if ending.end is not End.FINISHED:
        heard(ending.end)
    return ending


def _end(problem: Exception) -> End:
    if isinstance(problem, ProtocolError):
        return End.REFUSED
    if isinstance(problem, LeftOutError | NoRoundError | WrongPhaseError):
        return End.LATE
    if isinstance(problem, CohortFailedError):
        return End.COHORT_FAILED
    return End.REJECTED if isinstance(problem, ServiceError) else End.CUT_OFF
