"""One device in a round of reports: one message, private before it leaves.

The report is made once, recorded with what it costs, and its bytes are sent until they arrive or
the device's patience ends.
Never is another made of the same item for the same study: the chance of two would average out.
A crash between record and send costs a device its part in the study, and its epsilon.
"""

import asyncio
from collections.abc import AsyncGenerator
from functools import partial

from client.journal import Given, What
from client.participation import Device, Step
from client.policy import Policy, PolicyError
from client.transport import Transport
from protocol.chance import Chance
from protocol.mechanisms import REPORTING
from protocol.messages import RoundView
from protocol.report import Report
from secagg.ring import Vector


class Reporting:
    """The part that `device` takes in the round that `view` shows, which takes reports.

    `chance` makes the report private: it must be the system's, but in a simulation. The
    device's `identity` is one that it keeps for all studies that ask for reports.
    """

    seat = None  # nobody sits: there is no cohort to hide in
    vector: Vector | None = None

    def __init__(
        self,
        transport: Transport,
        view: RoundView,
        device: Device,
        *,
        policy: Policy,
        chance: Chance,
    ) -> None:
        self._transport = transport
        self._plan = view.plan
        self._number = view.number
        self._device = device
        self._policy = policy
        self._chance = chance

    async def steps(self, study: str) -> AsyncGenerator[Step]:
        """Report to `study`.

        Raises:
            RefusedError: if the service asks for more than the policy gives.
            ServiceError: if the service refuses the report.
            JournalError: if what is to be given cannot be recorded.
            httpx.TransportError: if the service is out of reach for too long.
        """
        plan, device = self._plan, self._device
        mechanism = REPORTING.get(plan.mechanism)
        if mechanism is None:
            raise PolicyError("plan", "asked for a report to a round that sums vectors")
        given_to = await asyncio.to_thread(device.journal.rounds)
        self._policy.check_plan(plan, study, self._number, given_to)
        self._policy.check_enrolment(plan, device.identity, device.enrolment)
        epsilon = mechanism.epsilon(plan)
        allow = partial(self._policy.check_epsilon, epsilon=epsilon)
        allow(await asyncio.to_thread(device.journal.spent))  # before any work; `record` decides
        body = mechanism.encode(plan, [device.contribution.histogram], self._chance).tobytes()
        enrolment = device.enrolment if plan.registry else b""
        report = Report.sign(device.identity, plan.digest(), body, enrolment)
        given = Given.of(plan.study, self._number, 0, What.REPORT, report.fingerprint, epsilon)
        await asyncio.to_thread(device.journal.record, given, allow=allow)
        path = f"/studies/{study}/rounds/{self._number}/reports/{device.identity.public.hex()}"
        ticket = self._device.credential or None
        await self._transport.send("PUT", path, content=report.pack(), ticket=ticket)
        yield Step.REPORTED
