"""Participation of a device in a one-shot sum: it sends one message, and may go.

The open round shows the plan and the committee. The device checks both against its policy, encodes
its vector and shares it with the committee (`secagg.oneshot.message`). The journal records the
message before it is sent, as a vector. The same bytes are sent until the service has accepted them,
or the device gives up: another message under the same identity is never made.
"""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from client.device.device import DeviceStep
from client.device.encoding import encode
from client.device.vector_participation import VectorParticipation
from client.http.address_and_retries import url_path
from client.http.exchange import refusing_malformed
from protocol.api.one_shot import SUM_NUMBER, OneShotRound
from protocol.api.phases import MessageKind
from secagg.errors import UnsafeRequestError
from secagg.oneshot.committee import Committee
from secagg.oneshot.message import DeviceMessage, make_message
from secagg.oneshot.moduli import joined


@dataclass
class OneShotParticipation(VectorParticipation):
    """The participation of a device by one message to a committee."""

    has_one_step = True

    async def steps(self, study: str) -> AsyncGenerator[DeviceStep]:
        """Send the message to a round of `study`; yield the only step, or none if not invited.

        Raises:
            UnsafeRequestError: if the service asks for more than the policy allows, or shows a
                committee that the plan does not have.
            ServiceError: if the service refuses the message.
            JournalError: if the message cannot be recorded.
            ServiceUnreachableError: if the service is out of reach for too long.
        """
        message = await asyncio.to_thread(self._prepare, study)
        if message is None:
            return
        path = url_path("studies", study, "rounds", self.view.number, "devices")
        await self.transport.send(
            "PUT",
            f"{path}/{message.identity.hex()}/message",
            content=message.pack(),
            ticket=self.device.credential or None,
        )
        yield DeviceStep.SENT

    def _prepare(self, study: str) -> DeviceMessage | None:
        """Return the message after the journal has recorded it, None without an invitation."""
        if not self._may_join(study):
            return None
        message, kind = self._make_message(), MessageKind.MASKED_INPUT
        self._record(SUM_NUMBER, kind, message.pack(), self._max_per_study, max_per_round=1)
        return message

    def _make_message(self) -> DeviceMessage:
        plan, device = self._plan, self.device
        facts = self._round()
        vector = encode(plan, device.contribution, plan.terms.minimum, self.chance)
        enrolment = device.enrolment if facts.session.registry else b""
        session, chance = facts.session, self.secrets
        message = make_message(session, device.identity, enrolment, joined(vector), chance)
        self.vector = vector
        return message

    def _round(self) -> OneShotRound:
        """Return the facts of the sum, with the committee that the service shows.

        Raises:
            UnsafeRequestError: if the plan's terms do not allow this committee.
        """
        packed = self.view.cohorts[0].committee if self.view.cohorts else None
        if packed is None:
            raise UnsafeRequestError("opened a one-shot round without a committee")
        with refusing_malformed():
            committee = Committee.unpack(bytes.fromhex(packed))
            return OneShotRound.of(self._plan, self._plan.digest(), committee)
