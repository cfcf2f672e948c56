"""Idempotency-Key: a repeated creation creates nothing and receives the first answer."""

import asyncio
from typing import Any

import httpx
from sqlalchemy import func, select

from server.db.idempotency import RETENTION
from server.db.schema import IdempotencyKeyRow
from tests.server.cohort import refused
from tests.server.conftest import Serve
from tests.server.harness import Served, study_request

KEY = "5f1c-" + "k" * 195


async def create(served: Served, key: str | None = KEY, **changes: Any) -> httpx.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    return await served.client.post("/v1/studies", json=study_request(**changes), headers=headers)


async def studies(served: Served) -> list[str]:
    listed = (await served.client.get("/v1/studies")).json()["studies"]
    return [study["id"] for study in listed]


async def test_the_same_request_by_the_same_key_is_one_study_and_one_answer(
    serve: Serve, database_url: str
) -> None:
    """Also after a restart, and after the study has changed."""
    async with serve(database_url) as served:
        first = await create(served)
        assert first.status_code == 201
        assert "idempotent-replayed" not in first.headers
    async with serve(database_url) as served:
        path = first.headers["location"]
        await served.client.post(f"{path}/stop")
        again = await create(served)
        assert (again.status_code, again.content) == (201, first.content)
        assert (again.headers["idempotent-replayed"], again.headers["location"]) == ("true", path)
        assert len(await studies(served)) == 1


async def test_a_key_of_another_request_is_refused(served: Served) -> None:
    first = await create(served)
    refused(await create(served, name="others"), 409, "idempotency-key-reused")
    assert await studies(served) == [first.json()["id"]]


async def test_without_a_key_or_with_another_each_request_creates_a_study(served: Served) -> None:
    made = [await create(served, key) for key in (None, None, "a", "b")]
    assert len({answer.json()["id"] for answer in made}) == 4


async def test_first_uses_at_the_same_time_create_one_study(
    serve: Serve, postgres_url: str
) -> None:
    async with serve(postgres_url) as first, serve(postgres_url) as second:
        answers = await asyncio.gather(*(create(served) for served in (first, second) * 4))
        assert {answer.status_code for answer in answers} == {201}
        assert {answer.content for answer in answers} == {answers[0].content}
        replayed = [answer for answer in answers if "idempotent-replayed" in answer.headers]
        assert (len(replayed), len(await studies(first))) == (7, 1)


async def test_a_budget_that_holds_one_study_is_spent_once_by_one_key(served: Served) -> None:
    """A population has exact sums of one study at a time."""
    assert (await served.client.put("/v1/populations/one", json={})).status_code == 201
    answers = await asyncio.gather(*(create(served, population="one") for _ in range(3)))
    assert [answer.status_code for answer in answers] == [201] * 3, answers[0].text
    assert len(await studies(served)) == 1
    refused(await create(served, "other", population="one"), 409, "budget-spent")


async def test_a_refused_request_may_be_corrected_under_its_key(served: Served) -> None:
    refused(await create(served, rounds=0), 422, "malformed")
    assert (await create(served)).status_code == 201


async def test_an_invalid_key_is_malformed(served: Served) -> None:
    for key in ("", "k" * 201, "a b", "tab\t", "umläut"):
        response = await served.client.post(
            "/v1/studies", json=study_request(), headers={"Idempotency-Key": key.encode()}
        )
        refused(response, 422, "malformed")
        assert response.json()["errors"][0]["location"] == "header.Idempotency-Key"
        assert await studies(served) == []


async def test_keys_are_valid_for_a_day_and_deleted_by_later_ones(each_served: Served) -> None:
    for key in ("a", "b"):
        await create(each_served, key)
    if each_served.store.database.is_sqlite:  # a jump of PostgreSQL's clock is noticed before
        each_served.clock.advance(500 * RETENTION.total_seconds())  # one reading expires no key
        assert "idempotent-replayed" in (await create(each_served, "a")).headers
        each_served.clock.advance(-500 * RETENTION.total_seconds())
    await each_served.pass_days(1)
    assert "idempotent-replayed" in (await create(each_served, "a")).headers
    await each_served.pass_days(2)
    assert "idempotent-replayed" not in (await create(each_served, "a", name="new")).headers
    count = select(func.count()).select_from(IdempotencyKeyRow)
    database = each_served.store.database
    assert await database.read(lambda session: session.scalar(count)) == 1
