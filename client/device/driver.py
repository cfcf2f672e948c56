"""Driver of one device in one round, from the plan that it is shown to the end of its part.

Both a program for one device (`client.device.take_part`) and a fleet drive devices by these
functions, so the service and the other devices cannot distinguish them.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeAlias

from client.credentials import cause_without_secrets
from client.device.device import DeviceStep, RoundParticipation
from client.device.journal import JournalError
from client.device.one_shot import OneShotParticipation
from client.device.participation import ReportParticipation, SumParticipation
from client.errors import (
    BadRequestError,
    CohortFailedError,
    DroppedOutError,
    ForbiddenError,
    NoRoundError,
    NotAuthorisedError,
    NotFoundError,
    ServiceError,
    ServiceUnreachableError,
    UnavailableError,
    WrongPhaseError,
    WrongStateError,
    short_text,
)
from client.http.address_and_retries import url_path
from client.http.exchange import parse_document
from client.http.transport import POLL_SECONDS, Transport
from protocol.api.credentials import possession_statement, secret_digest
from protocol.api.messages import EnrolmentRequest, RoundView
from protocol.device_policy.policy import PolicyError
from protocol.mechanisms.registry import REPORT_MECHANISMS, AnyPlan
from secagg.errors import ProtocolError, UnsafeRequestError
from secagg.keys import Identity

_LOG: Final = logging.getLogger(__name__)
_DEFAULT_RETRY_SECONDS: Final = 1.0  # if the service names no time
_DEVICE_ADVICE: Final[dict[type[ServiceError], str]] = {
    BadRequestError: "the device and the service may have different versions",
    ForbiddenError: "ask the operator of the service for another enrolment token",
    NotAuthorisedError: "pass a token, which `blindtally tokens create` makes",
    NotFoundError: "check the address and the id of the study",
    UnavailableError: "try again later",
    WrongStateError: "it takes no devices now",
}
PARTICIPATION_ERRORS: Final = (ServiceError, ServiceUnreachableError, ProtocolError)


class EndState(StrEnum):
    """The end of a device's part in a round."""

    FINISHED = "finished"
    NOT_INVITED = "not invited"  # by its coin: it took no part, so it is not a dropout
    DROPPED_OUT = "dropped out"  # its driver stopped it
    NO_ROUND = "no round"  # no round took devices while it waited
    OVER = "over"  # no round of the study will take devices any more
    LATE = "late"  # the round was full, or the cohort continued without it
    COHORT_FAILED = "cohort failed"
    DECLINED = "declined"  # it left, because the service asked for too much
    REJECTED = "rejected"  # the service refused it
    IN_USE = "in use"  # another call or process takes part as the same device
    DISCONNECTED = "disconnected"  # it had no connection for too long
    FAULT = "fault"  # an unexpected error, of its program or by what the service sent


# Receives each step of a device, and the end of its part unless it finished.
ProgressCallback: TypeAlias = Callable[[DeviceStep | EndState], None]


@dataclass(frozen=True, slots=True)
class RoundEnd:
    """The end of a device's part in a round.

    Attributes:
        last_step: the last step that the device took, None before the first.
        error: the reason, if the device did not finish.
        policy_error: the same, if the device's policy was the reason.
    """

    state: EndState
    last_step: DeviceStep | None = None
    error: str = ""
    policy_error: PolicyError | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, error: Exception, last_step: DeviceStep | None = None) -> "RoundEnd":
        """Return the end that is caused by `error`, a fault unless in `PARTICIPATION_ERRORS`."""
        if not isinstance(error, PARTICIPATION_ERRORS):
            shown = cause_without_secrets(error)
            _LOG.error("a device's part in a round ended by a fault", exc_info=shown)
        policy_error = error if isinstance(error, PolicyError) else None
        text = short_text(f"{type(error).__name__}: {_advising_text(error)}")
        return cls(_end_state_of(error), last_step, text, policy_error)


def logging_errors(on_progress: ProgressCallback) -> ProgressCallback:
    """Return `on_progress` with its errors in the log: they do not drop the device out."""

    def report(step: DeviceStep | EndState) -> None:
        try:
            on_progress(step)
        except Exception:
            _LOG.exception("on_progress failed after %s; the device goes on", step)

    return report


def participation_type(plan: AnyPlan) -> type[RoundParticipation]:
    """Return the class of a device's participation in the round of `plan`."""
    if plan.mechanism in REPORT_MECHANISMS:
        return ReportParticipation
    return OneShotParticipation if plan.terms.is_one_shot else SumParticipation


async def enrol_device(
    transport: Transport, identity: Identity, token: str, credential: str
) -> None:
    """Register `identity` at a closed service; repeating the call changes nothing.

    The operator gives the same `token` to many devices, so that it does not link a device's
    studies. The device chooses its `credential`, which stands for one identity.

    Raises:
        NotAuthorisedError: if the token is not valid.
        ForbiddenError: if the token has no enrolments left, or the identity was revoked.
        ConflictError: if the identity has another credential.
        ServiceUnreachableError: if the service is out of reach for too long.
    """
    digest = secret_digest(credential)
    request = EnrolmentRequest(
        identity=identity.public.hex(),
        credential=digest.hex(),
        signature=identity.sign(possession_statement(digest)).hex(),
    )
    content = request.model_dump_json().encode()
    await transport.send("POST", "/devices", content=content, ticket=token)


async def wait_for_open_round(
    transport: Transport,
    study: str,
    after: int = 0,
    *,
    ticket: str | None = None,
    patience: float | None = None,
) -> RoundView:
    """Return the first round after number `after` that takes devices.

    Raises:
        NoRoundError: if there was none for `patience` seconds; None waits without limit.
        WrongStateError: if the study has ended.
        UnsafeRequestError: if the service sends a malformed answer, or an earlier round.
        ServiceError: if the service refuses to show the round.
        ServiceUnreachableError: if the service is out of reach for too long.
    """
    clock = asyncio.get_running_loop().time
    deadline = None if patience is None else clock() + patience
    path, params = url_path("studies", study, "rounds", "open"), {"after": after}
    while True:
        left = POLL_SECONDS if deadline is None else max(0.0, deadline - clock())
        try:
            wait = min(POLL_SECONDS, left)
            answer = await transport.send("GET", path, params=params, wait=wait, ticket=ticket)
        except NoRoundError as error:
            pause = error.retry_after or _DEFAULT_RETRY_SECONDS
            if deadline is not None and clock() + pause > deadline:
                raise
            await asyncio.sleep(pause)
        else:
            view = parse_document(RoundView, answer.content)
            if view.number <= after:
                raise UnsafeRequestError(f"shows round {view.number} as one after round {after}")
            return view


async def run_participation(
    participation: RoundParticipation,
    study: str,
    on_progress: ProgressCallback = lambda _step: None,
    last_step: DeviceStep | None = None,
    pause_seconds: Sequence[float] = (),
) -> RoundEnd:
    """Run a participation in a round of `study` to its end, or drop out after `last_step`.

    The device pauses after each step for the next of `pause_seconds`.

    Raises:
        JournalError: if a message cannot be recorded.
    """
    if last_step is not None and participation.has_one_step:
        on_progress(EndState.DROPPED_OUT)  # no step comes before it
        return RoundEnd(EndState.DROPPED_OUT)
    step: DeviceStep | None = None
    steps, pauses = participation.steps(study), iter(pause_seconds)
    limit = participation.policy.max_round_seconds
    try:
        async with asyncio.timeout(limit):
            async for step in steps:
                on_progress(step)
                if step is last_step:
                    end = RoundEnd(EndState.DROPPED_OUT, step)
                    break
                await asyncio.sleep(next(pauses, 0.0))
            else:
                state = EndState.FINISHED if step is not None else EndState.NOT_INVITED
                end = RoundEnd(state, step)
    except TimeoutError:
        reason = f"keeps the device in a round for more than {limit:g} seconds"
        end = RoundEnd.of(PolicyError("max_round_seconds", reason), step)
    except JournalError:
        raise
    except Exception as error:  # of any kind: it ends this round, and nothing else
        end = RoundEnd.of(error, step)
    finally:
        await steps.aclose()
    if end.state is not EndState.FINISHED:
        on_progress(end.state)
    return end


def _advising_text(error: Exception) -> str:
    """Return the text of an error, with advice for a device.

    The advice of `client.errors` is for analysts: a device can neither look at a study nor make
    keys.
    """
    if not isinstance(error, ServiceError):
        return str(error)
    advice = _DEVICE_ADVICE.get(type(error), error.advice)
    return f"{error.message} ({advice})" if advice else error.message


def _end_state_of(error: Exception) -> EndState:
    if isinstance(error, ProtocolError):
        return EndState.DECLINED
    if isinstance(error, DroppedOutError | NoRoundError | WrongPhaseError):
        return EndState.LATE
    if isinstance(error, CohortFailedError):
        return EndState.COHORT_FAILED
    if isinstance(error, ServiceUnreachableError):
        return EndState.DISCONNECTED
    return EndState.REJECTED if isinstance(error, ServiceError) else EndState.FAULT
