"""Steps of one device in a round of reports: one message, private before it is sent.

The report is made once and recorded with its privacy loss before it is sent: the noise of two
reports of the same item would average out. A crash between record and send costs the device its
part in the study, and its epsilon.
"""

import asyncio
from collections.abc import AsyncGenerator
from functools import partial

from client.device.device import DeviceStep, RoundParticipation
from client.device.journal import JournalEntry
from client.device.policy import PolicyError
from protocol.api.phases import MessageKind
from protocol.api.signed_report import SignedReport
from protocol.mechanisms.registry import REPORT_MECHANISMS


class ReportParticipation(RoundParticipation):
    """The participation of a device by a report, with its identity in all studies of reports."""

    async def steps(self, study: str) -> AsyncGenerator[DeviceStep]:
        """Report to `study`; yield the only step.

        Raises:
            PolicyError: if the service asks for more than the policy allows.
            ServiceError: if the service refuses the report.
            JournalError: if the report cannot be recorded.
            httpx.TransportError: if the service is out of reach for too long.
        """
        plan, device = self.view.plan, self.device
        mechanism = REPORT_MECHANISMS.get(plan.mechanism)
        if mechanism is None:
            raise PolicyError("plan", "asks for a report in a round that sums vectors")
        rounds_by_study = await asyncio.to_thread(device.journal.rounds_by_study)
        self.policy.check_plan(plan, study, self.view.number, rounds_by_study)
        self.policy.check_enrolment(plan, device.identity, device.enrolment)
        epsilon = mechanism.epsilon(plan)
        check_epsilon = partial(self.policy.check_epsilon, epsilon=epsilon)
        check_epsilon(await asyncio.to_thread(device.journal.epsilon_spent))  # before any work
        body = mechanism.encode(plan, [device.contribution.histogram], self.chance).tobytes()
        enrolment = device.enrolment if plan.registry else b""
        report = SignedReport.sign(device.identity, plan.digest(), body, enrolment)
        entry = JournalEntry.of(
            plan.study, self.view.number, 0, MessageKind.REPORT, report.content_digest, epsilon
        )
        await asyncio.to_thread(device.journal.record, entry, check_epsilon=check_epsilon)
        path = f"/studies/{study}/rounds/{self.view.number}/reports/{device.identity.public.hex()}"
        ticket = device.credential or None
        await self.transport.send("PUT", path, content=report.pack(), ticket=ticket)
        yield DeviceStep.REPORTED
