"""Service of a device on a committee: it volunteers for one round of a study, and serves if drawn.

The device registers a key while a round convenes, and waits for the registrar's draw. If it is a
member, it checks the messages of all devices, signs their set and sends the sum of its shares
(`client.committee.member`). It may send its own message to the same round, or to none.
"""

import asyncio
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from client.committee.member import CommitteeMember, MemberPolicy
from client.device.driver import wait_for_open_round
from client.errors import (
    NoRoundError,
    ServiceError,
    ServiceUnreachableError,
    WrongStateError,
    short_text,
)
from client.http.address_and_retries import url_path
from client.http.exchange import parse_document
from client.http.transport import POLL_SECONDS, Transport
from protocol.api.messages import CommitteeRound, CommitteeView
from protocol.api.phases import Phase
from protocol.device_policy.policy import Policy
from secagg.errors import UnsafeRequestError
from secagg.oneshot.committee import Committee

_DRAW_POLL_SECONDS: Final = 5.0  # between two requests until the registrar's draw
_MIN_POLL_SECONDS: Final = 0.2  # also if the service does not wait
_MAX_COLUMN_BYTES: Final = 2**26


class CommitteeState(StrEnum):
    """The end of a device's service on a committee."""

    SERVED = "served"  # it sent the sum of its shares
    NOT_DRAWN = "not drawn"  # the registrar drew others
    NO_ROUND = "no round"  # no round took its key while it waited
    ROUND_OVER = "round over"  # before it could send the sum of its shares
    DECLINED = "declined"  # the round asked for too much
    REJECTED = "rejected"  # by the service
    TOO_LONG = "too long"  # for `Policy.max_round_seconds`


@dataclass(frozen=True, slots=True)
class CommitteeOutcome:
    """The service of a device on the committee of `round`, None if no round took its key.

    `error` is the reason, if the device did not serve; also the last one before a round took it.
    """

    state: CommitteeState
    round: int | None = None
    error: str = ""


def device_policy(policy: Policy) -> MemberPolicy:
    """Return the limits of a device with `policy` that serves on a committee."""
    registrars = frozenset() if policy.registrar is None else frozenset({policy.registrar})
    return MemberPolicy(policy.min_cohort, registrars, max_column_bytes=_MAX_COLUMN_BYTES)


@dataclass
class DeviceService:
    """Service of `member`, a device that volunteers, in one round of its study."""

    member: CommitteeMember
    transport: Transport
    credential: str = field(repr=False)
    _round: int | None = field(default=None, init=False)
    _is_done: bool = field(default=False, init=False)
    _error: str = field(default="", init=False)  # that ends the service
    _failure: str = field(default="", init=False)  # of a step that is tried again

    @property
    def has_volunteered(self) -> bool:
        """Return whether a round has the device's key."""
        return self._round is not None

    async def resume(self) -> None:
        """Go on in the open round if the device is in its committee, for a program that was killed.

        Raises:
            ServiceError, ServiceUnreachableError, UnsafeRequestError: if the round cannot be read.
        """
        study, ticket = self._study, self.credential
        try:
            view = await wait_for_open_round(self.transport, study, ticket=ticket, patience=0)
        except (NoRoundError, WrongStateError):
            return
        packed = view.cohorts[0].committee if view.cohorts else None
        if packed is not None and self._is_member(packed):
            self._round = view.number

    async def run(self, wait: float, max_seconds: float) -> CommitteeOutcome:
        """Serve in the first round that takes the device's key within `wait` seconds.

        The service in it ends after `max_seconds`.
        """
        try:
            if not self.has_volunteered and not await self._volunteer(wait):
                return self._end(CommitteeState.NO_ROUND)
            async with asyncio.timeout(max_seconds):
                return self._end(await self._serve())
        except TimeoutError:
            return self._end(CommitteeState.TOO_LONG)
        except UnsafeRequestError as error:
            self._error = str(error)
            return self._end(CommitteeState.DECLINED)
        except (ServiceError, ServiceUnreachableError) as error:
            self._error = str(error)
            return self._end(CommitteeState.REJECTED)

    def _end(self, state: CommitteeState) -> CommitteeOutcome:
        return CommitteeOutcome(state, self._round, short_text(self._error or self._failure))

    async def _volunteer(self, wait: float) -> bool:
        """Register a key in a round that convenes, or go on in one; False if there was none."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + wait
        while self._round is None:
            left = max(0.0, deadline - clock())
            await self._act(min(POLL_SECONDS, left))
            if self._error:
                raise UnsafeRequestError(self._error)
            if self._round is None:
                if clock() >= deadline:
                    return False
                await asyncio.sleep(_MIN_POLL_SECONDS)
        return True

    async def _serve(self) -> CommitteeState:
        """Take all steps in the round, once the registrar has drawn the device."""
        assert self.member.volunteering is not None, "a device volunteers"
        self.member.volunteering = replace(self.member.volunteering, round=self._round)
        seconds = _DRAW_POLL_SECONDS
        while not self._is_done:
            if not await self._act(seconds):
                view = await self._view()
                if view.phase.is_over:
                    await self.member.erase_spent_keys(self.transport, self.credential)
                    return CommitteeState.ROUND_OVER
                if view.committee is not None:
                    if not self._is_member(view.committee):
                        return CommitteeState.NOT_DRAWN
                    seconds = POLL_SECONDS
                await asyncio.sleep(_MIN_POLL_SECONDS)
            if self._error:
                return CommitteeState.DECLINED
        return CommitteeState.SERVED

    async def _act(self, wait: float) -> int:
        return await self.member.act(self.transport, self.credential, self._note, wait)

    def _note(self, pending: CommitteeRound, refusal: str) -> None:
        if refusal:
            self._failure = refusal
            if self.member.has_refused(pending):
                self._error = refusal
            return
        self._round, self._failure = pending.round, ""
        self._is_done = pending.phase is Phase.RELEASING

    @property
    def _study(self) -> str:
        assert self.member.volunteering is not None, "a device volunteers"
        return self.member.volunteering.study

    async def _view(self) -> CommitteeView:
        path = url_path("studies", self._study, "rounds", self._round, "committee")
        answer = await self.transport.send("GET", path, ticket=self.credential)
        return parse_document(CommitteeView, answer.content)

    def _is_member(self, packed: str) -> bool:
        """Return whether a committee, which `act` checks, has the device as a member."""
        try:
            committee = Committee.unpack(bytes.fromhex(packed))
        except ValueError as error:
            raise UnsafeRequestError(f"showed a malformed committee: {error}") from None
        identity = self.member.identity.public
        return any(entry.identity == identity for entry in committee.entries)
