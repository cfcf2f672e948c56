"""Steps of one device in a round of reports: one message, private before it is sent.

The report is made once and recorded with its privacy loss. Its bytes are then sent until they
arrive or the device's patience ends. The device never makes a second report of the same item for
the same study, because the noise of two reports would average out. A crash between record and send
costs the device its part in the study, and its epsilon.
"""

import asyncio
from collections.abc import AsyncGenerator
from functools import partial

from client.device.device import Device, DeviceStep
from client.device.journal import JournalEntry
from client.device.policy import Policy, PolicyError
from client.transport import Transport
from protocol.mechanisms.registry import REPORT_MECHANISMS
from protocol.messages import RoundView, SlotAssignment
from protocol.phases import MessageKind
from protocol.randomness import RandomWords
from protocol.signed_report import SignedReport
from secagg.ring import Vector


class ReportParticipation:
    """The participation of `device` in the round of `view`, by a report.

    `chance` makes the report private: outside simulations it must be the system's randomness. The
    device has the same identity in all studies that ask for reports.
    """

    assignment: SlotAssignment | None = None  # a report needs no cohort to hide in
    vector: Vector | None = None

    def __init__(
        self,
        transport: Transport,
        view: RoundView,
        device: Device,
        *,
        policy: Policy,
        chance: RandomWords,
    ) -> None:
        self._transport = transport
        self._plan = view.plan
        self._number = view.number
        self._device = device
        self._policy = policy
        self._chance = chance

    async def steps(self, study: str) -> AsyncGenerator[DeviceStep]:
        """Report to `study`; yield the only step.

        Raises:
            PolicyError: if the service asks for more than the policy allows.
            ServiceError: if the service refuses the report.
            JournalError: if the report cannot be recorded.
            httpx.TransportError: if the service is out of reach for too long.
        """
        plan, device = self._plan, self._device
        mechanism = REPORT_MECHANISMS.get(plan.mechanism)
        if mechanism is None:
            raise PolicyError("plan", "asks for a report in a round that sums vectors")
        rounds_by_study = await asyncio.to_thread(device.journal.rounds_by_study)
        self._policy.check_plan(plan, study, self._number, rounds_by_study)
        self._policy.check_enrolment(plan, device.identity, device.enrolment)
        epsilon = mechanism.epsilon(plan)
        check_epsilon = partial(self._policy.check_epsilon, epsilon=epsilon)
        check_epsilon(await asyncio.to_thread(device.journal.epsilon_spent))  # before any work
        body = mechanism.encode(plan, [device.contribution.histogram], self._chance).tobytes()
        enrolment = device.enrolment if plan.registry else b""
        report = SignedReport.sign(device.identity, plan.digest(), body, enrolment)
        entry = JournalEntry.of(
            plan.study, self._number, 0, MessageKind.REPORT, report.content_digest, epsilon
        )
        await asyncio.to_thread(device.journal.record, entry, check_epsilon=check_epsilon)
        path = f"/studies/{study}/rounds/{self._number}/reports/{device.identity.public.hex()}"
        ticket = device.credential or None
        await self._transport.send("PUT", path, content=report.pack(), ticket=ticket)
        yield DeviceStep.REPORTED
