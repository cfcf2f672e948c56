"""Whole rounds over HTTP: losses in every phase, restarts in every phase, exact sums."""

import asyncio
from itertools import pairwise

import pytest

from protocol.messages import HeavyHitterPage
from protocol.round import Phase
from tests.server.conftest import Serve
from tests.server.harness import Served, play, sum_of


async def test_a_round_without_losses_sums_exactly_and_finishes_the_study(
    serve: Serve, database_url: str
) -> None:
    async with serve(database_url) as served:
        study = await served.create()
        devices = await play(served, study)
        view = await served.until_closed(study)
        assert (view.state, view.participants) == ("decoded", 6)
        assert await served.read_sum(study) == sum_of(devices)
        assert (await served.client.get(f"/v1/studies/{study}")).json()["state"] == "finished"
        answer = await served.client.get(f"/v1/studies/{study}/heavy-hitters")
        (found,) = HeavyHitterPage.model_validate_json(answer.content).heavy_hitters
        assert (found.item, found.estimate, found.standard_error) == ("ab", 6, 0)


@pytest.mark.parametrize(
    "lost",
    [
        ((0,), (), ()),
        ((), (1,), ()),
        ((), (), (2,)),
        ((0,), (1,), ()),
        ((5,), (), (3,)),
        ((), (4, 2), ()),
        ((), (), (0, 5)),
        ((), (1,), (3,)),
    ],
)
async def test_losses_in_any_phase_leave_the_sum_of_the_survivors(
    served: Served, lost: tuple[tuple[int, ...], ...]
) -> None:
    study = await served.create()
    devices = await play(served, study, lost=lost)
    view = await served.until_closed(study)
    assert view.participants == len(devices) == 6 - len(lost[0]) - len(lost[1])
    assert view.cohorts[0].survivors == tuple(d.seat.slot for d in devices if d.seat)
    assert await served.read_sum(study) == sum_of(devices)


async def test_losses_in_every_phase_of_a_larger_cohort_leave_an_exact_sum(
    serve: Serve, database_url: str
) -> None:
    terms = {"cohort_size": 24, "minimum": 20, "corrupt": 0.1, "dropout": 0.3}
    async with serve(database_url) as served:
        study = await served.create(terms=terms)
        devices = await play(served, study, lost=((3, 4), (5, 6), (7, 8, 9)), count=24)
        view = await served.until_closed(study)
        assert await served.read_sum(study) == sum_of(devices)
        heard = {record.phase: record.heard for record in view.cohorts[0].history}
        assert heard == {
            Phase.ENROLLING: 24,
            Phase.SHARING: 22,
            Phase.MASKING: 20,
            Phase.UNMASKING: 17,
            Phase.SUMMED: 0,
        }


@pytest.mark.parametrize("step", [0, 1, 2, 3])
async def test_a_service_restarted_in_the_middle_of_a_phase_goes_on_from_its_rows(
    serve: Serve, database_url: str, step: int
) -> None:
    """The first half speaks to one application object, the other half to another one."""
    async with serve(database_url) as served:
        study = await served.create()
        devices = await served.join(study, 3 if step == 0 else 6)
        for name in ("share", "mask", "reveal")[: max(step - 1, 0)]:
            await asyncio.gather(*(getattr(device, name)() for device in devices))
        if step:
            name = ("share", "mask", "reveal")[step - 1]
            await asyncio.gather(*(getattr(device, name)() for device in devices[:3]))
    served.clock.advance(100_000)  # every deadline passed while nobody served
    async with serve(database_url) as again:
        for device in devices:
            device.client = again.client
        if step == 0:
            devices += await again.join(study, 3, first=3)
        for number, name in enumerate(("share", "mask", "reveal"), start=1):
            late = devices[3:] if number == step else devices
            if number >= step:
                await asyncio.gather(*(getattr(device, name)() for device in late))
        view = await again.until_closed(study)
        assert (view.state, view.participants) == ("decoded", 6)
        assert await again.read_sum(study) == sum_of(devices)


async def test_a_study_of_several_rounds_adds_up_what_they_estimate(
    serve: Serve, database_url: str
) -> None:
    async with serve(database_url) as served:
        study = await served.create(rounds=3)
        for after in range(3):
            devices = await play(served, study, after=after)
            await served.until_closed(study, after + 1)
            assert await served.read_sum(study, after + 1) == sum_of(devices)
        answer = await served.client.get(f"/v1/studies/{study}/heavy-hitters")
        found = HeavyHitterPage.model_validate_json(answer.content).heavy_hitters
        assert {hitter.item: hitter.estimate for hitter in found} == {"ab": 18, "a": 6, "abc": 6}
        rounds = (await served.client.get(f"/v1/studies/{study}/rounds")).json()["rounds"]
        assert [one["state"] for one in rounds] == ["decoded"] * 3
        seeds = [one["plan"]["seed"] for one in rounds]
        assert all(one != other for one, other in pairwise(seeds))


async def test_cohorts_of_a_round_add_up_and_one_that_fails_costs_the_others_nothing(
    serve: Serve, database_url: str
) -> None:
    terms = {"cohort_size": 5, "minimum": 3, "cohorts": 3, "corrupt": 0, "dropout": 0}
    async with serve(database_url) as served:
        study = await served.create(terms=terms)
        devices = await served.join(study, 10)
        for name in ("share", "mask", "reveal"):
            await asyncio.gather(*(getattr(device, name)() for device in devices))
        served.clock.advance(601)  # nobody came to the third cohort
        view = await served.until_closed(study)
        assert [cohort.phase for cohort in view.cohorts] == ["summed", "summed", "failed"]
        assert view.cohorts[2].failure == "0 of 5 enrolled in time, where 3 are needed"
        assert (view.state, view.participants) == ("decoded", 10)
        answer = await served.client.get(f"/v1/studies/{study}/heavy-hitters")
        assert answer.json()["heavy_hitters"][0]["estimate"] == 10


async def test_a_round_without_survivors_fails_and_the_study_goes_on(served: Served) -> None:
    study = await served.create(rounds=2)
    await played_short(served, study)
    failed = await served.until_closed(study)
    assert (failed.state, failed.participants, failed.distinct) == ("failed", 0, None)
    assert failed.cohorts[0].failure == "3 of 6 sent their vectors in time, where 4 are needed"
    devices = await play(served, study, after=1)
    view = await served.until_closed(study, 2)
    assert (view.state, view.participants) == ("decoded", 6)
    assert await served.read_sum(study, 2) == sum_of(devices)


async def played_short(served: Served, study: str) -> None:
    """Play a round whose second half vanishes before it sends a vector."""
    devices = await served.join(study, 6)
    await asyncio.gather(*(device.share() for device in devices))
    await asyncio.gather(*(device.mask() for device in devices[:3]))
    assert await served.pass_phase(study) is Phase.FAILED


async def test_a_device_of_a_failed_cohort_may_come_again_and_a_counted_one_may_not(
    served: Served,
) -> None:
    study = await served.create(rounds=3)
    await played_short(served, study)
    second = await served.open_round(study, 1)
    devices = await served.join(study, 6, 1)
    seats = [await device.apply(study, second.number) for device in devices]
    assert [seat.status_code for seat in seats] == [200] * 6
    for name in ("share", "mask", "reveal"):
        await asyncio.gather(*(getattr(device, name)() for device in devices))
    await served.until_closed(study, 2)
    await served.open_round(study, 2)
    refused = await devices[0].apply(study, 3)
    assert refused.status_code == 409
    assert refused.json()["type"] == "urn:blindtally:problem:already-counted"


async def test_two_services_on_one_database_close_each_phase_once(
    serve: Serve, postgres_url: str
) -> None:
    async with serve(postgres_url) as one, serve(postgres_url) as other:
        study = await one.create(rounds=2)
        for after in range(2):
            view = await one.open_round(study, after)
            devices = await one.join(study, 6, after)
            for number, device in enumerate(devices):
                device.client = (one, other)[number % 2].client
            for name in ("share", "mask", "reveal"):
                await asyncio.gather(*(getattr(device, name)() for device in devices))
            view = await other.until_closed(study, after + 1)
            assert (view.state, len(view.cohorts)) == ("decoded", 1)
            assert [record.phase for record in view.cohorts[0].history] == [
                "enrolling", "sharing", "masking", "unmasking", "summed",
            ]  # fmt: skip
            assert await other.read_sum(study, after + 1) == sum_of(devices)
        page = (await other.client.get(f"/v1/studies/{study}/rounds")).json()
        assert len(page["rounds"]) == 2
