"""Rounds over HTTP: listed, shown, waited for."""

import asyncio

import pytest

from protocol.messages import PROBLEM_TYPE_PREFIX, RoundPage
from tests.server.harness import Served, play


async def test_rounds_are_listed_first_to_last_page_by_page(served: Served) -> None:
    study = await served.create(rounds=3)
    for after in range(3):
        await play(served, study, after=after, count=6)
        await served.until_closed(study, after + 1)
    path = f"/v1/studies/{study}/rounds"
    first = RoundPage.model_validate_json((await served.client.get(f"{path}?limit=2")).content)
    assert ([one.number for one in first.rounds], first.next) == ([1, 2], 2)
    answer = await served.client.get(path, params={"after": first.next, "limit": 2})
    rest = RoundPage.model_validate_json(answer.content)
    assert ([one.number for one in rest.rounds], rest.next) == ([3], None)
    assert rest.rounds[0].cohorts[0].survivors == (0, 1, 2, 3, 4, 5)


async def test_a_running_round_shows_how_many_were_heard(served: Served) -> None:
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


async def test_whoever_waits_for_a_round_hears_of_it_when_it_opens(served: Served) -> None:
    study = await served.create(start=False)
    waiting = asyncio.create_task(served.open_round(study))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await served.client.post(f"/v1/studies/{study}/start")
    assert (await asyncio.wait_for(waiting, 5)).number == 1


async def test_no_round_is_told_at_the_end_of_the_wait(served: Served) -> None:
    study = await served.create()
    path = f"/v1/studies/{study}/rounds/open"
    response = await served.client.get(path, params={"after": 1, "wait": 0.05})
    assert (response.status_code, response.json()["type"]) == (
        409,
        f"{PROBLEM_TYPE_PREFIX}no-round",
    )
    assert response.headers["retry-after"] == "1"


async def test_a_study_that_is_over_tells_whoever_waits(served: Served) -> None:
    study = await served.create()
    path = f"/v1/studies/{study}/rounds/open"
    waiting = asyncio.create_task(served.client.get(path, params={"after": 1, "wait": 30}))
    await asyncio.sleep(0.05)
    await served.client.post(f"/v1/studies/{study}/stop")
    response = await asyncio.wait_for(waiting, 5)
    assert (response.status_code, response.json()["type"]) == (
        409,
        f"{PROBLEM_TYPE_PREFIX}wrong-state",
    )


async def test_stopping_a_study_fails_its_cohorts_for_everybody(served: Served) -> None:
    study = await served.create()
    devices = await served.join(study, 6)
    await asyncio.gather(*(device.share() for device in devices))
    waiting = asyncio.create_task(devices[0].get("survivors", wait=30))
    await served.client.post(f"/v1/studies/{study}/stop")
    assert (await asyncio.wait_for(waiting, 5)).status_code in (409, 410)
    response = await devices[1].get("share-commitments")
    assert response.json()["detail"] == "the cohort failed: the study was stopped"


@pytest.mark.parametrize("number", ["0", "-1", "99999999999999999999", "x"])
async def test_a_round_number_that_cannot_be_is_malformed(served: Served, number: str) -> None:
    study = await served.create()
    response = await served.client.get(f"/v1/studies/{study}/rounds/{number}")
    assert (response.status_code, response.json()["type"]) == (
        422,
        f"{PROBLEM_TYPE_PREFIX}malformed",
    )


async def test_a_sum_is_not_shown_before_it_is_made(served: Served) -> None:
    study = await served.create()
    path = f"/v1/studies/{study}/rounds/1/cohorts"
    early = await served.client.get(f"{path}/0/sum")
    assert (early.status_code, early.json()["phase"]) == (409, "enrolling")
    assert (await served.client.get(f"{path}/1/sum")).status_code == 404
