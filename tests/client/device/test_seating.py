"""A server that chooses the members of a cohort, in a study whose registrar seats the rounds."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from client.device.device import StudyDevice, steps_in_sum
from client.device.journal import MemoryJournal
from protocol.device_policy.plan_check import sharings
from protocol.device_policy.policy import Policy, PolicyError
from secagg.errors import UnsafeRequestError
from secagg.keys import Identity
from secagg.seating import CohortSeating
from tests.client.cohort import EVERY_ROUND_QUESTION, N, Service, device, participation, view_of
from tests.support.policies import refused_for

REGISTRAR, SERVER = Identity.of(bytes(range(32))), Identity.of(bytes(range(1, 33)))
POLICY = Policy(min_cohort=5, registrar=REGISTRAR.public)
COHORTS = 3


@dataclass
class SeatedService(Service):
    """A service whose registrar seats the device in cohort 1; `cheat` signs another seating."""

    cheat: Callable[["SeatedService"], CohortSeating] | None = None

    def seating(
        self, signer: Identity = REGISTRAR, joiners: int = N * COHORTS, number: int = 1
    ) -> CohortSeating:
        """Return the seating of this cohort by `signer`."""
        seated_round = self.plan.seated_round(joiners)
        return seated_round.sign(signer, number, b"".join(self.session.roster.identities))

    def roster(self) -> bytes:
        seating = self.seating() if self.cheat is None else self.cheat(self)
        return seating.pack() + super().roster()


def seated_service(
    cheat: Callable[[SeatedService], CohortSeating] | None = None, number: int = 1
) -> SeatedService:
    view = view_of(number, cohorts=COHORTS, registrar=REGISTRAR.public.hex())
    return SeatedService(view, REGISTRAR, cohort=1, cheat=cheat)


def enrolled_device(service: Service) -> StudyDevice:
    registry = service.plan.registry
    assert registry is not None
    return device(enrolment=REGISTRAR.sign(registry.enrolment_statement(device().identity.public)))


async def test_a_device_takes_the_seat_that_the_registrar_drew() -> None:
    service = seated_service()
    service.cheats["slot"] = lambda _body: (
        b'{"participant": "p", "deadline": "2030-01-01T00:00:00Z"}'
    )
    async with service.client() as http:
        part = participation(http, service.view, enrolled_device(service), POLICY)
        steps = [step async for step in part.steps("study-1")]
    assert steps == list(steps_in_sum("pairwise"))
    assert part.assignment is not None
    assert part.assignment.seat == (1, 0)
    assert isinstance(part.device.journal, MemoryJournal)
    assert {entry.cohort for entry in part.device.journal.entries} == {1}
    assert part.vector is not None
    service.check_total(part.vector)


def of_another_round(_service: SeatedService) -> CohortSeating:
    another = seated_service(number=2)
    another.session = _service.session
    return another.seating()


def of_another_cohort(service: SeatedService) -> CohortSeating:
    signature = service.seating(number=0).signature
    return CohortSeating(1, N * COHORTS, signature)


def with_a_moved_device(service: SeatedService) -> CohortSeating:
    seated_round = service.plan.seated_round(N * COHORTS)
    identities = service.session.roster.identities
    return seated_round.sign(REGISTRAR, 1, b"".join([*identities[:-1], SERVER.public]))


@pytest.mark.parametrize(
    "cheat",
    [
        lambda service: service.seating(SERVER),
        lambda _service: CohortSeating(1, N * COHORTS, bytes(64)),
        of_another_round,
        of_another_cohort,
        with_a_moved_device,
        lambda service: service.seating(joiners=N),  # a round of one small cohort
        lambda service: service.seating(joiners=N * COHORTS + 3),
    ],
)
async def test_a_device_sends_nothing_to_a_cohort_that_the_registrar_did_not_seat(
    cheat: Callable[[SeatedService], CohortSeating],
) -> None:
    service = seated_service(cheat)
    with refused_for("seating"):
        await play_enrolled(service)
    assert list(service.received) == ["participants"]


async def test_a_device_refuses_a_roster_without_a_seating() -> None:
    service = seated_service()
    service.cheats["roster"] = lambda body: body[72:]
    with pytest.raises(UnsafeRequestError, match="malformed"):
        await play_enrolled(service)
    assert list(service.received) == ["participants"]


async def test_a_device_refuses_a_seated_cohort_without_itself() -> None:
    service = seated_service()

    def without_the_device(body: bytes) -> bytes:
        seated_round, others = service.plan.seated_round(8 * COHORTS), body[72 + 224 :]
        identities = b"".join(service.session.roster.identities[1:])
        return seated_round.sign(REGISTRAR, 1, identities).pack() + others

    service.cheats["roster"] = without_the_device
    with pytest.raises(PolicyError, match="without this device"):
        await play_enrolled(service)
    assert list(service.received) == ["participants"]


async def play_enrolled(service: SeatedService) -> None:
    async with service.client() as http:
        part = participation(http, service.view, enrolled_device(service), POLICY)
        async for _ in part.steps("study-1"):
            pass


def test_a_device_shares_keys_three_times_in_a_study_without_a_vector() -> None:
    policy = Policy()
    assert sharings(policy, view_of().plan) == 3
    plan = view_of(question=EVERY_ROUND_QUESTION).plan
    assert sharings(policy, plan) == 3 + plan.rounds == plan.max_draws
    assert sharings(replace(policy, max_rounds=2), plan) == 3 + 2
