"""Rounds over HTTP: lists, views and waiting."""

import asyncio
from collections.abc import Mapping
from random import Random

import pytest

from protocol.mechanisms.registry import AnyPlan, parse_plan
from tests.server.cohort import refused
from tests.server.device import Device
from tests.server.harness import Served


async def test_a_running_round_shows_the_number_of_received_messages(served: Served) -> None:
    study = await served.create()
    devices = await served.join(study, 2)
    (cohort,) = (await served.show_round(study)).cohorts
    assert (cohort.phase, cohort.enrolled, cohort.holders) == ("enrolling", 2, 0)
    assert cohort.history[0].received == 2
    devices += await served.join(study, 4, first=2)
    await asyncio.gather(*(device.share() for device in devices[:4]))
    (cohort,) = (await served.show_round(study)).cohorts
    assert (cohort.phase, cohort.enrolled) == ("sharing", 6)
    assert [record.received for record in cohort.history] == [6, 4]
    assert (cohort.holders, cohort.threshold) == (5, 3)


async def test_a_round_that_is_read_again_and_again_is_parsed_once(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, parsed = await served.create(), list[object]()

    def counted(document: Mapping[str, object]) -> AnyPlan:
        parsed.append(document)
        return parse_plan(document)

    monkeypatch.setattr("server.db.repositories.rounds.rounds.parse_plan", counted)
    for _ in range(3):
        assert (await served.show_round(study)).plan.study == study
        assert (await served.open_round(study)).plan.study == study
    assert len(parsed) <= 1


async def test_a_request_that_waits_for_a_round_returns_when_it_opens(served: Served) -> None:
    study = await served.create(start=False)
    waiting = asyncio.create_task(served.open_round(study))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await served.client.post(f"/v1/studies/{study}/start")
    assert (await asyncio.wait_for(waiting, 5)).number == 1


async def test_a_request_without_a_round_is_refused_after_its_wait(served: Served) -> None:
    study = await served.create()
    path = f"/v1/studies/{study}/rounds/open"
    response = await served.client.get(path, params={"after": 1, "wait": 0.05})
    refused(response, 409, "no-round")
    assert response.headers["retry-after"] == "1"


async def test_a_stop_ends_waiting_requests(served: Served) -> None:
    study = await served.create()
    path = f"/v1/studies/{study}/rounds/open"
    waiting = asyncio.create_task(served.client.get(path, params={"after": 1, "wait": 30}))
    await asyncio.sleep(0.05)
    await served.client.post(f"/v1/studies/{study}/stop")
    response = await asyncio.wait_for(waiting, 5)
    refused(response, 409, "wrong-state")


async def test_a_stop_fails_the_cohorts_of_the_study(served: Served) -> None:
    study = await served.create()
    devices = await served.join(study, 6)
    await asyncio.gather(*(device.share() for device in devices))
    waiting = asyncio.create_task(devices[0].get("survivors", wait=30))
    await served.client.post(f"/v1/studies/{study}/stop")
    assert (await asyncio.wait_for(waiting, 5)).status_code in (409, 410)
    response = await devices[1].get("share-commitments")
    assert response.json()["detail"] == "the cohort failed: the study was stopped"


async def test_a_round_of_a_stopped_study_takes_no_devices(served: Served) -> None:
    study = await served.create()
    view = await served.open_round(study)
    await served.client.post(f"/v1/studies/{study}/stop")
    late = Device(served.client, "late", {}, Random(1))
    late.view = view
    detail = refused(await late.apply(study, 1), 409, "wrong-state")
    assert detail == "the study is stopped"


async def test_a_sum_is_not_shown_before_it_is_computed(served: Served) -> None:
    study = await served.create()
    path = f"/v1/studies/{study}/rounds/1/cohorts"
    early = await served.client.get(f"{path}/0/sum")
    assert (early.status_code, early.json()["phase"]) == (409, "enrolling")
    assert (await served.client.get(f"{path}/1/sum")).status_code == 404
