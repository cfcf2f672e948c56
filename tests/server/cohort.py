"""Six devices in one study, and what they check about the answers they get."""

from dataclasses import dataclass
from typing import Any

import httpx

from protocol.api.messages import PROBLEM_TYPE_PREFIX
from secagg.keys import SIGNATURE_BYTES
from secagg.messages import Complaints, KeyShares, UnmaskingShares
from tests.server.device import KINDS, Device
from tests.server.harness import Served, together, until_summed


def refused(response: httpx.Response, status: int, kind: str) -> str:
    """Check that `response` is a problem of this status and type; return its detail."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert (problem["type"], problem["status"]) == (PROBLEM_TYPE_PREFIX + kind, status)
    assert problem["title"]
    return str(problem["detail"])


@dataclass
class Cohort:
    """A study, its remaining devices, and the devices in its sum."""

    served: Served
    study: str
    devices: list[Device]

    def __post_init__(self) -> None:
        self.counted = self.devices

    def sizes(self) -> dict[str, int]:
        """Return the size of each message of this cohort in bytes, at most."""
        holders = self.devices[0].cohort.parameters.holders
        sizes = (
            KeyShares.nbytes(holders),
            Complaints.nbytes(0),
            self.devices[0].ring.nbytes + SIGNATURE_BYTES,
            SIGNATURE_BYTES,
            UnmaskingShares.nbytes(holders),
        )
        return dict(zip(KINDS, sizes, strict=True))

    async def take_steps(self, *steps: str) -> None:
        """Take steps, all of them together."""
        await together(self.devices, *steps)

    async def take_steps_but_last_device(self, *steps: str) -> Device:
        """Take steps, the last of them without the last device; return that one."""
        *before, last = steps
        for step in before:
            await self.take_steps(step)
        await together(self.devices[:-1], last)
        return self.devices[-1]

    async def take_step_without(self, step: str, *slots: int) -> None:
        """Take a step without the devices in these slots, until nobody waits for them."""
        here = [d for d in self.devices if d.seat is not None and d.seat.slot not in slots]
        await together(here, step)
        await self.served.pass_phase(self.study)
        self.devices = here
        if step in ("share", "check", "mask"):
            self.counted = here

    async def check_exact_sum(self) -> None:
        """Check that the round ends with the exact sum of those who are in it."""
        await until_summed(self.served, self.study, self.counted)

    async def check_failure(self) -> str:
        """Check that the round ends without a sum that could be read; return the reason."""
        view = await self.served.until_closed(self.study)
        assert (view.state, view.participants, view.cohorts[0].phase) == ("failed", 0, "failed")
        path = f"/v1/studies/{self.study}/rounds/1/cohorts/0/sum"
        refused(await self.served.client.get(path), 410, "cohort-failed")
        return str(view.cohorts[0].failure)


async def create_full_cohort(served: Served, **changes: Any) -> Cohort:
    """Return a new study with `changes`, whose one cohort is full."""
    study = await served.create(**changes)
    return Cohort(served, study, await served.join(study, 6))
