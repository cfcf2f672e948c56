"""Whole rounds over HTTP: losses in every phase, restarts in every phase, exact sums."""

import asyncio
from random import Random
from unittest.mock import AsyncMock

import pytest

from protocol.api.messages import RoundPage, RoundView, SlotAssignment
from protocol.api.phases import Phase
from server import service
from tests.server.cohort import create_full_cohort, refused
from tests.server.conftest import Serve
from tests.server.device import KINDS, Device
from tests.server.harness import STEPS, Served, play, study_request, sum_of, together, until_summed


async def test_a_round_without_losses_is_exact_and_ends_the_study(each_served: Served) -> None:
    study = await each_served.create()
    devices = await play(each_served, study)
    await until_summed(each_served, study, devices)
    assert (await each_served.client.get(f"/v1/studies/{study}")).json()["state"] == "finished"
    (heavy_hitter,) = await each_served.heavy_hitters(study)
    assert (heavy_hitter.item, heavy_hitter.estimate, heavy_hitter.standard_error) == ("ab", 6, 0)


async def test_losses_in_every_phase_leave_an_exact_sum(each_served: Served) -> None:
    terms = {"cohort_size": 24, "minimum": 20, "corrupt": 0.1, "dropout": 0.3}
    study = await each_served.create(terms=terms)
    lost = ((3, 4), (5,), (6,), (7,), (8, 9))
    devices = await play(each_served, study, lost=lost, count=24)
    view = await until_summed(each_served, study, devices)
    received = {record.phase: record.received for record in view.cohorts[0].history}
    assert received == {
        Phase.ENROLLING: 24,
        Phase.SHARING: 22,
        Phase.CHECKING: 21,
        Phase.MASKING: 20,
        Phase.CONFIRMING: 19,
        Phase.UNMASKING: 17,
        Phase.SUMMED: 0,
    }


async def test_a_service_restarted_in_the_middle_of_each_phase_goes_on_from_its_rows(
    serve: Serve, database_url: str
) -> None:
    """Half of the devices use one application object in each phase, the others the next one."""
    async with serve(database_url) as served:
        study = await served.create()
        devices = await served.join(study, 3)
    for number, step in enumerate((*STEPS, "")):
        served.clock.advance(100_000)  # every deadline passed while nobody served
        async with serve(database_url) as served:
            for device in devices:
                device.client = served.client
            if number == 0:
                devices += await served.join(study, 3, first=3)
            else:
                await together(devices[3:], STEPS[number - 1])
            if step:
                await together(devices[:3], step)
            else:
                await until_summed(served, study, devices)


async def test_a_message_sent_twice_at_once_is_stored_once(each_served: Served) -> None:
    """Each device uses two connections at once, as after a retry that came too early."""
    study = await each_served.create()
    view = await each_served.open_round(study)
    devices = [Device(each_served.client, f"{n}", {"ab": 1}, Random(n)) for n in range(6)]
    for device in devices:
        device.view = view
        both = await asyncio.gather(device.apply(study, 1), device.apply(study, 1))
        assert sorted(answer.status_code for answer in both) == [200, 201]
        device.seat, other = (SlotAssignment.model_validate_json(answer.content) for answer in both)
        assert other == device.seat
    for kind in KINDS:
        for device in devices:
            body = await device.compute(kind)
            both = await asyncio.gather(device.put(kind, body), device.put(kind, body))
            assert [answer.status_code for answer in both] == [204, 204]
    view = await each_served.until_closed(study)
    assert (view.participants, view.cohorts[0].enrolled) == (6, 6)
    assert await each_served.read_sum(study) == sum_of(devices)


async def test_a_study_of_several_rounds_adds_up_what_they_estimate(served: Served) -> None:
    study = await served.create(rounds=3)
    for after in range(3):
        devices = await play(served, study, after=after)
        await until_summed(served, study, devices, after + 1)
    heavy_hitters = await served.heavy_hitters(study)
    assert {hitter.item: hitter.estimate for hitter in heavy_hitters} == {
        "ab": 18,
        "a": 6,
        "abc": 6,
    }
    path = f"/v1/studies/{study}/rounds"
    first = RoundPage.model_validate_json((await served.client.get(f"{path}?limit=2")).content)
    assert ([view.number for view in first.rounds], first.next) == ([1, 2], 2)
    answer = await served.client.get(path, params={"after": first.next, "limit": 2})
    rest = RoundPage.model_validate_json(answer.content)
    assert ([view.number for view in rest.rounds], rest.next) == ([3], None)
    rounds = (*first.rounds, *rest.rounds)
    assert [view.state for view in rounds] == ["decoded"] * 3
    assert rounds[2].cohorts[0].survivors == (0, 1, 2, 3, 4, 5)
    assert len({view.plan.seed for view in rounds}) == 3


def _survivors(view: RoundView) -> list[tuple[int, ...]]:
    return [cohort.survivors for cohort in view.cohorts]


async def test_cohorts_of_a_round_add_up_without_failed_ones(served: Served) -> None:
    terms = {"cohort_size": 5, "minimum": 3, "cohorts": 3, "corrupt": 0, "dropout": 0}
    study = await served.create(terms=terms)
    devices = await served.join(study, 10)
    await together(devices, *STEPS)
    for _ in range(1_000):
        sizes = [len(survivors) for survivors in _survivors(await served.show_round(study))]
        if sizes == [5, 5, 0]:
            break
        await asyncio.sleep(0.01)
    assert sizes == [5, 5, 0]
    assert _survivors(await served.open_round(study)) == [(), (), ()]  # devices need no list
    served.clock.advance(601)  # nobody came to the third cohort
    view = await served.until_closed(study)
    assert [cohort.phase for cohort in view.cohorts] == ["summed", "summed", "failed"]
    assert view.cohorts[2].failure == "0 of 5 enrolled in time, where 3 are needed"
    assert (view.state, view.participants) == ("decoded", 10)
    assert (await served.heavy_hitters(study))[0].estimate == 10


async def test_a_round_without_survivors_fails_and_the_study_goes_on(served: Served) -> None:
    study = await served.create(rounds=2)
    await played_short(served, study)
    failed = await served.until_closed(study)
    assert (failed.state, failed.participants, failed.distinct) == ("failed", 0, None)
    assert failed.cohorts[0].failure == "3 of 6 sent their vectors in time, where 4 are needed"
    devices = await play(served, study, after=1)
    await until_summed(served, study, devices, 2)


async def played_short(served: Served, study: str) -> list[Device]:
    """Play a round whose second half drops out before masking."""
    devices = await served.join(study, 6)
    await together(devices, "share", "check")
    await together(devices[:3], "mask")
    assert await served.pass_phase(study) is Phase.FAILED
    return devices


async def test_a_device_of_a_failed_cohort_may_return_unlike_a_counted_one(served: Served) -> None:
    study = await served.create(rounds=3)
    failed = await played_short(served, study)
    second = await served.open_round(study, 1)
    devices = [device.again() for device in failed]
    for device in devices:
        await device.join(study, second)
    await together(devices, *STEPS)
    assert (await served.until_closed(study, 2)).participants == 6
    third = await served.open_round(study, 2)
    counted = devices[0].again()
    counted.view = third
    refused(await counted.apply(study, 3), 409, "already-counted")


async def test_a_device_that_dropped_out_before_its_vector_may_return_unlike_a_counted_one(
    served: Served,
) -> None:
    cohort = await create_full_cohort(served, rounds=2)
    dropped_out, counted, *_ = cohort.devices
    await cohort.take_steps("share", "check")
    await cohort.take_step_without("mask", 0)
    await cohort.take_steps("confirm", "reveal")
    await cohort.check_exact_sum()
    second = await served.open_round(cohort.study, 1)
    again = counted.again()
    again.view = second
    refused(await again.apply(cohort.study, 2), 409, "already-counted")
    await dropped_out.again().join(cohort.study, second)


async def test_a_domain_that_pads_with_zero_characters_is_asked_about_and_shown(
    each_served: Served,
) -> None:
    """PostgreSQL keeps such a document, but reads nothing out of it by itself."""
    domain = {"kind": "alphabet", "characters": "\0abc", "length": 3, "pad": "\0"}
    study = await each_served.create(question=study_request()["question"] | {"domain": domain})
    await each_served.join(study, 2)
    page = await each_served.client.get(f"/studies/{study}", headers={"accept": "text/html"})
    assert page.status_code == 200, page.text


async def test_a_background_task_runs_again_if_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_PAUSE_AFTER_FAILURE_SECONDS", 0.0)
    task = AsyncMock(side_effect=[OSError, ValueError, None])
    async with service.background_tasks(task), asyncio.timeout(5):
        while task.call_count < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
