"""Committees of volunteers over ASGI: devices that offer themselves, and the registrar's draw."""

from collections.abc import Sequence
from dataclasses import replace
from random import SystemRandom
from typing import Any

from client.committee.member import CommitteeMember, Volunteering
from client.committee.member_journal import MemberJournal
from client.committee.registrar import DrawRecord, Registrar
from client.device.device import StudyDevice
from protocol.api.messages import RoundView
from protocol.api.phases import Phase
from protocol.device_policy.policy import Policy
from protocol.mechanisms.registry import AnyPlan
from secagg.keys import Identity
from secagg.oneshot.committee import Committee
from tests.server.harness import Served
from tests.server.one_shot.rounds import (
    MEMBER_POLICY,
    MINIMUM,
    TIMEOUTS,
    Members,
    create,
    one_shot_device,
    phase_of,
    transport_to,
)

REGISTRAR = Identity.of(bytes(range(32)))
VOLUNTEERS, SIZE = 12, 9
TERMS: dict[str, Any] = {
    "cohort_size": 60,
    "minimum": MINIMUM,
    "sum": "one-shot",
    "registrar": REGISTRAR.public.hex(),
    "committee": {"volunteers": VOLUNTEERS, "size": SIZE},
}
POLICY = Policy(
    min_cohort=MINIMUM, min_threshold=0, min_volunteers=VOLUNTEERS, registrar=REGISTRAR.public
)


class Volunteers(Members):
    """Devices that volunteer for the committee of a study."""

    @classmethod
    def of(cls, study: str, count: int = VOLUNTEERS) -> "Volunteers":
        """Return the first `count` devices as volunteers."""
        identities = [one_shot_device(number).identity for number in range(count)]
        return cls([volunteer(study, identity) for identity in identities])

    def numbers_in(self, view: RoundView) -> list[int]:
        """Return the numbers of the volunteers that the registrar drew, in their order."""
        publics = [member.identity.public for member in self.members]
        return [publics.index(entry.identity) for entry in committee_of(view).entries]


def volunteer(study: str, identity: Identity) -> CommitteeMember:
    """Return a device that volunteers in a study, with a fresh journal."""

    async def enrol(plan: AnyPlan) -> bytes:
        return enrolment(plan, identity.public)

    policy = replace(MEMBER_POLICY, serve_unverified=False)
    offer = Volunteering(study, enrol)
    return CommitteeMember(identity, MemberJournal(), policy, volunteering=offer)


def enrolment(plan: AnyPlan, identity: bytes) -> bytes:
    """Return the registrar's signature of an identity for the study of a plan."""
    assert plan.registry is not None
    return REGISTRAR.sign(plan.registry.enrolment_statement(identity))


def enrolled_device(view: RoundView, number: int) -> StudyDevice:
    """Return the device with a number, enrolled for the study."""
    device = one_shot_device(number)
    return replace(device, enrolment=enrolment(view.plan, device.identity.public))


def committee_of(view: RoundView) -> Committee:
    """Return the committee that a round shows."""
    return Committee.unpack(bytes.fromhex(view.cohorts[0].committee or ""))


async def create_drawn(served: Served, **changes: Any) -> str:
    """Create a study whose committees are drawn from volunteers; return its id."""
    return await create(served, **{"terms": TERMS, "timeouts": TIMEOUTS} | changes)


async def draw(served: Served, registrar: Registrar | None = None) -> list[str]:
    """Let the registrar draw the committees that wait; return the reasons of its refusals."""
    registrar = registrar or Registrar(REGISTRAR, DrawRecord(), SystemRandom())
    reports = list[str]()
    async with transport_to(served) as transport:
        await registrar.act(transport, report=lambda _round, text: reports.append(text))
    return [text for text in reports if text]


async def convene_volunteers(
    served: Served, study: str, volunteers: Volunteers, number: int = 1
) -> RoundView:
    """Let devices volunteer, and the registrar draw the committee; return the open round."""
    await volunteers.act(served)
    await served.until_phase(study, "drawing", number)
    assert await draw(served) == []
    assert await phase_of(served, study, number) is Phase.COLLECTING
    return await served.open_round(study, number - 1)


def devices(view: RoundView, numbers: Sequence[int]) -> list[StudyDevice]:
    """Return enrolled devices."""
    return [enrolled_device(view, number) for number in numbers]
